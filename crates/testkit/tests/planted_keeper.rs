//! The checks of the conformance suite notice, too, when the keeper over a sound store leaves out
//! one of its rules.
#![cfg(feature = "planted")]

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use tenure_lease::backend::Boxed;
use tenure_lease::settings::Rule;
use tenure_lease::{LeaseName, Settings, Store};
use tenure_testkit::conformance::{self, Factory, Verdict};
use tenure_testkit::mutants::{Ends, Mutants};

struct Careless {
    store: Mutants,
    without: Rule,
}

impl Factory for Careless {
    fn open(&self) -> Boxed<'_, Store> {
        self.store.open()
    }

    fn ttl(&self) -> Duration {
        self.store.ttl()
    }

    fn settings(&self) -> Settings {
        Settings { without: Some(self.without), ..Settings::new(self.ttl()) }
    }

    fn delete<'a>(&'a self, name: &'a LeaseName) -> Option<Boxed<'a, ()>> {
        self.store.delete(name)
    }
}

#[test]
fn every_rule_of_the_keeper_is_missed() {
    let (timed, watched) = (Ends::ByStore, Ends::ByObservation);
    let missed = [
        (Rule::StopBudget, timed, "a_long_outage_ends_it_before_the_next"),
        (Rule::DeadlineFromSend, timed, "a_late_reply_prolongs_from_the_send"),
        (Rule::ReadBackByClaim, timed, "a_read_back_goes_by_the_claim"),
        (Rule::TakeSessionFirst, timed, "attached_leases_die_with_their_session"),
        (Rule::WaitVanished, timed, "a_vanished_record_is_waited_out"),
        (Rule::ProveAttached, timed, "a_deleted_attached_record_is_noticed"),
        (Rule::ObserveWholeTtl, watched, "a_long_outage_ends_it_before_the_next"),
    ];
    let outcomes = conformance::block_on(async {
        let mut running = JoinSet::new();
        for (without, ends, check) in missed {
            let store = Mutants::sound(ends, Duration::from_secs(1));
            let factory = Arc::new(Careless { store, without });
            running.spawn(async move { (without, conformance::run_one(factory, check).await) });
        }
        running.join_all().await
    });
    for (without, report) in outcomes {
        let line = &report.lines[0];
        println!("without {without:?}: {line}");
        assert!(matches!(line.verdict, Verdict::Failed(_)), "nothing missed {without:?}: {line}");
    }
}
