//! The keeper step by step: exactly what it sends and says.

use std::time::Duration;

use super::*;
use crate::backend::{Acquire, Acquired, Release, Released, Renew};
use crate::memory::MemoryRecords;
use crate::record::Owner;

mod attached;
mod hedged;
mod herd;
mod slow_store;
mod standby;
mod unreadable;

const TTL: Duration = Duration::from_secs(10);

fn seconds(seconds: f64) -> Moment {
    Moment::ZERO + Duration::from_secs_f64(seconds)
}

fn name(name: &str) -> LeaseName {
    LeaseName::new(name).unwrap()
}

fn owner(name: &str) -> Owner {
    Owner { name: name.into(), incarnation: 7 }
}

fn nonce(bits: u128) -> Nonce {
    Nonce::from_bits(bits)
}

fn keeper() -> Keeper {
    Keeper::new(Wish::new(name("a"), owner("me")), Settings::new(TTL), 1, seconds(0.0))
}

fn won(term: u64) -> Answer {
    Answer::Acquire(Ok(Acquired::Won { token: Token::new(term, 0), former: None }))
}

fn no_answer(request: &Request) -> Answer {
    request.unanswered(StoreError::unavailable("no answer"))
}

fn events(keeper: &mut Keeper) -> Vec<Event> {
    std::iter::from_fn(|| keeper.next_event()).collect()
}

/// A keeper that won at second 0 with claim 1.
fn holder() -> Keeper {
    let mut keeper = keeper();
    let (flight, _) = keeper.poll(seconds(0.0), nonce(1)).unwrap();
    keeper.answer(seconds(0.1), flight, won(5));
    events(&mut keeper);
    keeper
}

/// Lets it come to its next renewal, alive; returns when, and what it sends.
fn renewal(keeper: &mut Keeper, fresh: u128) -> (Moment, u64, Renew) {
    loop {
        let now = keeper.next_at();
        keeper.tick(now);
        if events(keeper).contains(&Event::Ping) {
            keeper.pong(now);
            match keeper.poll(now, nonce(fresh)) {
                Some((flight, Request::Renew(renew))) => return (now, flight, renew),
                other => panic!("expected a renewal, not {other:?}"),
            }
        }
    }
}

#[test]
fn the_first_attempt_is_blind_and_its_answer_counts_from_the_send() {
    let mut keeper = keeper();
    let (flight, request) = keeper.poll(seconds(0.0), nonce(1)).unwrap();
    assert_eq!(
        request,
        Request::Acquire(Acquire {
            name: name("a"),
            claim: nonce(1),
            owner: owner("me"),
            ttl: TTL,
            session: None,
            note: None,
            create: true,
            takeover: None,
            expected: None,
            above: 0,
            unattended: false,
        })
    );
    assert_eq!(keeper.poll(seconds(0.0), nonce(2)), None, "one request at a time");
    keeper.answer(seconds(2.0), flight, won(5));
    let deadlines = Deadlines { lost: seconds(7.75), kill: seconds(9.0) };
    assert_eq!(
        events(&mut keeper),
        [Event::Won {
            token: Token::new(5, 0),
            claim: nonce(1),
            note: vec![],
            former: None,
            deadlines,
        },]
    );
}

#[test]
fn an_answer_that_comes_after_its_own_deadline_is_given_back() {
    let mut keeper = keeper();
    let (flight, _) = keeper.poll(seconds(0.0), nonce(1)).unwrap();
    keeper.answer(seconds(7.75), flight, won(5));
    assert_eq!(events(&mut keeper), []);
    let (_, request) = keeper.poll(seconds(7.75), nonce(2)).unwrap();
    let release = Release { name: name("a"), claim: nonce(1), known: vec![nonce(1)] };
    assert_eq!(request, Request::Release(release));
}

#[test]
fn a_renewal_waits_for_a_sign_of_life_and_names_every_nonce_it_may_have_written() {
    let mut keeper = holder();
    let (sent, flight, renew) = renewal(&mut keeper, 2);
    assert!(sent <= seconds(10.0 / 6.0));
    assert_eq!((renew.claim, renew.token), (nonce(1), Token::new(5, 0)));
    assert_eq!((renew.known, renew.nonce), (vec![nonce(1)], nonce(2)));

    let error = StoreError::unavailable("no answer");
    keeper.answer(sent, flight, Answer::Renew(Err(error)));
    let (sent, flight, renew) = renewal(&mut keeper, 3);
    assert_eq!((renew.known, renew.nonce), (vec![nonce(1), nonce(2)], nonce(3)));

    keeper.answer(sent + Duration::from_millis(100), flight, Answer::Renew(Ok(Renewed::Yes)));
    let deadlines = Deadlines {
        lost: sent + Duration::from_millis(7_750),
        kill: sent + Duration::from_secs(9),
    };
    assert_eq!(events(&mut keeper), [Event::Renewed(deadlines)]);
    assert_eq!(renewal(&mut keeper, 4).2.known, [nonce(3)]);
}

#[test]
fn a_refusal_is_final_and_what_is_anothers_is_not_released() {
    for (record, loss) in
        [(None, Loss::Deleted), (Some(foreign_record()), Loss::Stolen { by: Some(owner("thief")) })]
    {
        let mut keeper = holder();
        let (now, flight, _) = renewal(&mut keeper, 2);
        keeper.answer(now, flight, Answer::Renew(Ok(Renewed::Refused(record))));
        assert_eq!(events(&mut keeper), [Event::Lost(loss)]);
        assert_eq!(keeper.poll(now, nonce(3)), None);
        keeper.ended(now);
        assert_eq!(keeper.poll(now, nonce(4)), None);
        assert_eq!(events(&mut keeper), [Event::Done]);
    }
}

#[test]
fn without_an_answer_it_is_lost_a_stop_budget_early_and_released_only_after_the_work() {
    let mut keeper = holder();
    let mut sent = 0;
    while keeper.deadlines().is_some() {
        let now = keeper.next_at();
        keeper.tick(now);
        if events(&mut keeper).contains(&Event::Lost(Loss::Expired)) {
            assert_eq!(now, seconds(7.75));
            break;
        }
        keeper.pong(now);
        if let Some((flight, request)) = keeper.poll(now, nonce(10 + sent)) {
            keeper.answer(now, flight, no_answer(&request));
            sent += 1;
        }
    }
    assert!(sent >= 3, "it tried {sent} times");
    assert_eq!(keeper.poll(seconds(8.0), nonce(3)), None, "the work has not ended");
    keeper.ended(seconds(8.0));
    let Some((_, Request::Release(release))) = keeper.poll(seconds(8.0), nonce(4)) else {
        panic!("no release");
    };
    assert_eq!(release.known.len(), 1 + sent as usize);
}

#[test]
fn who_does_not_answer_the_liveness_call_loses_the_lease() {
    let mut keeper = holder();
    loop {
        let now = keeper.next_at();
        assert_eq!(keeper.poll(now, nonce(2)), None);
        match events(&mut keeper).pop() {
            Some(Event::Lost(loss)) => {
                assert_eq!((loss, now), (Loss::Unresponsive, seconds(7.75)));
                return;
            }
            other => assert!(matches!(other, None | Some(Event::Ping))),
        }
    }
}

#[test]
fn who_gives_no_sign_of_life_is_asked_again_and_a_later_one_counts() {
    let mut keeper = holder();
    let mut refusals = 0;
    let renew = loop {
        let now = keeper.next_at();
        keeper.tick(now);
        if !events(&mut keeper).contains(&Event::Ping) {
            continue;
        }
        if refusals < 3 {
            refusals += 1;
            keeper.silent(now);
            assert_eq!(keeper.poll(now, nonce(2)), None, "nothing is renewed meanwhile");
            assert_eq!(events(&mut keeper), [], "not at once, or it would never rest");
        } else {
            keeper.pong(now);
            break keeper.poll(now, nonce(2));
        }
    };
    assert!(matches!(renew, Some((_, Request::Renew(_)))), "{renew:?}");
}

#[test]
fn who_never_gives_a_sign_of_life_is_lost_as_unresponsive_at_the_deadline() {
    let mut keeper = holder();
    let mut asked = 0;
    loop {
        let now = keeper.next_at();
        keeper.tick(now);
        for event in events(&mut keeper) {
            match event {
                Event::Ping => {
                    asked += 1;
                    keeper.silent(now);
                }
                Event::Lost(loss) => {
                    assert_eq!((loss, now), (Loss::Unresponsive, seconds(7.75)));
                    assert!(asked > 5, "asked {asked} times");
                    return;
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn who_stood_still_past_the_deadline_was_paused() {
    let mut keeper = holder();
    keeper.tick(seconds(60.0));
    assert_eq!(events(&mut keeper), [Event::Lost(Loss::Paused)]);
}

#[test]
fn a_claim_without_an_answer_is_recognised_and_adopted_from_its_send() {
    let mut keeper = keeper();
    let (flight, request) = keeper.poll(seconds(0.0), nonce(1)).unwrap();
    keeper.answer(seconds(2.5), flight, no_answer(&request));
    let trouble = Some(StoreError::unavailable("no answer"));
    assert_eq!(events(&mut keeper), [Event::Trouble(trouble)]);
    let retry = keeper.next_at();
    let (flight, _) = keeper.poll(retry, nonce(2)).unwrap();
    let mut records = MemoryRecords::observed();
    let Request::Acquire(first) = request else { panic!() };
    records.acquire(seconds(0.1), first).unwrap();
    let record = records.read(retry, &name("a"));
    keeper.answer(retry, flight, Answer::Acquire(Ok(Acquired::Lost(record))));
    let [Event::Trouble(None), Event::Won { claim, .. }] = &events(&mut keeper)[..] else {
        panic!("it answers again, and it is won");
    };
    assert_eq!(*claim, nonce(1));
    assert_eq!(keeper.deadlines().unwrap().lost, seconds(7.75));
}

#[test]
fn a_record_that_stands_still_is_taken_after_its_own_ttl_and_a_renewed_one_is_not() {
    let mut keeper = keeper();
    let mut record = foreign_record();
    let mut now = seconds(0.0);
    let (mut flight, _) = keeper.poll(now, nonce(1)).unwrap();
    let mut seen = now;
    keeper.answer(now, flight, Answer::Acquire(Ok(Acquired::Lost(Some(record.clone())))));
    for round in 0..100 {
        now = keeper.next_at();
        let (next, request) = keeper.poll(now, nonce(10 + round)).unwrap();
        flight = next;
        if let Request::Acquire(acquire) = request {
            assert_eq!(acquire.takeover.as_ref(), Some(&record.version));
            assert_eq!(now.since(seen), record.ttl);
            return;
        }
        assert_eq!(request, Request::Read(vec![name("a")]), "it only looks until then");
        assert!(now.since(seen) < record.ttl);
        if round == 3 {
            record.version = crate::record::Version("renewed".into());
            seen = now;
        }
        keeper.answer(now, flight, Answer::Read(Ok(vec![Some(record.clone())])));
    }
    panic!("never taken over");
}

#[test]
fn a_foreign_holder_that_the_store_expires_is_never_taken_over_by_observation() {
    let mut keeper = keeper();
    let mut record = foreign_record();
    record.holder.as_mut().unwrap().claim = None;
    record.expiry = crate::record::Expiry::ByStore(record.ttl);
    let mut now = seconds(0.0);
    let (mut flight, request) = keeper.poll(now, nonce(1)).unwrap();
    let mut request = request;
    while now < seconds(200.0) {
        let answer = match request {
            Request::Acquire(acquire) => {
                assert_eq!(acquire.takeover, None);
                Answer::Acquire(Ok(Acquired::Lost(Some(record.clone()))))
            }
            _ => Answer::Read(Ok(vec![Some(record.clone())])),
        };
        keeper.answer(now, flight, answer);
        now = keeper.next_at();
        (flight, request) = keeper.poll(now, nonce(2)).unwrap();
    }
}

/// A store that says only how long it takes at most to free a record says the same at every look.
#[test]
fn a_record_that_the_store_frees_is_attempted_when_its_time_is_over() {
    let mut keeper = keeper();
    let mut record = foreign_record();
    record.holder.as_mut().unwrap().claim = None;
    record.expiry = crate::record::Expiry::ByStore(record.ttl);
    let mut now = seconds(0.0);
    let (mut flight, mut request) = keeper.poll(now, nonce(1)).unwrap();
    let mut attempts = Vec::new();
    while now < seconds(50.0) {
        let answer = match request {
            Request::Acquire(_) => {
                attempts.push(now);
                Answer::Acquire(Ok(Acquired::Lost(Some(record.clone()))))
            }
            _ => Answer::Read(Ok(vec![Some(record.clone())])),
        };
        keeper.answer(now, flight, answer);
        now = keeper.next_at();
        (flight, request) = keeper.poll(now, nonce(2)).unwrap();
    }
    assert_eq!(attempts, [0.0, 20.0, 40.0].map(seconds));
}

/// What is given back while the lease is held, a session that was taken over for it, is answered
/// after the loss: the keeper must come to its end all the same.
#[test]
fn an_answer_after_the_loss_does_not_hold_up_the_end() {
    let mut keeper = keeper();
    let (flight, _) = keeper.poll(seconds(0.0), nonce(1)).unwrap();
    // Too late: given back, without an answer.
    keeper.answer(seconds(7.75), flight, won(5));
    let (flight, request) = keeper.poll(seconds(7.75), nonce(2)).unwrap();
    keeper.answer(seconds(7.75), flight, no_answer(&request));
    let (flight, _) = keeper.poll(seconds(7.75), nonce(3)).unwrap();
    keeper.answer(seconds(7.75), flight, won(6));
    let release_at = keeper.next_at();
    let (release, request) = keeper.poll(release_at, nonce(4)).unwrap();
    assert!(matches!(request, Request::Release(_)));
    keeper.give_up(release_at, Loss::Expired);
    keeper.answer(release_at, release, Answer::Release(Ok(Released::Refused)));
    keeper.ended(release_at);
    let (flight, _) = keeper.poll(release_at, nonce(5)).expect("the lease is given back");
    keeper.answer(release_at, flight, Answer::Release(Ok(Released::Yes)));
    assert_eq!(keeper.poll(release_at, nonce(6)), None);
    assert!(events(&mut keeper).contains(&Event::Done));
}

#[test]
fn a_known_record_that_vanished_is_waited_out() {
    let mut keeper = keeper();
    let (mut flight, _) = keeper.poll(seconds(0.0), nonce(1)).unwrap();
    let lost = |record| Answer::Acquire(Ok(Acquired::Lost(record)));
    keeper.answer(seconds(0.0), flight, lost(Some(foreign_record())));
    let mut now = keeper.next_at();
    let gone = now;
    (flight, _) = keeper.poll(now, nonce(2)).unwrap();
    for round in 0..100 {
        keeper.answer(now, flight, Answer::Read(Ok(vec![None])));
        now = keeper.next_at();
        let (next, request) = keeper.poll(now, nonce(10 + round)).unwrap();
        flight = next;
        let is_over = now.since(gone) >= foreign_record().ttl;
        match request {
            Request::Read(_) => assert!(!is_over),
            Request::Acquire(acquire) => return assert!(acquire.create && is_over),
            other => panic!("{other:?}"),
        }
    }
    panic!("never created");
}

#[test]
fn a_contender_that_gives_up_returns_what_it_may_have_won() {
    let mut keeper = keeper();
    let (flight, request) = keeper.poll(seconds(0.0), nonce(1)).unwrap();
    keeper.ended(seconds(1.0));
    assert_eq!(keeper.poll(seconds(1.0), nonce(2)), None, "the answer may still come");
    keeper.answer(seconds(2.0), flight, no_answer(&request));
    let (flight, request) = keeper.poll(seconds(2.0), nonce(3)).unwrap();
    let release = Release { name: name("a"), claim: nonce(1), known: vec![nonce(1)] };
    assert_eq!(request, Request::Release(release));
    keeper.answer(seconds(2.1), flight, Answer::Release(Ok(Released::Refused)));
    assert_eq!(keeper.poll(seconds(2.1), nonce(4)), None);
    assert_eq!(events(&mut keeper), [Event::Done]);
}

#[test]
fn a_note_is_written_again_until_a_renewal_with_it_is_confirmed() {
    let mut keeper = holder();
    keeper.write_note(seconds(1.0), 1, b"roster".to_vec());
    assert_eq!(events(&mut keeper), [Event::Ping], "at once, not at the next renewal");
    keeper.pong(seconds(1.0));
    let now = seconds(1.0);
    let Some((flight, Request::Renew(renew))) = keeper.poll(now, nonce(2)) else { panic!() };
    assert_eq!(renew.note, Some(b"roster".to_vec()));
    keeper.answer(now, flight, Answer::Renew(Err(StoreError::unavailable("no answer"))));
    let (now, flight, renew) = renewal(&mut keeper, 3);
    assert_eq!(renew.note, Some(b"roster".to_vec()));
    keeper.answer(now, flight, Answer::Renew(Ok(Renewed::Yes)));
    assert!(events(&mut keeper).contains(&Event::NoteWritten(1)));
    assert_eq!(renewal(&mut keeper, 4).2.note, None);
}

/// The holder's machine is stopped by its hypervisor for four ttls: its own clock stands still, so
/// nothing tells it. Its first renewal does, for the session and for all that is attached.
#[test]
fn a_hypervisor_pause_ends_the_session_and_all_its_leases_at_the_first_renewal() {
    let mut records = MemoryRecords::observed();
    let settings = Settings::new(TTL);
    let wish = Wish::new(name("node-1"), owner("me"));
    let mut session = Session::new(wish, settings.clone(), 1, seconds(0.0));
    let mut drawn = 0;
    let mut run =
        |session: &mut Session, records: &mut MemoryRecords, local: Moment, real: Moment| {
            let mut seen = Vec::new();
            loop {
                drawn += 1;
                if let Some((flight, request)) = session.poll(local, nonce(drawn)) {
                    session.answer(local, flight, records.apply(real, request));
                } else if let Some(event) = session.next_event() {
                    if event == SessionEvent::Session(Event::Ping) {
                        session.pong(local);
                    }
                    seen.push(event);
                } else {
                    return seen;
                }
            }
        };
    run(&mut session, &mut records, seconds(0.0), seconds(0.0));
    for lease in ["x", "y", "z"] {
        session.attach(seconds(0.0), name(lease), None).unwrap();
    }
    run(&mut session, &mut records, seconds(0.0), seconds(0.0));
    assert!(records.read(seconds(0.0), &name("x")).unwrap().session().is_some());

    // Four ttls pass for everybody else, and a contender takes over first the session, then x.
    let record = records.read(seconds(40.0), &name("node-1")).unwrap();
    let take = |lease: &str, takeover| Acquire {
        name: name(lease),
        claim: nonce(u128::MAX),
        owner: owner("contender"),
        ttl: TTL,
        session: None,
        note: None,
        create: false,
        takeover: Some(takeover),
        expected: None,
        above: 0,
        unattended: false,
    };
    records.acquire(seconds(40.0), take("node-1", record.version)).unwrap();

    // By its own clock it is second 4: the lease looks as good as ever, until it renews.
    assert!(session.keeper().deadlines().unwrap().lost > seconds(4.0));
    let seen = run(&mut session, &mut records, seconds(4.0), seconds(44.0));
    let lost = |event: &&SessionEvent| {
        matches!(
            event,
            SessionEvent::Session(Event::Lost(Loss::Stolen { .. }))
                | SessionEvent::Attached(_, Event::Lost(Loss::Stolen { .. }))
        )
    };
    assert_eq!(seen.iter().filter(lost).count(), 4, "{seen:?}");
}

fn foreign_record() -> Record {
    Record {
        version: crate::record::Version("1".into()),
        token: Token::new(3, 0),
        holder: Some(Holder {
            owner: owner("thief"),
            claim: Some(nonce(99)),
            nonce: Some(nonce(99)),
            session: None,
        }),
        ttl: TTL * 2,
        expiry: crate::record::Expiry::ByObservation,
        note: vec![],
    }
}
