//! The grammar of `--at`: five or six cron fields, `@daily` and its relatives, `@every DURATION`.
//!
//! ```text
//! at      = fields | "@yearly" | "@annually" | "@monthly" | "@weekly" | "@daily" | "@midnight"
//!         | "@hourly" | "@every " duration
//! fields  = [second] minute hour day-of-month month day-of-week      ; five fields, or six with seconds
//! field   = part *( "," part )
//! part    = ( "*" | value [ "-" value ] ) [ "/" step ]
//! value   = number | name                                            ; JAN … DEC, SUN … SAT
//! ```
//!
//! Day-of-week is 0 to 7, where both 0 and 7 are Sunday. As in every cron since Vixie's: if neither
//! day-of-month nor day-of-week begins with `*`, a day matches if *either* does.

use std::time::Duration;

use tenure_lease::duration;

use crate::ScheduleError;

/// A parsed `--at`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expression {
    /// Times of the wall clock.
    Fields(CronFields),
    /// Every so many seconds, counted from 1970-01-01T00:00:00Z, so that all machines agree.
    Every(i64),
}

/// The times that cron fields name, as bit sets: bit `n` says that the value `n` matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CronFields {
    seconds: u64,
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Whether a day matches if day-of-month or day-of-week does; otherwise both must.
    either_day: bool,
    /// Whether the hour field begins with `*`: such schedules follow elapsed time when clocks are
    /// changed, while those with fixed hours follow the clock on the wall.
    pub(crate) any_hour: bool,
}

impl Expression {
    pub(crate) fn parse(text: &str) -> Result<Self, ScheduleError> {
        let text = text.trim();
        let Some(word) = text.strip_prefix('@') else { return CronFields::parse(text) };
        let fields = match word {
            "yearly" | "annually" => "0 0 1 1 *",
            "monthly" => "0 0 1 * *",
            "weekly" => "0 0 * * 0",
            "daily" | "midnight" => "0 0 * * *",
            "hourly" => "0 * * * *",
            _ => return every(text, word),
        };
        CronFields::parse(fields)
    }
}

fn every(text: &str, word: &str) -> Result<Expression, ScheduleError> {
    let Some(period) = word.strip_prefix("every ") else {
        return Err(ScheduleError::new(format!(
            "{text:?} is no schedule; @yearly, @monthly, @weekly, @daily, @hourly and \"@every 90s\" are"
        )));
    };
    let period = duration::parse(period.trim()).map_err(ScheduleError::new)?;
    if period < Duration::from_secs(1) || period.subsec_nanos() != 0 {
        return Err(ScheduleError::new(format!("{text:?}: whole seconds, at least \"@every 1s\"")));
    }
    // A duration of tenure has at most some years.
    Ok(Expression::Every(i64::try_from(period.as_secs()).unwrap_or(i64::MAX)))
}

impl CronFields {
    fn parse(text: &str) -> Result<Expression, ScheduleError> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let (second, words) = match words.as_slice() {
            [second, rest @ ..] if words.len() == 6 => (*second, rest),
            rest if words.len() == 5 => ("0", rest),
            _ => {
                return Err(ScheduleError::new(format!(
                    "{text:?} has {} fields; five are needed (minute, hour, day of month, month, day \
                     of week), or six with seconds before them: \"0 3 * * *\" is three o'clock",
                    words.len()
                )));
            }
        };
        let weekdays = WEEKDAYS.parse(words[4])?;
        Ok(Expression::Fields(Self {
            seconds: SECONDS.parse(second)?,
            minutes: MINUTES.parse(words[0])?,
            hours: HOURS.parse(words[1])?,
            days: DAYS.parse(words[2])?,
            months: MONTHS.parse(words[3])?,
            weekdays: (weekdays | weekdays >> 7) & 0x7f,
            either_day: !words[2].starts_with('*') && !words[4].starts_with('*'),
            any_hour: words[1].starts_with('*'),
        }))
    }

    /// The first matching local second in `from..end`. Local seconds are those of a clock whose
    /// offset does not change, since 1970-01-01T00:00:00 on that clock.
    pub(crate) fn first_within(&self, from: i64, end: i64) -> Option<i64> {
        let first_day = from.div_euclid(DAY);
        let last_day = (end - 1).div_euclid(DAY).min(first_day.saturating_add(SEARCHED_DAYS));
        let first_time = from.rem_euclid(DAY);
        for day in first_day..=last_day {
            if !self.matches_day(day) {
                continue;
            }
            let from_time = if day == first_day { first_time } else { 0 };
            if let Some(time) = self.first_time(from_time) {
                let found = day * DAY + time;
                return (found < end).then_some(found);
            }
        }
        None
    }

    /// How many local seconds in `from..end` match.
    pub(crate) fn count_within(&self, from: i64, end: i64) -> u64 {
        if from >= end {
            return 0;
        }
        let (first, last) = (from.div_euclid(DAY), end.div_euclid(DAY));
        let whole_day = self.times_before(DAY);
        let mut count = 0;
        for day in first..=last {
            if self.matches_day(day) {
                let until =
                    if day == last { self.times_before(end.rem_euclid(DAY)) } else { whole_day };
                let skipped =
                    if day == first { self.times_before(from.rem_euclid(DAY)) } else { 0 };
                count += until - skipped;
            }
        }
        count
    }

    /// How many times of a matching day are before this second of it.
    fn times_before(&self, time: i64) -> u64 {
        let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
        let below = |set: u64, value: i64| u64::from((set & ((1 << value) - 1)).count_ones());
        let per_minute = u64::from(self.seconds.count_ones());
        let per_hour = u64::from(self.minutes.count_ones()) * per_minute;
        let mut count = below(self.hours, hour) * per_hour;
        if hour < 24 && has(self.hours, hour) {
            count += below(self.minutes, minute) * per_minute;
            if has(self.minutes, minute) {
                count += below(self.seconds, second);
            }
        }
        count
    }

    /// The first matching second of a day at or after this one.
    fn first_time(&self, from: i64) -> Option<i64> {
        let (hour, minute, second) = (from / 3600, from / 60 % 60, from % 60);
        // Each set has a value: the parser refuses an empty one.
        let first = |set: u64| i64::from(set.trailing_zeros());
        if has(self.hours, hour) {
            if has(self.minutes, minute)
                && let Some(second) = at_or_after(self.seconds, second)
            {
                return Some(hour * 3600 + minute * 60 + second);
            }
            if let Some(minute) = at_or_after(self.minutes, minute + 1) {
                return Some(hour * 3600 + minute * 60 + first(self.seconds));
            }
        }
        let hour = at_or_after(self.hours, hour + 1)?;
        Some(hour * 3600 + first(self.minutes) * 60 + first(self.seconds))
    }

    fn matches_day(&self, day: i64) -> bool {
        let (month, day_of_month) = month_and_day(day);
        // 1970-01-01 was a Thursday.
        let weekday = (day + 4).rem_euclid(7);
        let (by_day, by_weekday) = (has(self.days, day_of_month), has(self.weekdays, weekday));
        let matches = if self.either_day { by_day || by_weekday } else { by_day && by_weekday };
        has(self.months, month) && matches
    }
}

/// Month (1 to 12) and day of month of a day since 1970-01-01, in the Gregorian calendar: Howard
/// Hinnant's `civil_from_days`, which counts eras of 400 years from the first of March.
fn month_and_day(day: i64) -> (i64, i64) {
    let of_era = (day + 719_468).rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (month, of_year - (153 * from_march + 2) / 5 + 1)
}

fn has(set: u64, value: i64) -> bool {
    set >> value & 1 == 1
}

fn at_or_after(set: u64, value: i64) -> Option<i64> {
    let rest = set.checked_shr(u32::try_from(value).ok()?)?;
    (rest != 0).then(|| value + i64::from(rest.trailing_zeros()))
}

/// One of the fields: what people call it, its range, and names for its values.
struct Field {
    name: &'static str,
    min: u32,
    max: u32,
    names: &'static [&'static str],
}

impl Field {
    fn parse(&self, text: &str) -> Result<u64, ScheduleError> {
        let mut set = 0;
        for part in text.split(',') {
            set |= self.parse_part(part)?;
        }
        Ok(set)
    }

    fn parse_part(&self, part: &str) -> Result<u64, ScheduleError> {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, Some(self.number(step)?)),
            None => (part, None),
        };
        let (first, last) = match (range, range.split_once('-')) {
            ("*", _) => (self.min, self.max),
            (_, Some((first, last))) => (self.value(first)?, self.value(last)?),
            // As every cron has it: "5/15" goes on to the end.
            (_, None) if step.is_some() => (self.value(range)?, self.max),
            (_, None) => (self.value(range)?, self.value(range)?),
        };
        let step = step.unwrap_or(1);
        if first > last || step == 0 {
            return Err(self.wrong(part));
        }
        Ok((first..=last).step_by(step as usize).fold(0, |set, value| set | 1 << value))
    }

    fn value(&self, text: &str) -> Result<u32, ScheduleError> {
        let named = self.names.iter().position(|name| name.eq_ignore_ascii_case(text));
        let value = match named {
            // There are at most twelve names.
            Some(position) => self.min + position as u32,
            None => self.number(text)?,
        };
        if value < self.min || value > self.max {
            return Err(self.wrong(text));
        }
        Ok(value)
    }

    fn number(&self, text: &str) -> Result<u32, ScheduleError> {
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| is_number).ok_or_else(|| self.wrong(text))
    }

    fn wrong(&self, text: &str) -> ScheduleError {
        let Self { name, min, max, .. } = self;
        ScheduleError::new(format!(
            "{text:?} is no {name}; {min} to {max} are, and \"*\", \"{min}-{max}\", \"*/5\", \"{min},{max}\""
        ))
    }
}

const SECONDS: Field = Field { name: "second", min: 0, max: 59, names: &[] };
const MINUTES: Field = Field { name: "minute", min: 0, max: 59, names: &[] };
const HOURS: Field = Field { name: "hour", min: 0, max: 23, names: &[] };
const DAYS: Field = Field { name: "day of month", min: 1, max: 31, names: &[] };
const MONTHS: Field = Field {
    name: "month",
    min: 1,
    max: 12,
    names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
};
const WEEKDAYS: Field = Field {
    name: "day of week",
    min: 0,
    max: 7,
    names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
};

const DAY: i64 = 86_400;
/// A 29 February may be eight years away (1896 to 1904); with a day of week, forty.
const SEARCHED_DAYS: i64 = 366 * 45;
