//! Durations in files as people write them: `5s`, `50ms`.

use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

pub(crate) fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
    let nanos = value.as_nanos();
    let (unit, size) =
        UNITS.into_iter().find(|(_, size)| nanos.is_multiple_of(*size)).unwrap_or(("ns", 1));
    to.collect_str(&format_args!("{}{unit}", nanos / size))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    parse(&text).ok_or_else(|| {
        D::Error::custom(format!(
            "{text:?} is no duration; \"5s\" or \"50ms\" is (units: h, m, s, ms, us, ns)"
        ))
    })
}

fn parse(text: &str) -> Option<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let (_, size) = UNITS.into_iter().find(|(name, _)| *name == unit)?;
    let nanos = number.parse::<u128>().ok()?.checked_mul(size)?;
    // A year; longer ones are slips, and would overflow sums.
    (nanos <= 366 * 24 * 3600 * 1_000_000_000).then(|| Duration::from_nanos(nanos as u64))
}

const UNITS: [(&str, u128); 6] = [
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// The same for a duration that may be absent.
pub(crate) mod option {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Humane(#[serde(with = "super")] Duration);

    pub(crate) fn serialize<S: Serializer>(
        value: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        value.map(Humane).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<Humane>::deserialize(from)?.map(|Humane(value)| value))
    }
}
