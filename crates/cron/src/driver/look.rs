//! Before a lease is taken: looks at its record, and waits until there is something to do.
#![allow(clippy::disallowed_methods)]

use std::sync::Arc;
use std::time::Duration;

use tenure_lease::backend::Watch;
use tenure_lease::record::{Expiry, Version};
use tenure_lease::{Lease, LeaseError, LeaseName, Moment, Owner, Record, Tenure};
use tokio::sync::watch;

use super::{is_permanent, sleep_until_wall, wall_clock};
use crate::ledger::Ledger;
use crate::orders::{ORDERS, Orders};
use crate::plan::{Job, Outlook, hash};
use crate::scheduled::CronError;
use crate::{WallTime, telemetry};

/// What came of a look.
pub(super) enum Look {
    /// The lease is held, and there may be something to do.
    Won { tenure: Box<Tenure>, read_orders: Orders },
    /// Nothing; look again.
    Again,
}

/// Looks at a job's record.
pub(super) struct Looker {
    job: Arc<Job>,
    lease: Lease,
    /// The record that another process holds.
    held: Option<HeldRecord>,
    /// Wakes this process when the record may have changed; set while it waits for the holder.
    watch: Option<Box<dyn Watch>>,
    /// Until when to wait, and for which slot.
    wait: Option<WallTime>,
    /// Whether this process is the first to look: it ran the last slot.
    is_first: bool,
    /// A number that tells this machine from others.
    who: u64,
    /// The term of this process's last tenure.
    last_term: Option<u64>,
    failures: u32,
}

impl Looker {
    pub(super) fn new(job: Arc<Job>, lease: Lease, owner: &Owner) -> Self {
        let who = hash(&owner.name, owner.incarnation);
        Self {
            job,
            lease,
            held: None,
            watch: None,
            wait: None,
            is_first: false,
            who,
            last_term: None,
            failures: 0,
        }
    }

    /// Waits until a look is due, and looks. Can be dropped where it awaits.
    pub(super) async fn look(
        &mut self,
        orders: &mut watch::Receiver<Arc<Orders>>,
    ) -> Result<Look, CronError> {
        while let Some(at) = self.wait {
            if at <= wall_clock() {
                let stagger = self.stagger(at);
                tokio::time::sleep(stagger).await;
                self.wait = None;
                break;
            }
            tokio::select! {
                () = sleep_until_wall(Some(at)) => {}
                changed = orders.changed() => match changed {
                    Ok(()) => self.wait = None,
                    Err(_) => sleep_until_wall(Some(at)).await,
                },
            }
        }
        match self.look_now().await {
            Ok(look) => {
                self.failures = 0;
                Ok(look)
            }
            Err(CronError::Lease(error)) if !is_permanent(&error) => {
                if self.failures == 0 {
                    tracing::warn!(job = self.job.name(), %error, "the store does not answer");
                }
                self.failures = self.failures.saturating_add(1);
                let share = 500 + hash(self.job.name(), u64::from(self.failures)) % 1000;
                let pause = Duration::from_millis(share) * (1 << self.failures.min(5));
                tokio::time::sleep(pause.min(RETRY_MAX)).await;
                Ok(Look::Again)
            }
            Err(error) => Err(error),
        }
    }

    async fn look_now(&mut self) -> Result<Look, CronError> {
        let (record, read_orders) = read(&self.lease).await?;
        let ledger = Ledger::parse(record.as_ref().map_or(&[], |record| &record.note))?;
        let wall = wall_clock();
        self.measure(ledger.as_ref(), wall);
        self.is_first = self.ran_last(ledger.as_ref());
        match self.job.outlook(ledger.as_ref(), &read_orders, wall) {
            Outlook::NotBefore(at) => {
                self.stop_waiting_for_holder();
                self.warn_of_clock_behind(ledger.as_ref(), wall);
                self.wait = Some(at.unwrap_or(wall.after(FAR)));
            }
            Outlook::ClockAhead(first) => {
                self.stop_waiting_for_holder();
                tracing::error!(
                    job = self.job.name(),
                    clock = %wall.second(),
                    first_unsettled_slot = %first,
                    "this machine's clock is more than a year after the first slot that is not settled; it settles \
                     none. Set the clock right; if it is, delete the job's record, or give the job a new name"
                );
                tokio::time::sleep(CLOCK_AGAIN).await;
            }
            Outlook::Due => match self.acquire(record).await? {
                Some(tenure) => {
                    self.stop_waiting_for_holder();
                    return Ok(Look::Won { tenure: Box::new(tenure), read_orders });
                }
                None => self.wait_for_holder().await,
            },
        }
        Ok(Look::Again)
    }

    /// Another process runs the slot, or has died while it did: waits until the record may have changed,
    /// until its holder's time is over, or for a while.
    async fn wait_for_holder(&mut self) {
        let usual = (self.lease.timing().ttl / 3).min(LOOK_MAX);
        let left = self.held.as_ref().map(|held| held.free_at.since(Moment::now()));
        let pause = match left {
            Some(left) if !left.is_zero() => usual.min(left + TAKE_AFTER),
            _ => usual,
        };
        let first = pause.min(LOOK_MIN);
        tokio::time::sleep(first).await;
        if self.watch.is_none()
            && let Ok(name) = self.lease.name()
        {
            self.watch = self.lease.store().backend().watch(name);
        }
        let rest = tokio::time::sleep(pause - first);
        match &mut self.watch {
            Some(watch) => tokio::select! {
                () = watch.changed() => {}
                () = rest => {}
            },
            None => rest.await,
        }
    }

    fn stop_waiting_for_holder(&mut self) {
        self.held = None;
        self.watch = None;
    }

    /// What is settled is settled, also by a clock that was wrong: whoever is not ahead says so.
    fn warn_of_clock_behind(&self, ledger: Option<&Ledger>, wall: WallTime) {
        let Some(ledger) = ledger else { return };
        let ahead = WallTime::of(ledger.cursor).since(wall);
        if ahead > CLOCK_BEHIND_MAX {
            tracing::error!(
                job = self.job.name(),
                clock = %wall.second(),
                settled_up_to = %ledger.cursor,
                "the job's slots are settled up to a time that this machine's clock has not reached: its clock is \
                 behind, or that of another machine was ahead"
            );
        }
    }

    /// Takes the lease if it is free, or if its holder has not renewed it for its ttl.
    async fn acquire(&mut self, record: Option<Record>) -> Result<Option<Tenure>, CronError> {
        let now = Moment::now();
        let mut lease = self.lease.clone();
        if let Some(record) = record.filter(|record| record.holder.is_some()) {
            let (since, said_before) = match &self.held {
                Some(held) if held.version == record.version => (held.since, held.free_at),
                // Its holder lives: the record has changed since the last look.
                _ => (now, Moment::NEVER),
            };
            let said_now = match record.expiry {
                Expiry::ByStore(left) => now + left,
                Expiry::ByObservation => Moment::NEVER,
            };
            // Some stores know only how long it takes at most: a look must not put that off.
            let free_at = said_now.min(said_before).min(since + record.ttl);
            self.held = Some(HeldRecord { version: record.version.clone(), since, free_at });
            if now < free_at {
                return Ok(None);
            }
            lease = lease.seen(record, since);
        } else {
            self.held = None;
        }
        match lease.try_acquire().await {
            Ok(tenure) => Ok(tenure),
            // It has changed hands meanwhile.
            Err(LeaseError::Unexpected(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// How long after a slot is due this process looks.
    fn stagger(&self, at: WallTime) -> Duration {
        if self.is_first {
            return Duration::ZERO;
        }
        let share = hash(self.job.name(), self.who ^ at.as_millis().unsigned_abs());
        STAGGER_MIN + Duration::from_millis(share % 1000)
    }

    /// A tenure of this process is over; nothing is to be done before `next`.
    pub(super) fn rest_after(&mut self, term: u64, next: Option<WallTime>) {
        self.last_term = Some(term);
        self.is_first = true;
        self.wait = next;
    }

    /// Whether the latest run in the ledger was of this process.
    fn ran_last(&self, ledger: Option<&Ledger>) -> bool {
        let Some(ledger) = ledger else { return false };
        let open = ledger.open.as_ref().map(|open| open.term);
        let term = open.or_else(|| ledger.settled.last().map(|line| line.term));
        term.is_some() && term == self.last_term
    }

    /// For how long a slot is due that nobody has claimed.
    fn measure(&self, ledger: Option<&Ledger>, wall: WallTime) {
        let oldest = ledger
            .filter(|ledger| ledger.open.is_none() && ledger.is_of(self.job.schedule()))
            .and_then(|ledger| self.job.schedule().next_after(ledger.cursor));
        let overdue = oldest.map_or(Duration::ZERO, |oldest| wall.since(self.job.start_of(oldest)));
        telemetry::overdue(self.job.name(), overdue.as_secs_f64());
    }
}

/// The job's record, and the orders of operators.
async fn read(lease: &Lease) -> Result<(Option<Record>, Orders), CronError> {
    let name = lease.name().map_err(LeaseError::from)?.clone();
    let names = [name, LeaseName::new(ORDERS).map_err(LeaseError::from)?];
    let mut records = lease.store().inspect_all(&names).await?.into_iter();
    let record = records.next().flatten();
    let orders = super::orders::parse(records.next().flatten().as_ref()).unwrap_or_default();
    Ok((record, orders))
}

/// A record that another process holds.
struct HeldRecord {
    version: Version,
    /// When this process first saw this version.
    since: Moment,
    /// When the record is free, unless its holder renews it.
    free_at: Moment,
}

/// Who did not run the last slot looks this much later.
const STAGGER_MIN: Duration = Duration::from_millis(200);
/// How often a held record is read at most, however often it changes.
const LOOK_MIN: Duration = Duration::from_secs(1);
/// How long after a record should be free it is read again.
const TAKE_AFTER: Duration = Duration::from_millis(20);
/// How often a held record is looked at, while there is something to do, at least.
const LOOK_MAX: Duration = Duration::from_secs(5);
/// The longest pause before a store that does not answer is asked again.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// When to look again at a clock that is too far ahead.
const CLOCK_AGAIN: Duration = Duration::from_secs(60);
/// How far behind the ledger a clock may be before this is said.
const CLOCK_BEHIND_MAX: Duration = Duration::from_secs(3600);
/// When to look if nothing is due for as long as calendars go.
const FAR: Duration = Duration::from_secs(86_400);
