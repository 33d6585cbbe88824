//! Reads the records that the kinds of this process want to know of, all of them with one request.
//!
//! Who might coordinate looks at the coordinator's record of each kind, and at the sessions of all hosts:
//! so that a ttl is waited out once, when it has to take one of them over. If each did that by itself, the
//! store would be read by nodes times kinds.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::watch;

use tenure_cluster::Cluster;
use tenure_lease::backend::StoreErrorKind;
use tenure_lease::{Lease, LeaseError, LeaseName, Moment, Record, Store};

/// Those of one node, by the store.
#[derive(Default)]
struct Observers(Mutex<HashMap<usize, Weak<Observer>>>);

/// Reads the records of one store, for as long as somebody keeps it.
pub(super) struct Observer {
    store: Store,
    state: Mutex<State>,
    /// How often they were read.
    rounds: watch::Sender<u64>,
}

struct State {
    /// Between two reads.
    pause: Duration,
    /// How long one may take.
    timeout: Duration,
    records: BTreeMap<LeaseName, Observed>,
}

#[derive(Default)]
struct Observed {
    watchers: usize,
    sight: Option<Sight>,
    /// Whether the last read was answered; `None` before the first.
    answered: Option<bool>,
}

/// A record, and since when it has been as it is, at the latest.
#[derive(Clone, Debug)]
pub(super) struct Sight {
    pub(super) record: Option<Record>,
    pub(super) since: Moment,
}

impl Observer {
    /// The one of this node for the store of this lease; it reads as often as the shortest ttl of all that
    /// asked for it wants.
    pub(super) fn of(cluster: &Cluster, lease: &Lease) -> Arc<Self> {
        let observers = cluster.local(Observers::default);
        let mut observers = lock(&observers.0);
        let store = lease.store();
        let key = Arc::as_ptr(store.backend()).cast::<()>().addr();
        let timeout = lease.timing().operation_timeout;
        let pause = timeout.min(PAUSE_MAX);
        if let Some(observer) = observers.get(&key).and_then(Weak::upgrade) {
            let mut state = lock(&observer.state);
            (state.pause, state.timeout) = (state.pause.min(pause), state.timeout.max(timeout));
            drop(state);
            return observer;
        }
        let observer = Self::new(store, pause, timeout);
        observers.retain(|_, observer| observer.strong_count() > 0);
        observers.insert(key, Arc::downgrade(&observer));
        observer
    }

    pub(super) fn new(store: Store, pause: Duration, timeout: Duration) -> Arc<Self> {
        let state = Mutex::new(State { pause, timeout, records: BTreeMap::new() });
        let observer = Arc::new(Self { store, state, rounds: watch::Sender::new(0) });
        tokio::spawn(read_always(Arc::downgrade(&observer), pause));
        observer
    }

    /// Reads this record as well, for as long as that is kept.
    pub(super) fn watch(self: &Arc<Self>, name: &LeaseName) -> Watch {
        lock(&self.state).records.entry(name.clone()).or_default().watchers += 1;
        let rounds = self.rounds.subscribe();
        Watch { observer: self.clone(), name: name.clone(), rounds }
    }

    /// The record as it was last read, if somebody watches it.
    pub(super) fn sight(&self, name: &LeaseName) -> Option<Sight> {
        lock(&self.state).records.get(name)?.sight.clone()
    }

    async fn read(&self, timeout: Duration) {
        let names: Vec<LeaseName> = lock(&self.state).records.keys().cloned().collect();
        if names.is_empty() {
            return;
        }
        let size = if self.store.info().reads_everything { names.len() } else { BATCH };
        let mut batches: Vec<Vec<LeaseName>> = names.chunks(size).map(Vec::from).collect();
        while let Some(mut names) = batches.pop() {
            let read = tokio::time::timeout(timeout, self.store.inspect_all(&names)).await;
            match read {
                Ok(Ok(records)) => self.saw(names, records),
                // One record that cannot be read costs itself, not all that are read with it.
                Ok(Err(LeaseError::Store(error))) if is_of_one(error.kind()) && names.len() > 1 => {
                    batches.push(names.split_off(names.len() / 2));
                    batches.push(names);
                }
                Ok(Err(_)) | Err(_) => self.heard_nothing(&names),
            }
        }
        self.rounds.send_modify(|rounds| *rounds += 1);
    }

    fn saw(&self, names: Vec<LeaseName>, records: Vec<Option<Record>>) {
        // The records may have changed until the answer came.
        let now = Moment::now();
        let mut state = lock(&self.state);
        for (name, record) in names.into_iter().zip(records) {
            let Some(observed) = state.records.get_mut(&name) else { continue };
            observed.answered = Some(true);
            let version = |record: &Option<Record>| record.as_ref().map(|it| it.version.clone());
            let is_same = |sight: &Sight| version(&sight.record) == version(&record);
            if !observed.sight.as_ref().is_some_and(is_same) {
                observed.sight = Some(Sight { record, since: now });
            }
        }
    }

    fn heard_nothing(&self, names: &[LeaseName]) {
        let mut state = lock(&self.state);
        for name in names {
            if let Some(observed) = state.records.get_mut(name) {
                observed.answered = Some(false);
            }
        }
    }
}

async fn read_always(observer: Weak<Observer>, mut pause: Duration) {
    loop {
        tokio::time::sleep(pause).await;
        let Some(observer) = observer.upgrade() else { return };
        let timeout;
        {
            let state = lock(&observer.state);
            (pause, timeout) = (state.pause, state.timeout);
        }
        observer.read(timeout).await;
    }
}

/// A record that is read again and again.
pub(super) struct Watch {
    observer: Arc<Observer>,
    name: LeaseName,
    rounds: watch::Receiver<u64>,
}

impl Watch {
    /// Waits until it was read again; `None` if the store did not answer.
    pub(super) async fn next(&mut self) -> Option<Sight> {
        loop {
            // It is kept here, and so is the other end.
            let _ = self.rounds.changed().await;
            let state = lock(&self.observer.state);
            match state.records.get(&self.name) {
                Some(Observed { answered: Some(true), sight, .. }) => return sight.clone(),
                Some(Observed { answered: Some(false), .. }) => return None,
                _ => {} // It was not among those that were read.
            }
        }
    }

    /// As it was last read.
    pub(super) fn sight(&self) -> Option<Sight> {
        self.observer.sight(&self.name)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut state = lock(&self.observer.state);
        if let Some(observed) = state.records.get_mut(&self.name) {
            observed.watchers -= 1;
            if observed.watchers == 0 {
                state.records.remove(&self.name);
            }
        }
    }
}

/// Whether it is about one record, and not about the store.
fn is_of_one(kind: StoreErrorKind) -> bool {
    matches!(kind, StoreErrorKind::Damaged | StoreErrorKind::NewerFormat)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Never left half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Between two reads, where ttls are long: a session is found to be over so much later.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How many records one request reads at most, where that saves work.
const BATCH: usize = 1_000;
