//! A store in memory: for tests, for simulations in virtual time, and as the plainest reading of
//! the contract.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::LeaseName;
use crate::backend::{
    Acquire, Acquired, Answer, Backend, Boxed, LIST_MAX, Promise, Release, Released, Renew,
    Renewed, Request, StoreError, StoreErrorKind, StoreInfo, Watch,
};
use crate::clock::Moment;
use crate::record::{Expiry, Holder, NOTE_MAX, Nonce, Record, Token, Version};

/// The records and the rules, without a clock of its own. Pure.
#[derive(Clone, Debug)]
pub struct MemoryRecords {
    entries: BTreeMap<LeaseName, Entry>,
    /// Counts every write, so that neither a version nor a first term ever recurs.
    revision: u64,
    expires: bool,
}

#[derive(Clone, Debug)]
struct Entry {
    record: Record,
    renewed: Moment,
}

impl MemoryRecords {
    /// Records that the store itself frees when their ttl is over by the clock passed in.
    pub fn expiring() -> Self {
        Self { entries: BTreeMap::new(), revision: 100, expires: true }
    }

    /// Records that a contender must watch until they have stood still.
    pub fn observed() -> Self {
        Self { expires: false, ..Self::expiring() }
    }

    /// Takes a request; the answer is never unknown.
    pub fn apply(&mut self, now: Moment, request: Request) -> Answer {
        match request {
            Request::Acquire(request) => Answer::Acquire(self.acquire(now, request)),
            Request::Renew(request) => Answer::Renew(self.renew(now, request)),
            Request::Release(request) => Answer::Release(Ok(self.release(&request))),
            Request::Read(names) => {
                Answer::Read(Ok(names.iter().map(|name| self.read(now, name)).collect()))
            }
        }
    }

    /// Takes a lease if the record allows it.
    pub fn acquire(&mut self, now: Moment, request: Acquire) -> Result<Acquired, StoreError> {
        check_note(request.note.as_deref())?;
        let former = self.read(now, &request.name);
        let expired = former.as_ref().is_some_and(|former| {
            former.holder.is_some() && former.expiry == Expiry::ByStore(Duration::ZERO)
        });
        if !request.allowed_by(former.as_ref(), expired) {
            return Ok(Acquired::Lost(former));
        }
        self.revision += 1;
        let natural =
            former.as_ref().map_or(self.revision, |former| former.token.term.saturating_add(1));
        let token = Token::new(natural.max(request.above.saturating_add(1)), 0);
        let note = match (request.note, &former) {
            (Some(note), _) => note,
            (None, Some(former)) => former.note.clone(),
            (None, None) => Vec::new(),
        };
        // A later first term of any name must be above this one.
        self.revision = self.revision.max(token.term);
        let record = Record {
            version: Version(self.revision.to_string()),
            token,
            holder: Some(Holder {
                owner: request.owner,
                claim: Some(request.claim),
                nonce: Some(request.claim),
                session: request.session,
            }),
            ttl: request.ttl,
            expiry: Expiry::ByObservation,
            note,
        };
        self.entries.insert(request.name, Entry { record, renewed: now });
        Ok(Acquired::Won { token, former })
    }

    /// Prolongs a tenure.
    pub fn renew(&mut self, now: Moment, request: Renew) -> Result<Renewed, StoreError> {
        check_note(request.note.as_deref())?;
        let Some(entry) = self.entries.get_mut(&request.name) else {
            return Ok(Renewed::Refused(None));
        };
        let ours =
            entry.record.token == request.token && entry.is_of(request.claim, &request.known);
        let Some(holder) = entry.record.holder.as_mut().filter(|_| ours) else {
            return Ok(Renewed::Refused(self.read(now, &request.name)));
        };
        self.revision += 1;
        holder.nonce = Some(request.nonce);
        entry.record.version = Version(self.revision.to_string());
        entry.record.ttl = request.ttl;
        entry.renewed = now;
        if let Some(note) = request.note {
            entry.record.note = note;
        }
        Ok(Renewed::Yes)
    }

    /// Ends a tenure.
    pub fn release(&mut self, request: &Release) -> Released {
        match self.entries.get_mut(&request.name) {
            Some(entry) if entry.is_of(request.claim, &request.known) => {
                self.revision += 1;
                entry.record.holder = None;
                entry.record.version = Version(self.revision.to_string());
                Released::Yes
            }
            _ => Released::Refused,
        }
    }

    /// The record as it is.
    pub fn read(&self, now: Moment, name: &LeaseName) -> Option<Record> {
        let entry = self.entries.get(name)?;
        let mut record = entry.record.clone();
        if self.expires && record.session().is_none() {
            record.expiry = Expiry::ByStore((entry.renewed + record.ttl).since(now));
        }
        Some(record)
    }

    /// Deletes a record, as an operator would.
    pub fn delete(&mut self, name: &LeaseName) -> bool {
        self.revision += 1;
        self.entries.remove(name).is_some()
    }
}

impl Entry {
    fn is_of(&self, claim: Nonce, known: &[Nonce]) -> bool {
        self.record.holder.as_ref().is_some_and(|holder| {
            holder.claim == Some(claim) && holder.nonce.is_some_and(|nonce| known.contains(&nonce))
        })
    }
}

/// A store in this process's memory. Clones share their records.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use tenure_lease::{MemoryStore, Store};
/// let store = Store::new(MemoryStore::new());
/// let tenure = store.lease("nightly").acquire().await.unwrap();
/// assert!(tenure.is_held());
/// # }
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    records: Arc<Mutex<MemoryRecords>>,
    changes: watch::Sender<u64>,
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStore").finish_non_exhaustive()
    }
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self {
            records: Arc::new(Mutex::new(MemoryRecords::expiring())),
            changes: watch::Sender::new(0),
        }
    }

    /// Deletes a record, as an operator would.
    pub fn delete(&self, name: &LeaseName) -> bool {
        self.change(|records| records.delete(name))
    }

    fn change<T>(&self, change: impl FnOnce(&mut MemoryRecords) -> T) -> T {
        let (result, revision) = {
            let mut records = self.lock();
            (change(&mut records), records.revision)
        };
        self.changes.send_if_modified(|last| std::mem::replace(last, revision) != revision);
        result
    }

    fn lock(&self) -> MutexGuard<'_, MemoryRecords> {
        // A record is replaced whole or not at all, so a panic elsewhere leaves them sound.
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn claim(&self, name: &LeaseName) -> Option<Nonce> {
        self.lock().entries.get(name)?.record.holder.as_ref()?.claim
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Backend for MemoryStore {
    fn info(&self) -> StoreInfo {
        StoreInfo {
            kind: "memory",
            promise: Promise::Safe,
            ttl_min: Duration::from_millis(10),
            ttl_max: Duration::from_secs(24 * 3600),
            ttl_step: Duration::ZERO,
            frees_after_ttls: 1,
            pushes: true,
            pushes_renewals: true,
            reads_everything: false,
        }
    }

    fn acquire(&self, request: Acquire) -> Boxed<'_, Result<Acquired, StoreError>> {
        Box::pin(async move { self.change(|records| records.acquire(Moment::now(), request)) })
    }

    fn renew(&self, request: Renew) -> Boxed<'_, Result<Renewed, StoreError>> {
        Box::pin(async move { self.change(|records| records.renew(Moment::now(), request)) })
    }

    fn release(&self, request: Release) -> Boxed<'_, Result<Released, StoreError>> {
        Box::pin(async move { Ok(self.change(|records| records.release(&request))) })
    }

    fn read(&self, names: Vec<LeaseName>) -> Boxed<'_, Result<Vec<Option<Record>>, StoreError>> {
        Box::pin(async move {
            let records = self.lock();
            let now = Moment::now();
            Ok(names.iter().map(|name| records.read(now, name)).collect())
        })
    }

    fn list(&self) -> Option<Boxed<'_, Result<Vec<LeaseName>, StoreError>>> {
        Some(Box::pin(async { Ok(self.lock().entries.keys().take(LIST_MAX).cloned().collect()) }))
    }

    fn watch(&self, name: &LeaseName) -> Option<Box<dyn Watch>> {
        let mut changes = self.changes.subscribe();
        changes.mark_changed();
        let watch = MemoryWatch { store: self.clone(), name: name.clone(), changes, seen: None };
        Some(Box::new(watch))
    }
}

struct MemoryWatch {
    store: MemoryStore,
    name: LeaseName,
    changes: watch::Receiver<u64>,
    /// The claim that held it when the watch last fired; renewals wake nobody.
    seen: Option<Option<Nonce>>,
}

impl Watch for MemoryWatch {
    fn changed(&mut self) -> Boxed<'_, ()> {
        Box::pin(async {
            loop {
                // The watch itself keeps the store alive, so there is always a sender.
                self.changes.changed().await.expect("the store outlives its watches");
                let claim = self.store.claim(&self.name);
                if self.seen.replace(claim) != Some(claim) {
                    return;
                }
            }
        })
    }
}

/// Refuses a note that no store takes.
pub fn check_note(note: Option<&[u8]>) -> Result<(), StoreError> {
    match note {
        Some(note) if note.len() > NOTE_MAX => Err(StoreError::new(
            StoreErrorKind::Unsuitable,
            format!(
                "a note of {} bytes is longer than the {NOTE_MAX} that a record keeps",
                note.len()
            ),
        )),
        _ => Ok(()),
    }
}
