//! The wall clock, for display: `acquireTime` and `renewTime` tell people when, and decide nothing.
#![allow(clippy::disallowed_methods)] // Nobody compares what is read here.

use std::time::SystemTime;

use k8s_openapi::jiff::{Timestamp, fmt::strtime};

/// Now, as the server reads times: exactly six digits after the second.
pub(super) fn now() -> String {
    format(Timestamp::try_from(SystemTime::now()).unwrap_or(Timestamp::UNIX_EPOCH))
}

fn format(moment: Timestamp) -> String {
    // The format is a constant that every moment has.
    strtime::format("%Y-%m-%dT%H:%M:%S%.6fZ", moment).expect("a moment has a date and a time")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_six_digits() {
        let moment = Timestamp::new(1_700_000_000, 120_000_000).unwrap();
        assert_eq!(format(moment), "2023-11-14T22:13:20.120000Z");
    }
}
