//! The world's store of leases: records that live outside of all processes, at the other end of a
//! connection that delays, loses and repeats.
//!
//! A request that was sent arrives even if its process is gone. Whether it was lost, or its answer,
//! the process cannot tell.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tenure_lease::backend::{
    Acquire, Acquired, Answer, Backend, Boxed, Promise, Release, Released, Renew, Renewed, Request,
    StoreError, StoreInfo, Watch,
};
use tenure_lease::{LeaseName, MemoryRecords, Nonce, Record};
use tokio::sync::{Notify, oneshot};

use super::core::{self, Core, State};
use crate::sim::Random;

/// The records, and how well they can be reached.
pub(super) struct Records {
    all: MemoryRecords,
    /// Processes whose requests are not answered.
    away: BTreeSet<usize>,
    /// Of 1000 requests, and of 1000 answers, this many are lost; as many requests arrive twice.
    lost_permille: u64,
    watches: Vec<(LeaseName, std::sync::Weak<Notify>)>,
}

impl Records {
    pub(super) fn new(random: &mut Random) -> Self {
        // Some stores free what has expired, others leave that to whoever watches.
        let all =
            if random.percent(50) { MemoryRecords::expiring() } else { MemoryRecords::observed() };
        Self { all, away: BTreeSet::new(), lost_permille: 0, watches: Vec::new() }
    }
}

/// What happens to a request at a moment.
pub(super) enum Due {
    Arrives { process: usize, request: Request, answer: Option<oneshot::Sender<Answer>> },
    Answered { process: usize, answer: Answer, sender: oneshot::Sender<Answer> },
    Wakes(Arc<Notify>),
}

impl State {
    pub(super) fn store_away(&mut self, processes: &BTreeSet<usize>, is_away: bool) {
        for process in processes {
            match is_away {
                true => self.records.away.insert(*process),
                false => self.records.away.remove(process),
            };
        }
    }

    pub(super) fn lose_requests(&mut self, permille: u64) {
        self.records.lost_permille = permille;
    }

    fn store_delay(&mut self) -> Duration {
        let micros = match self.random.within(0..100) {
            0 => self.random.within(50_000..400_000),
            1..10 => self.random.within(5_000..50_000),
            _ => self.random.within(500..5_000),
        };
        Duration::from_micros(micros)
    }

    fn is_lost(&mut self, process: usize) -> bool {
        let lost = self.records.lost_permille;
        self.records.away.contains(&process)
            || (lost > 0 && self.random.within(0..1000) < lost)
            || self.processes[process].machine_gone
    }

    fn send_request(&mut self, process: usize, request: Request, answer: oneshot::Sender<Answer>) {
        if self.is_lost(process) {
            return;
        }
        let at = self.now + self.store_delay();
        if self.random.within(0..1000) < self.records.lost_permille {
            let again = at + self.store_delay();
            let twice = Due::Arrives { process, request: request.clone(), answer: None };
            self.queue.push(again, core::Due::Records(Box::new(twice)));
        }
        let due = Due::Arrives { process, request, answer: Some(answer) };
        self.queue.push(at, core::Due::Records(Box::new(due)));
    }

    pub(super) fn records_due(&mut self, due: Due) {
        match due {
            Due::Arrives { process, request, answer } => {
                let name = match &request {
                    Request::Acquire(it) => Some(it.name.clone()),
                    Request::Renew(it) => Some(it.name.clone()),
                    Request::Release(it) => Some(it.name.clone()),
                    Request::Read(_) => None,
                };
                let now = self.moment();
                let claim = |state: &Self, name: &LeaseName| {
                    let record = state.records.all.read(now, name)?;
                    record.holder?.claim
                };
                let before = name.as_ref().and_then(|name| claim(self, name));
                self.trace(format_args!("store: {process} asks {request:?}"));
                let answered = self.records.all.apply(now, request);
                if let Some(name) = name
                    && claim(self, &name) != before
                {
                    self.wake_watches(&name);
                }
                if let Some(sender) = answer
                    && !self.is_lost(process)
                {
                    let at = self.now + self.store_delay();
                    let due = Due::Answered { process, answer: answered, sender };
                    self.queue.push(at, core::Due::Records(Box::new(due)));
                }
            }
            Due::Answered { process, answer, sender } => {
                if !self.records.away.contains(&process) {
                    // Whoever asked may have given up.
                    let _ = sender.send(answer);
                }
            }
            Due::Wakes(notify) => notify.notify_one(),
        }
    }

    fn wake_watches(&mut self, name: &LeaseName) {
        self.records.watches.retain(|(_, watch)| watch.strong_count() > 0);
        let woken: Vec<Arc<Notify>> = self
            .records
            .watches
            .iter()
            .filter(|(watched, _)| watched == name)
            .filter_map(|(_, watch)| watch.upgrade())
            .collect();
        for notify in woken {
            let lost = self.records.lost_permille;
            if self.random.within(0..1000) < lost * 10 {
                continue; // Pushes get lost, too.
            }
            let at = self.now + self.store_delay();
            self.queue.push(at, core::Due::Records(Box::new(Due::Wakes(notify))));
        }
    }
}

/// The way of one process to the store.
pub(super) struct SimulatedStore {
    core: Arc<Core>,
    process: usize,
}

impl SimulatedStore {
    pub(super) fn new(core: Arc<Core>, process: usize) -> Self {
        Self { core, process }
    }

    async fn ask(&self, request: Request) -> Answer {
        let (sender, answer) = oneshot::channel();
        self.core.with(|state| state.send_request(self.process, request, sender));
        match answer.await {
            Ok(answer) => answer,
            // Lost, or its answer: nobody says so.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Backend for SimulatedStore {
    fn info(&self) -> StoreInfo {
        StoreInfo {
            kind: "simulated",
            promise: Promise::Safe,
            ttl_min: Duration::from_millis(10),
            ttl_max: Duration::from_secs(24 * 3600),
            ttl_step: Duration::ZERO,
            frees_after_ttls: 1,
            pushes: true,
            pushes_renewals: false,
            reads_everything: false,
        }
    }

    fn acquire(&self, request: Acquire) -> Boxed<'_, Result<Acquired, StoreError>> {
        Box::pin(async move {
            match self.ask(Request::Acquire(request)).await {
                Answer::Acquire(answer) => answer,
                other => Err(unexpected(&other)),
            }
        })
    }

    fn renew(&self, request: Renew) -> Boxed<'_, Result<Renewed, StoreError>> {
        Box::pin(async move {
            match self.ask(Request::Renew(request)).await {
                Answer::Renew(answer) => answer,
                other => Err(unexpected(&other)),
            }
        })
    }

    fn release(&self, request: Release) -> Boxed<'_, Result<Released, StoreError>> {
        Box::pin(async move {
            match self.ask(Request::Release(request)).await {
                Answer::Release(answer) => answer,
                other => Err(unexpected(&other)),
            }
        })
    }

    fn read(&self, names: Vec<LeaseName>) -> Boxed<'_, Result<Vec<Option<Record>>, StoreError>> {
        Box::pin(async move {
            match self.ask(Request::Read(names)).await {
                Answer::Read(answer) => answer,
                other => Err(unexpected(&other)),
            }
        })
    }

    fn watch(&self, name: &LeaseName) -> Option<Box<dyn Watch>> {
        let notify = Arc::new(Notify::new());
        notify.notify_one(); // Established: changes may have been missed before.
        self.core.with(|state| {
            state.records.watches.push((name.clone(), Arc::downgrade(&notify)));
        });
        Some(Box::new(SimulatedWatch(notify)))
    }

    fn lifeline(&self, _: Nonce) -> Option<std::os::fd::OwnedFd> {
        None
    }
}

fn unexpected(answer: &Answer) -> StoreError {
    StoreError::unavailable(format!("an answer to another question: {answer:?}"))
}

struct SimulatedWatch(Arc<Notify>);

impl Watch for SimulatedWatch {
    fn changed(&mut self) -> Boxed<'_, ()> {
        Box::pin(self.0.notified())
    }
}
