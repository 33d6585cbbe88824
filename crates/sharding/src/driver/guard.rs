//! What guards a kind: the coordinator's lease, the session of this process, and the sessions of
//! others that may be over. Each has a task, which tells control what happens.
//!
//! Nothing stands by for a lease before it is to be taken: until then the process's [`Observer`] reads the
//! record with all others, and what it has seen counts.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use tenure_lease::record::{Record, SessionRef};
use tenure_lease::{KeptSession, Lease, LeaseError, Loss, Session, Tenure};

use super::observer::{Observer, Sight};
use super::session_end::watch_session;

/// What there is to guard with.
#[derive(Clone, Default)]
pub(crate) struct Guards {
    pub(crate) lease: Option<Lease>,
    pub(crate) session: Option<KeptSession>,
}

/// What happened.
pub(super) enum Guarded {
    /// The coordinator's lease was won, when it had been withdrawn from so often.
    Won(Arc<Tenure>, u64),
    /// It was lost: that of this term.
    Lost(u64),
    /// This note stands in the record of that tenure.
    NoteWritten { term: u64, number: u64 },
    /// The record of the lease was read: its note.
    Seen(Vec<u8>),
    /// Whether the store answers.
    Able(bool),
    /// This process has its session.
    SessionWon(Arc<Session>),
    /// It has one, which is not in the store of the coordinator's lease.
    SessionElsewhere,
    /// It has lost it: that of this term.
    SessionLost(u64, Loss),
    /// The session of another is over.
    SessionOver(SessionRef),
}

/// The tasks, for as long as this is kept.
pub(super) struct Guard {
    guards: Guards,
    events: mpsc::UnboundedSender<Guarded>,
    wanted: watch::Sender<Wanted>,
    /// Whether this node might coordinate, and looks at the records.
    looks: watch::Sender<bool>,
    /// Of the lease's store.
    observer: Option<Arc<Observer>>,
    /// Whether the lease is held, or being given back.
    holding: watch::Receiver<bool>,
    /// The term of the last session that this kind needs no more.
    done_with: watch::Sender<Option<u64>>,
    observed: HashMap<SessionRef, SessionWatch>,
    /// Waits for the session, and for its end.
    session: Option<Task>,
    _tasks: Vec<Task>,
}

/// Whether the lease is to be had.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Wanted {
    contend: bool,
    above: u64,
    /// How often it was withdrawn from. What was won before the last time is to be given back, however
    /// soon it was wanted again: the watch shows only how things are now.
    withdrawals: u64,
}

/// Ends with whoever keeps it.
struct Task(JoinHandle<()>);

impl Task {
    async fn ended(mut self) {
        self.0.abort();
        let _ = (&mut self.0).await; // That it was aborted.
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct SessionWatch {
    take_over: watch::Sender<bool>,
    task: Task,
}

impl Guard {
    /// The session that was had last is not taken again: it is given up. The channel is unbounded:
    /// what guards says little, and control must not miss any of it.
    pub(super) fn new(
        guards: Guards,
        observer: Option<Arc<Observer>>,
        last_session: Option<u64>,
        events: mpsc::UnboundedSender<Guarded>,
    ) -> Self {
        let (wanted, wants) = watch::channel(Wanted::default());
        let (hold, holding) = watch::channel(false);
        let (done_with, done) = watch::channel(last_session);
        let (looks, looking) = watch::channel(false);
        let mut tasks = Vec::new();
        if let (Some(lease), Some(observer)) = (&guards.lease, &observer) {
            let task = keep_lease(lease.clone(), observer.clone(), wants, hold, events.clone());
            tasks.push(Task(tokio::spawn(task)));
            let task = look(lease.clone(), observer.clone(), looking, events.clone());
            tasks.push(Task(tokio::spawn(task)));
        }
        let session = guards
            .session
            .as_ref()
            .zip(guards.lease.clone())
            .map(|(kept, lease)| keep_session(kept.clone(), lease, done, events.clone()))
            .map(|task| Task(tokio::spawn(task)));
        let observed = HashMap::new();
        Self {
            guards,
            events,
            wanted,
            looks,
            observer,
            holding,
            done_with,
            observed,
            session,
            _tasks: tasks,
        }
    }

    /// Whether this node might coordinate, and is to know the records beforehand.
    pub(super) fn look(&self, looks: bool) {
        self.looks.send_if_modified(|is| std::mem::replace(is, looks) != looks);
    }

    pub(super) fn contend(&self, above: u64) {
        self.wanted.send_modify(|wanted| (wanted.contend, wanted.above) = (true, above));
    }

    pub(super) fn withdraw(&self) {
        self.wanted.send_modify(|wanted| {
            wanted.contend = false;
            wanted.withdrawals += 1;
        });
    }

    /// Whether what was won, when it had been withdrawn from so often, is still wanted.
    pub(super) fn is_wanted(&self, withdrawals: u64) -> bool {
        let wanted = self.wanted.borrow();
        wanted.contend && wanted.withdrawals == withdrawals
    }

    /// Whether the lease is held, or being given back.
    pub(super) fn holding(&self) -> watch::Receiver<bool> {
        self.holding.clone()
    }

    /// Puts a note into the record.
    pub(super) fn write_note(&self, tenure: &Arc<Tenure>, number: u64, note: Vec<u8>) {
        let (tenure, events) = (tenure.clone(), self.events.clone());
        tokio::spawn(async move {
            let term = tenure.token().term;
            // If it is not written, the lease is lost, and that is told.
            if tenure.write_note(note).await.is_ok() {
                let _ = events.send(Guarded::NoteWritten { term, number });
            }
        });
    }

    /// Nothing of this kind needs the session any more. One of a node that goes is given up, and it
    /// wants no other: it may never host again under it.
    pub(super) fn done_with(&mut self, session: Arc<Session>, goes: bool) {
        self.done_with.send_replace(Some(session.tenure().token().term));
        if let Some(kept) = self.guards.session.clone().filter(|_| goes) {
            self.session = None;
            tokio::spawn(async move { kept.give_up(&session).await });
        }
    }

    /// This node goes, and has no session: it wants none any more.
    pub(super) fn want_no_session(&mut self) {
        if let (Some(task), Some(kept)) = (self.session.take(), self.guards.session.clone()) {
            tokio::spawn(async move {
                // While it waits for one, the process contends for it.
                task.ended().await;
                kept.rest().await;
            });
        }
    }

    /// Nothing of this kind uses the session any more: it is given up, unless others use it.
    pub(super) fn let_session_rest(&mut self) {
        if let (Some(task), Some(kept)) = (self.session.take(), self.guards.session.clone()) {
            tokio::spawn(async move {
                task.ended().await;
                // Something that has just ended may still be about to drop it.
                for _ in 0..REST_ATTEMPTS {
                    kept.rest().await;
                    tokio::time::sleep(KEPT_POLL).await;
                    if kept.current().is_none() {
                        return;
                    }
                }
            });
        }
    }

    /// The term of the last session that this kind needs no more.
    pub(super) fn last_session(&self) -> Option<u64> {
        *self.done_with.borrow()
    }

    /// Observes these sessions, and takes those over that it is to.
    pub(super) fn observe(
        &mut self,
        observe: &BTreeSet<SessionRef>,
        take_over: &BTreeSet<SessionRef>,
    ) {
        let (Some(lease), Some(observer)) = (&self.guards.lease, &self.observer) else { return };
        self.observed.retain(|session, watch| {
            // Nobody may have coordinated when one ended.
            let observes = !watch.task.0.is_finished();
            observes && (observe.contains(session) || take_over.contains(session))
        });
        for session in observe.union(take_over) {
            let wanted = take_over.contains(session);
            let watch = self.observed.entry(session.clone()).or_insert_with(|| {
                let (take_over, allowed) = watch::channel(wanted);
                let timing = lease.timing().clone();
                let target = lease.store().lease(session.name.as_str()).settings(timing);
                let watch = observer.watch(&session.name);
                let events = self.events.clone();
                let task = watch_session(target, watch, session.clone(), allowed, events);
                SessionWatch { take_over, task: Task(tokio::spawn(task)) }
            });
            watch.take_over.send_if_modified(|is| std::mem::replace(is, wanted) != wanted);
        }
    }
}

/// Contends for the lease whenever it is wanted.
async fn keep_lease(
    lease: Lease,
    observer: Arc<Observer>,
    mut wants: watch::Receiver<Wanted>,
    hold: watch::Sender<bool>,
    events: mpsc::UnboundedSender<Guarded>,
) {
    loop {
        let (tenure, withdrawals) = match acquire(&lease, &observer, &mut wants).await {
            Ok(Some((tenure, withdrawals))) => (Arc::new(tenure), withdrawals),
            Ok(None) => return,
            Err(error) => {
                tracing::error!("the coordinator's lease cannot be asked for: {error}");
                let _ = events.send(Guarded::Able(false));
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        hold.send_replace(true);
        let term = tenure.token().term;
        if events.send(Guarded::Won(tenure.clone(), withdrawals)).is_err() {
            return;
        }
        let is_over = |wanted: &Wanted| !wanted.contend || wanted.withdrawals != withdrawals;
        tokio::select! {
            loss = tenure.lost() => {
                let _ = events.send(Guarded::Lost(term));
                if loss == Loss::Expired {
                    let _ = events.send(Guarded::Able(false));
                }
            }
            gone = wants.wait_for(is_over) => if gone.is_err() { return },
        }
        release(tenure).await;
        hold.send_replace(false);
    }
}

/// With how often it had been withdrawn from. `None`: nobody wants it any more, for good.
async fn acquire(
    lease: &Lease,
    observer: &Observer,
    wants: &mut watch::Receiver<Wanted>,
) -> Result<Option<(Tenure, u64)>, LeaseError> {
    loop {
        let Ok(wanted) = wants.wait_for(|wanted| wanted.contend).await.map(|wanted| *wanted) else {
            return Ok(None);
        };
        let standby = seen(lease.clone().above(wanted.above), observer.sight(lease.name()?));
        let standby = standby.standby()?;
        standby.allow(true);
        tokio::select! {
            tenure = standby.acquired() => {
                return tenure.map(|tenure| Some((tenure, wanted.withdrawals)));
            }
            changed = wants.wait_for(|now| *now != wanted) => if changed.is_err() {
                return Ok(None);
            },
        }
    }
}

/// The lease, whose record was seen so.
pub(super) fn seen(lease: Lease, sight: Option<Sight>) -> Lease {
    match sight {
        Some(Sight { record: Some(record), since }) => lease.seen(record, since),
        _ => lease,
    }
}

/// Gives the lease back, once nobody writes its note any more.
async fn release(tenure: Arc<Tenure>) {
    let mut tenure = tenure;
    loop {
        match Arc::try_unwrap(tenure) {
            Ok(tenure) => return tenure.release().await,
            Err(kept) => tenure = kept,
        }
        tokio::time::sleep(KEPT_POLL).await;
    }
}

/// Looks at the record now and then: who is on the roster, and whether the store answers.
async fn look(
    lease: Lease,
    observer: Arc<Observer>,
    mut looks: watch::Receiver<bool>,
    events: mpsc::UnboundedSender<Guarded>,
) {
    let Ok(name) = lease.name() else { return };
    let mut noted = None;
    while looks.wait_for(|looks| *looks).await.is_ok() {
        let (mut watch, mut silent) = (observer.watch(name), 0);
        loop {
            let sight = tokio::select! {
                sight = watch.next() => sight,
                _ = looks.wait_for(|looks| !*looks) => break,
            };
            let Some(Sight { record, .. }) = sight else {
                silent += 1;
                if silent >= SILENT {
                    let _ = events.send(Guarded::Able(false));
                }
                continue;
            };
            silent = 0;
            let _ = events.send(Guarded::Able(true));
            let note = record.map(|record| record.note);
            if note != noted {
                noted = note;
                let _ = events.send(Guarded::Seen(noted.clone().unwrap_or_default()));
            }
        }
        // It is not known any more, and nobody asks.
        let _ = events.send(Guarded::Able(true));
    }
}

async fn keep_session(
    kept: KeptSession,
    lease: Lease,
    mut done_with: watch::Receiver<Option<u64>>,
    events: mpsc::UnboundedSender<Guarded>,
) {
    let mut last = *done_with.borrow();
    loop {
        let session = kept.held().await;
        let term = session.tenure().token().term;
        if last >= Some(term) || !session.tenure().is_held() {
            drop(session);
            tokio::time::sleep(KEPT_POLL).await;
            continue;
        }
        if !is_kept_beside(&lease, &session, &events).await {
            continue;
        }
        last = Some(term);
        if events.send(Guarded::SessionWon(session.clone())).is_err() {
            return;
        }
        tokio::select! {
            loss = session.tenure().lost() => {
                let _ = events.send(Guarded::SessionLost(term, loss));
            }
            _ = done_with.wait_for(|done| *done >= Some(term)) => {}
        }
        drop(session);
        // The region takes no other before everything under this one has ended.
        if done_with.wait_for(|done| *done >= Some(term)).await.is_err() {
            return;
        }
    }
}

/// Whether the coordinator, which asks the store of its lease, finds this session there; waits while it
/// does not, until the session is lost. Otherwise this process would seem to be over while it hosts.
async fn is_kept_beside(
    lease: &Lease,
    session: &Session,
    events: &mpsc::UnboundedSender<Guarded>,
) -> bool {
    let (tenure, timeout) = (session.tenure(), lease.timing().operation_timeout);
    let is_it = |it: &Record| it.token == tenure.token() && it.is_of(tenure.claim());
    let (mut pause, mut missed) = (KEPT_POLL, 0);
    while tenure.is_held() {
        let read = lease.store();
        let read = tokio::time::timeout(timeout, read.inspect(tenure.name().as_str())).await;
        if let Ok(Ok(record)) = read {
            if record.as_ref().is_some_and(is_it) {
                return true;
            }
            missed += 1;
        }
        // It may have been lost just now.
        if missed == 2 && tenure.is_held() {
            tracing::error!(session = %tenure.name(), "it is not in the store of the coordinator's lease, so nothing is hosted under it: keep both in one store");
            let _ = events.send(Guarded::SessionElsewhere);
        }
        tokio::time::sleep(pause).await;
        pause = timeout.min(pause * 2);
    }
    false
}

/// How often in a row the store must not have answered.
const SILENT: u32 = 2;
/// Before trying again what cannot become right by itself.
const PAUSE: Duration = Duration::from_secs(5);
/// How often a session is asked to rest that something may still use.
const REST_ATTEMPTS: u32 = 50;
/// How often to look whether something is still kept.
pub(super) const KEPT_POLL: Duration = Duration::from_millis(20);
