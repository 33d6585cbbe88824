//! Leases of a session that only look until they are allowed to be taken.

use super::*;
use crate::MemoryStore;
use crate::backend::{Backend as _, StoreInfo};
use crate::record::SessionRef;

/// A session, and what it has asked for.
pub(super) struct Node {
    pub(super) session: Session,
    drawn: u128,
    asked: Vec<(Moment, Request)>,
    pub(super) events: Vec<SessionEvent>,
}

impl Node {
    pub(super) fn new(records: &mut MemoryRecords, node: &str, number: u64) -> Self {
        Self::at_store(records, node, number, None)
    }

    pub(super) fn at_store(
        records: &mut MemoryRecords,
        node: &str,
        number: u64,
        store: Option<StoreInfo>,
    ) -> Self {
        let owner = Owner { name: node.into(), incarnation: number };
        let wish = Wish::new(name(node), owner);
        let session = Session::new(wish, Settings::new(TTL), number, Moment::ZERO);
        let session = match store {
            Some(store) => session.at_store(&store),
            None => session,
        };
        let drawn = u128::from(number) << 64;
        let mut node = Self { session, drawn, asked: Vec::new(), events: Vec::new() };
        node.run(records, Moment::ZERO);
        node
    }

    pub(super) fn attach(&mut self, now: Moment, lease: &str, allowed: bool) -> AttachId {
        let id = self.session.attach(now, name(lease), None).expect("the session is held");
        self.session.allow(now, id, allowed);
        id
    }

    pub(super) fn poll(&mut self, now: Moment) -> Option<(SessionFlight, Request)> {
        self.drawn += 1;
        let sent = self.session.poll(now, nonce(self.drawn))?;
        self.asked.push((now, sent.1.clone()));
        Some(sent)
    }

    /// Does all there is to do now.
    pub(super) fn run(&mut self, records: &mut MemoryRecords, now: Moment) {
        self.run_by(now, &mut |now, request| records.apply(now, request));
    }

    fn run_by(&mut self, now: Moment, store: &mut impl FnMut(Moment, Request) -> Answer) {
        loop {
            if let Some((flight, request)) = self.poll(now) {
                self.session.answer(now, flight, store(now, request));
            } else if let Some(event) = self.session.next_event() {
                if event == SessionEvent::Session(Event::Ping) {
                    self.session.pong(now);
                }
                self.events.push(event);
            } else {
                return;
            }
        }
    }

    /// Lets time pass until then.
    pub(super) fn run_until(&mut self, records: &mut MemoryRecords, end: Moment) {
        self.run_until_by(end, |now, request| records.apply(now, request));
    }

    /// The same, at a store that answers as it likes.
    pub(super) fn run_until_by(
        &mut self,
        end: Moment,
        mut store: impl FnMut(Moment, Request) -> Answer,
    ) {
        while self.session.next_at() < end {
            let now = self.session.next_at();
            self.run_by(now, &mut store);
        }
        self.run_by(end, &mut store);
    }

    pub(super) fn won(&self, id: AttachId) -> bool {
        let won = |event: &SessionEvent| match event {
            SessionEvent::Attached(of, Event::Won { .. }) => *of == id,
            _ => false,
        };
        self.events.iter().any(won)
    }

    /// All that it has asked for since the last call, without its own renewals.
    fn asked(&mut self) -> Vec<(Moment, Request)> {
        let asked = std::mem::take(&mut self.asked).into_iter();
        asked.filter(|(_, request)| !matches!(request, Request::Renew(_))).collect()
    }
}

/// A node that holds x, y and z and then dies; and one that stands by for them.
fn nodes() -> (MemoryRecords, Node, [AttachId; 3]) {
    let mut records = MemoryRecords::observed();
    let mut dead = Node::new(&mut records, "node-1", 1);
    for lease in ["x", "y", "z"] {
        dead.attach(Moment::ZERO, lease, true);
    }
    dead.run(&mut records, Moment::ZERO);
    let mut node = Node::new(&mut records, "node-2", 2);
    node.asked();
    let ids = ["x", "y", "z"].map(|lease| node.attach(Moment::ZERO, lease, false));
    (records, node, ids)
}

#[test]
fn it_only_reads_all_of_them_together() {
    let (mut records, mut node, _) = nodes();
    node.run_until(&mut records, seconds(1000.0));
    let asked = node.asked();
    assert!(asked.iter().all(|(_, request)| matches!(request, Request::Read(_))), "{asked:?}");
    let of = |names: &[&str]| Request::Read(names.iter().map(|lease| name(lease)).collect());
    assert_eq!(asked[0], (seconds(0.0), of(&["x", "y", "z"])));
    // Then the session as well, whose clock starts right away.
    assert!(asked[1].0 <= seconds(0.01), "{:?}", asked[1]);
    for (_, request) in &asked[1..] {
        let Request::Read(names) = request else { unreachable!() };
        assert_eq!(names.len(), 4, "{names:?}");
    }
    assert!((500..=1_200).contains(&asked.len()), "{} reads", asked.len());
}

#[test]
fn a_session_that_has_stood_still_is_taken_with_the_first_request_once_one_is_allowed() {
    let (mut records, mut node, [x, y, _]) = nodes();
    node.run_until(&mut records, seconds(11.0));
    node.asked();
    node.session.allow(seconds(11.0), x, true);
    node.run(&mut records, seconds(11.0));
    let asked = node.asked();
    assert!(asked.iter().all(|(at, _)| *at == seconds(11.0)));
    let Request::Acquire(first) = &asked[0].1 else { panic!("{asked:?}") };
    assert_eq!(first.name, name("node-1"));
    assert!(first.takeover.is_some());
    assert!(node.won(x) && !node.won(y));
    // What one has found out counts for the others, who still may not take.
    node.run_until(&mut records, seconds(111.0));
    let asked = node.asked();
    let writes = asked.iter().filter(|(_, request)| !matches!(request, Request::Read(_)));
    assert_eq!(writes.count(), 0, "{asked:?}");
    assert!(asked.len() <= 240, "{} requests", asked.len());
    node.session.allow(seconds(111.0), y, true);
    node.run(&mut records, seconds(111.0));
    assert!(matches!(&node.asked()[0].1, Request::Acquire(acquire) if acquire.name == name("y")));
    assert!(node.won(y));
}

#[test]
fn who_is_allowed_halfway_waits_for_the_rest() {
    let (mut records, mut node, [x, ..]) = nodes();
    node.run_until(&mut records, seconds(5.0));
    node.session.allow(seconds(5.0), x, true);
    node.run_until(&mut records, seconds(9.9));
    assert!(!node.won(x));
    node.run_until(&mut records, seconds(10.2));
    assert!(node.won(x), "ten seconds after the first look");
}

/// Whoever breaks a session wins it, so that it is not renewed any more; but its process finds that out
/// at its next renewal, and works on until then.
#[test]
fn what_is_attached_to_a_broken_session_is_waited_out() {
    for released in [false, true] {
        let (mut records, mut node, [x, ..]) = nodes();
        node.session.allow(Moment::ZERO, x, true);
        node.run_until(&mut records, seconds(3.0));
        let session = records.read(seconds(3.0), &name("node-1")).unwrap();
        let claim = nonce(77);
        let broken = Acquire {
            name: name("node-1"),
            claim,
            owner: owner("operator"),
            ttl: TTL,
            session: None,
            note: None,
            create: false,
            takeover: Some(session.version),
            expected: None,
            above: 0,
            unattended: true,
        };
        records.acquire(seconds(3.0), broken).unwrap();
        if released {
            let release = Release { name: name("node-1"), claim, known: vec![claim] };
            records.release(&release);
        }
        node.run_until(&mut records, seconds(12.9));
        assert_eq!(node.won(x), released, "at once only if whoever broke it says so");
        node.run_until(&mut records, seconds(18.0));
        assert!(node.won(x));
    }
}

/// A later tenure of the session may have vanished as well, and its process may still be at work: a
/// record that was put in its place, and released, would say that it is over.
#[test]
fn nothing_is_written_in_place_of_a_session_that_has_vanished() {
    let (mut records, mut node, [x, ..]) = nodes();
    node.session.allow(Moment::ZERO, x, true);
    node.run_until(&mut records, seconds(3.0));
    records.delete(&name("node-1"));
    node.run_until(&mut records, seconds(12.9));
    assert!(!node.won(x));
    node.run_until(&mut records, seconds(15.0));
    assert!(node.won(x), "a ttl after it was missed");
    assert_eq!(records.read(seconds(15.0), &name("node-1")), None);
}

#[test]
fn a_session_that_was_taken_after_the_permission_was_withdrawn_is_given_back() {
    let (mut records, mut node, [x, ..]) = nodes();
    node.run_until(&mut records, seconds(11.0));
    let now = seconds(11.0);
    node.session.allow(now, x, true);
    let (flight, request) = node.poll(now).unwrap();
    assert!(matches!(&request, Request::Acquire(take) if take.name == name("node-1")));
    node.session.allow(now, x, false);
    node.session.answer(now, flight, records.apply(now, request));
    node.asked();
    node.run_until(&mut records, seconds(111.0));
    let asked = node.asked();
    let mut writes = asked.iter().filter(|(_, request)| !matches!(request, Request::Read(_)));
    let (at, Request::Release(release)) = writes.next().unwrap() else { panic!("{asked:?}") };
    assert_eq!((*at, &release.name), (now, &name("node-1")));
    assert_eq!(writes.next(), None);
    assert!(asked.len() <= 240, "{} requests", asked.len());
    assert!(!node.won(x));
    assert!(records.read(seconds(111.0), &name("x")).unwrap().holder.is_some());
}

/// A node that attaches what is free.
fn alone(allowed: bool) -> (MemoryRecords, Node, AttachId) {
    let mut records = MemoryRecords::observed();
    let mut node = Node::new(&mut records, "node-1", 1);
    node.asked();
    let id = node.attach(Moment::ZERO, "x", allowed);
    (records, node, id)
}

#[test]
fn what_is_free_is_left_alone_without_haste() {
    let (mut records, mut node, x) = alone(false);
    node.run_until(&mut records, seconds(1000.0));
    let asked = node.asked();
    assert!(asked.iter().all(|(_, request)| *request == Request::Read(vec![name("x")])));
    assert!((500..=752).contains(&asked.len()), "{} reads", asked.len());
    node.session.allow(seconds(1000.0), x, true);
    node.run(&mut records, seconds(1000.0));
    assert!(node.won(x));
}

#[test]
fn what_was_won_after_the_permission_was_withdrawn_is_given_back() {
    let (mut records, mut node, x) = alone(true);
    let now = seconds(0.0);
    let (flight, request) = node.poll(now).unwrap();
    node.session.allow(now, x, false);
    node.session.answer(now, flight, records.apply(now, request));
    node.run(&mut records, now);
    assert!(!node.won(x));
    assert!(records.read(now, &name("x")).unwrap().holder.is_none());
    node.session.allow(seconds(1.0), x, true);
    node.run(&mut records, seconds(1.0));
    assert!(node.won(x));
}

#[test]
fn a_stray_that_turns_up_while_it_is_not_allowed_is_given_back() {
    let (mut records, mut node, x) = alone(true);
    let (flight, request) = node.poll(seconds(0.0)).unwrap();
    records.apply(seconds(0.0), request.clone());
    node.session.allow(seconds(0.5), x, false);
    node.session.answer(seconds(1.0), flight, no_answer(&request));
    node.run_until(&mut records, seconds(2.0));
    assert!(!node.won(x));
    assert!(records.read(seconds(2.0), &name("x")).unwrap().holder.is_none());
    let trouble =
        |event: &&SessionEvent| matches!(event, SessionEvent::Attached(_, Event::Trouble(_)));
    assert_eq!(node.events.iter().filter(trouble).count(), 2, "{:?}", node.events);
}

#[test]
fn what_is_declined_is_given_back_and_can_be_won_again() {
    let (mut records, mut node, x) = alone(true);
    node.run(&mut records, seconds(0.0));
    assert!(node.won(x));
    node.events.clear();
    node.session.allow(seconds(1.0), x, false);
    assert!(node.session.decline(seconds(1.0), x));
    node.run_until(&mut records, seconds(30.0));
    assert!(records.read(seconds(30.0), &name("x")).unwrap().holder.is_none());
    assert!(!node.events.iter().any(|event| matches!(event, SessionEvent::Attached(..))));
    node.session.allow(seconds(30.0), x, true);
    node.run(&mut records, seconds(30.0));
    assert!(node.won(x));
    let term = node.session.keeper().token().unwrap().term;
    let record = records.read(seconds(30.0), &name("x")).unwrap();
    assert_eq!(record.session(), Some(&SessionRef { name: name("node-1"), term }));
}

#[test]
fn what_is_declined_when_the_session_is_over_does_not_hold_up_its_end() {
    let (mut records, mut node, x) = alone(true);
    node.run(&mut records, seconds(0.0));
    node.session.ended(seconds(1.0));
    node.run(&mut records, seconds(1.0));
    assert!(!node.events.contains(&SessionEvent::Session(Event::Done)));
    assert!(!node.session.decline(seconds(1.0), x));
    node.run(&mut records, seconds(1.0));
    assert!(node.events.contains(&SessionEvent::Session(Event::Done)));
}

/// Where a read of a thousand records reads all of them, ten reads would do ten times the work.
#[test]
fn a_store_that_reads_everything_is_read_once_in_a_sweep() {
    for reads_everything in [false, true] {
        let mut records = MemoryRecords::observed();
        let info = StoreInfo { reads_everything, ..MemoryStore::default().info() };
        let mut node = Node::at_store(&mut records, "node-1", 1, Some(info));
        for number in 0..2_500 {
            node.attach(Moment::ZERO, &format!("lease-{number}"), true);
        }
        node.run(&mut records, Moment::ZERO);
        node.asked();
        node.run_until(&mut records, seconds(2.5));
        let asked = node.asked();
        let read = |(_, request): &(Moment, Request)| match request {
            Request::Read(names) => names.len(),
            other => panic!("{other:?}"),
        };
        let read: Vec<usize> = asked.iter().map(read).collect();
        let once: &[usize] = if reads_everything { &[2_500] } else { &[1_000, 1_000, 500] };
        assert_eq!(read, once);
    }
}
