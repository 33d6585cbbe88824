//! Those who only look until they are allowed to take.

use super::*;

fn standby() -> Keeper {
    let mut keeper = keeper();
    keeper.allow(seconds(0.0), false);
    keeper
}

fn read(names: &[&str]) -> Request {
    Request::Read(names.iter().map(|lease| name(lease)).collect())
}

fn saw(record: Option<Record>) -> Answer {
    Answer::Read(Ok(vec![record]))
}

fn renewed_record(version: &str) -> Record {
    Record { version: crate::record::Version(version.into()), ..foreign_record() }
}

/// Lets it look until then while the record stays as it is; returns when it looked.
fn looks(keeper: &mut Keeper, record: &Option<Record>, until: Moment) -> Vec<Moment> {
    let mut looks = Vec::new();
    while keeper.next_at() < until {
        let now = keeper.next_at();
        let (flight, request) = keeper.poll(now, nonce(1)).expect("it said that it would");
        assert_eq!(request, read(&["a"]));
        keeper.answer(now, flight, saw(record.clone()));
        assert_eq!(keeper.poll(now, nonce(1)), None);
        assert_eq!(events(keeper), []);
        looks.push(now);
    }
    looks
}

fn acquisition(sent: Option<(u64, Request)>) -> (u64, Acquire) {
    match sent {
        Some((flight, Request::Acquire(acquire))) => (flight, acquire),
        other => panic!("expected an acquisition, not {other:?}"),
    }
}

/// When it takes over a record that does not change.
fn taken_over(keeper: &mut Keeper, record: &Record, mut now: Moment) -> Moment {
    loop {
        let (flight, request) = keeper.poll(now, nonce(2)).unwrap();
        let answer = match request {
            Request::Acquire(Acquire { takeover: Some(version), .. }) => {
                assert_eq!(version, record.version);
                return now;
            }
            Request::Acquire(acquire) => {
                assert!(!acquire.create);
                Answer::Acquire(Ok(Acquired::Lost(Some(record.clone()))))
            }
            _ => saw(Some(record.clone())),
        };
        keeper.answer(now, flight, answer);
        now = keeper.next_at();
    }
}

fn given_back(claim: u128) -> Request {
    let claim = nonce(claim);
    Request::Release(Release { name: name("a"), claim, known: vec![claim] })
}

#[test]
fn it_only_reads_and_rests_whatever_it_sees() {
    let released = Record { holder: None, ..foreign_record() };
    for record in [Some(foreign_record()), Some(released), None] {
        let mut keeper = standby();
        let looks = looks(&mut keeper, &record, seconds(1000.0));
        // A look each sixth of a ttl, give or take a fifth.
        assert!((500..=752).contains(&looks.len()), "{} looks at {record:?}", looks.len());
    }
}

#[test]
fn it_looks_at_once_when_the_store_pushes() {
    let mut keeper = standby();
    looks(&mut keeper, &Some(foreign_record()), seconds(30.0));
    let now = keeper.next_at() - Duration::from_millis(500);
    keeper.woken(now);
    let (flight, request) = keeper.poll(now, nonce(1)).unwrap();
    assert_eq!(request, read(&["a"]));
    // What is pushed meanwhile may be newer than the answer.
    keeper.woken(now);
    keeper.answer(now, flight, saw(Some(foreign_record())));
    assert!(keeper.next_at() <= now + Duration::from_millis(10), "{:?}", keeper.next_at());
}

#[test]
fn what_has_stood_still_is_taken_with_the_first_request_once_it_is_allowed() {
    let mut keeper = standby();
    looks(&mut keeper, &Some(foreign_record()), seconds(20.0));
    let now = seconds(20.0);
    assert!(keeper.next_at() > now);
    keeper.allow(now, true);
    assert_eq!(keeper.next_at(), now);
    let (flight, acquire) = acquisition(keeper.poll(now, nonce(2)));
    assert_eq!((acquire.name, acquire.takeover), (name("a"), Some(foreign_record().version)));
    keeper.answer(now, flight, won(5));
    assert!(matches!(events(&mut keeper)[..], [Event::Won { .. }]));
}

#[test]
fn what_is_free_is_taken_at_once_when_it_is_allowed() {
    for record in [Some(Record { holder: None, ..foreign_record() }), None] {
        let mut keeper = standby();
        looks(&mut keeper, &record, seconds(300.0));
        let now = keeper.next_at() - Duration::from_secs(1);
        keeper.allow(now, true);
        let (_, acquire) = acquisition(keeper.poll(now, nonce(2)));
        assert_eq!((acquire.create, acquire.takeover), (record.is_none(), None));
    }
}

#[test]
fn it_does_not_wait_for_a_look_once_it_is_allowed() {
    let mut keeper = standby();
    looks(&mut keeper, &Some(foreign_record()), seconds(3.0));
    let now = keeper.next_at();
    let (look, _) = keeper.poll(now, nonce(1)).unwrap();
    keeper.allow(now, true);
    let (flight, _) = acquisition(keeper.poll(now, nonce(2)));
    // What was seen before it was allowed says nothing any more.
    keeper.answer(now, look, saw(None));
    assert_eq!((keeper.poll(now, nonce(3)), events(&mut keeper)), (None, vec![]));
    keeper.answer(now, flight, won(5));
    assert!(matches!(events(&mut keeper)[..], [Event::Won { .. }]));
}

#[test]
fn who_is_allowed_halfway_waits_for_the_rest() {
    let mut keeper = standby();
    looks(&mut keeper, &Some(foreign_record()), seconds(10.0));
    keeper.allow(seconds(10.0), true);
    assert_eq!(taken_over(&mut keeper, &foreign_record(), seconds(10.0)), seconds(20.0));
}

#[test]
fn a_renewal_that_it_sees_starts_its_clock_again() {
    let mut keeper = standby();
    looks(&mut keeper, &Some(foreign_record()), seconds(15.0));
    let renewed = looks(&mut keeper, &Some(renewed_record("2")), seconds(30.0))[0];
    keeper.allow(seconds(30.0), true);
    let taken = taken_over(&mut keeper, &renewed_record("2"), seconds(30.0));
    assert_eq!(taken.since(renewed), TTL * 2);
}

#[test]
fn what_vanished_while_it_looked_is_waited_out_from_then() {
    for (allowed, create) in [(19.0, false), (21.0, true)] {
        let mut keeper = standby();
        looks(&mut keeper, &Some(foreign_record()), seconds(10.0));
        let gone = looks(&mut keeper, &None, seconds(20.0))[0];
        let now = gone + Duration::from_secs_f64(allowed);
        looks(&mut keeper, &None, now);
        keeper.allow(now, true);
        assert_eq!(acquisition(keeper.poll(now, nonce(2))).1.create, create);
    }
}

#[test]
fn what_was_won_after_the_permission_was_withdrawn_is_given_back() {
    let mut keeper = keeper();
    let (flight, _) = keeper.poll(seconds(0.0), nonce(1)).unwrap();
    keeper.allow(seconds(0.5), false);
    keeper.answer(seconds(1.0), flight, won(5));
    assert_eq!(events(&mut keeper), []);
    let (flight, request) = keeper.poll(seconds(1.0), nonce(2)).unwrap();
    assert_eq!(request, given_back(1));
    keeper.answer(seconds(1.0), flight, Answer::Release(Ok(Released::Yes)));
    assert!(keeper.is_contending());
    let free = Some(Record { holder: None, ..foreign_record() });
    let looks = looks(&mut keeper, &free, seconds(101.0));
    assert_eq!(looks[0], seconds(1.0), "its record is another now");
    assert!((50..=80).contains(&looks.len()), "{} looks", looks.len());
}

#[test]
fn who_is_allowed_again_before_the_answer_keeps_what_it_won() {
    let mut keeper = keeper();
    let (flight, _) = keeper.poll(seconds(0.0), nonce(1)).unwrap();
    keeper.allow(seconds(0.5), false);
    assert_eq!(keeper.poll(seconds(0.5), nonce(2)), None, "one request at a time");
    keeper.allow(seconds(0.8), true);
    keeper.answer(seconds(1.0), flight, won(5));
    assert!(matches!(events(&mut keeper)[..], [Event::Won { .. }]));
}

/// The record of the attempt that a keeper with claim 1 sent and was not answered.
fn stray(request: Request) -> Option<Record> {
    let mut records = MemoryRecords::observed();
    let Request::Acquire(acquire) = request else { panic!("expected an acquisition") };
    records.acquire(seconds(0.1), acquire).unwrap();
    records.read(seconds(0.1), &name("a"))
}

#[test]
fn a_stray_that_turns_up_while_it_is_not_allowed_is_given_back() {
    let mut keeper = keeper();
    let (flight, request) = keeper.poll(seconds(0.0), nonce(1)).unwrap();
    keeper.allow(seconds(0.5), false);
    keeper.answer(seconds(2.5), flight, no_answer(&request));
    let now = keeper.next_at();
    let (flight, look) = keeper.poll(now, nonce(2)).unwrap();
    assert_eq!(look, read(&["a"]));
    events(&mut keeper);
    keeper.answer(now, flight, saw(stray(request)));
    assert_eq!(events(&mut keeper), [Event::Trouble(None)]);
    assert_eq!(keeper.poll(now, nonce(3)).unwrap().1, given_back(1));
}

#[test]
fn a_stray_that_turns_up_when_it_is_allowed_again_is_adopted() {
    let mut keeper = keeper();
    let (flight, request) = keeper.poll(seconds(0.0), nonce(1)).unwrap();
    keeper.allow(seconds(0.5), false);
    keeper.answer(seconds(2.5), flight, no_answer(&request));
    keeper.allow(seconds(3.0), true);
    let (flight, _) = acquisition(keeper.poll(seconds(3.0), nonce(2)));
    events(&mut keeper);
    let lost = Acquired::Lost(stray(request));
    keeper.answer(seconds(3.0), flight, Answer::Acquire(Ok(lost)));
    let [Event::Trouble(None), Event::Won { claim, deadlines, .. }] = &events(&mut keeper)[..]
    else {
        panic!("it is won");
    };
    assert_eq!((*claim, deadlines.lost), (nonce(1), seconds(7.75)));
}

#[test]
fn a_store_that_does_not_answer_is_trouble_until_it_does() {
    let mut keeper = standby();
    let mut asked = 0;
    let trouble = StoreError::unavailable("no answer");
    while keeper.next_at() < seconds(100.0) {
        let now = keeper.next_at();
        let (flight, request) = keeper.poll(now, nonce(1)).unwrap();
        keeper.answer(now, flight, no_answer(&request));
        let told = events(&mut keeper);
        assert_eq!(told.is_empty(), asked > 0, "told once: {told:?}");
        assert_eq!(keeper.trouble(), Some(&trouble));
        asked += 1;
    }
    assert!((50..=150).contains(&asked), "asked {asked} times");
    let now = keeper.next_at();
    let (flight, _) = keeper.poll(now, nonce(1)).unwrap();
    keeper.answer(now, flight, saw(None));
    assert_eq!(events(&mut keeper), [Event::Trouble(None)]);
}

#[test]
fn what_is_held_stays_held() {
    let mut keeper = holder();
    keeper.allow(seconds(1.0), false);
    assert_eq!(keeper.token(), Some(Token::new(5, 0)));
    assert_eq!(renewal(&mut keeper, 2).2.claim, nonce(1));
}

#[test]
fn what_is_declined_is_given_back_with_every_nonce_and_looked_at_again() {
    let mut keeper = holder();
    let (now, renew, _) = renewal(&mut keeper, 2);
    keeper.allow(now, false);
    keeper.decline(now);
    assert!(keeper.is_contending() && keeper.token().is_none());
    let (flight, request) = keeper.poll(now, nonce(3)).unwrap();
    let known = vec![nonce(1), nonce(2)];
    assert_eq!(request, Request::Release(Release { name: name("a"), claim: nonce(1), known }));
    keeper.answer(now, renew, Answer::Renew(Ok(Renewed::Refused(None))));
    keeper.answer(now, flight, Answer::Release(Ok(Released::Yes)));
    assert_eq!(keeper.poll(now, nonce(4)).unwrap().1, read(&["a"]));
    assert_eq!(events(&mut keeper), []);
}

#[test]
fn what_was_lost_before_anybody_took_it_is_contended_for_again() {
    let mut keeper = holder();
    keeper.tick(seconds(7.75));
    assert_eq!(events(&mut keeper), [Event::Lost(Loss::Paused)]);
    keeper.decline(seconds(7.75));
    assert_eq!(keeper.poll(seconds(7.75), nonce(2)).unwrap().1, given_back(1));
}

/// What was read elsewhere counts from then, as if this contender had read it; and only for that version.
#[test]
fn what_was_seen_before_is_not_waited_for_again() {
    let record = foreign_record();
    let begin = |now| {
        let seen = Some((record.clone(), seconds(0.0)));
        let wish = Wish { seen, ..Wish::new(name("a"), owner("me")) };
        Keeper::new(wish, Settings::new(TTL), 1, now)
    };
    let ttl = record.ttl.as_secs_f64();
    let (_, acquire) = acquisition(begin(seconds(ttl)).poll(seconds(ttl), nonce(2)));
    assert_eq!(acquire.takeover, Some(record.version.clone()), "and only that version");
    let (_, early) = begin(seconds(ttl - 1.0)).poll(seconds(ttl - 1.0), nonce(3)).unwrap();
    assert_eq!(early, read(&["a"]));
}
