//! What needs a clock: waiting, and the dates that Azure's requests carry and its answers show.
#![allow(clippy::disallowed_methods)] // It waits, and reads the wall clock to sign requests.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Waits a moment before the next look.
pub(super) async fn pause(length: Duration) {
    tokio::time::sleep(length).await;
}

/// Gives up on what takes longer.
pub(super) async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, future).await.ok()
}

/// The time that a request carries; Azure refuses a signature that is a quarter of an hour off.
/// Nothing else depends on it.
pub(super) fn now() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format_date(now.as_secs())
}

/// Seconds since 1970 as `Sun, 06 Nov 1994 08:49:37 GMT`.
fn format_date(secs: u64) -> String {
    let (days, secs) = (secs / DAY, secs % DAY);
    let weekday = WEEKDAYS[(days % 7) as usize];
    // From days to a date, counting from 1 March of the year 0, so that leap days come last.
    let days = days + DAYS_TO_1970;
    let (era, day) = (days / ERA, days % ERA);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month, year) = (day - (153 * month + 2) / 5 + 1, month + 2, era * 400 + year);
    let (month, year) = (month % 12, if month >= 12 { year + 1 } else { year });
    let (hour, minute, second) = (secs / 3600, secs / 60 % 60, secs % 60);
    let month = MONTHS[month as usize];
    format!("{weekday}, {day:02} {month} {year} {hour:02}:{minute:02}:{second:02} GMT")
}

/// The reverse of it.
pub(super) fn parse_date(text: &str) -> Option<u64> {
    let mut words = text.split_once(", ")?.1.split(' ');
    let day: u64 = words.next()?.parse().ok()?;
    let month = words.next()?;
    let month = MONTHS.iter().position(|known| *known == month)? as u64;
    let year: u64 = words.next()?.parse().ok().filter(|year| (1970..10_000).contains(year))?;
    let mut time = words.next()?.split(':').map(|part| part.parse::<u64>().ok());
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    if words.next() != Some("GMT") || !(1..=31).contains(&day) || hour > 23 || minute > 59 {
        return None;
    }
    // March is the first month, as above.
    let (year, month) = if month < 2 { (year - 1, month + 10) } else { (year, month - 2) };
    let of_era = year % 400;
    let days = of_era * 365 + of_era / 4 - of_era / 100 + (153 * month + 2) / 5 + day - 1;
    let days = year / 400 * ERA + days - DAYS_TO_1970;
    Some(days * DAY + hour * 3600 + minute * 60 + second)
}

const DAY: u64 = 24 * 3600;
/// Of 400 years.
const ERA: u64 = 146_097;
/// From 1 March of the year 0.
const DAYS_TO_1970: u64 = 719_468;
/// 1 January 1970 was a Thursday.
const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_and_read() {
        for (secs, text) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (1_709_251_199, "Thu, 29 Feb 2024 23:59:59 GMT"),
            (1_735_689_600, "Wed, 01 Jan 2025 00:00:00 GMT"),
            (4_102_444_799, "Thu, 31 Dec 2099 23:59:59 GMT"),
        ] {
            assert_eq!(format_date(secs), text);
            assert_eq!(parse_date(text), Some(secs));
        }
        for day in 0..60_000 {
            assert_eq!(parse_date(&format_date(day * DAY + 1)), Some(day * DAY + 1));
        }
        for none in ["", "Sun, 06 Nov 1994", "Sun, 06 XXX 1994 08:49:37 GMT", "1994-11-06"] {
            assert_eq!(parse_date(none), None, "{none}");
        }
    }
}
