//! A sender and receivers in virtual time, over a network that loses, repeats and reorders, with
//! receivers that crash and move.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use tenure_lease::Moment;

use super::incoming::{Incoming, Key};
use super::ledger::{Entered, Ledger, LedgerError, Record};
use super::outgoing::Outgoing;
use super::packet::{Ack, Numbers, Packet};
use crate::messaging::Message as _;

const MESSAGES: u64 = 200;
const WINDOW: u64 = 32;

/// What survives a crash.
#[derive(Default)]
struct Database {
    last: u64,
    effects: Vec<u64>,
}

impl Ledger for Database {
    type Error = Infallible;

    fn last(&mut self, _: &str, _: u64) -> Result<u64, Infallible> {
        Ok(self.last)
    }

    fn set_last(&mut self, _: &str, _: u64, number: u64) -> Result<(), Infallible> {
        self.last = number;
        Ok(())
    }
}

#[derive(Clone)]
enum Mail {
    Packet(usize, Numbers),
    Ack(Ack),
}

struct World {
    random: u64,
    now: Moment,
    order: u64,
    network: BTreeMap<(Moment, u64), Mail>,
    faults: bool,
    /// Left out, to see that it is needed.
    ledger: bool,
    outgoing: Outgoing,
    pushed: u64,
    target: usize,
    receivers: [Incoming; 2],
    /// Handed out, and not yet done, by each receiver.
    hands: [BTreeSet<u64>; 2],
    database: Database,
    key: Key,
    sent: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            now: Moment::ZERO,
            order: 0,
            network: BTreeMap::new(),
            faults: true,
            ledger: true,
            outgoing: Outgoing::new(),
            pushed: 0,
            target: 0,
            receivers: Default::default(),
            hands: Default::default(),
            database: Database::default(),
            key: ("sender".into(), 7),
            sent: 0,
        }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % limit
    }

    fn mail(&mut self, mail: Mail) {
        let copies = match self.below(10) {
            0 if self.faults => 0,
            1 if self.faults => 2,
            _ => 1,
        };
        for _ in 0..copies {
            let delay = match self.faults {
                true => 1 + self.below(40), // Reorders.
                false => 1,
            };
            self.order += 1;
            let at = self.now + Duration::from_millis(delay);
            self.network.insert((at, self.order), mail.clone());
        }
    }

    fn step(&mut self) {
        while self.pushed < MESSAGES && self.outgoing.last() - self.outgoing.done() < WINDOW {
            self.pushed += 1;
            assert_eq!(self.outgoing.push(Bytes::new()), self.pushed);
        }
        while let Some((numbers, _)) = self.outgoing.next(self.now) {
            self.sent += 1;
            self.mail(Mail::Packet(self.target, numbers));
        }
        if self.faults {
            match self.below(400) {
                0 => self.outgoing.rewind(self.now),
                1 => self.outgoing.back_off(self.now),
                2 => self.move_target(),
                3 => self.crash(),
                _ => {}
            }
        }
        self.work();
        self.now += Duration::from_millis(1);
        while let Some(entry) = self.network.first_entry().filter(|e| e.key().0 <= self.now) {
            match entry.remove() {
                Mail::Packet(to, numbers) => {
                    let (hand_out, ack) = self.receivers[to].packet(&self.key, numbers);
                    if hand_out {
                        self.hands[to].insert(numbers.number);
                    }
                    ack.into_iter().for_each(|ack| self.mail(Mail::Ack(ack)));
                }
                Mail::Ack(ack) => {
                    self.outgoing.heard(ack, self.now);
                }
            }
        }
        // What the sender holds for done has been committed.
        assert!(self.outgoing.done() <= self.database.last);
    }

    /// Receivers do some of what they have, not always in order, and drop some.
    fn work(&mut self) {
        for which in 0..2 {
            if self.below(3) == 0 {
                continue;
            }
            let nth = if self.faults { self.below(3) as usize } else { 0 };
            let Some(&number) = self.hands[which].iter().nth(nth) else { continue };
            self.hands[which].remove(&number);
            let record = Record { sender: self.key.0.clone(), stream: self.key.1, number };
            let returned = self.faults && self.below(50) == 0;
            if !self.ledger && !returned {
                self.database.last = self.database.last.max(number);
                self.database.effects.push(number);
                self.receivers[which].done(&self.key, number);
                continue;
            }
            let entered = if returned { None } else { Some(self.database.enter(&record)) };
            let ack = match entered {
                Some(Ok(Entered::New)) => {
                    self.database.effects.push(number);
                    self.receivers[which].done(&self.key, number)
                }
                Some(Ok(Entered::Already)) => self.receivers[which].done(&self.key, number),
                Some(Err(LedgerError::Gap { .. })) | None => {
                    self.receivers[which].returned(&self.key, number)
                }
            };
            ack.into_iter().for_each(|ack| self.mail(Mail::Ack(ack)));
        }
    }

    fn move_target(&mut self) {
        self.target = 1 - self.target;
        self.outgoing.retarget(self.now);
    }

    /// A receiver's process is replaced by another, that knows nothing; sometimes unnoticed.
    fn crash(&mut self) {
        let which = self.below(2) as usize;
        self.receivers[which] = Incoming::default();
        self.hands[which].clear();
    }
}

#[test]
fn every_effect_happens_once_and_in_order_whatever_the_network_does() {
    let seeds: u64 = std::env::var("TENURE_SEEDS").map_or(300, |text| text.parse().unwrap());
    for seed in 1..=seeds {
        assert!(effects(seed, true).into_iter().eq(1..=MESSAGES), "seed {seed}");
    }
}

#[test]
fn without_a_ledger_some_effects_happen_twice() {
    assert!((1..20).any(|seed| effects(seed, false).len() as u64 > MESSAGES));
}

/// What has happened when all is done.
fn effects(seed: u64, ledger: bool) -> Vec<u64> {
    let mut world = World::new(seed);
    world.ledger = ledger;
    for _ in 0..5000 {
        world.step();
    }
    world.faults = false;
    let healed = world.now;
    while world.outgoing.done() < MESSAGES {
        world.step();
        assert!(world.now.since(healed) < Duration::from_secs(60), "seed {seed} does not end");
    }
    world.database.effects
}

#[test]
fn without_faults_each_is_sent_once() {
    let mut world = World::new(1);
    world.faults = false;
    while world.outgoing.done() < MESSAGES {
        world.step();
    }
    assert_eq!(world.sent, MESSAGES);
}

#[test]
fn a_receiver_that_is_merely_slow_is_sent_little_more() {
    let (mut outgoing, mut incoming) = (Outgoing::new(), Incoming::default());
    let key = ("a".into(), 1);
    for _ in 0..WINDOW {
        outgoing.push(Bytes::new());
    }
    let (mut now, mut sent) = (Moment::ZERO, 0);
    // A minute, in which it has everything and does nothing.
    for _ in 0..60_000 {
        while let Some((numbers, _)) = outgoing.next(now) {
            sent += 1;
            if let (_, Some(ack)) = incoming.packet(&key, numbers) {
                outgoing.heard(ack, now);
            }
        }
        now += Duration::from_millis(1);
    }
    assert!(sent < WINDOW + 20, "{sent}");
    let ack = (1..=WINDOW).filter_map(|number| incoming.done(&key, number)).last().unwrap();
    assert_eq!(outgoing.heard(ack, now).len() as u64, WINDOW);
    assert_eq!(outgoing.next_wake(now), None);
}

#[test]
fn a_message_that_comes_back_again_and_again_is_not_sent_in_a_hot_loop() {
    let (mut outgoing, mut incoming) = (Outgoing::new(), Incoming::default());
    let key = ("a".into(), 1);
    outgoing.push(Bytes::new());
    let (mut now, mut sent) = (Moment::ZERO, 0);
    for _ in 0..10_000 {
        while let Some((numbers, _)) = outgoing.next(now) {
            sent += 1;
            let (hand_out, ack) = incoming.packet(&key, numbers);
            let back = hand_out.then(|| incoming.returned(&key, numbers.number)).flatten();
            for ack in ack.into_iter().chain(back) {
                outgoing.heard(ack, now);
            }
        }
        now += Duration::from_millis(1);
    }
    assert!((3..20).contains(&sent), "{sent}");
}

#[test]
fn acknowledgements_of_what_was_never_sent_are_not_believed() {
    let mut outgoing = Outgoing::new();
    outgoing.push(Bytes::new());
    for done in [1, 2, u64::MAX] {
        let ack = Ack { round: 1, done, next: u64::MAX, gap: true };
        assert!(outgoing.heard(ack, Moment::ZERO).is_empty());
    }
    assert_eq!(outgoing.done(), 0);
    assert!(outgoing.next(Moment::ZERO).is_some());
}

#[test]
fn numbers_that_no_sender_gives_are_refused() {
    for (base, number) in [(0, 1), (2, 1), (1, u64::MAX)] {
        let numbers = Numbers { round: 1, base, number };
        let head = super::packet::Head { sender: "a".into(), stream: 1, numbers };
        let mut out = Vec::new();
        Packet { head, payload: Bytes::from_static(b"x") }.encode(&mut out).unwrap();
        assert!(Packet::decode(&out).is_err());
    }
}
