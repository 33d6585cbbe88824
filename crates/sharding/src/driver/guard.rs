//! What guards a kind: the coordinator's lease, the session of this process, and the sessions of
//! others that may be over. Each has a task, which tells control what happens.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use tenure_lease::record::SessionRef;
use tenure_lease::{KeptSession, Lease, Loss, Session, Tenure};

/// What there is to guard with.
#[derive(Clone, Default)]
pub(crate) struct Guards {
    pub(crate) lease: Option<Lease>,
    pub(crate) session: Option<KeptSession>,
}

/// What happened.
pub(super) enum Guarded {
    /// The coordinator's lease was won.
    Won(Arc<Tenure>),
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
    /// Whether the lease is held, or being given back.
    holding: watch::Receiver<bool>,
    /// The term of the last session that this kind needs no more.
    done_with: watch::Sender<Option<u64>>,
    observed: HashMap<SessionRef, Observer>,
    /// Waits for the session, and for its end.
    session: Option<Task>,
    _tasks: Vec<Task>,
}

/// Whether the lease is to be had.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Wanted {
    contend: bool,
    above: u64,
}

/// Ends with whoever keeps it.
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Observer {
    take_over: watch::Sender<bool>,
    _task: Task,
}

impl Guard {
    /// The session that was had last is not taken again: it is given up. The channel is unbounded:
    /// what guards says little, and control must not miss any of it.
    pub(super) fn new(
        guards: Guards,
        last_session: Option<u64>,
        events: mpsc::UnboundedSender<Guarded>,
    ) -> Self {
        let (wanted, wants) = watch::channel(Wanted::default());
        let (hold, holding) = watch::channel(false);
        let (done_with, done) = watch::channel(last_session);
        let mut tasks = Vec::new();
        if let Some(lease) = &guards.lease {
            let task = keep_lease(lease.clone(), wants, hold, events.clone());
            tasks.push(Task(tokio::spawn(task)));
            tasks.push(Task(tokio::spawn(look(lease.clone(), events.clone()))));
        }
        let session = guards
            .session
            .as_ref()
            .map(|session| Task(tokio::spawn(keep_session(session.clone(), done, events.clone()))));
        let observed = HashMap::new();
        Self { guards, events, wanted, holding, done_with, observed, session, _tasks: tasks }
    }

    pub(super) fn contend(&self, above: u64) {
        self.wanted.send_replace(Wanted { contend: true, above });
    }

    pub(super) fn withdraw(&self) {
        self.wanted.send_modify(|wanted| wanted.contend = false);
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.borrow().contend
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
        let Some(lease) = &self.guards.lease else { return };
        self.observed.retain(|session, _| observe.contains(session) || take_over.contains(session));
        for session in observe.union(take_over) {
            let wanted = take_over.contains(session);
            let observer = self.observed.entry(session.clone()).or_insert_with(|| {
                let (take_over, allowed) = watch::channel(wanted);
                let timing = lease.timing().clone();
                let target = lease.store().lease(session.name.as_str()).settings(timing);
                let task = watch_session(target, session.clone(), allowed, self.events.clone());
                Observer { take_over, _task: Task(tokio::spawn(task)) }
            });
            observer.take_over.send_if_modified(|is| std::mem::replace(is, wanted) != wanted);
        }
    }
}

/// Contends for the lease whenever it is wanted, and observes it meanwhile.
async fn keep_lease(
    lease: Lease,
    mut wants: watch::Receiver<Wanted>,
    hold: watch::Sender<bool>,
    events: mpsc::UnboundedSender<Guarded>,
) {
    loop {
        let tenure = match acquire(&lease, &mut wants).await {
            Ok(Some(tenure)) => Arc::new(tenure),
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
        if events.send(Guarded::Won(tenure.clone())).is_err() {
            return;
        }
        tokio::select! {
            loss = tenure.lost() => {
                let _ = events.send(Guarded::Lost(term));
                if loss == Loss::Expired {
                    let _ = events.send(Guarded::Able(false));
                }
            }
            gone = wants.wait_for(|wanted| !wanted.contend) => if gone.is_err() { return },
        }
        release(tenure).await;
        hold.send_replace(false);
    }
}

/// `None`: nobody wants it any more, for good.
async fn acquire(
    lease: &Lease,
    wants: &mut watch::Receiver<Wanted>,
) -> Result<Option<Tenure>, tenure_lease::LeaseError> {
    loop {
        let above = wants.borrow_and_update().above;
        let standby = lease.clone().above(above).standby()?;
        loop {
            let wanted = *wants.borrow_and_update();
            if wanted.above != above {
                break;
            }
            standby.allow(wanted.contend);
            tokio::select! {
                tenure = standby.acquired() => return tenure.map(Some),
                changed = wants.changed() => if changed.is_err() { return Ok(None) },
            }
        }
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
async fn look(lease: Lease, events: mpsc::UnboundedSender<Guarded>) {
    let Ok(name) = lease.name().map(|name| name.as_str().to_owned()) else { return };
    let (store, timeout) = (lease.store(), lease.timing().operation_timeout);
    let (mut silent, mut seen) = (0, None);
    loop {
        let read = tokio::time::timeout(timeout, store.inspect(&name)).await;
        match read {
            Ok(Ok(record)) => {
                silent = 0;
                let _ = events.send(Guarded::Able(true));
                let note = record.map(|record| record.note);
                if note != seen {
                    seen = note;
                    let sent = events.send(Guarded::Seen(seen.clone().unwrap_or_default()));
                    if sent.is_err() {
                        return;
                    }
                }
            }
            Ok(Err(_)) | Err(_) => {
                silent += 1;
                if silent >= 2 {
                    let _ = events.send(Guarded::Able(false));
                }
            }
        }
        tokio::time::sleep(timeout).await;
    }
}

async fn keep_session(
    kept: KeptSession,
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

/// Observes the session of another, and takes it over when that is allowed and its time is over.
async fn watch_session(
    lease: Lease,
    session: SessionRef,
    mut allowed: watch::Receiver<bool>,
    events: mpsc::UnboundedSender<Guarded>,
) {
    let (store, timeout) = (lease.store(), lease.timing().operation_timeout);
    let standby = match lease.standby() {
        Ok(standby) => standby,
        Err(error) => return tracing::error!(%session.name, "it cannot be observed: {error}"),
    };
    loop {
        standby.allow(*allowed.borrow_and_update());
        tokio::select! {
            tenure = standby.acquired() => match tenure {
                Ok(tenure) => {
                    tracing::info!(session = %session.name, term = session.term, "session taken over");
                    tenure.release().await;
                    break;
                }
                Err(error) => {
                    return tracing::error!(%session.name, "it cannot be taken over: {error}");
                }
            },
            changed = allowed.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(timeout) => {
                // Released, or held anew: the tenure of this term is over.
                let read = tokio::time::timeout(timeout, store.inspect(session.name.as_str())).await;
                if let Ok(Ok(Some(record))) = read
                    && record.token.term >= session.term
                    && (record.token.term > session.term || record.holder.is_none())
                {
                    break;
                }
            }
        }
    }
    drop(standby);
    let _ = events.send(Guarded::SessionOver(session));
}

/// Before trying again what cannot become right by itself.
const PAUSE: Duration = Duration::from_secs(5);
/// How often to look whether something is still kept.
const KEPT_POLL: Duration = Duration::from_millis(20);
