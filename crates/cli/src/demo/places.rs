//! Where each counter was when, put together from what all processes said: which shards moved, how
//! long their writes waited because of that, and whether a counter was ever in two places. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use tenure_lease::{Moment, Settings, Token};
use tenure_sharding::{Shard, shard_of};

use super::book::Audit;
use super::counter::{KEYS, SHARDS, id};
use super::history::{History, middle_and_longest, millis};
use super::wire::Report;

/// What happened to the counters so far.
pub(super) struct Places {
    /// The work of each.
    keys: Vec<History>,
    /// Which shard each belongs to.
    shards: Vec<u32>,
    /// The token that each shard was last seen with.
    last: BTreeMap<u32, Token>,
    /// How often a shard began anew.
    moved: usize,
    waits: Vec<Wait>,
    refused: u64,
    pub(super) sent: u64,
    pub(super) acknowledged: u64,
    pub(super) finished: bool,
    each: Vec<u64>,
    /// What each node has.
    pub(super) nodes: BTreeMap<usize, Share>,
    /// How often each process has asked the store so far, and all of them in each second.
    asked: BTreeMap<usize, u64>,
    asked_in: BTreeMap<u64, u64>,
}

/// What a node has.
pub(super) struct Share {
    pub(super) hosted: Vec<(Shard, Token)>,
    pub(super) entities: usize,
    pub(super) waiting: usize,
    /// The term, if it coordinates.
    pub(super) coordinates: Option<u64>,
}

/// Writes to a shard waited.
struct Wait {
    shard: u32,
    from: Moment,
    to: Moment,
}

/// One allocation of a shard, as far as its counters did anything.
struct Stay {
    began: Moment,
    ended: Moment,
}

impl Places {
    /// Of leases with this timing.
    pub(super) fn new(timing: &Settings) -> Self {
        Self {
            keys: (0..KEYS).map(|_| History::new(timing)).collect(),
            shards: (0..KEYS).map(|key| shard_of(&id(key), SHARDS).0).collect(),
            last: BTreeMap::new(),
            moved: 0,
            waits: Vec::new(),
            refused: 0,
            sent: 0,
            acknowledged: 0,
            finished: false,
            each: Vec::new(),
            nodes: BTreeMap::new(),
            asked: BTreeMap::new(),
            asked_in: BTreeMap::new(),
        }
    }

    /// Takes in what a process said about counters.
    pub(super) fn hear(&mut self, from: usize, report: Report, now: Moment) {
        match report {
            Report::Began { key, token, at } => {
                let Some(history) = self.keys.get_mut(key as usize) else { return };
                history.started(from, token, Moment::from_nanos(at));
                let last = self.last.entry(self.shards[key as usize]).or_insert(token);
                self.moved += usize::from(*last < token);
                *last = token.max(*last);
            }
            Report::Ended { key, token, at } => {
                if let Some(history) = self.keys.get_mut(key as usize) {
                    history.stopped(from, token, Moment::from_nanos(at));
                }
            }
            Report::WriteRefused => self.refused += 1,
            Report::Shards { hosted, entities, waiting, coordinates } => {
                self.nodes.insert(from, Share { hosted, entities, waiting, coordinates });
            }
            Report::Writes { sent, acknowledged, finished } => {
                (self.sent, self.acknowledged, self.finished) = (sent, acknowledged, finished);
            }
            Report::Acknowledged(each) => self.each = each,
            Report::Waited { shard, from, to } => {
                let (from, to) = (Moment::from_nanos(from), Moment::from_nanos(to));
                self.waits.push(Wait { shard, from, to });
            }
            Report::Asked(requests) => {
                let before = self.asked.insert(from, requests).unwrap_or(0);
                let second = now.as_nanos() / 1_000_000_000;
                *self.asked_in.entry(second).or_default() += requests.saturating_sub(before);
            }
            _ => {}
        }
    }

    /// A node's process has ended.
    pub(super) fn died(&mut self, node: usize, at: Moment) {
        self.keys.iter_mut().for_each(|history| history.died(node, at));
        self.nodes.remove(&node);
        self.asked.remove(&node); // The next one counts from zero.
    }

    pub(super) fn paused(&mut self, node: usize, at: Moment) {
        self.keys.iter_mut().for_each(|history| history.paused(node, at));
    }

    pub(super) fn resumed(&mut self, node: usize, at: Moment) {
        self.keys.iter_mut().for_each(|history| history.resumed(node, at));
    }

    /// Whether every shard was seen at work, and each of so many nodes has its share.
    pub(super) fn are_settled(&self, nodes: usize) -> bool {
        let hosted = || self.nodes.values().map(|share| share.hosted.len());
        let even = hosted().max() <= hosted().min().map(|least| least + 1);
        self.last.len() == SHARDS as usize
            && self.nodes.len() == nodes
            && hosted().sum::<usize>() == SHARDS as usize
            && even
    }

    /// The node that coordinates, as far as is known: one that stands still may believe that it does.
    pub(super) fn coordinator(&self) -> Option<usize> {
        let says = self.nodes.iter().filter(|(_, share)| share.coordinates.is_some());
        says.max_by_key(|(_, share)| share.coordinates).map(|(node, _)| *node)
    }

    /// How often a shard began anew, on another node or on the same.
    pub(super) fn moved(&self) -> usize {
        self.moved
    }

    /// The allocations of each shard in their order.
    fn stays(&self, now: Moment) -> BTreeMap<u32, Vec<Stay>> {
        let mut stays: BTreeMap<(u32, Token), Stay> = BTreeMap::new();
        for (shard, history) in self.shards.iter().zip(&self.keys) {
            for (token, began, ended) in history.works(now) {
                let stay = stays.entry((*shard, token)).or_insert(Stay { began, ended });
                stay.began = began.min(stay.began);
                stay.ended = ended.max(stay.ended);
            }
        }
        let mut sorted: BTreeMap<u32, Vec<Stay>> = BTreeMap::new();
        for ((shard, _), stay) in stays {
            sorted.entry(shard).or_default().push(stay);
        }
        sorted
    }

    /// How long writes waited for each shard that moved since then, and the longest wait for one that did
    /// not.
    fn unavailable(&self, since: Moment, now: Moment) -> (Vec<Duration>, Duration) {
        let waits: Vec<&Wait> = self.waits.iter().filter(|wait| since <= wait.from).collect();
        let mut belongs = vec![false; waits.len()];
        let mut times = Vec::new();
        for (shard, stays) in self.stays(now) {
            for pair in stays.windows(2).filter(|pair| since <= pair[1].began) {
                let (stopped, began) = (pair[0].ended.min(pair[1].began), pair[1].began);
                let mut longest = Duration::ZERO;
                for (wait, belongs) in waits.iter().zip(&mut belongs) {
                    if wait.shard == shard
                        && wait.from <= began + MEANWHILE
                        && wait.to + MEANWHILE >= stopped
                    {
                        *belongs = true;
                        longest = longest.max(wait.to.since(wait.from));
                    }
                }
                times.push(longest);
            }
        }
        let others = waits.iter().zip(belongs).filter(|(_, belongs)| !belongs);
        let longest = others.map(|(wait, _)| wait.to.since(wait.from)).max();
        (times, longest.unwrap_or_default())
    }

    /// What came of it, with what stands in the books. While it was starting, shards moved, and waited for
    /// nodes: that does not count.
    pub(super) fn figures(&self, audit: &Audit, since: Moment, now: Moment) -> Figures {
        let (times, others) = self.unavailable(since, now);
        let shards_moved = times.len();
        let (middle, longest) = middle_and_longest(times.into_iter());
        Figures {
            shards_moved,
            shard_unavailable_ms_p50: millis(middle),
            shard_unavailable_ms_max: millis(longest),
            others_unavailable_ms_max: millis(others),
            keys: KEYS,
            key_overlaps: self.keys.iter().map(|history| history.overlaps(now)).sum(),
            key_out_of_order: audit.out_of_order,
            key_stale_writes_accepted: audit.stale,
            key_stale_writes_refused: self.refused,
            writes_acknowledged: self.each.iter().sum(),
            writes_lost: audit.lost,
            writes_twice: audit.twice,
            store_requests_per_second_max: self.asked_in.values().copied().max().unwrap_or(0),
        }
    }

    /// How many writes of each counter were acknowledged.
    pub(super) fn each(&self) -> &[u64] {
        &self.each
    }
}

/// What `--json` adds with `--sharding`; its shape is stable.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figures {
    pub(super) shards_moved: usize,
    pub(super) shard_unavailable_ms_p50: f64,
    pub(super) shard_unavailable_ms_max: f64,
    pub(super) others_unavailable_ms_max: f64,
    pub(super) keys: u32,
    pub(super) key_overlaps: usize,
    pub(super) key_out_of_order: u64,
    pub(super) key_stale_writes_accepted: u64,
    pub(super) key_stale_writes_refused: u64,
    pub(super) writes_acknowledged: u64,
    pub(super) writes_lost: u64,
    pub(super) writes_twice: u64,
    pub(super) store_requests_per_second_max: u64,
}

impl Figures {
    /// Whether nothing happened that must not.
    pub(super) fn is_clean(&self) -> bool {
        self.key_overlaps == 0
            && self.key_out_of_order == 0
            && self.key_stale_writes_accepted == 0
            && self.writes_lost == 0
            && self.writes_twice == 0
    }
}

/// What is told of one moment by two processes may differ by this.
const MEANWHILE: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> u64 {
        millis * 1_000_000
    }

    fn places() -> Places {
        Places::new(&Settings::new(Duration::from_secs(3)))
    }

    fn hear(places: &mut Places, from: usize, report: Report) {
        places.hear(from, report, Moment::from_nanos(at(9000)));
    }

    fn figures(places: &Places) -> Figures {
        let (since, now) = (Moment::from_nanos(at(2500)), Moment::from_nanos(at(9000)));
        places.figures(&Audit::default(), since, now)
    }

    /// Counter 0, with the shard's token of this step.
    fn began(places: &mut Places, node: usize, step: u64, millis: u64) {
        let token = Token::new(7, step);
        hear(places, node, Report::Began { key: 0, token, at: at(millis) });
    }

    fn ended(places: &mut Places, node: usize, step: u64, millis: u64) {
        let token = Token::new(7, step);
        hear(places, node, Report::Ended { key: 0, token, at: at(millis) });
    }

    fn waited(places: &mut Places, from: u64, to: u64) {
        let shard = places.shards[0];
        hear(places, 0, Report::Waited { shard, from: at(from), to: at(to) });
    }

    #[test]
    fn a_shard_that_moves_is_unavailable_for_as_long_as_a_write_waits() {
        let mut places = places();
        began(&mut places, 1, 0, 500);
        ended(&mut places, 1, 0, 900);
        began(&mut places, 1, 1, 1000);
        waited(&mut places, 2000, 2600); // It was starting.
        ended(&mut places, 1, 1, 3000);
        began(&mut places, 2, 2, 3050);
        waited(&mut places, 2990, 3060);
        waited(&mut places, 5000, 5030);
        let figures = figures(&places);
        assert_eq!(figures.shards_moved, 1);
        assert_eq!(figures.shard_unavailable_ms_max, 70.0);
        assert_eq!(figures.others_unavailable_ms_max, 30.0);
        assert!(figures.is_clean());
    }

    #[test]
    fn a_counter_that_fails_and_begins_again_does_not_move_its_shard() {
        let mut places = places();
        began(&mut places, 1, 1, 1000);
        ended(&mut places, 1, 1, 3000);
        began(&mut places, 1, 1, 3050);
        assert_eq!((figures(&places).shards_moved, places.moved()), (0, 0));
    }

    #[test]
    fn a_counter_in_two_places_is_an_overlap() {
        let mut places = places();
        began(&mut places, 1, 1, 1000);
        began(&mut places, 2, 2, 2000);
        ended(&mut places, 1, 1, 2001);
        assert_eq!(figures(&places).key_overlaps, 1);
        assert!(!figures(&places).is_clean());
    }

    #[test]
    fn what_a_node_did_ends_with_it() {
        let mut places = places();
        began(&mut places, 1, 1, 1000);
        places.died(1, Moment::from_nanos(at(1500)));
        began(&mut places, 2, 2, 2000);
        assert_eq!(figures(&places).key_overlaps, 0);
        assert_eq!(places.moved(), 1);
    }

    #[test]
    fn requests_are_counted_by_the_second_and_a_new_process_counts_anew() {
        let mut places = places();
        hear(&mut places, 1, Report::Asked(10));
        hear(&mut places, 2, Report::Asked(5));
        hear(&mut places, 1, Report::Asked(12));
        places.died(1, Moment::ZERO);
        hear(&mut places, 1, Report::Asked(3));
        assert_eq!(figures(&places).store_requests_per_second_max, 20);
    }
}
