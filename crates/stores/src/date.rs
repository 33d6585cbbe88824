//! Dates of HTTP, as servers show their clocks.

use std::time::UNIX_EPOCH;

/// A date in an answer, in seconds since 1970.
pub(crate) fn parse_date(text: &str) -> Option<u64> {
    let date = httpdate::parse_http_date(text).ok()?;
    date.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_read() {
        assert_eq!(parse_date("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(parse_date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(parse_date("Thu, 29 Feb 2024 23:59:59 GMT"), Some(1_709_251_199));
        assert_eq!(parse_date("Fri, 31 Dec 2100 00:00:00 GMT"), Some(4_133_894_400));
        for none in ["", "GMT", "Sun, 06 Nov 1994 08:49:37", "Sun, 00 Nov 1994 08:49:37 GMT"] {
            assert_eq!(parse_date(none), None, "{none}");
        }
    }
}
