//! Processes that are quicker, slower, or stopped in the middle of a step.

use std::sync::Barrier;

use super::*;
use crate::file::content::tests::content;
use crate::file::nursery::Nursery;

/// Eight contenders, again and again: each time exactly one wins, under a new term.
#[test]
fn of_those_who_race_one_wins() {
    const CONTENDERS: u128 = 8;
    const ROUNDS: u128 = 300;
    let scratch = Scratch::new();
    let barrier = Barrier::new(CONTENDERS as usize);
    let mut tokens: Vec<Token> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CONTENDERS)
            .map(|me| {
                let (scratch, disk, barrier) = (&scratch, scratch.disk(), &barrier);
                scope.spawn(move || {
                    let mut tokens = Vec::new();
                    for round in 0..ROUNDS {
                        let claim = round * CONTENDERS + me + 1;
                        barrier.wait();
                        let answer = disk.take_at_once(&acquire(claim)).unwrap();
                        barrier.wait();
                        if let Acquired::Won { token, .. } = answer {
                            tokens.push(token);
                            assert_eq!(
                                disk.renew(&renew(claim, token, claim, 1 << 100)),
                                Ok(Renewed::Yes)
                            );
                            // Every third round it is deleted altogether, and created in a race.
                            if round % 3 == 0 {
                                fs::remove_dir_all(scratch.lease()).unwrap();
                            }
                            let released = disk.release(&release(claim, 1 << 100)).unwrap();
                            assert_eq!(released == Released::Yes, round % 3 != 0);
                        }
                    }
                    tokens
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(tokens.len(), ROUNDS as usize);
    tokens.sort();
    tokens.dedup();
    assert_eq!(tokens.len(), ROUNDS as usize, "no token twice");
    assert!(scratch.files().len() <= 2, "{:?}", scratch.files());
}

/// A holder renews without pause while contenders try to take over what they just read. As soon as
/// one succeeds, no renewal of the former does.
#[test]
fn a_takeover_and_a_renewal_exclude_each_other() {
    let scratch = Scratch::new();
    for round in 0..50 {
        let (holder, other) = (scratch.disk(), scratch.disk());
        let claim = round * 2 + 1;
        let token = won(holder.take_at_once(&acquire(claim)));
        let (renewed, taken) = std::thread::scope(|scope| {
            let renewing = scope.spawn(|| {
                let mut nonce = claim;
                loop {
                    let next = nonce + (1 << 64);
                    match holder.renew(&renew(claim, token, nonce, next)).unwrap() {
                        Renewed::Yes => nonce = next,
                        Renewed::Refused(record) => return (nonce, record.unwrap()),
                    }
                }
            });
            let taken = loop {
                let version = other.read(&name()).unwrap().unwrap().version;
                let request = Acquire { takeover: Some(version), ..acquire(claim + 1) };
                if let Acquired::Won { former, .. } = other.take_at_once(&request).unwrap() {
                    break former.unwrap();
                }
            };
            (renewing.join().unwrap(), taken)
        });
        assert_eq!(taken.holder.unwrap().nonce, Some(Nonce::from_bits(renewed.0)));
        assert!(renewed.1.is_of(Nonce::from_bits(claim + 1)));
        assert_eq!(other.release(&release(claim + 1, claim + 1)), Ok(Released::Yes));
    }
}

/// A process that read a head, wrote its record, and was stopped before the rename.
#[test]
fn a_writer_that_slept_through_later_changes_loses() {
    let scratch = Scratch::new();
    let disk = scratch.disk();
    won(disk.take_at_once(&acquire(1)));
    assert_eq!(disk.release(&release(1, 1)), Ok(Released::Yes));

    let register = disk.register(&name());
    let stale = snapshot(&register);
    let draft = register.draft(Nonce::random(), &content()).unwrap().unwrap();
    let alive = register.draft_alive(Nonce::from_bits(66), Nonce::random()).unwrap().unwrap();
    let head = Head { held: true, ..stale.head.renewed(Nonce::from_bits(66), Moment::NEVER) };
    let renewal = stale.head.renewed(Nonce::from_bits(67), Moment::NEVER);
    let released = stale.head.released(Nonce::random());

    for claim in 2..6 {
        let token = won(disk.take_at_once(&acquire(claim)));
        for nonce in claim..claim + 5 {
            assert_eq!(disk.renew(&renew(claim, token, nonce, nonce + 1)), Ok(Renewed::Yes));
        }
        if claim < 5 {
            assert_eq!(disk.release(&release(claim, claim + 5)), Ok(Released::Yes));
        }
        let before = disk.read(&name()).unwrap().unwrap().version;
        for late in [&head, &renewal, &released] {
            assert_eq!(register.swap(&stale.head, late), Ok(false));
        }
        assert_eq!(disk.read(&name()).unwrap().unwrap().version, before);
    }
    // Others swept meanwhile, but not what a sleeper may still need.
    assert_eq!(scratch.files().len(), 5, "{:?}", scratch.files());
    // Late clean-ups meet nothing.
    register.discard_record(&stale);
    register.discard_alive(&stale);
    register.sweep(&head, &content());
    drop((draft, alive));
    assert!(lost(disk.take_at_once(&acquire(9))).unwrap().is_of(Nonce::from_bits(5)));
    assert_eq!(scratch.files().len(), 3, "{:?}", scratch.files());
}

/// The same for one that was about to create the lease, or to clear away a headless one.
#[test]
fn a_creator_that_slept_loses() {
    let scratch = Scratch::new();
    let disk = scratch.disk();
    let nursery = Nursery::open(&scratch.path).unwrap().unwrap();
    nursery.register.draft(Nonce::random(), &content()).unwrap().unwrap().keep();
    won(disk.take_at_once(&acquire(1)));
    assert_eq!(list(&scratch.path.join(".new")).unwrap().len(), 1, "it is locked");
    let register = disk.register(&name());
    assert!(!nursery.move_to(&register).unwrap());
    register.clear();
    assert!(lost(disk.take_at_once(&acquire(2))).unwrap().is_of(Nonce::from_bits(1)));
    assert!(!nursery.move_to(&register).unwrap());
    assert_eq!(disk.release(&release(1, 1)), Ok(Released::Yes));
    assert!(!nursery.move_to(&register).unwrap());
}

/// A sleeper from before the directory was deleted and made anew.
#[test]
fn a_writer_from_a_former_life_loses() {
    let scratch = Scratch::new();
    let disk = scratch.disk();
    let token = won(disk.take_at_once(&acquire(1)));
    let register = disk.register(&name());
    let stale = snapshot(&register);
    fs::remove_dir_all(scratch.lease()).unwrap();
    won(disk.take_at_once(&acquire(1)));
    let renewal = stale.head.renewed(Nonce::from_bits(67), Moment::NEVER);
    assert_eq!(register.swap(&stale.head, &renewal), Ok(false));
    assert!(matches!(disk.renew(&renew(1, token, 1, 11)), Ok(Renewed::Refused(Some(_)))));
}

#[test]
fn what_killed_processes_left_is_swept_up() {
    let scratch = Scratch::new();
    let disk = scratch.disk();
    won(disk.take_at_once(&acquire(1)));
    assert_eq!(disk.release(&release(1, 1)), Ok(Released::Yes));
    let register = disk.register(&name());
    let id = Nonce::random();
    drop(register.draft(id, &content()).unwrap().unwrap().keep());
    drop(register.draft_alive(id, id).unwrap().unwrap().keep());
    let unborn = scratch.path.join(".new").join(id.to_string());
    fs::create_dir_all(unborn.join("records")).unwrap();
    fs::write(unborn.join("records").join("x"), "half a rec").unwrap();
    won(disk.take_at_once(&acquire(2)));
    let other = Acquire { name: LeaseName::new("other").unwrap(), ..acquire(3) };
    won(disk.take_at_once(&other));
    assert_eq!(scratch.files().len(), 6, "{:?}", scratch.files());
}

/// A file that a collector met before it was locked.
#[test]
fn a_draft_that_was_swept_too_early_is_noticed() {
    use crate::file::register::is_ours;
    let scratch = Scratch::new();
    let path = scratch.path.join("draft");
    let file = fs::File::create(&path).unwrap();
    fs::remove_file(&path).unwrap();
    assert!(!is_ours(&file).unwrap());
    let file = fs::File::create(&path).unwrap();
    let collector = fs::File::open(&path).unwrap();
    assert!(crate::file::sys::try_lock(&collector, crate::file::sys::Lock::Shared).unwrap());
    assert!(!is_ours(&file).unwrap());
    drop(collector);
    assert!(is_ours(&file).unwrap());
}
