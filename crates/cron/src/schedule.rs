//! Which slots there are: a cron expression on the clock of a time zone.
//!
//! Between two transitions of its zone a clock has one offset, and the fields are searched on that
//! clock alone. At a transition, schedules with a fixed hour (`30 2 * * *`) follow the clock on the
//! wall: a time that is skipped in spring is due when the gap ends, and one that comes twice in autumn
//! is due at the first. Schedules for every hour (`*/15 * * * *`) follow elapsed time: nothing is due
//! that the wall does not show, and the repeated hour has its slots again.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::expression::{CronFields, Expression};

/// The time for which a run is scheduled: a second of UTC. Two machines that agree on the schedule agree
/// on its slots, whatever their clocks say.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(i64);

impl Slot {
    /// The second that is so many after 1970-01-01T00:00:00Z.
    pub const fn from_unix(seconds: i64) -> Self {
        Self(seconds)
    }

    /// Seconds since 1970-01-01T00:00:00Z.
    pub const fn as_unix(self) -> i64 {
        self.0
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Timestamp::from_second(self.0) {
            Ok(time) => time.fmt(f),
            // Later than the year 9999.
            Err(_) => write!(f, "@{}", self.0),
        }
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Slot {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Slot {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let seconds = match text.strip_prefix('@') {
            Some(seconds) => seconds.parse().ok(),
            None => text.parse().ok().map(Timestamp::as_second),
        };
        seconds.map(Self).ok_or_else(|| serde::de::Error::custom(format!("{text:?} is no time")))
    }
}

/// When a job is due.
///
/// ```
/// use tenure_cron::{Schedule, Slot};
/// let schedule = Schedule::parse("0 3 * * *", "UTC")?;
/// let first = schedule.next_after(Slot::from_unix(0)).unwrap();
/// assert_eq!(first.to_string(), "1970-01-01T03:00:00Z");
/// # Ok::<(), tenure_cron::ScheduleError>(())
/// ```
#[derive(Clone)]
pub struct Schedule {
    text: String,
    zone_name: String,
    expression: Expression,
    zone: TimeZone,
    /// The transitions of the zone from [`TABLE_FROM`] to [`TABLE_END`], so that they are looked up quickly.
    table: Arc<[Segment]>,
}

impl Schedule {
    /// Parses an expression such as `0 3 * * *`, to be read on the clock of a time zone of the
    /// system's database, such as `Europe/Berlin`.
    pub fn parse(at: &str, zone: &str) -> Result<Self, ScheduleError> {
        let (expression, loaded) = (Expression::parse(at)?, load_zone(zone)?);
        let schedule = Self {
            text: at.trim().to_owned(),
            zone_name: zone.to_owned(),
            expression,
            table: segments(&loaded),
            zone: loaded,
        };
        match schedule.next_after(Slot(LOOKED_FROM)) {
            Some(_) => Ok(schedule),
            None => Err(ScheduleError::new(format!("{at:?} names a day that no year has"))),
        }
    }

    /// The expression, as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The time zone's name.
    pub fn zone(&self) -> &str {
        &self.zone_name
    }

    /// The first slot after this second.
    pub fn next_after(&self, after: Slot) -> Option<Slot> {
        let fields = match &self.expression {
            Expression::Every(period) => {
                return Some(Slot((after.0.div_euclid(*period) + 1).checked_mul(*period)?));
            }
            Expression::Fields(fields) => fields,
        };
        let mut segment = self.segment_at(after.0 + 1);
        let mut from = after.0 + 1;
        loop {
            if from == segment.start && segment.has_skipped_slot(fields) {
                return Some(Slot(from));
            }
            let local = segment.local_from(fields, from);
            if let Some(found) = fields.first_within(local, segment.local_end()) {
                return Some(Slot(found - segment.offset));
            }
            if segment.end == END || segment.end > after.0 + SEARCHED {
                return None;
            }
            from = segment.end;
            segment = self.segment_at(from);
        }
    }

    /// How many slots there are after the one second and until the other.
    pub fn count_between(&self, after: Slot, until: Slot) -> u64 {
        if until <= after {
            return 0;
        }
        let fields = match &self.expression {
            Expression::Every(period) => {
                let count = until.0.div_euclid(*period) - after.0.div_euclid(*period);
                return u64::try_from(count).unwrap_or(0);
            }
            Expression::Fields(fields) => fields,
        };
        let (mut from, end) = (after.0 + 1, until.0 + 1);
        let mut count = 0;
        while from < end {
            let segment = self.segment_at(from);
            let mut local = segment.local_from(fields, from);
            if from == segment.start && segment.has_skipped_slot(fields) {
                count += 1;
                // The second at which the gap ends may match by itself: it is one slot.
                local = local.max(from + segment.offset + 1);
            }
            let local_end = segment.local_end().min(end.saturating_add(segment.offset));
            count += fields.count_within(local, local_end);
            from = segment.end;
        }
        count
    }

    /// The last slot after the one second and until the other.
    pub fn last_between(&self, after: Slot, until: Slot) -> Option<Slot> {
        let is_due = |slot: &Slot| *slot <= until;
        let mut found = self.next_after(after).filter(is_due)?;
        // Of all seconds after which a slot is due: the last. It is rarely far from the end.
        let (mut low, mut high) = (found.0, until.0);
        let mut back = 1;
        while low < high {
            let near = high.saturating_sub(back).max(low);
            if let Some(later) = self.next_after(Slot(near)).filter(is_due) {
                found = later;
                low = later.0;
                break;
            }
            high = near;
            back *= 16;
        }
        while low < high {
            let middle = low + (high - low) / 2;
            match self.next_after(Slot(middle)).filter(is_due) {
                Some(later) => {
                    found = later;
                    low = later.0;
                }
                None => high = middle,
            }
        }
        Some(found)
    }

    fn segment_at(&self, second: i64) -> Segment {
        let position = self.table.partition_point(|segment| segment.end <= second);
        match self.table.get(position) {
            Some(segment) if segment.start <= second => *segment,
            _ => Segment::at(&self.zone, second),
        }
    }
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} in {}", self.text, self.zone_name)
    }
}

impl PartialEq for Schedule {
    fn eq(&self, other: &Self) -> bool {
        (&self.expression, &self.zone_name) == (&other.expression, &other.zone_name)
    }
}

/// The time between two transitions of a zone, in which its clock has one offset.
#[derive(Clone, Copy)]
struct Segment {
    /// The first second of UTC that is in it.
    start: i64,
    /// The first second after it.
    end: i64,
    /// Seconds that its clock is ahead of UTC.
    offset: i64,
    /// Seconds that the clock was ahead of UTC before `start`.
    before: i64,
}

impl Segment {
    fn at(zone: &TimeZone, second: i64) -> Self {
        let Ok(at) = Timestamp::from_second(second) else {
            return Self { start: i64::MIN, end: END, offset: 0, before: 0 };
        };
        let offset_at = |at: Timestamp| i64::from(zone.to_offset(at).seconds());
        let offset = offset_at(at);
        let end = zone.following(at).next().map_or(END, |next| next.timestamp().as_second());
        let since = Timestamp::from_second(second + 1).ok();
        let start = since.and_then(|since| zone.preceding(since).next());
        let start = start.map_or(i64::MIN, |start| start.timestamp().as_second());
        let before = Timestamp::from_second(start.saturating_sub(1)).map_or(offset, offset_at);
        Self { start, end, offset, before }
    }

    /// Whether a slot of a fixed hour was skipped by the transition, and is due as the segment starts.
    fn has_skipped_slot(&self, fields: &CronFields) -> bool {
        let (from, end) =
            (self.start.saturating_add(self.before), self.start.saturating_add(self.offset));
        !fields.any_hour && self.offset > self.before && fields.first_within(from, end).is_some()
    }

    /// The local second to search from, for slots at or after this second of UTC.
    fn local_from(&self, fields: &CronFields, from: i64) -> i64 {
        let local = from + self.offset;
        if fields.any_hour {
            return local;
        }
        // What the clock showed before the transition was due then.
        local.max(self.start.saturating_add(self.before))
    }

    fn local_end(&self) -> i64 {
        self.end.saturating_add(self.offset)
    }
}

fn segments(zone: &TimeZone) -> Arc<[Segment]> {
    let mut table = vec![Segment::at(zone, TABLE_FROM)];
    while let Some(last) = table.last().filter(|last| last.end < TABLE_END) {
        table.push(Segment::at(zone, last.end));
    }
    table.into()
}

/// Reads a zone from the system's database.
fn load_zone(name: &str) -> Result<TimeZone, ScheduleError> {
    if matches!(name, "UTC" | "Etc/UTC" | "Z") {
        return Ok(TimeZone::UTC);
    }
    let is_name = !name.is_empty()
        && name.split('/').all(|part| {
            part.starts_with(|c: char| c.is_ascii_alphabetic())
                && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-+".contains(&byte))
        });
    let unknown = |why: String| {
        Err(ScheduleError::new(format!(
            "{name:?} is no time zone that this system knows ({why}); \"Europe/Berlin\" is one, and \
             the package tzdata has them"
        )))
    };
    if !is_name {
        return unknown("it is no name of one".into());
    }
    let directories = std::env::var_os("TZDIR").map(PathBuf::from);
    let directories = directories.into_iter().chain(ZONES.iter().map(PathBuf::from));
    let mut missing = String::new();
    for directory in directories {
        let path = directory.join(Path::new(name));
        match std::fs::read(&path) {
            Ok(bytes) => {
                return TimeZone::tzif(name, &bytes)
                    .or_else(|error| unknown(format!("{}: {error}", path.display())));
            }
            Err(error) => missing = format!("{}: {error}", path.display()),
        }
    }
    unknown(missing)
}

/// What is wrong with a schedule, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ScheduleError(String);

impl ScheduleError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

/// Where systems keep their time zones.
const ZONES: &[&str] = &["/usr/share/zoneinfo", "/etc/zoneinfo", "/usr/lib/zoneinfo"];
/// After all seconds.
const END: i64 = i64::MAX;
/// How far ahead a slot is searched for: forty-five years.
const SEARCHED: i64 = 86_400 * 366 * 45;
/// 2020-01-01 and 2100-01-01.
const TABLE_FROM: i64 = LOOKED_FROM;
const TABLE_END: i64 = 4_102_444_800;
/// 2020-01-01: whether an expression names any day is tried from here.
const LOOKED_FROM: i64 = 1_577_836_800;
