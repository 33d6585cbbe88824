//! Durations as people write them: `15s`, `500ms`, `1m30s`, `1.5s`.

use std::time::Duration;

/// Parses a duration; the error says what would be right.
///
/// ```
/// use std::time::Duration;
/// use tenure_lease::duration;
/// assert_eq!(duration::parse("1m30s"), Ok(Duration::from_secs(90)));
/// assert!(duration::parse("90").unwrap_err().contains("\"15s\""));
/// ```
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || {
        format!(
            "{text:?} is no duration; \"15s\", \"500ms\" or \"1m30s\" is \
             (units: h, m, s, ms, us)"
        )
    };
    let mut rest = text;
    let mut sum = Duration::ZERO;
    let mut last_unit = u64::MAX;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let (number, tail) = rest.split_at(digits);
        let end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let (_, unit) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
        // Each unit once, the large ones first: anything else is a slip.
        if *unit >= last_unit {
            return Err(wrong());
        }
        last_unit = *unit;
        let part = nanos(number, *unit).ok_or_else(wrong)?;
        sum = sum.checked_add(Duration::from_nanos(part)).ok_or_else(wrong)?;
        rest = tail;
    }
    if text.is_empty() || sum > MAX {
        return Err(wrong());
    }
    Ok(sum)
}

/// `number` of a unit that has that many nanoseconds.
fn nanos(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let mut nanos = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    let mut place = unit;
    if fraction.is_empty() {
        return None;
    }
    for digit in fraction.chars() {
        place /= 10;
        nanos = nanos.checked_add(u64::from(digit.to_digit(10)?) * place)?;
    }
    Some(nanos)
}

const UNITS: [(&str, u64); 5] = [
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
];
/// Longer ones are slips, and would overflow sums.
const MAX: Duration = Duration::from_secs(366 * 24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        for (text, millis) in [
            ("15s", 15_000),
            ("500ms", 500),
            ("1m30s", 90_000),
            ("1.5s", 1_500),
            ("2h", 7_200_000),
            ("0s", 0),
            ("1s250ms", 1_250),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(parse("250us"), Ok(Duration::from_micros(250)));
    }

    #[test]
    fn says_what_would_be_right() {
        for text in [
            "", "15", "s", "15 s", "-1s", "1s1s", "1s1m", "1.s", ".5s", "1..5s", "15sec",
            "9999999h",
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains("\"15s\""), "{text}: {error}");
        }
    }
}
