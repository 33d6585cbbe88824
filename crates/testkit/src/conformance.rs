//! The suite that every store faces.
//!
//! A store is safe to keep leases in if it keeps a handful of rules to the letter, under races,
//! lost answers and the passing of time. They are written down once, here, as checks that are
//! generic over a [`Factory`] of clients: first requests put to the [`Backend`] itself, then whole
//! keepers over it. A store's test is ten lines:
//!
//! ```
//! use std::time::Duration;
//! use tenure_lease::backend::Boxed;
//! use tenure_lease::{MemoryStore, Store};
//! use tenure_testkit::conformance::{self, Factory};
//!
//! struct Memory(MemoryStore);
//!
//! impl Factory for Memory {
//!     fn open(&self) -> Boxed<'_, Store> {
//!         Box::pin(async { Store::new(self.0.clone()) })
//!     }
//!     fn ttl(&self) -> Duration {
//!         Duration::from_secs(1)
//!     }
//! }
//! # fn main() {
//! conformance::test_one(Memory(MemoryStore::new()), "first_term_is_not_one");
//! # }
//! ```
//!
//! (`conformance::test` runs all of them.) All checks run side by side, each on lease names of its
//! own, so a run takes a few ttls, however many checks there are. What a store cannot be made to do
//! (let an operator delete a record, be restarted) is reported as skipped, with the reason.
//!
//! [`Backend`]: tenure_lease::backend::Backend
#![allow(clippy::disallowed_methods)] // It runs against real stores, in real time.

#[macro_use]
mod context;
mod report;

mod acquiring;
mod attached;
mod contending;
mod ending;
mod expiry;
mod foreign;
mod holding;
mod losing;
mod names;
mod notes;
mod races;
mod reading;
mod releasing;
mod renewing;
mod replies;
mod sessions;
mod terms;
mod watching;

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use tenure_lease::backend::Boxed;
use tenure_lease::{LeaseName, Moment, Nonce, Settings, Store};

use context::{Checked, Context, Stop};
pub use report::{Line, Report, Verdict};

/// Where the suite gets its clients from, and what it may do to the store besides.
///
/// An ability that a store does not have stays `None`, and the checks that need it are reported as
/// skipped. What an ability does, it does when its future is awaited, not before.
pub trait Factory: Send + Sync + 'static {
    /// A fresh client of the same server or directory: two opens are two clients. Panics if there
    /// is none to be had.
    fn open(&self) -> Boxed<'_, Store>;

    /// The shortest ttl that makes sense for tests of this store.
    fn ttl(&self) -> Duration;

    /// A name that no earlier run has used.
    fn fresh_name(&self, stem: &str) -> LeaseName {
        let name = format!("{stem}-{:016x}", Nonce::random().bits() as u64);
        LeaseName::new(&name).expect("a stem, a hyphen and hexadecimal digits are a name")
    }

    /// The timing of the keepers.
    fn settings(&self) -> Settings {
        Settings::new(self.ttl())
    }

    /// Deletes a record, as an operator would: by the store's own tools, without asking anybody.
    fn delete<'a>(&'a self, _name: &'a LeaseName) -> Option<Boxed<'a, ()>> {
        None
    }

    /// Makes a foreign elector, which knows nothing of claims, hold the record under this identity.
    fn seize<'a>(&'a self, _name: &'a LeaseName, _identity: &'a str) -> Option<Boxed<'a, ()>> {
        None
    }

    /// Puts a record there whose format is newer than this release knows.
    fn write_newer<'a>(&'a self, _name: &'a LeaseName) -> Option<Boxed<'a, ()>> {
        None
    }

    /// A client whose server cannot be reached.
    fn open_unreachable(&self) -> Option<Boxed<'_, Store>> {
        None
    }

    /// Restarts the server, and returns when it answers again. The checks that need it run last.
    fn restart(&self) -> Option<Boxed<'_, ()>> {
        None
    }

    /// The checks that are skipped because of what this store cannot do. [`test()`] fails if another
    /// one is skipped, or one of these is not.
    fn skips(&self) -> &'static [&'static str] {
        &[]
    }
}

/// What a store that cannot push skips, for [`Factory::skips`].
pub const POLLED: &[&str] = &[
    "a_watch_says_when_it_stands",
    "a_watch_wakes_on_release",
    "a_watch_wakes_on_deletion",
    "a_waiter_is_woken",
];

/// The names of all checks.
pub fn names() -> Vec<&'static str> {
    checks().map(|check| check.name).collect()
}

/// Runs all checks.
pub async fn run(factory: Arc<dyn Factory>) -> Report {
    run_those(factory, |_| true).await
}

/// Runs one check.
pub async fn run_one(factory: Arc<dyn Factory>, name: &str) -> Report {
    assert!(names().contains(&name), "there is no check {name:?}");
    run_those(factory, |check| check.name == name).await
}

/// Runs all checks as a test: prints the report, and panics if one failed or was skipped without
/// being listed in [`Factory::skips`].
pub fn test(factory: impl Factory) {
    let skips = factory.skips();
    block_on(run(Arc::new(factory))).print().assert_passed().assert_skipped(skips);
}

/// Runs one check as a test.
pub fn test_one(factory: impl Factory, name: &str) {
    block_on(run_one(Arc::new(factory), name)).print().assert_passed();
}

/// Runs a future on a runtime with several threads, so that clients race in earnest.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .expect("the operating system has room for one more runtime");
    runtime.block_on(future)
}

async fn run_those(factory: Arc<dyn Factory>, wanted: impl Fn(&Check) -> bool) -> Report {
    let begun = Moment::now();
    let kind = factory.open().await.info().kind;
    let mut lines = Vec::new();
    for alone in [false, true] {
        let mut running = JoinSet::new();
        for check in checks().filter(|check| check.alone == alone && wanted(check)) {
            running.spawn(check.run(Arc::clone(&factory)));
            // A server that all of them asked first at the same moment would not answer in time.
            tokio::time::sleep(factory.ttl() / 200).await;
        }
        lines.extend(running.join_all().await);
    }
    lines.sort_by_key(|line| names().iter().position(|name| *name == line.name));
    Report { kind, lines, took: Moment::now().since(begun) }
}

struct Check {
    name: &'static str,
    /// It disturbs the others.
    alone: bool,
    check: fn(Context) -> Boxed<'static, Checked>,
}

impl Check {
    async fn run(self, factory: Arc<dyn Factory>) -> Line {
        let begun = Moment::now();
        let cx = Context::new(factory).await;
        let limit = cx.limit();
        let remarks = cx.remarks();
        // On a task of its own, so that a panic is this check's failure only.
        let task = tokio::spawn((self.check)(cx));
        let abort = task.abort_handle();
        let verdict = match tokio::time::timeout(limit, task).await {
            Ok(Ok(Ok(()))) => Verdict::Passed,
            Ok(Ok(Err(Stop::Failed(why)))) => Verdict::Failed(why),
            Ok(Ok(Err(Stop::Skipped(why)))) => Verdict::Skipped(why),
            Ok(Err(error)) => Verdict::Failed(error.to_string()),
            Err(_) => {
                abort.abort();
                Verdict::Failed(format!("not done after {limit:?}"))
            }
        };
        Line { name: self.name, verdict, remarks: remarks.take(), took: Moment::now().since(begun) }
    }
}

fn checks() -> impl Iterator<Item = Check> {
    let requests = [
        races::checks(),
        terms::checks(),
        acquiring::checks(),
        renewing::checks(),
        releasing::checks(),
        notes::checks(),
        attached::checks(),
        reading::checks(),
        names::checks(),
        expiry::checks(),
        watching::checks(),
        foreign::checks(),
    ];
    let keepers = [
        holding::checks(),
        replies::checks(),
        losing::checks(),
        contending::checks(),
        ending::checks(),
        sessions::checks(),
    ];
    requests.into_iter().chain(keepers).flatten()
}
