use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use crate::clock::Moment;
use crate::driver::{Begun, Cell, Command, State, Wants, passed, within};
use crate::record::{Nonce, Owner, Record, Token};
use crate::{LeaseError, LeaseName, Loss};

/// One tenure: the lease is held until this is dropped, released or lost.
///
/// Dropping it says that the guarded work has ended, and gives the lease back in the background; so
/// does a panic that unwinds through it, and a runtime that drops its tasks at shutdown. If the
/// process ends before the store was told, others wait until the ttl is over. A tenure that is
/// leaked ([`std::mem::forget`]) is renewed for as long as the process answers its liveness call.
#[must_use = "the lease is given back as soon as the tenure is dropped"]
pub struct Tenure {
    name: LeaseName,
    owner: Owner,
    token: Token,
    claim: Nonce,
    note: Vec<u8>,
    former: Option<Record>,
    cell: Arc<Cell>,
    /// The cell of the session, if it is attached to one.
    session: Option<Arc<Cell>>,
    state: watch::Receiver<State>,
    back: Back,
}

/// The way back to the driver. Dropping it ends the tenure.
pub(crate) enum Back {
    Lease { wants: watch::Sender<Wants>, notes: AtomicU64 },
    Attached(Detach),
}

impl Back {
    /// Calls the driver: whether the lease may be taken has changed.
    pub(crate) fn call(&self) {
        match self {
            Self::Lease { wants, .. } => wants.send_modify(|_| {}),
            Self::Attached(Detach { number, commands }) => {
                // If the session's driver is gone, so is what was attached.
                let _ = commands.send(Command::Allow(*number));
            }
        }
    }
}

/// Detaches when dropped.
pub(crate) struct Detach {
    pub(crate) number: u64,
    pub(crate) commands: mpsc::UnboundedSender<Command>,
}

impl Drop for Detach {
    fn drop(&mut self) {
        // If the session's driver is gone, so is what was attached.
        let _ = self.commands.send(Command::Detach(self.number));
    }
}

impl Tenure {
    pub(crate) fn new(
        name: LeaseName,
        owner: Owner,
        begun: Begun,
        cells: (Arc<Cell>, Option<Arc<Cell>>),
        state: watch::Receiver<State>,
        back: Back,
    ) -> Self {
        let Begun { token, claim, note, former } = begun;
        let (cell, session) = cells;
        Self { name, owner, token, claim, note, former, cell, session, state, back }
    }

    /// Whether the lease is held now: one atomic load and one clock read, no lock, no I/O.
    ///
    /// True says that nobody else may hold it before [`Tenure::kill_deadline`]. Between this check
    /// and whatever you do next the process may be stopped for an hour: a [`fence`](crate::fence)
    /// covers that.
    #[inline]
    pub fn is_held(&self) -> bool {
        let now = Moment::now();
        now < self.cell.lost_at()
            && self.session.as_ref().is_none_or(|session| now < session.lost_at())
    }

    /// Waits until the lease is lost, and says why. The work must then end by
    /// [`Tenure::kill_deadline`].
    ///
    /// If the keeper's thread is stuck and says nothing, the clock does: [`Loss::Expired`], when a
    /// quarter of the stop budget is over.
    pub async fn lost(&self) -> Loss {
        let mut state = self.state.clone();
        let (cell, session) = (Arc::clone(&self.cell), self.session.clone());
        let overdue = move || {
            let session = session.as_ref().map_or(Moment::NEVER, |session| session.overdue_at());
            cell.overdue_at().min(session)
        };
        tokio::select! {
            biased;
            state = state.wait_for(|state| state.loss.is_some()) => match state {
                Ok(state) => state.loss.clone().unwrap_or(Loss::Released),
                // The driver is gone without a word, which only a panic there can cause.
                Err(_) => Loss::Expired,
            },
            () = passed(overdue) => Loss::Expired,
        }
    }

    /// Why it was lost, if it was.
    pub fn loss(&self) -> Option<Loss> {
        self.state.borrow().loss.clone()
    }

    /// The fencing token of this tenure.
    pub fn token(&self) -> Token {
        self.token
    }

    /// The id of the claim that won it.
    pub fn claim(&self) -> Nonce {
        self.claim
    }

    /// The name of the lease.
    pub fn name(&self) -> &LeaseName {
        &self.name
    }

    /// Who holds it: this process.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// The note that stood in the record when the tenure began.
    pub fn note(&self) -> &[u8] {
        &self.note
    }

    /// What the record said before, if there was one and the store told.
    pub fn former(&self) -> Option<&Record> {
        self.former.as_ref()
    }

    /// When the lease counts as lost unless it is renewed before.
    pub fn deadline(&self) -> Moment {
        let session = self.session.as_ref().map_or(Moment::NEVER, |session| session.lost_at());
        self.cell.lost_at().min(session)
    }

    /// When the guarded work must have ended, and the watchdog acts if it is on. Stands still after
    /// a loss.
    pub fn kill_deadline(&self) -> Moment {
        let session = self.session.as_ref().map_or(Moment::NEVER, |session| session.kill_at());
        self.cell.kill_at().min(session)
    }

    /// How long the guarded work may still take to end.
    pub fn time_to_stop(&self) -> Duration {
        self.kill_deadline().since(Moment::now())
    }

    /// Replaces the note in the record, by a renewal under this token; returns when it stands.
    ///
    /// An attached lease is not renewed, so it keeps the note that it was acquired with.
    pub async fn write_note(&self, note: Vec<u8>) -> Result<(), LeaseError> {
        crate::check_note(Some(&note))?;
        let Back::Lease { wants, notes } = &self.back else {
            return Err(LeaseError::Store(crate::backend::StoreError::new(
                crate::backend::StoreErrorKind::Unsuitable,
                "an attached lease keeps the note that it was acquired with",
            )));
        };
        let number = notes.fetch_add(1, Ordering::Relaxed) + 1;
        wants.send_modify(|wants| {
            if wants.note.as_ref().is_none_or(|(waiting, _)| *waiting < number) {
                wants.note = Some((number, note));
            }
        });
        let mut state = self.state.clone();
        let done = state.wait_for(|state| state.note >= number || state.loss.is_some()).await;
        match done {
            Ok(state) if state.note >= number => Ok(()),
            Ok(state) => Err(LeaseError::Over(state.loss.clone().unwrap_or(Loss::Released))),
            Err(_) => Err(LeaseError::Over(Loss::Expired)),
        }
    }

    /// Tells the tenure that a fence has seen this token, higher than ours, and refused us. If we
    /// still hold the lease, its store has lost history (a restored backup): the tenure is given up
    /// with [`Loss::TokenRegressed`], loudly, since every write of ours would be refused; `true`.
    /// If we do not, a successor has raised the fence, as it should; `false`.
    ///
    /// For those who write a fence of their own; those in [`fence`](crate::fence) call it.
    pub fn report_fence(&self, fence: Token) -> bool {
        if fence <= self.token || !self.is_held() {
            return false;
        }
        let loss = Loss::TokenRegressed { held: self.token, fence };
        tracing::error!(
            lease = %self.name, held = %self.token, fence = %fence,
            "the store has lost history; repair it with: tenure lease raise --lease URL --name {} --above {}",
            self.name, fence.term,
        );
        match &self.back {
            Back::Lease { wants, .. } => wants.send_modify(|wants| wants.give_up = Some(loss)),
            Back::Attached(Detach { number, commands }) => {
                // If the session's driver is gone, so is what was attached.
                let _ = commands.send(Command::GiveUp(*number, loss));
            }
        }
        true
    }

    /// Gives the lease back: the guarded work has ended. Returns when the store has answered, or
    /// when the lease has run out without its answer. Drop the tenure instead if there is no time to
    /// wait: it is given back in the background.
    pub async fn release(self) {
        let time_left = self.time_to_stop();
        let Self { state, back, .. } = self;
        drop(back);
        let mut state = state;
        // An error says that the driver is gone, and with it the tenure.
        let _ = within(time_left, state.wait_for(|state| state.done)).await;
    }
}

impl std::fmt::Debug for Tenure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tenure")
            .field("name", &self.name)
            .field("token", &self.token)
            .field("held", &self.is_held())
            .finish_non_exhaustive()
    }
}
