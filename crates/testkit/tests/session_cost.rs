//! What a session costs: one write per renewal interval, however many leases are attached to it,
//! and a few batches of reads per proof interval.
#![allow(clippy::disallowed_methods)] // It measures for a while, in real time.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use tenure_lease::{MemoryStore, Moment, Session, Settings, Tenure};
use tenure_testkit::faults::{Faults, Operation};

/// Ten thousand attached leases are held by one write per renewal interval.
#[tokio::test]
async fn ten_thousand_attached_leases_cost_one_write_per_renewal() {
    let (faults, session, settings) = session().await;
    let begun = Moment::now();
    let attached = attach(session, 10_000).await;
    println!("attached {} in {:?}", attached.tenures.len(), Moment::now().since(begun));
    assert_eq!(faults.counts().sent(Operation::Acquire), 1 + 10_000, "one attempt each");

    let before = Totals::of(&faults);
    let intervals = 6;
    tokio::time::sleep(settings.renew_interval * intervals).await;
    let cost = Totals::of(&faults).since(&before);
    println!("{intervals} renewal intervals, {:?}: {cost:?}", settings.renew_interval * intervals);

    assert!(attached.tenures.iter().all(Tenure::is_held));
    assert_eq!(cost.writes, cost.renewals, "nothing but the session is written");
    // Jitter renews up to a fifth earlier.
    let most = u64::from(intervals) * 5 / 4 + 1;
    assert!((1..=most).contains(&cost.renewals), "{} renewals", cost.renewals);
    // Each record four times per proof interval, jitter included at most five times; by thousands.
    let proofs = f64::from(intervals) * settings.renew_interval.as_secs_f64()
        / settings.proof_interval.as_secs_f64();
    let most = (proofs * 5.0).ceil() as u64 + 1;
    assert!(cost.records_read >= 10_000, "not swept once");
    assert!(cost.records_read <= most * 10_000, "{} records read", cost.records_read);
    assert!(cost.reads <= most * 10, "{} reads", cost.reads);
}

/// A sweep reads a thousand records at once.
#[tokio::test]
async fn a_sweep_of_a_thousand_records_is_one_read() {
    let (faults, session, _) = session().await;
    let attached = attach(session, 1_000).await;
    let before = Totals::of(&faults);
    faults.counts().reached(Operation::Read, before.reads + 2).await;
    let cost = Totals::of(&faults).since(&before);
    assert_eq!(cost.records_read, cost.reads * 1_000, "{cost:?}");
    assert!(attached.tenures.iter().all(Tenure::is_held));
}

struct Attached {
    tenures: Vec<Tenure>,
    _session: Arc<Session>,
}

async fn session() -> (Faults, Session, Settings) {
    let faults = Faults::new(Arc::new(MemoryStore::new()));
    // Long enough for a busy machine to attach all of them within a proof interval.
    let ttl = Duration::from_secs(6);
    let settings = Settings { renew_interval: ttl / 6, ..Settings::new(ttl) };
    let lease = faults.store().lease("node-1").settings(settings.clone());
    let session = lease.session().await.expect("nobody else wants the session");
    (faults, session, settings)
}

async fn attach(session: Session, count: usize) -> Attached {
    let session = Arc::new(session);
    let mut attaching = JoinSet::new();
    for number in 0..count {
        let session = Arc::clone(&session);
        attaching.spawn(async move { session.lease(&format!("shard-{number}")).acquire().await });
    }
    let tenures = attaching.join_all().await.into_iter();
    let tenures = tenures.map(|tenure| tenure.expect("nobody else wants it")).collect();
    Attached { tenures, _session: session }
}

#[derive(Debug)]
struct Totals {
    writes: u64,
    renewals: u64,
    reads: u64,
    records_read: u64,
}

impl Totals {
    fn of(faults: &Faults) -> Self {
        let counts = faults.counts();
        Self {
            writes: counts.writes(),
            renewals: counts.sent(Operation::Renew),
            reads: counts.sent(Operation::Read),
            records_read: counts.records_read(),
        }
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            writes: self.writes - before.writes,
            renewals: self.renewals - before.renewals,
            reads: self.reads - before.reads,
            records_read: self.records_read - before.records_read,
        }
    }
}
