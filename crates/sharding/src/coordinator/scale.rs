//! Many nodes and shards, in virtual time: a coordinator, a region for each node, and messages that take
//! a millisecond.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use tenure_cluster::Node;
use tenure_lease::record::SessionRef;
use tenure_lease::{Moment, Token};

use super::{Coordinator, Effect};
use crate::testing::{Nodes, at, node, session};
use crate::wire::Message;
use crate::{Region, Settings, Setup, Shard, Version, region};

struct Town {
    nodes: Nodes,
    settings: Settings,
    coordinator: Coordinator,
    regions: BTreeMap<usize, Region<()>>,
    now: Moment,
    queue: BinaryHeap<Reverse<(Moment, u64, What)>>,
    /// What is to come, by number: the queue compares nothing but times.
    count: u64,
    sent: Sent,
    /// Where each shard was started, in order.
    starts: BTreeMap<Shard, Vec<usize>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    directives: u64,
    answers: u64,
    homes: u64,
    greetings: u64,
    other: u64,
}

#[derive(Debug)]
enum What {
    Deliver(Node, usize, Message),
    Stopped(usize, Shard, Token),
    Note(u64),
    Over(SessionRef),
}

// Only the time and the number count, which differ.
impl PartialEq for What {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl Eq for What {}
impl PartialOrd for What {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for What {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

const UNTIL: Moment = Moment::from_nanos(u64::MAX / 2);
const LATENCY: Duration = Duration::from_millis(1);
const TTL: Duration = Duration::from_secs(15);

impl Town {
    fn new(count: usize, shards: u32, version: &Version) -> Self {
        let nodes = Nodes::up(count);
        let settings = Settings::new(Setup::Sessions, shards);
        let now = at(1_000_000);
        let mut town = Self {
            nodes,
            coordinator: Coordinator::new(node(0), settings.clone()),
            settings,
            regions: BTreeMap::new(),
            now,
            queue: BinaryHeap::new(),
            count: 0,
            sent: Sent::default(),
            starts: BTreeMap::new(),
        };
        (0..count).for_each(|index| town.add(index, version));
        town.coordinator.view(Some(town.nodes.view(0)), now);
        town.coordinator.won(5, &[], UNTIL, now);
        town
    }

    fn add(&mut self, index: usize, version: &Version) {
        let settings = Settings { version: version.clone(), ..self.settings.clone() };
        let mut region = Region::new(node(index), settings, true);
        region.session_won(session(index, 1), UNTIL, self.now);
        self.regions.insert(index, region);
    }

    fn look(&mut self) {
        self.coordinator.view(Some(self.nodes.view(0)), self.now);
    }

    fn put(&mut self, after: Duration, what: What) {
        self.count += 1;
        self.queue.push(Reverse((self.now + after, self.count, what)));
    }

    fn attend(&mut self) {
        let orders: Vec<Effect> = self.coordinator.effects().collect();
        for order in orders {
            match order {
                Effect::Send(to, message) => self.post(node(0), &to, message),
                Effect::WriteNote { number, .. } => {
                    self.put(Duration::from_millis(5), What::Note(number));
                }
                Effect::TakeOver(sessions) => {
                    for lost in sessions {
                        let is_dead = !self.regions.keys().any(|index| session(*index, 1) == lost);
                        if is_dead {
                            self.put(TTL, What::Over(lost));
                        }
                    }
                }
                Effect::Contend { .. } | Effect::Withdraw | Effect::Observe(_) => {}
                Effect::Tell(_) => {}
            }
        }
        let indices: Vec<usize> = self.regions.keys().copied().collect();
        for index in indices {
            self.host(index);
        }
    }

    fn host(&mut self, index: usize) {
        let Some(region) = self.regions.get_mut(&index) else { return };
        let deeds: Vec<_> = region.effects().collect();
        for deed in deeds {
            match deed {
                region::Effect::Send(to, message) => self.post(node(index), &to, message),
                region::Effect::Start { shard, .. } => {
                    self.starts.entry(shard).or_default().push(index);
                }
                region::Effect::Stop { shard, token } => {
                    self.put(LATENCY, What::Stopped(index, shard, token));
                }
                region::Effect::SessionEnded => self.put(LATENCY, What::Over(session(index, 1))),
                _ => {}
            }
        }
    }

    fn post(&mut self, from: Node, to: &Node, message: Message) {
        let counted = match &message {
            Message::Allocate(_) | Message::HandOff(_) => &mut self.sent.directives,
            Message::Started(_) | Message::Stopped(_) => &mut self.sent.answers,
            Message::Homes { .. } => &mut self.sent.homes,
            Message::Greeting { .. } => &mut self.sent.greetings,
            _ => &mut self.sent.other,
        };
        *counted += 1;
        let to = to.incarnation.0 as usize - 1;
        self.put(LATENCY, What::Deliver(from, to, message));
    }

    /// Lets time pass until this holds; how long that takes.
    fn until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) -> Duration {
        let began = self.now;
        loop {
            self.attend();
            if holds(self) {
                return self.now.since(began);
            }
            assert!(self.now < began + Duration::from_secs(600), "waited for {what}");
            let wake = self.regions.values().map(Region::next_wake).min().unwrap_or(UNTIL);
            let wake = wake.min(self.coordinator.next_wake());
            let next = self.queue.peek().map_or(UNTIL, |Reverse((time, ..))| *time);
            self.now = wake.min(next).max(self.now);
            if wake <= self.now {
                self.coordinator.poll(self.now);
                let now = self.now;
                self.regions
                    .values_mut()
                    .filter(|it| it.next_wake() <= now)
                    .for_each(|it| it.poll(now));
            }
            while let Some(Reverse((time, ..))) = self.queue.peek()
                && *time <= self.now
            {
                let Some(Reverse((.., what))) = self.queue.pop() else { break };
                self.happen(what);
            }
        }
    }

    fn happen(&mut self, what: What) {
        let now = self.now;
        match what {
            What::Deliver(from, to, message) => match message {
                Message::Report { .. }
                | Message::Started(_)
                | Message::Stopped(_)
                | Message::Where(_)
                | Message::Able(_)
                | Message::Introduce { .. } => self.coordinator.receive(&from, message, now),
                _ => {
                    if let Some(region) = self.regions.get_mut(&to) {
                        region.receive(&from, message, now);
                        self.host(to);
                    }
                }
            },
            What::Stopped(index, shard, token) => {
                if let Some(region) = self.regions.get_mut(&index) {
                    region.stopped(shard, token, now);
                    self.host(index);
                }
            }
            What::Note(number) => self.coordinator.note_written(number, now),
            What::Over(session) => self.coordinator.session_over(&session, now),
        }
    }

    fn hosted(&self) -> usize {
        self.regions.values().map(|region| region.shards().len()).sum()
    }

    fn is_served(&self) -> bool {
        self.hosted() == self.settings.shards as usize
    }

    fn spread(&self) -> (usize, usize) {
        let counts = || self.regions.values().map(|region| region.shards().len());
        (counts().min().unwrap_or(0), counts().max().unwrap_or(0))
    }

    /// How much memory one coordinator takes.
    fn memory(&self) -> usize {
        let before = resident();
        let copies: Vec<_> = (0..COPIES).map(|_| self.coordinator.clone()).collect();
        let each = (resident() - before) / copies.len();
        drop(copies);
        each
    }

    fn take_sent(&mut self) -> Sent {
        std::mem::take(&mut self.sent)
    }
}

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap_or_default() * 1024
}

const COPIES: usize = 50;

/// What a node has to do with, once all is still, in ten seconds.
fn still(town: &mut Town) -> f64 {
    town.take_sent();
    let end = town.now + Duration::from_secs(10);
    town.until("ten seconds", |it| it.now >= end);
    let Sent { directives, answers, homes, greetings, other } = town.take_sent();
    (directives + answers + homes + greetings + other) as f64 / town.regions.len() as f64
}

/// A tenth of the nodes is lost at once, and as many come: how long until all is served again, what is
/// said for it, and that what a node has to do when all is still does not grow with the cluster.
#[test]
fn a_tenth_is_lost_and_comes_back() {
    let big = std::env::var_os("TENURE_SCALE").is_some();
    let sizes: &[usize] = if big { &[10, 50, 100] } else { &[10, 20] };
    let mut costs = Vec::new();
    for &count in sizes {
        let shards = count as u32 * 100;
        let version = Version::default();
        let mut town = Town::new(count, shards, &version);
        let began = town.until("all to be served", Town::is_served);
        println!(
            "{count} nodes, {shards} shards: all served after {began:?}, {:?}",
            town.take_sent()
        );
        let end = town.now + Duration::from_secs(10);
        town.until("all to be still", |it| it.now >= end);
        costs.push(still(&mut town));
        let lost: Vec<usize> = (count - count / 10..count).collect();
        town.nodes.lose(&lost);
        lost.iter().for_each(|index| drop(town.regions.remove(index)));
        town.look();
        assert!(!town.is_served());
        let took = town.until("all to be served", Town::is_served);
        println!("  {} lost: all served after {took:?}, {:?}", lost.len(), town.take_sent());
        assert!(took < TTL + Duration::from_secs(1), "{took:?}");
        let before: BTreeMap<Shard, usize> =
            town.starts.iter().map(|(shard, starts)| (*shard, starts.len())).collect();
        town.nodes.join(lost.len());
        (count..count + lost.len()).for_each(|index| town.add(index, &version));
        town.look();
        let even = |town: &Town| {
            let (least, most) = town.spread();
            town.is_served() && most - least <= 1
        };
        let took = town.until("all to be even", even);
        let moved = |(shard, starts): &(&Shard, &Vec<usize>)| starts.len() > before[shard];
        let moved = town.starts.iter().filter(moved).count();
        println!(
            "  {} more: even after {took:?}, {moved} moved, {:?}",
            lost.len(),
            town.take_sent()
        );
        println!("  the coordinator takes {} KiB", town.memory() >> 10);
        assert!(moved <= shards as usize / 10, "{moved}");
        assert!(town.starts.values().all(|starts| starts.len() <= 3));
    }
    println!("messages for each node in ten seconds when all is still: {costs:?}");
    assert!(costs.iter().all(|cost| *cost <= costs[0] * 1.1), "{costs:?}");
}

/// Each node is replaced by one with a newer version of the application; whether the new one comes first.
fn upgrade(count: usize, first_come: bool) -> Vec<usize> {
    let (old, new) = ("1.9".parse().unwrap(), "1.10".parse().unwrap());
    let mut town = Town::new(count, 20 * count as u32, &old);
    town.until("all to be served", Town::is_served);
    let mut newest = BTreeSet::new();
    // The coordinator's node is last: what it knows is what this looks at.
    for index in (1..count).rev() {
        let come = |town: &mut Town, newest: &mut BTreeSet<usize>| {
            let next = town.nodes.count();
            town.nodes.join(1);
            town.add(next, &new);
            newest.insert(next);
            town.look();
            let end = town.now + Duration::from_secs(30);
            town.until("a while", |it| it.now >= end);
        };
        if first_come {
            come(&mut town, &mut newest);
        }
        town.nodes.begin_leave(index);
        town.look();
        let now = town.now;
        town.regions.get_mut(&index).unwrap().leave(now);
        town.until("all to be handed over", |it| it.regions[&index].shards().len() == 0);
        town.until("all to be served", Town::is_served);
        town.regions.remove(&index);
        town.nodes.lose(&[index]);
        town.look();
        if !first_come {
            come(&mut town, &mut newest);
        }
    }
    for (shard, starts) in &town.starts {
        for pair in starts.windows(2) {
            let back = newest.contains(&pair[0]) && !newest.contains(&pair[1]);
            assert!(!back, "{shard} went from a newer node to an older: {starts:?}");
        }
    }
    town.starts.values().map(|starts| starts.len() - 1).collect()
}

#[test]
fn no_shard_moves_twice_in_a_rolling_upgrade() {
    let moves = upgrade(6, true);
    assert!(moves.iter().all(|moves| *moves <= 1), "{moves:?}");
    // If each node goes before its successor comes, there is nothing newer for the shards of the first.
    let moves = upgrade(6, false);
    let twice = moves.iter().filter(|moves| **moves > 1).count();
    println!("a node goes before the next comes: {twice} of {} move twice", moves.len());
    assert!(moves.iter().all(|moves| *moves <= 2) && twice <= 20, "{moves:?}");
}
