//! What holding many leases by one session costs a store: one write per renewal interval, however
//! many leases are attached, and a few reads of many records per proof interval.
#![allow(clippy::disallowed_methods)] // It measures for a while, in real time.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use tenure_lease::{Moment, Settings, Store, Tenure};

use crate::faults::{Faults, Operation};

/// What a store was asked while leases were attached to a session and nothing else happened.
#[derive(Debug)]
pub struct Cost {
    /// How many leases were attached.
    pub leases: usize,
    /// How long it was measured.
    pub lasted: Duration,
    /// Renewals of the session.
    pub renewals: u64,
    /// All requests to change a record.
    pub writes: u64,
    /// Requests to read records, however many each.
    pub reads: u64,
    /// How many records they asked for.
    pub records_read: u64,
    /// What the meter counted: say, requests on the wire.
    pub metered: u64,
}

impl Cost {
    /// Attaches so many new leases to a new session, and measures for a proof interval, from right
    /// after a renewal on. Panics if a lease cannot be had or does not stay.
    pub async fn of(
        store: &Store,
        settings: &Settings,
        leases: usize,
        meter: impl Fn() -> u64,
    ) -> Self {
        let faults = Faults::new(Arc::clone(store.backend()));
        let tag = format!("{:016x}", tenure_lease::Nonce::random().bits() as u64);
        let session = faults.store().lease(&format!("node-{tag}")).settings(settings.clone());
        let session = Arc::new(session.session().await.expect("nobody else wants the session"));
        let begun = Moment::now();
        let mut attaching = JoinSet::new();
        let mut tenures: Vec<Tenure> = Vec::new();
        for number in 0..leases {
            if attaching.len() == AT_ONCE
                && let Some(tenure) = attaching.join_next().await
            {
                tenures.push(tenure.expect("it ran"));
            }
            let (session, name) = (Arc::clone(&session), format!("shard-{tag}-{number}"));
            attaching.spawn(async move {
                session.lease(&name).acquire().await.expect("nobody else wants it")
            });
        }
        tenures.extend(attaching.join_all().await);
        println!("attached {leases} in {:?}", Moment::now().since(begun));

        let counts = faults.counts();
        counts.reached(Operation::Renew, counts.applied(Operation::Renew) + 1).await;
        let look = || {
            let of = |operation| counts.sent(operation);
            [of(Operation::Renew), counts.writes(), of(Operation::Read), counts.records_read()]
        };
        let (begun, before, metered) = (Moment::now(), look(), meter());
        tokio::time::sleep(settings.proof_interval).await;
        let (lasted, after, metered) = (Moment::now().since(begun), look(), meter() - metered);
        let lost = tenures.iter().filter(|tenure| !tenure.is_held()).count();
        assert_eq!(lost, 0, "lost while nobody wanted them");
        let [renewals, writes, reads, records_read] =
            [0, 1, 2, 3].map(|index| after[index] - before[index]);
        let cost = Self { leases, lasted, renewals, writes, reads, records_read, metered };
        println!("{cost:?}");
        // The session first: then none of them is given back by itself.
        let session = Arc::into_inner(session).expect("nobody else has it");
        tokio::join!(session.release(), async { drop(tenures) });
        cost
    }

    /// Panics unless only the session was written, at its renewal interval, and every record was
    /// read, in batches.
    pub fn check(&self, settings: &Settings) {
        let Self { leases, lasted, renewals, writes, reads, records_read, .. } = *self;
        assert_eq!(writes, renewals, "nothing but the session is written");
        // Jitter renews up to a fifth earlier.
        let most = lasted.as_secs_f64() / settings.renew_interval.as_secs_f64() * 5.0 / 4.0 + 1.0;
        assert!(renewals >= 1 && renewals as f64 <= most, "{renewals} renewals");
        assert!(records_read >= leases as u64, "not swept once");
        // Four sweeps per proof interval, jitter included at most five, by thousands.
        let sweeps = (lasted.as_secs_f64() / settings.proof_interval.as_secs_f64() * 5.0).ceil();
        let most = (sweeps as u64 + 1) * (leases as u64).div_ceil(1000);
        assert!(reads <= most, "{reads} reads");
    }

    /// Panics unless the meter counted no more than this many for each renewal, and one for each
    /// hundred leases of a sweep.
    pub fn check_metered(&self, for_a_renewal: u64) {
        let most = self.renewals * for_a_renewal + self.reads + self.records_read.div_ceil(100);
        assert!(self.metered <= most, "{} requests, more than {most}", self.metered);
    }
}

/// So many that it does not take long, and so few that none of them waits long for its turn: the
/// session has to be renewed meanwhile.
const AT_ONCE: usize = 32;
