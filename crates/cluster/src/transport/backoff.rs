//! How long to wait before dialing again: longer each time, and never in step with others.

use std::time::Duration;

use tenure_lease::Moment;

/// Doubles from `min` to `max`; starts over after a link that lasted.
#[derive(Debug)]
pub(crate) struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) fn new(min: Duration, max: Duration) -> Self {
        Self { min, max, next: min }
    }

    /// The wait before the next attempt: between half of the current step and all of it, as
    /// `random` says.
    pub(crate) fn wait(&mut self, random: u64) -> Duration {
        let step = self.next;
        self.next = (step * 2).min(self.max);
        let half = step / 2;
        half + half.mul_f64(random as f64 / u64::MAX as f64)
    }

    /// A link that was up from `up` to `now` has ended. One that ended at once, say because the
    /// other side is full, does not start over: it would be dialed without end.
    pub(crate) fn ended(&mut self, up: Moment, now: Moment) {
        if now.since(up) >= self.max {
            self.next = self.min;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(50), ms(1000));
        let longest: Vec<_> = (0..7).map(|_| backoff.wait(u64::MAX).as_millis()).collect();
        assert_eq!(longest, [50, 100, 200, 400, 800, 1000, 1000]);
        assert_eq!(backoff.wait(0), ms(500));

        backoff.ended(Moment::ZERO, Moment::ZERO + ms(10));
        assert_eq!(backoff.wait(u64::MAX), ms(1000), "a short link does not start over");
        backoff.ended(Moment::ZERO, Moment::ZERO + ms(1000));
        assert_eq!(backoff.wait(u64::MAX), ms(50));
    }
}
