//! Who was at work when, put together from what all processes said: gaps between tenures, and
//! overlaps, of which there must be none. Pure.

use std::time::Duration;

use tenure_lease::{Moment, Settings, Token};

/// What happened so far.
#[derive(Debug)]
pub(super) struct History {
    tenures: Vec<Work>,
    pauses: Vec<Pause>,
    silences: Vec<(Moment, Moment)>,
    faults: Vec<(Moment, String)>,
    /// A process that stood still for this long may have lost its lease meanwhile: then it is a
    /// zombie when it goes on, whose writes a fence must refuse, and not at work.
    beyond: Duration,
}

/// One tenure's work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Work {
    pub(super) node: usize,
    pub(super) token: Token,
    pub(super) started: Moment,
    /// When it said that it had ended, or its process did.
    pub(super) ended: Option<Moment>,
}

#[derive(Debug)]
struct Pause {
    node: usize,
    from: Moment,
    to: Option<Moment>,
}

/// One tenure after another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failover {
    /// From the end of the work until it began again.
    pub(super) gap: Duration,
    /// The longest time around it in which the client heard of no job being done.
    pub(super) silence: Duration,
    /// Where.
    pub(super) node: usize,
    /// What was done before the work ended.
    pub(super) cause: String,
}

impl History {
    /// Of a lease with this timing.
    pub(super) fn new(timing: &Settings) -> Self {
        Self {
            tenures: Vec::new(),
            pauses: Vec::new(),
            silences: Vec::new(),
            faults: Vec::new(),
            beyond: timing.ttl - timing.margin - timing.renew_interval,
        }
    }

    pub(super) fn started(&mut self, node: usize, token: Token, at: Moment) {
        self.tenures.push(Work { node, token, started: at, ended: None });
    }

    pub(super) fn stopped(&mut self, node: usize, token: Token, at: Moment) {
        let same = |work: &&mut Work| work.node == node && work.token == token;
        if let Some(work) = self.tenures.iter_mut().rev().find(same) {
            work.ended.get_or_insert(at);
        }
    }

    /// The node's process has ended, and whatever it did with it.
    pub(super) fn died(&mut self, node: usize, at: Moment) {
        for work in self.tenures.iter_mut().filter(|work| work.node == node) {
            work.ended.get_or_insert(at);
        }
        self.resumed(node, at);
    }

    pub(super) fn paused(&mut self, node: usize, at: Moment) {
        self.pauses.push(Pause { node, from: at, to: None });
    }

    pub(super) fn resumed(&mut self, node: usize, at: Moment) {
        for pause in self.pauses.iter_mut().filter(|pause| pause.node == node) {
            pause.to.get_or_insert(at);
        }
    }

    /// The client heard nothing for so long.
    pub(super) fn silence(&mut self, from: Moment, to: Moment) {
        self.silences.push((from, to));
    }

    /// Something was done to the cluster.
    pub(super) fn fault(&mut self, at: Moment, what: impl Into<String>) {
        self.faults.push((at, what.into()));
    }

    /// Whose work has begun last, if it goes on.
    pub(super) fn holder(&self, now: Moment) -> Option<&Work> {
        let last = self.tenures.iter().max_by_key(|work| work.started)?;
        (self.end(last, now) >= now).then_some(last)
    }

    /// When the work ended: when it said so, when its process died, or when its process was stopped
    /// for too long; `now` if it goes on.
    fn end(&self, work: &Work, now: Moment) -> Moment {
        let ended = work.ended.unwrap_or(now);
        let within = |pause: &&Pause| {
            let to = pause.to.unwrap_or(now);
            pause.node == work.node
                && work.started <= pause.from
                && pause.from < ended
                && to.since(pause.from) >= self.beyond
        };
        self.pauses.iter().filter(within).map(|pause| pause.from).fold(ended, Moment::min)
    }

    /// Each work's token, when it began and when it ended.
    pub(super) fn works(&self, now: Moment) -> impl Iterator<Item = (Token, Moment, Moment)> {
        self.tenures.iter().map(move |work| (work.token, work.started, self.end(work, now)))
    }

    fn in_order(&self) -> Vec<&Work> {
        let mut works: Vec<&Work> = self.tenures.iter().collect();
        works.sort_by_key(|work| work.started);
        works
    }

    /// Every tenure but the first, and how long nobody was at work before it.
    pub(super) fn failovers(&self, now: Moment) -> Vec<Failover> {
        let works = self.in_order();
        let mut idle_since = works.first().map_or(now, |work| self.end(work, now));
        let mut failovers = Vec::new();
        let mut last = works.first().map(|work| work.token);
        for work in works.into_iter().skip(1) {
            // The same tenure, begun anew.
            if last.replace(work.token) == Some(work.token) {
                idle_since = idle_since.max(self.end(work, now));
                continue;
            }
            let cause = self.faults.iter().rev().find(|(at, _)| *at <= idle_since + MEANWHILE);
            failovers.push(Failover {
                gap: work.started.since(idle_since),
                silence: self.longest_silence(idle_since, work.started),
                node: work.node,
                cause: cause.map_or("by itself".into(), |(_, what)| what.clone()),
            });
            idle_since = idle_since.max(self.end(work, now));
        }
        failovers
    }

    /// Of those that have something in common with this time, or follow it at once.
    fn longest_silence(&self, from: Moment, to: Moment) -> Duration {
        let around = self.silences.iter().filter(|it| it.1 >= from && it.0 <= to + MEANWHILE);
        around.map(|(from, to)| to.since(*from)).max().unwrap_or_default()
    }

    /// How many times two were at work at once.
    pub(super) fn overlaps(&self, now: Moment) -> usize {
        let works = self.in_order();
        let overlaps = |(index, work): (usize, &&Work)| {
            works[..index].iter().filter(|before| self.end(before, now) > work.started).count()
        };
        works.iter().enumerate().map(overlaps).sum()
    }
}

/// The middle one, and the longest.
pub(super) fn middle_and_longest(times: impl Iterator<Item = Duration>) -> (Duration, Duration) {
    let mut times: Vec<Duration> = times.collect();
    times.sort_unstable();
    let middle = times.get(times.len() / 2).copied().unwrap_or_default();
    (middle, times.last().copied().unwrap_or_default())
}

/// In milliseconds, with one decimal.
pub(super) fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 10_000.0).round() / 10.0
}

/// A fault is noted when it is done, which may be a moment after it had its effect.
const MEANWHILE: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::ZERO + Duration::from_millis(millis)
    }

    fn token(term: u64) -> Token {
        Token::new(term, 0)
    }

    fn history() -> History {
        History::new(&Settings::new(Duration::from_secs(3)))
    }

    fn gaps(history: &History, now: u64) -> Vec<u128> {
        history.failovers(at(now)).iter().map(|failover| failover.gap.as_millis()).collect()
    }

    #[test]
    fn a_gap_is_from_the_end_to_the_next_beginning() {
        let mut history = history();
        history.started(1, token(7), at(1000));
        history.fault(at(2990), "leave 1");
        history.stopped(1, token(7), at(3000));
        history.started(2, token(8), at(3010));
        history.fault(at(5000), "kill 2");
        history.died(2, at(5000));
        assert_eq!(history.holder(at(5500)), None);
        history.started(3, token(9), at(6000));
        assert_eq!(history.holder(at(6500)).unwrap().node, 3);
        assert_eq!(gaps(&history, 9000), [10, 1000]);
        assert_eq!(history.overlaps(at(9000)), 0);
        let causes: Vec<_> = history.failovers(at(9000)).into_iter().map(|f| f.cause).collect();
        assert_eq!(causes, ["leave 1", "kill 2"]);
        let gaps = history.failovers(at(9000)).into_iter().map(|failover| failover.gap);
        let (middle, longest) = middle_and_longest(gaps);
        assert_eq!((middle.as_millis(), longest.as_millis()), (1000, 1000));
        assert_eq!(middle_and_longest(std::iter::empty()), (Duration::ZERO, Duration::ZERO));
    }

    #[test]
    fn a_silence_belongs_to_the_failover_around_which_it_is() {
        let mut history = history();
        history.started(1, token(7), at(1000));
        history.silence(at(1500), at(1900));
        history.stopped(1, token(7), at(3000));
        history.started(2, token(8), at(3010));
        history.silence(at(2990), at(3030));
        history.stopped(2, token(8), at(5000));
        history.started(3, token(9), at(5010));
        let silences: Vec<_> =
            history.failovers(at(9000)).iter().map(|it| it.silence.as_millis()).collect();
        assert_eq!(silences, [40, 0]);
    }

    #[test]
    fn two_at_once_are_an_overlap_in_whatever_order_they_are_told() {
        let mut history = history();
        history.started(2, token(8), at(2999));
        history.started(1, token(7), at(1000));
        history.stopped(1, token(7), at(3000));
        history.stopped(2, token(8), at(4000));
        assert_eq!(history.overlaps(at(9000)), 1);
        assert_eq!(gaps(&history, 9000), [0]);
    }

    #[test]
    fn one_that_goes_on_overlaps_whoever_comes() {
        let mut history = history();
        history.started(1, token(7), at(1000));
        history.started(2, token(8), at(2000));
        history.started(3, token(9), at(3000));
        assert_eq!(history.overlaps(at(9000)), 3);
    }

    #[test]
    fn a_stopped_process_is_at_work_until_it_was_stopped() {
        let mut history = history();
        history.started(1, token(7), at(1000));
        history.paused(1, at(2000));
        history.started(2, token(8), at(5000));
        history.resumed(1, at(8000));
        history.stopped(1, token(7), at(8010));
        assert_eq!(history.overlaps(at(9000)), 0);
        assert_eq!(gaps(&history, 9000), [3000]);
        assert_eq!(history.holder(at(9000)).unwrap().node, 2);
    }

    #[test]
    fn a_short_pause_excuses_nothing() {
        let mut history = history();
        history.started(1, token(7), at(1000));
        history.paused(1, at(2000));
        history.resumed(1, at(2500));
        history.started(2, token(8), at(3000));
        history.stopped(1, token(7), at(3500));
        assert_eq!(history.overlaps(at(9000)), 1);
    }

    #[test]
    fn nor_does_a_pause_before_it_began() {
        let mut history = history();
        history.paused(1, at(1000));
        history.resumed(1, at(5000));
        history.started(1, token(7), at(6000));
        history.started(2, token(8), at(7000));
        history.stopped(1, token(7), at(7500));
        assert_eq!(history.overlaps(at(9000)), 1);
    }
}
