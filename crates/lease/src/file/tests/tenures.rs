//! One tenure after another.

use super::*;
use crate::backend::{Backend, Expected, StoreErrorKind};
#[cfg(target_os = "linux")]
use crate::driver::within as woken;
use crate::record::{Expiry, SessionRef};

#[test]
fn a_tenure_from_beginning_to_end() {
    let scratch = Scratch::new();
    let disk = scratch.disk();
    assert_eq!(disk.read(&name()), Ok(None));
    let first = won(disk.take_at_once(&acquire(1)));
    // About the wall clock in microseconds, and far from 1.
    assert!(first.term > 1_700_000_000_000_000, "{first}");
    let record = lost(disk.take_at_once(&acquire(2))).unwrap();
    assert!(record.is_of(Nonce::from_bits(1)) && record.token == first);
    assert!(matches!(record.expiry, Expiry::ByStore(left) if left > LONG - SHORT && left <= LONG));

    assert_eq!(disk.renew(&renew(1, first, 1, 11)), Ok(Renewed::Yes));
    let foreign = disk.renew(&renew(1, first, 1, 12)).unwrap();
    assert!(matches!(foreign, Renewed::Refused(Some(record)) if record.is_of(Nonce::from_bits(1))));
    let wrong = disk.renew(&renew(1, Token::new(first.term + 1, 0), 11, 12)).unwrap();
    assert!(matches!(wrong, Renewed::Refused(Some(_))));

    assert_eq!(disk.release(&release(1, 1)), Ok(Released::Refused));
    assert_eq!(disk.release(&release(1, 11)), Ok(Released::Yes));
    assert_eq!(disk.release(&release(1, 11)), Ok(Released::Refused));
    let second = won(disk.take_at_once(&acquire(2)));
    assert_eq!(second.term, first.term + 1);
    // The head, its record, its alive file, and nothing else.
    assert_eq!(scratch.files().len(), 3, "{:?}", scratch.files());
}

#[test]
fn who_looks_creates_no_directory() {
    let scratch = Scratch::new();
    let root = scratch.path.join("not/there");
    let store = FileStore::look(&root).unwrap();
    assert_eq!(store.disk.read(&name()), Ok(None));
    assert!(store.watch(&name()).is_none());
    assert_eq!(store.disk.release(&release(1, 1)), Ok(Released::Refused));
    assert!(!scratch.path.join("not").exists());
    won(store.disk.take_at_once(&acquire(1)));
    assert_eq!(list(&root).unwrap().len(), 2, "the lease, and the place where it was prepared");
}

#[test]
fn versions_never_recur() {
    let scratch = Scratch::new();
    let disk = scratch.disk();
    let mut versions = std::collections::BTreeSet::new();
    let mut look = |disk: &Disk| {
        let version = disk.read(&name()).unwrap().unwrap().version;
        assert!(versions.insert(version.0.clone()), "{version:?}");
    };
    for _ in 0..2 {
        let token = won(disk.take_at_once(&acquire(1)));
        look(&disk);
        assert_eq!(disk.renew(&renew(1, token, 1, 11)), Ok(Renewed::Yes));
        look(&disk);
        assert_eq!(disk.renew(&renew(1, token, 11, 1)), Ok(Renewed::Yes));
        look(&disk);
        assert_eq!(disk.release(&release(1, 1)), Ok(Released::Yes));
        look(&disk);
        fs::remove_dir_all(scratch.lease()).unwrap();
    }
}

#[test]
fn conditions_are_kept() {
    let scratch = Scratch::new();
    let disk = scratch.disk();
    assert_eq!(lost(disk.take_at_once(&Acquire { create: false, ..acquire(1) })), None);
    let some = Acquire { expected: Some(Expected::Term(7)), ..acquire(1) };
    assert_eq!(lost(disk.take_at_once(&some)), None);
    let absent = Acquire { expected: Some(Expected::Absent), ..acquire(1) };
    let first = won(disk.take_at_once(&absent));
    let version = lost(disk.take_at_once(&absent)).unwrap().version;

    let takeover = |claim| Acquire { takeover: Some(version.clone()), ..acquire(claim) };
    assert_eq!(won(disk.take_at_once(&takeover(2))).term, first.term + 1);
    // It is another record by now.
    assert!(lost(disk.take_at_once(&takeover(3))).unwrap().is_of(Nonce::from_bits(2)));
    assert!(matches!(disk.renew(&renew(1, first, 1, 11)), Ok(Renewed::Refused(Some(_)))));
    assert_eq!(disk.release(&release(1, 1)), Ok(Released::Refused));

    assert_eq!(disk.release(&release(2, 2)), Ok(Released::Yes));
    let above = Acquire { above: first.term + 1000, ..acquire(4) };
    assert_eq!(won(disk.take_at_once(&above)).term, first.term + 1001);
}

#[test]
fn a_tenure_expires_by_the_boot_clock() {
    let scratch = Scratch::new();
    let disk = scratch.disk();
    let before = Moment::now();
    let first = won(disk.take_at_once(&Acquire { ttl: SHORT, ..acquire(1) }));
    // Before its time the holder is alive; so it lives on after it.
    assert!(lost(disk.take_at_once(&acquire(2))).is_some() || Moment::now() >= before + SHORT);
    wait_until(Moment::now() + SHORT);
    assert_eq!(disk.read(&name()).unwrap().unwrap().expiry, Expiry::ByStore(Duration::ZERO));
    assert_eq!(won(disk.take_at_once(&acquire(2))).term, first.term + 1);
    assert!(Moment::now() >= before + SHORT);
    assert!(matches!(disk.renew(&renew(1, first, 1, 11)), Ok(Renewed::Refused(Some(_)))));
}

#[test]
fn a_holder_that_is_gone_is_succeeded_at_once() {
    let scratch = Scratch::new();
    let (holder, other) = (scratch.disk(), scratch.disk());
    won(holder.take_at_once(&acquire(1)));
    let inherited = holder.holdings.lifeline(Nonce::from_bits(1)).unwrap();
    assert!(holder.holdings.lifeline(Nonce::from_bits(2)).is_none());
    // As when a process ends: the kernel closes what it had open.
    drop(holder);
    assert!(lost(other.take_at_once(&acquire(2))).is_some(), "somebody inherited the lifeline");
    drop(inherited);
    assert_eq!(other.read(&name()).unwrap().unwrap().expiry, Expiry::ByStore(Duration::ZERO));
    won(other.take_at_once(&acquire(2)));
    assert_eq!(scratch.files().len(), 3, "{:?}", scratch.files());
}

#[test]
fn an_alive_file_that_is_missing_or_another_proves_nothing() {
    let scratch = Scratch::new();
    let (holder, other) = (scratch.disk(), scratch.disk());
    won(holder.take_at_once(&acquire(1)));
    let alive = scratch.files().into_iter().find(|path| path.to_string_lossy().contains("alive."));
    let alive = alive.unwrap();
    fs::remove_file(&alive).unwrap();
    assert!(lost(other.take_at_once(&acquire(2))).is_some());
    fs::write(&alive, "").unwrap();
    assert!(lost(other.take_at_once(&acquire(2))).is_some());
    drop(holder);
    assert!(lost(other.take_at_once(&acquire(2))).is_some());
}

#[test]
fn attached_and_unattended_tenures_do_not_end_with_a_process() {
    let scratch = Scratch::new();
    let (asker, other) = (scratch.disk(), scratch.disk());
    let session = SessionRef { name: LeaseName::new("node").unwrap(), term: 3 };
    let request = Acquire { ttl: SHORT, session: Some(session.clone()), ..acquire(1) };
    let token = won(asker.take_at_once(&request));
    drop(asker);
    wait_until(Moment::now() + SHORT);
    let record = lost(other.take_at_once(&acquire(2))).unwrap();
    assert_eq!((record.session(), record.expiry), (Some(&session), Expiry::ByObservation));
    assert_eq!(other.renew(&renew(1, token, 1, 11)), Ok(Renewed::Yes));
    assert_eq!(other.read(&name()).unwrap().unwrap().expiry, Expiry::ByObservation);
    assert_eq!(other.release(&release(1, 11)), Ok(Released::Yes));

    let asker = scratch.disk();
    won(asker.take_at_once(&Acquire { unattended: true, ttl: SHORT, ..acquire(3) }));
    assert!(asker.holdings.lifeline(Nonce::from_bits(3)).is_none());
    drop(asker);
    assert!(matches!(
        other.read(&name()).unwrap().unwrap().expiry,
        Expiry::ByStore(left) if !left.is_zero()
    ));
    wait_until(Moment::now() + SHORT);
    won(other.take_at_once(&acquire(4)));
}

#[test]
fn a_note_outlives_release_expiry_and_death() {
    let scratch = Scratch::new();
    let note = |disk: &Disk| disk.read(&name()).unwrap().unwrap().note;
    let disk = scratch.disk();
    let token = won(disk.take_at_once(&Acquire { note: Some(b"first".to_vec()), ..acquire(1) }));
    let written = Renew { note: Some(b"second".to_vec()), ..renew(1, token, 1, 11) };
    assert_eq!(disk.renew(&written), Ok(Renewed::Yes));
    assert_eq!(disk.renew(&renew(1, token, 11, 12)), Ok(Renewed::Yes));
    // Writing a note must not have cost the proof of life.
    assert!(lost(scratch.disk().take_at_once(&acquire(9))).is_some());
    assert_eq!(disk.release(&release(1, 12)), Ok(Released::Yes));
    assert_eq!(note(&disk), b"second");

    won(disk.take_at_once(&Acquire { ttl: SHORT, ..acquire(2) }));
    wait_until(Moment::now() + SHORT);
    won(disk.take_at_once(&acquire(3)));
    assert_eq!(note(&disk), b"second");
    drop(disk);

    let disk = scratch.disk();
    won(disk.take_at_once(&acquire(4)));
    assert_eq!(note(&disk), b"second");
    assert_eq!(scratch.files().len(), 3, "{:?}", scratch.files());

    let long = Acquire { note: Some(vec![0; 64 * 1024 + 1]), ..acquire(5) };
    assert_eq!(disk.take_at_once(&long).unwrap_err().kind(), StoreErrorKind::Unsuitable);
}

#[test]
fn records_of_another_clock_are_observed() {
    let scratch = Scratch::new();
    let here = Domain::of_this_process();
    assert_eq!(here, Domain::of_this_process());
    let with = |domain| Disk::new(scratch.path.clone(), domain);
    let other_time = with(Domain { time: "time:[0]".to_owned(), ..here.clone() });
    let other_boot = with(Domain { boot: "another".to_owned(), ..here.clone() });
    let disk = with(here);
    won(disk.take_at_once(&Acquire { ttl: SHORT, ..acquire(1) }));
    wait_until(Moment::now() + SHORT);
    for other in [&other_time, &other_boot] {
        let record = lost(other.take_at_once(&acquire(2))).unwrap();
        assert_eq!(record.expiry, Expiry::ByObservation);
    }
    drop(disk);
    // A lock proves something within one boot, whatever the clocks say.
    assert!(lost(other_boot.take_at_once(&acquire(2))).is_some());
    won(other_time.take_at_once(&acquire(2)));

    let version = lost(other_boot.take_at_once(&acquire(3))).unwrap().version;
    won(other_boot.take_at_once(&Acquire { takeover: Some(version), ..acquire(3) }));
}

#[tokio::test]
async fn a_release_waits_for_the_acquire_that_it_ends() {
    let scratch = Scratch::new();
    let store = scratch.store();
    let flight = store.disk.holdings.begin(Nonce::from_bits(1));
    let error = store.release(release(1, 1)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    drop(flight);
    assert_eq!(store.release(release(1, 1)).await, Ok(Released::Refused));
    won(store.acquire(acquire(1)).await);
    assert_eq!(store.release(release(1, 1)).await, Ok(Released::Yes));
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn waiters_are_woken_by_a_new_hand_only() {
    let (scratch, patience) = (Scratch::new(), Duration::from_secs(5));
    let (holder, waiter) = (scratch.store(), scratch.store());
    let mut watch = waiter.watch(&name()).unwrap();
    woken(patience, watch.changed()).await.expect("once as it is established");
    let token = won(holder.acquire(acquire(1)).await);
    woken(patience, watch.changed()).await.expect("it was created");
    // The directory is watched from now on; what is already there may wake it once more.
    let _ = woken(Duration::from_millis(500), watch.changed()).await;
    assert_eq!(holder.renew(renew(1, token, 1, 11)).await, Ok(Renewed::Yes));
    let _ = woken(Duration::from_millis(500), watch.changed()).await;

    assert_eq!(holder.renew(renew(1, token, 11, 12)).await, Ok(Renewed::Yes));
    let note = Renew { note: Some(vec![1]), ..renew(1, token, 12, 13) };
    assert_eq!(holder.renew(note).await, Ok(Renewed::Yes));
    lost(waiter.acquire(acquire(2)).await);
    let quiet = woken(Duration::from_millis(100), watch.changed()).await;
    assert!(quiet.is_none(), "renewals and lost attempts wake nobody");

    assert_eq!(holder.release(release(1, 13)).await, Ok(Released::Yes));
    woken(patience, watch.changed()).await.expect("it was released");
    won(holder.acquire(acquire(3)).await);
    woken(patience, watch.changed()).await.expect("it was won");
    drop(holder);
    woken(patience, watch.changed()).await.expect("its holder is gone");
    won(waiter.acquire(acquire(4)).await);
    let _ = woken(patience, watch.changed()).await;
    fs::remove_dir_all(scratch.lease()).unwrap();
    woken(patience, watch.changed()).await.expect("it was deleted");
    let _ = woken(Duration::from_millis(500), watch.changed()).await;
    won(waiter.acquire(acquire(5)).await);
    woken(patience, watch.changed()).await.expect("it is there again");
}

#[test]
fn leases_that_have_a_record_are_listed() {
    let scratch = Scratch::new();
    let disk = scratch.disk();
    assert_eq!(disk.list().unwrap(), []);
    won(disk.take_at_once(&acquire(1)));
    fs::create_dir(scratch.path.join("headless")).unwrap();
    fs::create_dir(scratch.path.join("No Name")).unwrap();
    fs::write(scratch.path.join("a-file"), "").unwrap();
    assert_eq!(disk.list().unwrap(), [name()]);
    // Whoever lists must hear of one that cannot be read.
    fs::write(scratch.head().1, "torn").unwrap();
    assert_eq!(disk.list().unwrap(), [name()]);
    let gone = Disk::new(scratch.path.join("missing"), Domain::of_this_process());
    assert_eq!(gone.list().unwrap(), []);
}
