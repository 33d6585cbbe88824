//! Before a lease is taken: looks at its record, and waits until there is something to do.
#![allow(clippy::disallowed_methods)]

use std::sync::Arc;
use std::time::Duration;

use tenure_lease::record::Version;
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
    /// The record that somebody holds, and since when it has this version.
    held: Option<(Version, Moment)>,
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
        let (record, read_orders) = self.read().await?;
        let ledger = Ledger::parse(record.as_ref().map_or(&[], |record| &record.note))?;
        let wall = wall_clock();
        self.measure(ledger.as_ref(), wall);
        self.is_first = self.ran_last(ledger.as_ref());
        match self.job.outlook(ledger.as_ref(), &read_orders, wall) {
            Outlook::NotBefore(at) => {
                self.held = None;
                self.wait = Some(at.unwrap_or(wall.after(FAR)));
                Ok(Look::Again)
            }
            Outlook::Due => match self.acquire(record).await? {
                Some(tenure) => Ok(Look::Won { tenure: Box::new(tenure), read_orders }),
                None => {
                    // Somebody else is at it, or has died at it.
                    let pause = (self.lease.timing().ttl / 3).min(LOOK_MAX);
                    tokio::time::sleep(pause).await;
                    Ok(Look::Again)
                }
            },
        }
    }

    async fn read(&self) -> Result<(Option<Record>, Orders), CronError> {
        let name = self.lease.name().map_err(LeaseError::from)?.clone();
        let names = [name, LeaseName::new(ORDERS).map_err(LeaseError::from)?];
        let mut records = self.lease.store().inspect_all(&names).await?.into_iter();
        let record = records.next().flatten();
        let orders = super::orders::parse(records.next().flatten().as_ref()).unwrap_or_default();
        Ok((record, orders))
    }

    /// Takes the lease if it is free, or if its holder has not renewed it for its ttl.
    async fn acquire(&mut self, record: Option<Record>) -> Result<Option<Tenure>, CronError> {
        let now = Moment::now();
        let mut lease = self.lease.clone();
        match record.filter(|record| record.holder.is_some()) {
            Some(record) => match &self.held {
                Some((version, since)) if *version == record.version => {
                    lease = lease.seen(record, *since);
                }
                // Its holder lives: the record has changed since the last look.
                _ => {
                    self.held = Some((record.version, now));
                    return Ok(None);
                }
            },
            None => self.held = None,
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

/// Who did not run the last slot looks this much later.
const STAGGER_MIN: Duration = Duration::from_millis(200);
/// How often a held record is looked at, while there is something to do, at least.
const LOOK_MAX: Duration = Duration::from_secs(5);
/// The longest pause before a store that does not answer is asked again.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// When to look if nothing is due for as long as calendars go.
const FAR: Duration = Duration::from_secs(86_400);
