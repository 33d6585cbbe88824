//! Many who wait for one lease.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::*;
use crate::backend::{Promise, StoreInfo};

const LATENCY: Duration = Duration::from_millis(2);

/// Waiters at a store that pushes every change. Every message takes half of a round trip.
struct Herd {
    records: MemoryRecords,
    keepers: Vec<Keeper>,
    queue: BinaryHeap<Reverse<(Moment, u64)>>,
    messages: BTreeMap<u64, Message>,
    number: u64,
    drawn: u128,
    /// When acquisitions reached the store.
    acquired: Vec<Moment>,
    winner: Option<(Moment, usize)>,
}

enum Message {
    Request(usize, u64, Request),
    Answer(usize, u64, Answer),
    Push(usize),
    Wake(usize),
}

impl Herd {
    fn new(waiters: u64) -> Self {
        let info = StoreInfo {
            kind: "tests",
            promise: Promise::Safe,
            ttl_min: Duration::ZERO,
            ttl_max: Duration::MAX,
            ttl_step: Duration::ZERO,
            frees_after_ttls: 1,
            pushes: true,
            pushes_renewals: true,
            reads_everything: false,
        };
        let keeper = |number| {
            let owner = Owner { name: format!("waiter-{number}"), incarnation: number };
            let wish = Wish::new(name("a"), owner);
            Keeper::new(wish, Settings::new(TTL), number, seconds(0.0)).at_store(&info)
        };
        let mut herd = Self {
            records: MemoryRecords::observed(),
            keepers: (0..waiters).map(keeper).collect(),
            queue: BinaryHeap::new(),
            messages: BTreeMap::new(),
            number: 0,
            drawn: 1,
            acquired: Vec::new(),
            winner: None,
        };
        // Somebody else holds it first.
        herd.hold(seconds(0.0));
        for index in 0..herd.keepers.len() {
            herd.attend(seconds(0.0), index);
        }
        herd.run_until(seconds(1.0));
        herd
    }

    fn hold(&mut self, now: Moment) {
        let request = Acquire {
            name: name("a"),
            claim: nonce(1),
            owner: owner("holder"),
            ttl: TTL,
            session: None,
            note: None,
            create: true,
            takeover: None,
            expected: None,
            above: 0,
            unattended: false,
        };
        let won = self.records.acquire(now, request).unwrap();
        assert!(matches!(won, Acquired::Won { .. }));
    }

    fn at(&mut self, at: Moment, message: Message) {
        self.number += 1;
        self.queue.push(Reverse((at, self.number)));
        self.messages.insert(self.number, message);
    }

    fn push_all(&mut self, now: Moment) {
        for index in 0..self.keepers.len() {
            self.at(now + LATENCY / 2, Message::Push(index));
        }
    }

    fn attend(&mut self, now: Moment, index: usize) {
        self.drawn += 1;
        while let Some((flight, request)) = self.keepers[index].poll(now, nonce(self.drawn)) {
            self.at(now + LATENCY / 2, Message::Request(index, flight, request));
            self.drawn += 1;
        }
        while let Some(event) = self.keepers[index].next_event() {
            if matches!(event, Event::Won { .. }) {
                assert_eq!(self.winner, None);
                self.winner = Some((now, index));
            }
        }
        if self.keepers[index].next_at() != Moment::NEVER {
            self.at(self.keepers[index].next_at().max(now), Message::Wake(index));
        }
    }

    fn run_until(&mut self, end: Moment) {
        while let Some(Reverse((now, number))) = self.queue.pop() {
            if now > end {
                self.queue.push(Reverse((now, number)));
                return;
            }
            let index = match self.messages.remove(&number).expect("every number has a message") {
                Message::Request(index, flight, request) => {
                    if matches!(request, Request::Acquire(_)) {
                        self.acquired.push(now);
                    }
                    let answer = self.records.apply(now, request);
                    if matches!(answer, Answer::Acquire(Ok(Acquired::Won { .. }))) {
                        self.push_all(now);
                    }
                    self.at(now + LATENCY / 2, Message::Answer(index, flight, answer));
                    continue;
                }
                Message::Answer(index, flight, answer) => {
                    self.keepers[index].answer(now, flight, answer);
                    index
                }
                Message::Push(index) => {
                    self.keepers[index].woken(now);
                    index
                }
                Message::Wake(index) if self.keepers[index].next_at() > now => continue,
                Message::Wake(index) => index,
            };
            self.attend(now, index);
        }
    }

    /// Somebody frees the lease; how many attempts that brings, and when the next one holds it.
    fn freed(&mut self, now: Moment) -> (usize, Duration) {
        self.acquired.clear();
        self.winner = None;
        self.push_all(now);
        self.run_until(now + Duration::from_secs(1));
        let (won_at, _) = self.winner.expect("somebody holds it");
        (self.acquired.len(), won_at.since(now))
    }
}

#[test]
fn a_release_is_contended_for_by_a_few_of_many_and_won_within_five_round_trips() {
    for waiters in [1, 10, 100, 300] {
        let mut herd = Herd::new(waiters);
        let now = seconds(1.0);
        let claim = nonce(1);
        herd.records.release(&Release { name: name("a"), claim, known: vec![claim] });
        let (attempts, took) = herd.freed(now);
        println!("{waiters} waiters: {attempts} attempts, held after {took:?}");
        assert!(attempts <= 5 + waiters as usize / 4, "{attempts} of {waiters}");
        assert!(waiters < 100 || took <= LATENCY * 5, "{took:?}");
        assert!(took <= LATENCY * 12, "{took:?}");
    }
}

#[test]
fn races_that_were_lost_make_the_next_ones_calmer() {
    let mut herd = Herd::new(100);
    let claim = nonce(1);
    herd.records.release(&Release { name: name("a"), claim, known: vec![claim] });
    let (mut now, mut attempts) = (seconds(1.0), Vec::new());
    for _ in 0..6 {
        attempts.push(herd.freed(now).0);
        let (_, winner) = herd.winner.expect("somebody holds it");
        now += Duration::from_secs(1);
        herd.keepers[winner].ended(now);
        herd.attend(now, winner);
        herd.run_until(now + LATENCY);
    }
    println!("{attempts:?}");
    assert!(attempts[5] < attempts[0] && attempts[5] <= 10, "{attempts:?}");
}

#[test]
fn an_expiry_is_contended_for_by_a_few_of_many() {
    let mut herd = Herd::new(100);
    herd.acquired.clear();
    herd.run_until(seconds(0.0) + TTL + Duration::from_secs(1));
    let (won_at, _) = herd.winner.expect("somebody holds it");
    println!("{} attempts, held after {:?}", herd.acquired.len(), won_at.since(seconds(0.0)));
    assert!(herd.acquired.len() <= 30, "{} attempts", herd.acquired.len());
    assert!(won_at <= seconds(0.0) + TTL + LATENCY * 10);
}
