use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio::sync::watch;

use crate::backend::{Backend, Expected, Request, StoreError, StoreInfo};
use crate::driver::{
    Call, Cell, Liveness, Offer, State, Terms, Wants, keep, on_keeper, runtime, within,
};
use crate::keeper::Wish;
use crate::record::{Owner, Record};
use crate::tenure::Back;
use crate::{LeaseError, LeaseName, Loss, Moment, NameError, Settings, Standby, Tenure, preflight};

/// A store that keeps leases. Clones share it.
///
/// Opened from a URL by [`open`](crate::open), or made of any [`Backend`].
#[derive(Clone)]
pub struct Store {
    backend: Arc<dyn Backend>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("kind", &self.info().kind).finish_non_exhaustive()
    }
}

impl Store {
    /// A store that speaks through this backend.
    pub fn new(backend: impl Backend) -> Self {
        Self { backend: Arc::new(backend) }
    }

    /// A lease of this name, with the default settings. What is wrong with the name is said when
    /// the lease is asked for.
    pub fn lease(&self, name: &str) -> Lease {
        Lease {
            backend: Arc::clone(&self.backend),
            name: LeaseName::new(name),
            owner: Owner::this_process(),
            settings: Settings::default(),
            note: None,
            expected: None,
            above: 0,
            seen: None,
            liveness: None,
            watchdog: false,
        }
    }

    /// What kind of store this is, and what it promises.
    pub fn info(&self) -> StoreInfo {
        self.backend.info()
    }

    /// The backend, for tools.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// The record of a lease as it is now; `None` if there is none.
    pub async fn inspect(&self, name: &str) -> Result<Option<Record>, LeaseError> {
        let records = self.inspect_all(&[LeaseName::new(name)?]).await?;
        Ok(records.into_iter().next().flatten())
    }

    /// The records of many leases as they are now, in the order of the names, in as few round trips as
    /// the store can.
    pub async fn inspect_all(
        &self,
        names: &[LeaseName],
    ) -> Result<Vec<Option<Record>>, LeaseError> {
        let (backend, names) = (Arc::clone(&self.backend), names.to_vec());
        let read = on_keeper(async move { backend.read(names).await });
        Ok(within(PATIENCE, read).await.ok_or_else(silence)??)
    }

    /// Proves, before it is needed, that acquire, renew and release will work for this lease:
    /// credentials, permissions, and that the store really compares before it sets. A readiness
    /// check.
    pub async fn preflight(&self, name: &str) -> Result<(), LeaseError> {
        let name = LeaseName::new(name)?;
        let backend = Arc::clone(&self.backend);
        let flight = on_keeper(async move { preflight::preflight(&*backend, &name).await });
        within(PATIENCE, flight).await.ok_or_else(silence)?
    }
}

/// A lease that may be asked for.
#[derive(Clone)]
#[must_use = "a lease is not held before it is acquired"]
pub struct Lease {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) name: Result<LeaseName, NameError>,
    pub(crate) owner: Owner,
    pub(crate) settings: Settings,
    pub(crate) note: Option<Vec<u8>>,
    pub(crate) expected: Option<Expected>,
    pub(crate) above: u64,
    pub(crate) seen: Option<(Record, Moment)>,
    pub(crate) liveness: Option<Arc<Call>>,
    pub(crate) watchdog: bool,
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the backend: it may hold credentials.
        f.debug_struct("Lease").field("name", &self.name).field("owner", &self.owner).finish()
    }
}

impl Lease {
    /// The name that was asked for, if it is one.
    pub fn name(&self) -> Result<&LeaseName, NameError> {
        self.name.as_ref().map_err(Clone::clone)
    }

    /// The timing that was chosen.
    pub fn timing(&self) -> &Settings {
        &self.settings
    }

    /// The store that keeps it.
    pub fn store(&self) -> Store {
        Store { backend: Arc::clone(&self.backend) }
    }

    /// Checks what can be checked without asking the store: that it has a name, that its timing is
    /// sound, and that its store keeps such a ttl. Otherwise it could never be held.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let store = tenure_lease::Store::new(tenure_lease::MemoryStore::new());
    /// assert!(store.lease("shop.cron").check().is_ok());
    /// assert!(store.lease("shop_cron").check().is_err());
    /// assert!(store.lease("shop.cron").ttl(Duration::ZERO).check().is_err());
    /// ```
    pub fn check(&self) -> Result<(), LeaseError> {
        self.name()?;
        self.settings.check_for(&self.backend.info())?;
        crate::check_note(self.note.as_deref())?;
        Ok(())
    }

    /// Whether its store answers a read of it, within the operation time-out.
    pub async fn is_readable(&self) -> bool {
        let Ok(name) = self.name.clone() else { return false };
        let read = Request::Read(vec![name]);
        let backend = Arc::clone(&self.backend);
        let answer = async move { read.put_to(&*backend).await };
        let answer = on_keeper(within(self.settings.operation_timeout, answer)).await;
        answer.is_some_and(|answer| answer.error().is_none())
    }

    /// Sets the ttl, and with it the whole timing ([`Settings::new`]).
    pub fn ttl(self, ttl: Duration) -> Self {
        self.settings(Settings::new(ttl))
    }

    /// Sets the timing.
    pub fn settings(self, settings: Settings) -> Self {
        Self { settings, ..self }
    }

    /// Names the owner, instead of `POD_NAME`, `HOSTNAME` or the host's name.
    pub fn owner(self, name: impl Into<String>) -> Self {
        Self { owner: Owner::named(name), ..self }
    }

    /// Writes this note in the same step as the acquisition; otherwise the old one stays.
    pub fn note(self, note: Vec<u8>) -> Self {
        Self { note: Some(note), ..self }
    }

    /// Acquires only if the record is still the one that was read; otherwise
    /// [`LeaseError::Unexpected`].
    pub fn expect(self, expected: Expected) -> Self {
        Self { expected: Some(expected), ..self }
    }

    /// Acquires with a term above this one: repairs a store that has lost history.
    pub fn above(self, term: u64) -> Self {
        Self { above: term, ..self }
    }

    /// Renews only while this answers `true`. By default a tick through the tokio runtime that the
    /// lease was acquired from, so that a deadlocked runtime loses the lease.
    ///
    /// `false`, or no answer within [`Settings::operation_timeout`], says "not now": it is asked
    /// again until the deadline. It may block, since each call has a thread of its own (in the
    /// context of that runtime); while one has not returned, there is no other.
    pub fn liveness<F>(self, alive: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = bool> + Send + 'static,
    {
        Self { liveness: Some(Arc::new(Call::new(alive))), ..self }
    }

    /// Ends the whole process (SIGKILL, by a timer in the kernel) if the guarded work has not ended
    /// when the lease may become somebody else's. Without it, "one at a time" covers only work that
    /// ends within its stop budget.
    pub fn watchdog(self) -> Self {
        Self { watchdog: true, ..self }
    }

    /// Waits until the lease is held. Errors of the store are retried: only what cannot become
    /// right by itself is returned.
    pub async fn acquire(&self) -> Result<Tenure, LeaseError> {
        self.begin(false, true)?.acquired().await
    }

    /// This is the record as it was read before, and it has had this version since then, at the latest.
    /// Whoever waits for it to stand still for its ttl counts from there. It is taken only if it has that
    /// version still.
    pub fn seen(self, record: Record, since: Moment) -> Self {
        Self { seen: Some((record, since)), ..self }
    }

    /// Observes the lease, and takes it only while it is [allowed](Standby::allow) to.
    pub fn standby(&self) -> Result<Standby, LeaseError> {
        self.begin(false, false)
    }

    /// Tries once: `None` if another holds it, an error if the store did not answer.
    pub async fn try_acquire(&self) -> Result<Option<Tenure>, LeaseError> {
        self.begin(true, true)?.begun().await
    }

    /// Runs the closure while the lease is held: contends, runs it, and returns what it returns, after
    /// the lease was given back.
    ///
    /// Only a closure that returns while the lease is held ends this. At a loss [`Tenure::lost`]
    /// resolves inside; what the closure returns then is dropped, and so is a closure that has not
    /// returned when its stop budget is over, where it awaits. Then the lease is contended for again,
    /// and the closure runs with the next tenure. The exception is [`Loss::TokenRegressed`], which the
    /// next tenure would meet as well: then what the closure returned is returned.
    ///
    /// Work that blocks its thread cannot be dropped: use [`Lease::watchdog`].
    ///
    /// Inside [`tokio::spawn`](https://docs.rs/tokio/latest/tokio/fn.spawn.html) write
    /// `async move |tenure|` and capture owned values only.
    pub async fn run<T, E, F>(&self, work: F) -> Result<T, E>
    where
        F: AsyncFnMut(&Tenure) -> Result<T, E>,
        E: From<LeaseError>,
    {
        match self.run_until(std::future::pending(), work).await {
            Ok(Some(done)) => Ok(done),
            Ok(None) => unreachable!("it is never told to stop"),
            Err(error) => Err(error),
        }
    }

    /// As [`run`](Self::run), until `stop` resolves: then the closure is dropped, where it awaits, the
    /// lease is given back, and this returns `None`. So a process that is told to end hands over, and
    /// the next holder need not wait for the ttl:
    ///
    /// ```no_run
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure_lease::LeaseError> {
    /// # let store = tenure_lease::open("file:./leases").await.unwrap();
    /// use tenure_lease::signals::terminated;
    /// let report = store.lease("nightly-report");
    /// report.run_until(terminated(), async |tenure| loop { // SIGTERM, Ctrl-C
    ///     println!("at work, with token {}", tenure.token());
    ///     tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    /// #   if false { return Ok::<_, tenure_lease::LeaseError>(()); }
    /// }).await?;
    /// # Ok(()) }
    /// ```
    pub async fn run_until<T, E, F>(
        &self,
        stop: impl Future<Output = ()>,
        mut work: F,
    ) -> Result<Option<T>, E>
    where
        F: AsyncFnMut(&Tenure) -> Result<T, E>,
        E: From<LeaseError>,
    {
        tokio::pin!(stop);
        loop {
            let tenure = tokio::select! {
                biased;
                () = &mut stop => return Ok(None),
                tenure = self.acquire() => tenure?,
            };
            let mut stopped = false;
            let outcome = {
                let work = work(&tenure);
                tokio::pin!(work);
                tokio::select! {
                    biased;
                    outcome = &mut work => Some(outcome),
                    _ = tenure.lost() => within(tenure.time_to_stop(), &mut work).await,
                    () = &mut stop => {
                        stopped = true;
                        None
                    }
                }
            };
            let is_over = match tenure.loss() {
                Some(loss) => matches!(loss, Loss::TokenRegressed { .. }),
                None => tenure.is_held(),
            };
            tenure.release().await;
            match outcome {
                _ if stopped => return Ok(None),
                Some(outcome) if is_over => return outcome.map(Some),
                Some(_) | None => tracing::info!("the lease was lost; contending for it again"),
            }
        }
    }

    fn begin(&self, once: bool, allowed: bool) -> Result<Standby, LeaseError> {
        let terms = self.terms(once)?;
        let (name, owner) = (terms.wish.name.clone(), terms.wish.owner.clone());
        let cell = Arc::new(Cell::default());
        let (state_sender, state) = watch::channel(State::default());
        let (wants, wants_receiver) = watch::channel(Wants::default());
        let offer = Arc::new(Offer::new(allowed));
        let (told, offered) = (Arc::clone(&cell), Arc::clone(&offer));
        runtime().spawn(keep(terms, told, state_sender, wants_receiver, offered));
        // If the standby is dropped, so is `wants`, and the driver gives everything back.
        let back = Back::Lease { wants, notes: AtomicU64::new(0) };
        Ok(Standby::new(name, owner, offer, (cell, None), state, back))
    }

    pub(crate) fn terms(&self, once: bool) -> Result<Terms, LeaseError> {
        self.check()?;
        let name = self.name.clone()?;
        let wish = Wish {
            name,
            owner: self.owner.clone(),
            session: None,
            note: self.note.clone(),
            expected: self.expected,
            above: self.above,
            seen: self.seen.clone(),
        };
        Ok(Terms {
            backend: Arc::clone(&self.backend),
            wish,
            settings: self.settings.clone(),
            once,
            liveness: Liveness::here(self.liveness.clone()),
            watchdog: self.watchdog,
        })
    }
}

fn silence() -> StoreError {
    StoreError::unavailable(format!("nothing came within {PATIENCE:?}"))
}

/// How long people and readiness checks wait for a store; keepers have their own time-outs.
const PATIENCE: Duration = Duration::from_secs(20);
