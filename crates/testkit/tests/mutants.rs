//! Each check of the conformance suite can fail: it does, against a store with the one defect that
//! it is there for.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use tenure_testkit::conformance::{self, Verdict};
use tenure_testkit::mutants::{Defect, Ends, Mutants};

#[test]
fn without_a_defect_the_store_that_expires_leases_passes() {
    conformance::test(Mutants::sound(Ends::ByStore, TTL));
}

#[test]
fn without_a_defect_the_store_whose_leases_are_watched_passes() {
    conformance::test(Mutants::sound(Ends::ByObservation, TTL));
}

#[test]
fn every_check_has_a_defect_that_it_catches() {
    let caught: BTreeSet<&str> = Defect::ALL.iter().flat_map(|d| d.caught_by()).copied().collect();
    let checks: BTreeSet<&str> = conformance::names().into_iter().collect();
    let cannot_fail: Vec<_> = checks.difference(&caught).collect();
    assert!(cannot_fail.is_empty(), "no defect is known to fail {cannot_fail:?}");
    let unknown: Vec<_> = caught.difference(&checks).collect();
    assert!(unknown.is_empty(), "there are no such checks: {unknown:?}");
}

#[test]
fn every_defect_is_caught_by_the_checks_that_it_names() {
    let all = Defect::ALL.iter();
    let catches = all.flat_map(|defect| defect.caught_by().iter().map(|check| (*defect, *check)));
    assert_caught(Ends::ByStore, catches.collect());
}

/// What the store's own clock hides.
#[test]
fn defects_are_caught_where_leases_are_watched() {
    let catches = [
        (Defect::RenewKeepsVersion, "a_waiter_asks_seldom"),
        (Defect::RenewKeepsVersion, "takeover_is_refused_after_a_renewal"),
        (Defect::LostWrites, "a_lease_ends_after_its_ttl"),
        (Defect::ReadWrites, "attached_leases_die_with_their_session"),
        (Defect::TermKeptAtTakeover, "terms_rise_over_expiry"),
        (Defect::NoteDroppedOnTakeover, "note_outlives_expiry"),
        (Defect::TakeoverIgnoresVersion, "race_on_expired"),
    ];
    assert_caught(Ends::ByObservation, catches.to_vec());
}

fn assert_caught(ends: Ends, catches: Vec<(Defect, &'static str)>) {
    let outcomes = conformance::block_on(async {
        let mut running = JoinSet::new();
        for (defect, check) in catches {
            running.spawn(async move {
                let store = Arc::new(Mutants::with(defect, ends, TTL));
                (defect, conformance::run_one(store, check).await)
            });
        }
        running.join_all().await
    });
    let mut missed = Vec::new();
    for (defect, report) in &outcomes {
        let line = &report.lines[0];
        println!("{:<24}{line}", format!("{defect:?}"));
        if !matches!(line.verdict, Verdict::Failed(_)) {
            missed.push(format!("{defect:?} by {}", line.name));
        }
    }
    println!("{} catches of {} defects", outcomes.len(), Defect::ALL.len());
    assert!(missed.is_empty(), "not caught: {missed:?}");
}

/// Short, because some defects show only when several of it are over; and long enough for the steps
/// that a check takes within it on a busy machine.
const TTL: Duration = Duration::from_secs(5);
