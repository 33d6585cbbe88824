//! Durations that were measured.

use std::time::Duration;

#[derive(Default)]
pub(super) struct Samples(Vec<Duration>);

impl FromIterator<Duration> for Samples {
    fn from_iter<I: IntoIterator<Item = Duration>>(samples: I) -> Self {
        let mut samples: Vec<Duration> = samples.into_iter().collect();
        samples.sort_unstable();
        Self(samples)
    }
}

impl Samples {
    pub(super) fn push(&mut self, sample: Duration) {
        self.0.push(sample);
        self.0.sort_unstable();
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The smallest one that is not below that share of all; zero if there are none.
    pub(super) fn percentile(&self, percent: usize) -> Duration {
        let rank = (self.0.len() * percent).div_ceil(100).max(1);
        self.0.get(rank - 1).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples() {
        let mut samples = Samples::default();
        assert_eq!(samples.percentile(50), Duration::ZERO);
        for millis in [3, 1, 2, 4] {
            samples.push(Duration::from_millis(millis));
        }
        assert_eq!(samples.percentile(50), Duration::from_millis(2));
        assert_eq!(samples.percentile(99), Duration::from_millis(4));
    }
}
