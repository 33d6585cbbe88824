//! When the end of a certificate is worth a line in the log.

use std::time::Duration;

use tenure_lease::Moment;

use super::verify::Validity;

/// How near the end of a certificate is, nearest last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ExpiryStage {
    /// There is time.
    Far,
    /// A month at most, or a third of the whole time that it is good for.
    Month,
    /// A week at most, or a sixth.
    Week,
    /// A day at most, or a twelfth.
    Day,
    /// It is over.
    Over,
}

impl ExpiryStage {
    /// At `now`, in seconds since 1970. Certificates that are good for a few days only are renewed
    /// all the time; they are near their end when a part of their time is left.
    pub(crate) fn at(now: u64, validity: Validity) -> Self {
        let whole = validity.not_after.saturating_sub(validity.not_before);
        let left = validity.not_after.saturating_sub(now);
        match left {
            _ if now > validity.not_after => Self::Over,
            left if left <= DAY.min(whole / 12) => Self::Day,
            left if left <= (7 * DAY).min(whole / 6) => Self::Week,
            left if left <= (30 * DAY).min(whole / 3) => Self::Month,
            _ => Self::Far,
        }
    }
}

/// Says which looks at one certificate are logged: the first at each stage, and one a day.
#[derive(Debug, Default)]
pub(crate) struct ExpiryLog {
    last: Option<(ExpiryStage, Moment)>,
}

impl ExpiryLog {
    /// Whether this look is logged.
    pub(crate) fn admit(&mut self, now: Moment, stage: ExpiryStage) -> bool {
        let due = match self.last {
            None => true,
            Some((last, at)) => last != stage || now.since(at) >= Duration::from_secs(DAY),
        };
        if due {
            self.last = Some((stage, now));
        }
        due && stage > ExpiryStage::Far
    }
}

const DAY: u64 = 24 * 3600;

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(days_left: f64, whole: u64) -> ExpiryStage {
        let end = 10_000 * DAY;
        let validity = Validity { not_before: end - whole * DAY, not_after: end };
        ExpiryStage::at((end as f64 - days_left * DAY as f64) as u64, validity)
    }

    #[test]
    fn stages_are_a_month_a_week_a_day() {
        use ExpiryStage::{Day, Far, Month, Over, Week};
        let stages = [31.0, 29.9, 7.1, 6.9, 1.1, 0.9, 0.0, -0.1].map(|left| stage(left, 365));
        assert_eq!(stages, [Far, Month, Month, Week, Week, Day, Day, Over]);
        // One that is renewed every day is not in trouble all its life.
        let stages = [0.9, 0.5, 0.3, 0.15, 0.05, -0.1].map(|left| stage(left, 1));
        assert_eq!(stages, [Far, Far, Month, Week, Day, Over]);
    }

    #[test]
    fn each_stage_is_logged_once_a_day() {
        let at = |hours: u64| Moment::ZERO + Duration::from_secs(hours * 3600);
        let mut log = ExpiryLog::default();
        assert!(!log.admit(at(0), ExpiryStage::Far));
        assert!(log.admit(at(1), ExpiryStage::Month));
        assert!(!log.admit(at(2), ExpiryStage::Month));
        assert!(log.admit(at(25), ExpiryStage::Month));
        assert!(log.admit(at(26), ExpiryStage::Over), "a change is told at once");
    }
}
