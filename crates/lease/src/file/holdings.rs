//! What this process holds, or may be about to.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::LeaseName;
use crate::record::Nonce;

/// The locked alive files of our tenures, and the claims whose fate is not known yet.
#[derive(Default)]
pub(super) struct Holdings {
    locks: Mutex<BTreeMap<Nonce, (LeaseName, File)>>,
    flights: Arc<Mutex<BTreeSet<Nonce>>>,
}

impl Holdings {
    /// Notes that a claim is being acquired, until the flight is dropped.
    pub(super) fn begin(&self, claim: Nonce) -> InFlight {
        lock(&self.flights).insert(claim);
        InFlight { claim, flights: Arc::clone(&self.flights) }
    }

    pub(super) fn is_in_flight(&self, claim: Nonce) -> bool {
        lock(&self.flights).contains(&claim)
    }

    /// Keeps the lock of a claim that has won, or may have.
    pub(super) fn keep(&self, name: &LeaseName, claim: Nonce, alive: File) {
        lock(&self.locks).insert(claim, (name.clone(), alive));
    }

    /// This claim has won: whatever else we held of this lease is over.
    pub(super) fn won(&self, name: &LeaseName, claim: Nonce) {
        lock(&self.locks).retain(|other, (of, _)| *other == claim || of != name);
    }

    /// This claim's tenure is over, or another's.
    pub(super) fn drop_lock(&self, claim: Nonce) {
        lock(&self.locks).remove(&claim);
    }

    pub(super) fn lifeline(&self, claim: Nonce) -> Option<OwnedFd> {
        let locks = lock(&self.locks);
        let (_, file) = locks.get(&claim)?;
        file.try_clone().ok().map(OwnedFd::from)
    }
}

/// A claim whose acquire is under way.
pub(super) struct InFlight {
    claim: Nonce,
    flights: Arc<Mutex<BTreeSet<Nonce>>>,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        lock(&self.flights).remove(&self.claim);
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is one call on a map, so a panic elsewhere leaves them sound.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
