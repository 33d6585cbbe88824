use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use crate::backend::StoreError;
use crate::driver::{Cell, Offer, State};
use crate::record::Owner;
use crate::tenure::Back;
use crate::{LeaseError, LeaseName, Loss, Tenure};

/// Observes a lease, and takes it only while it is [allowed](Standby::allow) to; at first it is not.
///
/// Whoever wants the lease of a holder that died must have seen its record stand still for a whole
/// ttl. A standby sees that beforehand: once it is allowed, it waits only for what is left of it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let store = tenure_lease::Store::new(tenure_lease::MemoryStore::new());
/// let standby = store.lease("nightly").standby()?;
/// // … and when it is this process's turn:
/// standby.allow(true);
/// let tenure = standby.acquired().await?;
/// assert!(tenure.is_held());
/// # Ok(()) }
/// ```
///
/// What happens meanwhile can be waited for, too:
///
/// ```
/// # use tenure_lease::{LeaseError, Standby, Tenure};
/// # use tokio::sync::watch;
/// async fn my_turn(
///     standby: &Standby,
///     turn: &mut watch::Receiver<bool>,
/// ) -> Result<Tenure, LeaseError> {
///     let mut trouble = standby.trouble();
///     loop {
///         standby.allow(*turn.borrow_and_update());
///         tokio::select! {
///             tenure = standby.acquired() => return tenure,
///             Ok(()) = turn.changed() => {}
///             now = standby.changed(trouble.as_ref()) => {
///                 println!("the store: {now:?}");
///                 trouble = now;
///             }
///         }
///     }
/// }
/// ```
///
/// A standby is for one tenure. Dropping it gives back what it has won and nobody has taken.
#[must_use = "the lease is observed only until the standby is dropped"]
pub struct Standby {
    name: LeaseName,
    owner: Owner,
    offer: Arc<Offer>,
    /// Its own, and that of the session that it is attached to.
    cells: (Arc<Cell>, Option<Arc<Cell>>),
    state: watch::Receiver<State>,
    /// Becomes the tenure's.
    back: Mutex<Option<Back>>,
}

impl Standby {
    pub(crate) fn new(
        name: LeaseName,
        owner: Owner,
        offer: Arc<Offer>,
        cells: (Arc<Cell>, Option<Arc<Cell>>),
        state: watch::Receiver<State>,
        back: Back,
    ) -> Self {
        Self { name, owner, offer, cells, state, back: Mutex::new(Some(back)) }
    }

    /// Says whether the lease may be taken. If that is withdrawn, what was won and nobody has taken
    /// is given back; a tenure that [`Standby::acquired`] has returned stays as it is.
    pub fn allow(&self, yes: bool) {
        if self.offer.allow(yes)
            && let Some(back) = &*self.back.lock().unwrap_or_else(PoisonError::into_inner)
        {
            back.call();
        }
    }

    /// Looks at the lease now: somebody knows better than the store's watch that it may be free.
    pub fn look(&self) {
        if let Some(back) = &*self.back.lock().unwrap_or_else(PoisonError::into_inner) {
            back.call();
        }
    }

    /// Why the store has not answered lately; `None`: it answers.
    pub fn trouble(&self) -> Option<StoreError> {
        self.state.borrow().trouble.clone()
    }

    /// Waits until [`Standby::trouble`] is another than this, and returns it.
    pub async fn changed(&self, from: Option<&StoreError>) -> Option<StoreError> {
        let mut state = self.state.clone();
        let changed = state.wait_for(|state| state.trouble.as_ref() != from).await;
        match changed.map(|state| state.trouble.clone()) {
            Ok(trouble) => trouble,
            // Its keeper is gone: there will be no more news.
            Err(_) => std::future::pending().await,
        }
    }

    /// Waits until the lease is held, which happens only while it is allowed. Errors are those of
    /// [`Lease::acquire`](crate::Lease::acquire); besides, [`LeaseError::Over`] says that the session
    /// is over, or that the one tenure was returned before.
    ///
    /// If the future is dropped, it can be called again: what was won meanwhile waits.
    pub async fn acquired(&self) -> Result<Tenure, LeaseError> {
        match self.begun().await? {
            Some(tenure) => Ok(tenure),
            None => unreachable!("only a single attempt ends without a tenure"),
        }
    }

    /// `None`: another holds it.
    pub(crate) async fn begun(&self) -> Result<Option<Tenure>, LeaseError> {
        let mut state = self.state.clone();
        let begun = loop {
            if let Some(outcome) = self.offer.take() {
                break outcome?;
            }
            if state.changed().await.is_err() {
                // The session's driver is gone, and with it what was attached.
                assert!(self.cells.1.is_some(), "the keeper of {} has panicked", self.name);
                return Err(LeaseError::Over(Loss::Released));
            }
        };
        let Some(begun) = begun else { return Ok(None) };
        let back = self.back.lock().unwrap_or_else(PoisonError::into_inner).take();
        let back = back.unwrap_or_else(|| unreachable!("a tenure is taken once"));
        let (name, owner) = (self.name.clone(), self.owner.clone());
        Ok(Some(Tenure::new(name, owner, begun, self.cells.clone(), self.state.clone(), back)))
    }
}

impl std::fmt::Debug for Standby {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Standby").field("name", &self.name).finish_non_exhaustive()
    }
}
