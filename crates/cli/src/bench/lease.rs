//! The measurements. Drives: it waits, and lets two clients contend.
#![allow(clippy::disallowed_methods)]

use std::fmt;
use std::hint::black_box;
use std::time::Duration;

use serde::Serialize;
use tenure_lease::backend::{Acquire, Acquired, Release, Renew};
use tenure_lease::{Lease, LeaseName, Moment, Nonce, Owner, Store, Tenure};
use tokio::task::JoinSet;

use super::LeaseArgs;
use super::counting::{Counting, Counts};
use super::samples::Samples;
use crate::exit::{self, Failure};

/// What `--json` prints; its shape is stable.
#[derive(Serialize)]
pub(super) struct Figures {
    store: &'static str,
    /// One call of `Tenure::is_held`.
    is_held_ns: f64,
    /// `Lease::try_acquire` of a free lease.
    acquire_us_p50: f64,
    acquire_us_p99: f64,
    /// A renewal as the keeper does it, the sign of life included.
    renew_us_p50: f64,
    renew_us_p99: f64,
    /// From one client's release to the return of another's `acquire`.
    handover_ms_p50: f64,
    handover_ms_p99: f64,
    /// One write that the store confirmed, without the keeper; after as long a pause as before
    /// each hand-over, because a server that is kept busy answers faster than one that was idle.
    store_round_trip_us_p50: f64,
    /// Writes per second that keep all leases of one session held.
    renewals_per_s_for_10k_leases: f64,
    reads_per_s_for_10k_leases: f64,
    /// How many leases that was measured with: fewer than asked for if the budget was over.
    attached_leases: usize,
    attach_per_s: f64,
    handovers: usize,
}

pub(super) async fn measure(args: &LeaseArgs) -> Result<Figures, Failure> {
    let first = args.store.open().await?;
    // Two clients of a store in memory would be two stores.
    let second =
        if first.info().kind == "memory" { first.clone() } else { args.store.open().await? };
    let lease = first.lease(NAME).ttl(args.ttl);
    let other = second.lease(NAME).ttl(args.ttl);

    let tenure = hold(&lease).await?;
    let is_held_ns = is_held(&tenure);
    let renew = renewals(&tenure, args.budget).await?;
    tenure.release().await;
    let acquire = acquisitions(&lease, args.budget).await?;
    let handover = handovers(lease, other, args.budget).await?;
    let write = writes(&first, args).await?;
    let many = many(&first, args).await?;
    Ok(Figures {
        store: first.info().kind,
        is_held_ns,
        acquire_us_p50: micros(acquire.percentile(50)),
        acquire_us_p99: micros(acquire.percentile(99)),
        renew_us_p50: micros(renew.percentile(50)),
        renew_us_p99: micros(renew.percentile(99)),
        handover_ms_p50: micros(handover.percentile(50)) / 1e3,
        handover_ms_p99: micros(handover.percentile(99)) / 1e3,
        store_round_trip_us_p50: micros(write.percentile(50)),
        renewals_per_s_for_10k_leases: many.writes_per_s,
        reads_per_s_for_10k_leases: many.reads_per_s,
        attached_leases: many.attached,
        attach_per_s: many.attach_per_s,
        handovers: handover.len(),
    })
}

async fn hold(lease: &Lease) -> Result<Tenure, Failure> {
    lease.try_acquire().await?.ok_or_else(in_use)
}

fn in_use() -> Failure {
    Failure::new(exit::HELD, format!("another holds the lease {NAME}; is a bench running?"))
}

fn is_held(tenure: &Tenure) -> f64 {
    let best = (0..5).map(|_| {
        let start = Moment::now();
        for _ in 0..IS_HELD_CALLS {
            black_box(black_box(tenure).is_held());
        }
        Moment::now().since(start).as_nanos() as f64 / f64::from(IS_HELD_CALLS)
    });
    best.fold(f64::INFINITY, f64::min)
}

async fn renewals(tenure: &Tenure, budget: Duration) -> Result<Samples, Failure> {
    let mut samples = Samples::default();
    let end = Moment::now() + budget;
    while samples.len() < SAMPLES_MAX && Moment::now() < end {
        let start = Moment::now();
        // The one renewal that can be asked for.
        tenure.write_note(Vec::new()).await?;
        samples.push(Moment::now().since(start));
    }
    Ok(samples)
}

async fn acquisitions(lease: &Lease, budget: Duration) -> Result<Samples, Failure> {
    let mut samples = Samples::default();
    let end = Moment::now() + budget;
    while samples.len() < SAMPLES_MAX && Moment::now() < end {
        let start = Moment::now();
        let tenure = hold(lease).await?;
        samples.push(Moment::now().since(start));
        tenure.release().await;
    }
    Ok(samples)
}

async fn handovers(mut from: Lease, mut to: Lease, budget: Duration) -> Result<Samples, Failure> {
    let mut samples = Samples::default();
    let end = Moment::now() + budget;
    let mut tenure = hold(&from).await?;
    while samples.len() < SAMPLES_MAX && Moment::now() < end {
        let successor = to.clone();
        let next = tokio::spawn(async move {
            let tenure = successor.acquire().await?;
            Ok::<_, Failure>((tenure, Moment::now()))
        });
        // Until the successor has been told to wait.
        tokio::time::sleep(SETTLE).await;
        let start = Moment::now();
        tenure.release().await;
        let (successor, started) =
            next.await.map_err(|error| Failure::new(exit::SYSTEM, error.to_string()))??;
        samples.push(started.since(start));
        tenure = successor;
        std::mem::swap(&mut from, &mut to);
    }
    tenure.release().await;
    Ok(samples)
}

async fn writes(store: &Store, args: &LeaseArgs) -> Result<Samples, Failure> {
    let backend = store.backend();
    let name = LeaseName::new(NAME)?;
    let claim = Nonce::random();
    let request = Acquire {
        name: name.clone(),
        claim,
        owner: Owner::this_process(),
        ttl: args.ttl,
        session: None,
        note: None,
        create: true,
        takeover: None,
        expected: None,
        above: 0,
        unattended: false,
    };
    let Acquired::Won { token, .. } = backend.acquire(request).await? else {
        return Err(in_use());
    };
    let mut samples = Samples::default();
    let mut last = claim;
    let end = Moment::now() + args.budget.min(args.ttl / 2);
    while samples.len() < SAMPLES_MAX && Moment::now() < end {
        let nonce = Nonce::random();
        let request = Renew {
            name: name.clone(),
            claim,
            token,
            known: vec![last],
            nonce,
            ttl: args.ttl,
            note: None,
            fresh_connection: false,
        };
        tokio::time::sleep(SETTLE).await;
        let start = Moment::now();
        backend.renew(request).await?;
        samples.push(Moment::now().since(start));
        last = nonce;
    }
    backend.release(Release { name, claim, known: vec![last] }).await?;
    Ok(samples)
}

struct Many {
    attached: usize,
    attach_per_s: f64,
    writes_per_s: f64,
    reads_per_s: f64,
}

async fn many(store: &Store, args: &LeaseArgs) -> Result<Many, Failure> {
    let (counting, counts) = Counting::new(store.backend().clone());
    let session = Store::new(counting).lease(SESSION).ttl(args.ttl).session().await?;
    let session = std::sync::Arc::new(session);
    let start = Moment::now();
    let mut tasks = JoinSet::new();
    let mut tenures = Vec::new();
    let mut started = 0;
    while started < args.leases || !tasks.is_empty() {
        let over = Moment::now().since(start) >= args.budget;
        if started < args.leases && tasks.len() < ATTACHING_MAX && !over {
            let session = std::sync::Arc::clone(&session);
            let name = format!("tenure-bench-{started}");
            tasks.spawn(async move { session.lease(&name).acquire().await });
            started += 1;
            continue;
        }
        let Some(joined) = tasks.join_next().await else { break };
        tenures.push(joined.map_err(|error| Failure::new(exit::SYSTEM, error.to_string()))??);
    }
    let attaching = Moment::now().since(start).as_secs_f64();
    let attached = tenures.iter().filter(|tenure| tenure.is_held()).count();
    let (writes_per_s, reads_per_s) = per_second(&counts).await;
    let still_held = tenures.iter().all(Tenure::is_held);
    drop(tenures);
    if let Some(session) = std::sync::Arc::into_inner(session) {
        session.release().await;
    }
    if !still_held {
        return Err(Failure::new(exit::UNAVAILABLE, "the store was too slow: leases were lost"));
    }
    Ok(Many { attached, attach_per_s: attached as f64 / attaching, writes_per_s, reads_per_s })
}

/// Over two whole renewal intervals, from one renewal to the one after the next.
async fn per_second(counts: &Counts) -> (f64, f64) {
    next_write(counts).await;
    let (start, writes, reads) = (Moment::now(), counts.writes(), counts.reads());
    next_write(counts).await;
    next_write(counts).await;
    let seconds = Moment::now().since(start).as_secs_f64();
    ((counts.writes() - writes) as f64 / seconds, (counts.reads() - reads) as f64 / seconds)
}

async fn next_write(counts: &Counts) {
    let before = counts.writes();
    while counts.writes() == before {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn micros(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e3
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "store        {}", self.store)?;
        writeln!(f, "is_held      {:.1} ns", self.is_held_ns)?;
        let (p50, p99) = (self.acquire_us_p50, self.acquire_us_p99);
        writeln!(f, "acquire      p50 {p50:.0} us, p99 {p99:.0} us")?;
        writeln!(
            f,
            "renew        p50 {:.0} us, p99 {:.0} us",
            self.renew_us_p50, self.renew_us_p99
        )?;
        let (p50, p99) = (self.handover_ms_p50, self.handover_ms_p99);
        writeln!(f, "hand-over    p50 {p50:.2} ms, p99 {p99:.2} ms ({} times)", self.handovers)?;
        writeln!(f, "store write  p50 {:.0} us", self.store_round_trip_us_p50)?;
        write!(
            f,
            "{} leases on one session: {:.2} writes/s, {:.2} reads/s (attached at {:.0}/s)",
            self.attached_leases,
            self.renewals_per_s_for_10k_leases,
            self.reads_per_s_for_10k_leases,
            self.attach_per_s
        )
    }
}

const NAME: &str = "tenure-bench";
const SESSION: &str = "tenure-bench-session";
const IS_HELD_CALLS: u32 = 200_000;
const SAMPLES_MAX: usize = 1_000;
const ATTACHING_MAX: usize = 128;
/// Longer than a store in reach takes to say no and to begin a watch.
const SETTLE: Duration = Duration::from_millis(50);
