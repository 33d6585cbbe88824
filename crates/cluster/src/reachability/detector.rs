//! Is it dead, or is the line slow today? (Phi accrual.)
//!
//! A detector remembers how long apart answers came. From their mean and spread follows how
//! unlikely the present silence is, and at a threshold (one in 10^8 by default) it says so. Since
//! the distribution is fixed between two answers, so is the moment: it is computed once per answer
//! instead of asking "how suspicious now?" again and again.

use std::collections::VecDeque;
use std::time::Duration;

use tenure_lease::Moment;

use crate::settings::MembershipSettings;

/// The answers of one watched node.
#[derive(Clone, Debug)]
pub(crate) struct Detector {
    last_answer: Moment,
    /// The latest intervals, in seconds.
    intervals: VecDeque<f32>,
    sum: f64,
    sum_of_squares: f64,
}

impl Detector {
    /// Begins to watch: as if an answer had just come, and answers had always come in time.
    pub(crate) fn new(settings: &MembershipSettings, now: Moment) -> Self {
        let mut new =
            Self { last_answer: now, intervals: VecDeque::new(), sum: 0.0, sum_of_squares: 0.0 };
        new.remember(settings.heartbeat_interval);
        new
    }

    /// An answer came. `usual` is false for one that ends a silence which was already noticed: it
    /// tells nothing about how answers come when all is well.
    pub(crate) fn answered(&mut self, now: Moment, usual: bool) {
        if usual {
            self.remember(now.since(self.last_answer));
        }
        self.last_answer = now;
    }

    /// This node itself stood still: its silence is not held against the others.
    pub(crate) fn excuse(&mut self, pause: Duration, now: Moment) {
        self.last_answer = (self.last_answer + pause).min(now);
    }

    /// When the silence becomes too unlikely, if no answer comes. `patience` stretches the
    /// acceptable pause, for a node that is itself slow.
    pub(crate) fn deadline(&self, settings: &MembershipSettings, patience: u32) -> Moment {
        let count = self.intervals.len() as f64;
        let mean = self.sum / count;
        let variance = (self.sum_of_squares / count - mean * mean).max(0.0);
        let least = settings.heartbeat_interval.as_secs_f64() / 10.0;
        let spread = variance.sqrt().max(least);
        let silence = mean + spread * deviations(settings.threshold);
        self.last_answer + settings.acceptable_pause * patience + Duration::from_secs_f64(silence)
    }

    /// The deadline when answers come like clockwork.
    pub(crate) fn steady_deadline(&self, settings: &MembershipSettings) -> Moment {
        self.deadline(settings, 1)
    }

    fn remember(&mut self, interval: Duration) {
        let seconds = interval.as_secs_f32();
        if self.intervals.len() == WINDOW
            && let Some(oldest) = self.intervals.pop_front()
        {
            self.sum -= f64::from(oldest);
            self.sum_of_squares -= f64::from(oldest) * f64::from(oldest);
        }
        self.intervals.push_back(seconds);
        self.sum += f64::from(seconds);
        self.sum_of_squares += f64::from(seconds) * f64::from(seconds);
    }
}

/// How many standard deviations beyond the mean have a probability of 10^-threshold. Solves the
/// usual logistic approximation of the normal distribution's tail.
fn deviations(threshold: f64) -> f64 {
    let wanted = threshold * std::f64::consts::LN_10;
    // y·(1.5976 + 0.070566·y²) = wanted, by Newton's method; it is convex and rising.
    let mut y = 5.0_f64;
    for _ in 0..6 {
        let value = y * (1.5976 + 0.070566 * y * y) - wanted;
        y -= value / (1.5976 + 3.0 * 0.070566 * y * y);
    }
    y
}

/// How many intervals are remembered.
const WINDOW: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Moment {
        Moment::ZERO + Duration::from_secs_f64(seconds)
    }

    #[test]
    fn steady_answers_are_missed_after_the_pause_and_a_little() {
        let settings = MembershipSettings::default();
        let mut detector = Detector::new(&settings, Moment::ZERO);
        for second in 1..=200 {
            detector.answered(at(f64::from(second)), true);
        }
        let silence = detector.deadline(&settings, 1).since(at(200.0));
        assert_eq!(silence.as_millis(), 4522);
    }

    #[test]
    fn a_line_that_stutters_is_given_more_time() {
        let settings = MembershipSettings::default();
        let mut steady = Detector::new(&settings, Moment::ZERO);
        let mut stutters = Detector::new(&settings, Moment::ZERO);
        for second in 1..=50 {
            steady.answered(at(f64::from(second)), true);
            let late = if second % 3 == 0 { 0.9 } else { 0.0 };
            stutters.answered(at(f64::from(second) + late), true);
        }
        let longer = stutters.deadline(&settings, 1).since(steady.deadline(&settings, 1));
        assert!(longer > Duration::from_secs(2), "{longer:?}");
    }

    #[test]
    fn the_end_of_a_noticed_silence_teaches_nothing() {
        let settings = MembershipSettings::default();
        let mut detector = Detector::new(&settings, Moment::ZERO);
        detector.answered(at(60.0), false);
        let silence = detector.deadline(&settings, 1).since(at(60.0));
        assert_eq!(silence, settings.detection());
    }

    #[test]
    fn a_higher_threshold_waits_longer() {
        let patient = MembershipSettings { threshold: 12.0, ..Default::default() };
        assert!(patient.detection() > MembershipSettings::default().detection());
        // The logistic approximation itself, at the threshold that people know.
        let y = deviations(8.0);
        let tail = (-y * (1.5976 + 0.070566 * y * y)).exp();
        let phi = -(tail / (1.0 + tail)).log10();
        assert!((phi - 8.0).abs() < 1e-6, "{phi}");
    }
}
