//! Durations in Consul's answers.

use std::time::Duration;

/// A duration as Go writes it: `10s`, `1m30s`, `10.5s`.
pub(super) fn go_duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut sum = Duration::ZERO;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..end].parse().ok()?;
        rest = &rest[end..];
        let end = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let unit = match &rest[..end] {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            _ => return None,
        };
        rest = &rest[end..];
        sum += Duration::try_from_secs_f64(number * unit).ok()?;
    }
    Some(sum).filter(|sum| !sum.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_durations_are_read() {
        assert_eq!(go_duration("10s"), Some(Duration::from_secs(10)));
        assert_eq!(go_duration("1h1m30s"), Some(Duration::from_secs(3690)));
        assert_eq!(go_duration("10.5s"), Some(Duration::from_millis(10_500)));
        assert_eq!(go_duration("10500ms"), Some(Duration::from_millis(10_500)));
        for none in ["", "0s", "10", "s", "1x"] {
            assert_eq!(go_duration(none), None, "{none}");
        }
    }
}
