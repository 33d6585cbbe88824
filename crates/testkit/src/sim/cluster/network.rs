use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::sim::Random;

/// How well messages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weather {
    /// The shortest and the longest time on the way.
    pub delay: (Duration, Duration),
    /// How many of a thousand are lost.
    pub loss: u64,
    /// How many of a thousand arrive twice.
    pub repeated: u64,
    /// How many of a thousand are held up somewhere, for as long as six seconds.
    pub stray: u64,
}

impl Weather {
    /// A data centre on a good day.
    pub const FAIR: Self = Self {
        delay: (Duration::from_micros(300), Duration::from_micros(700)),
        loss: 0,
        repeated: 0,
        stray: 0,
    };
}

/// The links between nodes.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) weather: Weather,
    /// From, to.
    cut: BTreeSet<(usize, usize)>,
    /// Nodes that nobody reaches, and that reach nobody.
    outsiders: BTreeSet<usize>,
    /// What a node adds to everything that it sends and receives.
    slow: BTreeMap<usize, Duration>,
}

impl Network {
    pub(super) fn new() -> Self {
        let (cut, outsiders) = (BTreeSet::new(), BTreeSet::new());
        Self { weather: Weather::FAIR, cut, outsiders, slow: BTreeMap::new() }
    }

    pub(super) fn cut(&mut self, from: usize, to: usize) {
        self.cut.insert((from, to));
    }

    pub(super) fn mend(&mut self, from: usize, to: usize) {
        self.cut.remove(&(from, to));
    }

    pub(super) fn is_cut(&self, from: usize, to: usize) -> bool {
        !self.cut.is_empty() && self.cut.contains(&(from, to))
            || !self.outsiders.is_empty()
                && (self.outsiders.contains(&from) || self.outsiders.contains(&to))
    }

    pub(super) fn has_cuts(&self) -> bool {
        !self.cut.is_empty()
    }

    pub(super) fn mend_all(&mut self) {
        self.cut.clear();
    }

    pub(super) fn shut_out(&mut self, node: usize, shut_out: bool) {
        match shut_out {
            true => self.outsiders.insert(node),
            false => self.outsiders.remove(&node),
        };
    }

    pub(super) fn slow(&mut self, node: usize, by: Duration) {
        self.slow.insert(node, by);
    }

    pub(super) fn heal(&mut self) {
        self.cut.clear();
        self.outsiders.clear();
        self.slow.clear();
        self.weather = Weather::FAIR;
    }

    /// How long each copy of a message takes that arrives.
    pub(super) fn journeys(&self, from: usize, to: usize, random: &mut Random) -> Journeys {
        let lost = self.weather.loss > 0 && random.within(0..1000) < self.weather.loss;
        if self.is_cut(from, to) || lost {
            return [None, None];
        }
        let first = Some(self.journey(from, to, random));
        let repeated = self.weather.repeated > 0 && random.within(0..1000) < self.weather.repeated;
        [first, repeated.then(|| self.journey(from, to, random))]
    }

    /// How long something takes that is sent again until it arrives.
    pub(super) fn reliable_journey(
        &self,
        from: usize,
        to: usize,
        random: &mut Random,
    ) -> Option<Duration> {
        (!self.is_cut(from, to)).then(|| self.journey(from, to, random))
    }

    /// How long a message takes.
    pub(super) fn journey(&self, from: usize, to: usize, random: &mut Random) -> Duration {
        let (least, most) = self.weather.delay;
        let mut journey = least + random.up_to(most.saturating_sub(least));
        if !self.slow.is_empty() {
            journey += self.slow.get(&from).copied().unwrap_or_default();
            journey += self.slow.get(&to).copied().unwrap_or_default();
        }
        if self.weather.stray > 0 && random.within(0..1000) < self.weather.stray {
            journey += random.up_to(LONGEST);
        }
        journey
    }
}

/// For how long a message may be held up. Two slow nodes add to this, and yet no message outlives the
/// memory of the removed, which is eleven seconds where time is short: that is what
/// `keep_removed` asks for.
const LONGEST: Duration = Duration::from_secs(6);

/// How long the copies of a message take.
pub(super) type Journeys = [Option<Duration>; 2];
