//! Which entities of a shard have failed and had no success since: they pause before they are made
//! again.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::id::{EntityId, Hashed};

pub(super) struct Failures {
    all: HashMap<EntityId, Failed, Hashed>,
    /// Old ones are forgotten when there are so many. To look for them takes as long as there are many,
    /// so it is not done for each one more.
    most: usize,
}

struct Failed {
    times: u32,
    /// When it may be made again.
    until: Instant,
}

impl Failures {
    pub(super) fn new() -> Self {
        Self { all: HashMap::default(), most: MOST }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn succeeded(&mut self, id: &EntityId) {
        self.all.remove(id);
    }

    /// Until when an entity pauses, if it has failed.
    pub(super) fn until(&self, id: &EntityId) -> Option<Instant> {
        self.all.get(id).map(|failed| failed.until)
    }

    /// One more. The first time it may be made again at once, then after a pause that doubles. What
    /// goes on for longer than the longest pause was a success, whether it says so or not: a daemon
    /// never does.
    pub(super) fn failed(&mut self, id: EntityId, backoff: Duration, now: Instant) {
        let longest = backoff * PAUSES;
        if self.all.len() >= self.most {
            self.all.retain(|_, failed| now < failed.until + longest);
            self.most = (2 * self.all.len()).max(MOST);
        }
        let failed = self.all.entry(id).or_insert(Failed { times: 0, until: now });
        if now >= failed.until + longest {
            failed.times = 0;
        }
        failed.until = match failed.times {
            0 => now,
            times => now + backoff * 2_u32.saturating_pow(times - 1).min(PAUSES),
        };
        failed.times = failed.times.saturating_add(1);
    }
}

/// The longest pause, in pauses.
const PAUSES: u32 = 30;
/// Of how many is remembered before old ones are looked for.
const MOST: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Fails, and says how long it pauses then.
    fn pause(failures: &mut Failures, id: &EntityId, now: Instant) -> Duration {
        failures.failed(id.clone(), SECOND, now);
        failures.until(id).unwrap() - now
    }

    #[test]
    fn pauses_double_until_there_was_a_success() {
        let (mut failures, id) = (Failures::new(), EntityId::new("a"));
        let mut now = Instant::now();
        for expected in [0, 1, 2, 4, 8, 16, 30, 30] {
            let paused = pause(&mut failures, &id, now);
            assert_eq!(paused, expected * SECOND);
            now += paused + 29 * SECOND;
        }
        failures.succeeded(&id);
        assert!(failures.is_empty());
        assert_eq!(pause(&mut failures, &id, now), Duration::ZERO);
    }

    #[test]
    fn who_goes_on_for_long_begins_anew_with_its_pauses() {
        let (mut failures, id) = (Failures::new(), EntityId::new("a"));
        let mut now = Instant::now();
        for _ in 0..8 {
            now += pause(&mut failures, &id, now);
        }
        now += 30 * SECOND;
        assert_eq!(pause(&mut failures, &id, now), Duration::ZERO);
        assert_eq!(pause(&mut failures, &id, now), SECOND);
    }

    /// Each of many is not looked at for each that fails: that would take minutes here.
    #[test]
    fn very_many_can_fail_at_once_and_are_forgotten_later() {
        let (mut failures, began) = (Failures::new(), Instant::now());
        for number in 0..200_000 {
            failures.failed(EntityId::new(&number.to_string()), SECOND, began);
        }
        assert!(began.elapsed() < 30 * SECOND, "{:?}", began.elapsed());
        let later = began + 31 * SECOND;
        for number in 0..200_000 {
            failures.failed(EntityId::new(&format!("later {number}")), SECOND, later);
        }
        assert!(failures.until(&EntityId::new("0")).is_none());
        assert!(failures.all.len() <= 200_000, "{}", failures.all.len());
    }
}
