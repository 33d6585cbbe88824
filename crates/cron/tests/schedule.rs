//! Which slots there are, beside an oracle that tries every minute of the wall clock.

use std::collections::BTreeSet;

use jiff::civil::{DateTime, Weekday};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Timestamp, ToSpan as _};
use tenure_cron::{Schedule, Slot};

fn schedule(at: &str, zone: &str) -> Schedule {
    Schedule::parse(at, zone).unwrap()
}

fn slot(text: &str) -> Slot {
    Slot::from_unix(text.parse::<Timestamp>().unwrap().as_second())
}

/// The slots after the one time and until the other, as text.
fn slots(schedule: &Schedule, after: &str, until: &str) -> Vec<String> {
    let until = slot(until);
    let next = |slot: &Slot| schedule.next_after(*slot).filter(|next| *next <= until);
    let first = next(&slot(after));
    std::iter::successors(first, next).map(|slot| slot.to_string()).collect()
}

#[test]
fn expressions_mean_what_every_cron_means() {
    let in_utc =
        |at: &str, after: &str| schedule(at, "UTC").next_after(slot(after)).unwrap().to_string();
    for (at, after, expected) in [
        ("0 3 * * *", "2026-11-17T14:00:00Z", "2026-11-18T03:00:00Z"),
        ("0 3 * * *", "2026-11-17T03:00:00Z", "2026-11-18T03:00:00Z"),
        ("*/15 * * * *", "2026-11-17T14:01:00Z", "2026-11-17T14:15:00Z"),
        ("5/20 8-9 * * *", "2026-11-17T08:26:00Z", "2026-11-17T08:45:00Z"),
        ("0 0 29 2 *", "2026-11-17T00:00:00Z", "2028-02-29T00:00:00Z"),
        ("0 0 31 * *", "2026-01-31T00:00:00Z", "2026-03-31T00:00:00Z"),
        ("0 9 * * MON-fri", "2026-11-20T10:00:00Z", "2026-11-23T09:00:00Z"),
        ("0 9 * * 7", "2026-11-17T10:00:00Z", "2026-11-22T09:00:00Z"),
        ("0 9 * * 0", "2026-11-17T10:00:00Z", "2026-11-22T09:00:00Z"),
        // Either day, if both are named: the 20th is a Friday, the 23rd a Monday.
        ("0 9 23 * fri", "2026-11-17T10:00:00Z", "2026-11-20T09:00:00Z"),
        ("0 9 23 * fri", "2026-11-20T10:00:00Z", "2026-11-23T09:00:00Z"),
        ("0 0 1 jan *", "2026-11-17T10:00:00Z", "2027-01-01T00:00:00Z"),
        ("*/10 * * * * *", "2026-11-17T10:00:01Z", "2026-11-17T10:00:10Z"),
        ("@hourly", "2026-11-17T10:00:00Z", "2026-11-17T11:00:00Z"),
        ("@daily", "2026-11-17T10:00:00Z", "2026-11-18T00:00:00Z"),
        ("@weekly", "2026-11-17T10:00:00Z", "2026-11-22T00:00:00Z"),
        ("@monthly", "2026-11-17T10:00:00Z", "2026-12-01T00:00:00Z"),
        ("@yearly", "2026-11-17T10:00:00Z", "2027-01-01T00:00:00Z"),
        ("@every 90s", "2026-11-17T10:00:00Z", "2026-11-17T10:01:30Z"),
        ("@every 90s", "2026-11-17T10:00:01Z", "2026-11-17T10:01:30Z"),
    ] {
        assert_eq!(in_utc(at, after), expected, "{at} after {after}");
    }
}

#[test]
fn what_is_no_schedule_says_what_would_be() {
    for (at, zone, hint) in [
        ("", "UTC", "five are needed"),
        ("0 3 * *", "UTC", "has 4 fields"),
        ("60 3 * * *", "UTC", "0 to 59"),
        ("0 3 * * 8", "UTC", "0 to 7"),
        ("0 3 * foo *", "UTC", "\"foo\" is no month"),
        ("5-1 * * * *", "UTC", "is no minute"),
        ("*/0 * * * *", "UTC", "is no minute"),
        ("+5 * * * *", "UTC", "is no minute"),
        ("0 0 30 2 *", "UTC", "no year has"),
        ("@reboot", "UTC", "@every 90s"),
        ("@every 500ms", "UTC", "whole seconds"),
        ("@every soon", "UTC", "\"15s\""),
        ("0 3 * * *", "Europe/Berln", "no time zone"),
        ("0 3 * * *", "../../etc/passwd", "no name of one"),
        ("0 3 * * *", "/etc/localtime", "no name of one"),
    ] {
        let error = Schedule::parse(at, zone).unwrap_err().to_string();
        assert!(error.contains(hint), "{at}: {error}");
    }
}

#[test]
fn a_fixed_hour_that_spring_skips_is_due_when_the_gap_ends_and_once_in_autumn() {
    let berlin = schedule("30 2 * * *", "Europe/Berlin");
    assert_eq!(
        slots(&berlin, "2026-03-27T12:00:00Z", "2026-03-30T12:00:00Z"),
        ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]
    );
    assert_eq!(
        slots(&berlin, "2026-10-24T12:00:00Z", "2026-10-26T12:00:00Z"),
        ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]
    );
}

#[test]
fn every_hour_follows_elapsed_time() {
    let berlin = schedule("30 * * * *", "Europe/Berlin");
    for (after, until) in [
        ("2026-03-28T23:59:00Z", "2026-03-29T03:00:00Z"),
        ("2026-10-24T23:59:00Z", "2026-10-25T03:00:00Z"),
    ] {
        let hours = slots(&berlin, after, until);
        assert_eq!(hours.len(), 3, "{hours:?}");
    }
}

/// Samoa had no 30 December 2011; Lord Howe Island changes its clocks by half an hour.
#[test]
fn odd_zones_lose_no_slot() {
    let samoa = schedule("0 9 * * *", "Pacific/Apia");
    assert_eq!(
        slots(&samoa, "2011-12-29T12:00:00Z", "2012-01-01T00:00:00Z"),
        [
            "2011-12-29T19:00:00Z",
            "2011-12-30T10:00:00Z",
            "2011-12-30T19:00:00Z",
            "2011-12-31T19:00:00Z"
        ]
    );
    let lord_howe = schedule("15 2 * * *", "Australia/Lord_Howe");
    assert_eq!(slots(&lord_howe, "2026-10-02T00:00:00Z", "2026-10-05T00:00:00Z").len(), 3);
    assert_eq!(slots(&lord_howe, "2026-04-03T00:00:00Z", "2026-04-06T00:00:00Z").len(), 3);
}

/// The slots of an expression by trying every minute of the wall clock. `fixed`: its hour is one.
fn oracle(
    matches: &dyn Fn(DateTime) -> bool,
    fixed: bool,
    zone: &TimeZone,
    (from, until): (Timestamp, Timestamp),
) -> BTreeSet<i64> {
    let mut found = BTreeSet::new();
    let mut civil = TimeZone::UTC.to_datetime(from).checked_sub(2.days()).unwrap();
    civil = civil.with().second(0).subsec_nanosecond(0).build().unwrap();
    let end = TimeZone::UTC.to_datetime(until).checked_add(2.days()).unwrap();
    while civil < end {
        if matches(civil) {
            match zone.to_ambiguous_timestamp(civil).offset() {
                AmbiguousOffset::Unambiguous { offset } => {
                    found.insert(offset.to_timestamp(civil).unwrap().as_second());
                }
                AmbiguousOffset::Gap { after, .. } if fixed => {
                    let inside = after.to_timestamp(civil).unwrap();
                    let end = zone.following(inside).next().unwrap();
                    found.insert(end.timestamp().as_second());
                }
                AmbiguousOffset::Gap { .. } => {}
                AmbiguousOffset::Fold { before, after } => {
                    found.insert(before.to_timestamp(civil).unwrap().as_second());
                    if !fixed {
                        found.insert(after.to_timestamp(civil).unwrap().as_second());
                    }
                }
            }
        }
        civil = civil.checked_add(1.minute()).unwrap();
    }
    found.retain(|slot| *slot > from.as_second() && *slot <= until.as_second());
    found
}

#[test]
fn it_agrees_with_trying_every_minute_around_every_change_of_clocks() {
    type Matches = Box<dyn Fn(DateTime) -> bool>;
    let cases: Vec<(&str, bool, Matches)> = vec![
        ("30 2 * * *", true, Box::new(|t| t.hour() == 2 && t.minute() == 30)),
        ("*/7 1-3 * * *", true, Box::new(|t| (1..=3).contains(&t.hour()) && t.minute() % 7 == 0)),
        ("0,59 * * * *", false, Box::new(|t| t.minute() == 0 || t.minute() == 59)),
        ("*/20 */2 * * *", false, Box::new(|t| t.hour() % 2 == 0 && t.minute() % 20 == 0)),
        (
            "5 0,2,3 * * sun",
            true,
            Box::new(|t| {
                [0, 2, 3].contains(&t.hour()) && t.minute() == 5 && t.weekday() == Weekday::Sunday
            }),
        ),
        ("0 0 1 * *", true, Box::new(|t| t.day() == 1 && t.hour() == 0 && t.minute() == 0)),
    ];
    for name in [
        "Europe/Berlin",
        "America/New_York",
        "America/Santiago",
        "Australia/Lord_Howe",
        "Pacific/Apia",
        "Africa/Casablanca",
        "Asia/Kolkata",
    ] {
        let bytes = std::fs::read(format!("/usr/share/zoneinfo/{name}")).unwrap();
        let zone = TimeZone::tzif(name, &bytes).unwrap();
        let begin: Timestamp = "2011-11-01T00:00:00Z".parse().unwrap();
        let mut changes: Vec<Timestamp> =
            zone.following(begin).take(8).map(|change| change.timestamp()).collect();
        changes.push("2026-11-17T00:00:00Z".parse().unwrap());
        for change in changes {
            let window = (change - 50.hours(), change + 50.hours());
            for (at, fixed, matches) in &cases {
                let schedule = schedule(at, name);
                let expected = oracle(matches, *fixed, &zone, window);
                let [from, until] =
                    [window.0, window.1].map(|time| Slot::from_unix(time.as_second()));
                let next = |slot: &Slot| schedule.next_after(*slot).filter(|next| *next <= until);
                let found: BTreeSet<i64> =
                    std::iter::successors(next(&from), next).map(Slot::as_unix).collect();
                assert_eq!(found, expected, "{at} in {name} around {change}");
                let count = schedule.count_between(from, until);
                assert_eq!(count, expected.len() as u64, "{at} in {name} around {change}");
                let last = schedule.last_between(from, until).map(Slot::as_unix);
                assert_eq!(last, expected.last().copied(), "{at} in {name} around {change}");
            }
        }
    }
}

#[test]
fn a_year_of_seconds_is_counted_at_once() {
    let every_second = schedule("* * * * * *", "America/New_York");
    let (from, until) = (slot("2026-01-01T00:00:00Z"), slot("2027-01-01T00:00:00Z"));
    assert_eq!(every_second.count_between(from, until), 365 * 86_400);
    assert_eq!(every_second.last_between(from, until), Some(until));
}
