//! Where a keeper and whoever waits for it hand a tenure over.
//!
//! One lock decides: what was taken is not withdrawn, and what was withdrawn is not taken.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Begun;
use crate::{LeaseError, Loss};

/// How contending came out; `None`: another holds it.
pub(crate) type Outcome = Result<Option<Begun>, LeaseError>;

pub(crate) struct Offer(Mutex<Inner>);

struct Inner {
    allowed: bool,
    /// The driver has been told to look here, and has not yet.
    called: bool,
    offered: Option<Outcome>,
    taken: bool,
}

impl Offer {
    pub(crate) fn new(allowed: bool) -> Self {
        Self(Mutex::new(Inner { allowed, called: false, offered: None, taken: false }))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing here is half done, whoever panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says whether the lease may be taken; `true`: call the driver.
    pub(crate) fn allow(&self, yes: bool) -> bool {
        let mut inner = self.lock();
        let changed = std::mem::replace(&mut inner.allowed, yes) != yes;
        changed && !std::mem::replace(&mut inner.called, true)
    }

    /// Takes what is offered, a tenure only while it is allowed. Nobody is given a second one.
    pub(crate) fn take(&self) -> Option<Outcome> {
        let mut inner = self.lock();
        if inner.taken {
            return Some(Err(LeaseError::Over(Loss::Released)));
        }
        match &inner.offered {
            Some(Err(error)) => Some(Err(error.clone())),
            Some(Ok(Some(_))) if !inner.allowed => None,
            _ => {
                inner.taken = inner.offered.is_some();
                inner.offered.take()
            }
        }
    }

    /// For the driver, when it was called: whether the lease may be taken.
    pub(super) fn allowed(&self) -> bool {
        let mut inner = self.lock();
        inner.called = false;
        inner.allowed
    }

    /// Offers how it came out, unless that was said before.
    pub(super) fn put(&self, outcome: Outcome) {
        let mut inner = self.lock();
        if !inner.taken {
            inner.offered.get_or_insert(outcome);
        }
    }

    /// Withdraws a tenure that nobody has taken, if it is not allowed any more or not held; `true`: it
    /// is to be declined.
    pub(super) fn withdraw(&self, held: bool) -> bool {
        let mut inner = self.lock();
        let unwanted = !(inner.allowed && held);
        inner.offered.take_if(|offered| unwanted && matches!(offered, Ok(Some(_)))).is_some()
    }

    /// Whether there is an answer, taken or not.
    pub(super) fn is_answered(&self) -> bool {
        let inner = self.lock();
        inner.taken || inner.offered.is_some()
    }
}
