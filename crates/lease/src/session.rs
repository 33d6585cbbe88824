use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{mpsc, watch};

use crate::driver::{Cell, Command, Offer, State, Wants, keep_session, keep_sessions, runtime};
use crate::record::Owner;
use crate::tenure::{Back, Detach};
use crate::{Lease, LeaseError, LeaseName, Loss, NameError, Standby, Tenure};

/// A lease that stands for a whole process: other leases are attached to it, and live and die with
/// it. However many they are, the store is written once per renewal interval.
///
/// Its name should be reused by the process that takes its place (a node's name, a slot), never be
/// made anew for each start.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let store = tenure_lease::Store::new(tenure_lease::MemoryStore::new());
/// let session = store.lease("node-1").session().await?;
/// let orders = session.lease("orders").acquire().await?;
/// let carts = session.lease("carts").acquire().await?;
/// assert!(orders.is_held() && carts.is_held());
/// # Ok(()) }
/// ```
#[must_use = "the session is given back as soon as it is dropped"]
pub struct Session {
    tenure: Tenure,
    /// Unbounded, but it never holds more than a few entries for each attached lease.
    commands: mpsc::UnboundedSender<Command>,
    /// Numbers what is attached.
    attached: AtomicU64,
    cell: Arc<Cell>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("tenure", &self.tenure).finish_non_exhaustive()
    }
}

impl Session {
    /// A lease to attach.
    pub fn lease(&self, name: &str) -> AttachedLease<'_> {
        AttachedLease { session: self, name: LeaseName::new(name), note: None }
    }

    /// The tenure of the session itself.
    pub fn tenure(&self) -> &Tenure {
        &self.tenure
    }

    /// Gives the session back, and with it everything that is attached: first each attached tenure
    /// is lost and must end, then the session is released.
    pub async fn release(self) {
        let Self { tenure, commands, .. } = self;
        tenure.release().await;
        drop(commands);
    }
}

/// A lease that may be attached to a session.
#[must_use = "a lease is not held before it is acquired"]
pub struct AttachedLease<'a> {
    session: &'a Session,
    name: Result<LeaseName, NameError>,
    note: Option<Vec<u8>>,
}

impl std::fmt::Debug for AttachedLease<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AttachedLease").field("name", &self.name).finish_non_exhaustive()
    }
}

impl AttachedLease<'_> {
    /// Writes this note in the same step as the acquisition; otherwise the old one stays.
    pub fn note(self, note: Vec<u8>) -> Self {
        Self { note: Some(note), ..self }
    }

    /// Waits until the lease is held, or the session is over.
    pub async fn acquire(self) -> Result<Tenure, LeaseError> {
        self.begin(true)?.acquired().await
    }

    /// Observes the lease, and takes it only while it is [allowed](Standby::allow) to. The standby
    /// ends with the session, but does not borrow it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let store = tenure_lease::Store::new(tenure_lease::MemoryStore::new());
    /// let session = std::sync::Arc::new(store.lease("node-1").session().await?);
    /// let standby = session.lease("orders").standby()?;
    /// let turn = tokio::spawn(async move {
    ///     standby.allow(true);
    ///     standby.acquired().await
    /// });
    /// assert!(turn.await??.is_held());
    /// # Ok(()) }
    /// ```
    pub fn standby(self) -> Result<Standby, LeaseError> {
        self.begin(false)
    }

    fn begin(self, allowed: bool) -> Result<Standby, LeaseError> {
        crate::check_note(self.note.as_deref())?;
        let name = self.name?;
        let cell = Arc::new(Cell::default());
        let (state_sender, state) = watch::channel(State::default());
        let offer = Arc::new(Offer::new(allowed));
        let number = self.session.attached.fetch_add(1, Ordering::Relaxed);
        let command = Command::Attach {
            number,
            name: name.clone(),
            note: self.note,
            cell: Arc::clone(&cell),
            state: state_sender,
            offer: Arc::clone(&offer),
        };
        let over = |_| LeaseError::Over(self.session.tenure.loss().unwrap_or(Loss::Released));
        self.session.commands.send(command).map_err(over)?;
        // Dropping the standby detaches it.
        let back = Back::Attached(Detach { number, commands: self.session.commands.clone() });
        let cells = (cell, Some(Arc::clone(&self.session.cell)));
        let owner = self.session.tenure.owner().clone();
        Ok(Standby::new(name, owner, offer, cells, state, back))
    }
}

/// The session of this process, again and again: when it is lost, and everything that was attached to
/// it has ended, it is contended for anew. Clones share it; when the last one is dropped, it is given
/// back.
#[derive(Clone)]
pub struct KeptSession {
    sessions: watch::Receiver<Option<Arc<Session>>>,
    /// Takes the terms of sessions to be given up, or nothing for any; it is wanted while there is one
    /// of these.
    give_up: mpsc::Sender<Option<u64>>,
    /// How many wait for it.
    waiting: Arc<watch::Sender<usize>>,
}

impl KeptSession {
    pub(crate) fn new(
        sessions: watch::Receiver<Option<Arc<Session>>>,
        give_up: mpsc::Sender<Option<u64>>,
        waiting: Arc<watch::Sender<usize>>,
    ) -> Self {
        Self { sessions, give_up, waiting }
    }

    /// The session, while it is held. Whoever keeps it says that what is attached to it goes on: drop
    /// it soon after [`Tenure::lost`](crate::Tenure::lost).
    pub fn current(&self) -> Option<Arc<Session>> {
        self.sessions.borrow().clone()
    }

    /// Gives this session up, if it is still the present one: what was attached to it is over for
    /// good, and those who wait for that need not wait until this process ends. It is released when
    /// the last one who keeps it has dropped it, and contended for anew when somebody waits for it
    /// ([`held`](Self::held)).
    pub async fn give_up(&self, session: &Session) {
        // An error says that its driver is gone, and with it the session.
        let _ = self.give_up.send(Some(session.tenure().token().term)).await;
    }

    /// Contends for it no more before somebody waits for it ([`held`](Self::held)), and gives it up if
    /// nobody uses it: whoever takes the place of this process must not find it taken.
    pub async fn rest(&self) {
        let _ = self.give_up.send(None).await; // As above.
    }

    /// Waits until it is held.
    pub async fn held(&self) -> Arc<Session> {
        let _waiting = Waiting::new(&self.waiting);
        let mut sessions = self.sessions.clone();
        let held = sessions.wait_for(Option::is_some).await;
        match held.map(|session| session.clone()) {
            Ok(Some(session)) => session,
            // Its driver lives as long as this, unless its runtime was shut down.
            _ => std::future::pending().await,
        }
    }
}

/// Somebody waits for a session.
struct Waiting<'a>(&'a watch::Sender<usize>);

impl<'a> Waiting<'a> {
    fn new(count: &'a watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl std::fmt::Debug for KeptSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let held = self.sessions.borrow().is_some();
        f.debug_struct("KeptSession").field("held", &held).finish_non_exhaustive()
    }
}

impl Lease {
    /// The session of this process, kept: contended for again after each loss, in the background, for
    /// as long as the result is kept. What cannot become right by itself is an error at once, or is
    /// logged and tried again every few seconds.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let store = tenure_lease::Store::new(tenure_lease::MemoryStore::new());
    /// let me = store.lease("node-1").kept_session()?;
    /// let orders = me.held().await.lease("orders").acquire().await?;
    /// assert!(orders.is_held());
    /// # Ok(()) }
    /// ```
    pub fn kept_session(&self) -> Result<KeptSession, LeaseError> {
        self.terms(false)?;
        Ok(keep_sessions(self.clone()))
    }

    /// Waits until the lease is held, as a [`Session`].
    pub async fn session(&self) -> Result<Session, LeaseError> {
        let terms = self.terms(false)?;
        let name = terms.wish.name.clone();
        let owner: Owner = terms.wish.owner.clone();
        let cell = Arc::new(Cell::default());
        let (state_sender, state) = watch::channel(State::default());
        let (wants, wants_receiver) = watch::channel(Wants::default());
        let offer = Arc::new(Offer::new(true));
        let (commands, commands_receiver) = mpsc::unbounded_channel();
        runtime().spawn(keep_session(
            terms,
            Arc::clone(&cell),
            state_sender,
            wants_receiver,
            Arc::clone(&offer),
            commands_receiver,
        ));
        let back = Back::Lease { wants, notes: 0.into() };
        let cells = (Arc::clone(&cell), None);
        let tenure = Standby::new(name, owner, offer, cells, state, back).acquired().await?;
        Ok(Session { tenure, commands, attached: AtomicU64::new(0), cell })
    }
}
