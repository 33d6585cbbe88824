//! Holds leases for processes: contends, renews, tells who must know, kills who must be killed. Drives.
#![allow(clippy::disallowed_methods, reason = "this is where clocks, tasks and processes come in")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tenure_lease::{LeaseError, LeaseName, Loss, Moment, Settings, Store, Tenure, Token};
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::peer::Peer;
use super::refusal::Refusal;
use super::table::{Asked, LeaseTable, ProcessId};
use crate::run::control::{Deadlines, Order};
use crate::run::descendants;
use crate::run::guarded::GuardianLine;
use crate::run::hold::tick_interval;
use crate::run::sys::{self, BootTimer, PidFd};

/// The leases of all processes of the command.
pub(super) struct LeaseHolder {
    pub(super) store: Store,
    pub(super) settings: Settings,
    owner: Option<String>,
    guardian: Arc<GuardianLine>,
    state: Mutex<HolderState>,
    /// Something has changed that may have to be acted on earlier.
    changed: Notify,
}

struct HolderState {
    table: LeaseTable,
    slots: BTreeMap<u64, LeaseSlot>,
    /// What the guardian was told last.
    told: Deadlines,
    /// What was killed with a process, until its leases are given back.
    dying: BTreeMap<ProcessId, Arc<Vec<AsyncFd<PidFd>>>>,
}

/// The way to the task that keeps a lease.
#[derive(Clone)]
struct LeaseSlot {
    commands: mpsc::Sender<LeaseCommand>,
    news: watch::Receiver<LeaseView>,
}

enum LeaseCommand {
    WriteNote(Vec<u8>, oneshot::Sender<Result<(), LeaseError>>),
    /// Give it back; the answer says whether the store has confirmed it.
    Release(oneshot::Sender<bool>),
}

/// What a process asks for.
pub(super) struct LeaseRequest {
    pub(super) name: LeaseName,
    /// How long to wait for it; `None`: until it is held.
    pub(super) wait_ms: Option<u64>,
    pub(super) key: Option<String>,
    pub(super) note: Option<String>,
}

/// A lease as its process sees it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct LeaseView {
    id: String,
    name: LeaseName,
    pid: i32,
    pub(super) state: LeaseState,
    token: Token,
    /// Nanoseconds on CLOCK_BOOTTIME: when the lease counts as lost unless it is renewed before.
    deadline_ns: u64,
    /// When the process is killed if it has neither given the lease back nor ended.
    kill_ns: u64,
    ttl_ms: u64,
    /// The note that stood in the record when the lease was won, if that is text.
    note: Option<String>,
    /// Why it was lost: a word, and a sentence.
    reason: Option<&'static str>,
    message: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum LeaseState {
    Held,
    Lost,
    Released,
}

impl LeaseHolder {
    pub(super) fn new(
        store: Store,
        settings: Settings,
        owner: Option<String>,
        guardian: Arc<GuardianLine>,
    ) -> Arc<Self> {
        let state = HolderState {
            table: LeaseTable::new(settings.stop_budget, settings.margin),
            slots: BTreeMap::new(),
            told: Deadlines::NEVER,
            dying: BTreeMap::new(),
        };
        let (state, changed) = (Mutex::new(state), Notify::new());
        Arc::new(Self { store, settings, owner, guardian, state, changed })
    }

    /// Gets a lease for a process. If the future is dropped before it is ready, nothing is held.
    pub(super) async fn acquire(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        request: LeaseRequest,
    ) -> Result<LeaseView, Refusal> {
        peer.line()?;
        let LeaseRequest { name, wait_ms, key, note } = request;
        let asked = self.state().table.ask(peer.id, name.clone(), key)?;
        let number = match asked {
            Asked::New(number) => number,
            Asked::Known(number) => {
                // It is being granted, otherwise.
                return self.view(number).ok_or_else(|| Refusal::already_waiting(&name));
            }
        };
        let mut grant = PendingGrant { holder: self, number, lifeline: None, is_final: false };
        let mut lease = self.store.lease(name.as_str()).settings(self.settings.clone());
        // Without a watchdog: what must end is the process that asks, not this one, which has to see to it.
        if let Some(owner) = &self.owner {
            lease = lease.owner(owner);
        }
        // A process that stands still does no work, and must not keep others from it; nor must this one.
        let pid = peer.id.pid;
        lease = lease.liveness(move || async move {
            tokio::spawn(async {}).await.is_ok() && !descendants::is_stopped(pid)
        });
        if let Some(note) = note {
            lease = lease.note(note.into_bytes());
        }
        let contend = async {
            match wait_ms {
                None => Ok(lease.acquire().await?),
                Some(0) => lease.try_acquire().await?.ok_or_else(|| Refusal::held(&name)),
                Some(wait_ms) => timeout(Duration::from_millis(wait_ms), lease.acquire())
                    .await
                    .map_err(|_| Refusal::timed_out(&name, wait_ms))?
                    .map_err(Refusal::from),
            }
        };
        let tenure = tokio::select! {
            biased;
            () = peer.ended() => return Err(Refusal::ended(peer.id.pid)),
            tenure = contend => tenure?,
        };
        // The guardian must know, and have what keeps the lease from being free, before the process does.
        let lifeline = sys::lifeline(&self.store, &tenure);
        self.change(|state| {
            state.table.won(number, tenure.token(), tenure.deadline(), tenure.kill_deadline());
        });
        let guardian = |error: std::io::Error| Refusal::guardian(&error.to_string());
        let kept = self.guardian.keep(lifeline).map_err(guardian)?;
        grant.lifeline = Some(kept);
        timeout(self.settings.stop_budget, self.guardian.kept(kept))
            .await
            .map_err(|_| Refusal::guardian("it may be stopped"))?
            .map_err(guardian)?;
        peer.check_signal()?;
        grant.is_final = true;
        Ok(self.begin_keeping(number, kept, tenure, peer))
    }

    /// The lease is the process's from here on.
    fn begin_keeping(
        self: &Arc<Self>,
        number: u64,
        lifeline: u64,
        tenure: Tenure,
        peer: &Arc<Peer>,
    ) -> LeaseView {
        let view = LeaseView {
            id: number.to_string(),
            name: tenure.name().clone(),
            pid: peer.id.pid,
            state: LeaseState::Held,
            token: tenure.token(),
            deadline_ns: 0,
            kill_ns: 0,
            ttl_ms: u64::try_from(self.settings.ttl.as_millis()).unwrap_or(u64::MAX),
            note: str::from_utf8(tenure.note()).ok().map(str::to_owned),
            reason: None,
            message: None,
        };
        let (news_sender, news) = watch::channel(view);
        let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
        let mut state = self.state();
        state.slots.insert(number, LeaseSlot { commands, news: news.clone() });
        drop(state);
        self.publish(number, &news_sender);
        tracing::info!(lease = %tenure.name(), token = %tenure.token(), pid = peer.id.pid, "granted");
        let keeping = LeaseKeeping {
            holder: self.clone(),
            number,
            lifeline,
            peer: peer.clone(),
            news: news_sender,
        };
        tokio::spawn(keeping.keep(tenure, receiver));
        news.borrow().clone()
    }

    /// Shows whoever listens how a lease stands.
    fn publish(&self, number: u64, news: &watch::Sender<LeaseView>) {
        let Some(held) = self.state().table.row(number).and_then(|row| row.held.clone()) else {
            return;
        };
        news.send_modify(|view| {
            view.deadline_ns = held.deadline.as_nanos();
            view.kill_ns = held.kill.as_nanos();
            if let Some(loss) = &held.loss {
                view.state = LeaseState::Lost;
                view.reason = Some(loss.reason());
                view.message = Some(format!("the lease was lost: {loss}"));
            }
        });
    }

    /// A lease that this process, or one of its ancestors, holds.
    pub(super) fn find(&self, peer: &Peer, id: &str) -> Result<u64, Refusal> {
        let line = peer.line()?;
        let number = id.parse().ok().filter(|number: &u64| number.to_string() == id);
        let found = number.filter(|&number| {
            self.state().table.find(number, &line).is_some_and(|row| row.held.is_some())
        });
        found.ok_or_else(|| Refusal::no_lease(id))
    }

    pub(super) fn view(&self, number: u64) -> Option<LeaseView> {
        self.news(number).map(|news| news.borrow().clone())
    }

    /// What becomes of a lease, from now on.
    pub(super) fn news(&self, number: u64) -> Option<watch::Receiver<LeaseView>> {
        self.state().slots.get(&number).map(|slot| slot.news.clone())
    }

    /// The leases of a process and its ancestors.
    pub(super) fn list(&self, peer: &Peer) -> Result<Vec<LeaseView>, Refusal> {
        let numbers = self.state().table.held_by(&peer.line()?);
        Ok(numbers.into_iter().filter_map(|number| self.view(number)).collect())
    }

    /// The process of this command that holds a lease under this token.
    pub(super) fn holder_of(&self, name: &LeaseName, token: Token) -> Option<i32> {
        self.state().table.holder_of(name, token).map(|process| process.pid)
    }

    pub(super) async fn write_note(&self, number: u64, note: String) -> Result<(), Refusal> {
        let (answer, written) = oneshot::channel();
        self.command(number, LeaseCommand::WriteNote(note.into_bytes(), answer)).await?;
        match written.await {
            Ok(written) => Ok(written?),
            Err(_) => Err(Refusal::no_lease(&number.to_string())),
        }
    }

    /// Gives a lease back; whether the store has confirmed it.
    pub(super) async fn release(&self, number: u64) -> Result<bool, Refusal> {
        let (answer, released) = oneshot::channel();
        self.command(number, LeaseCommand::Release(answer)).await?;
        released.await.map_err(|_| Refusal::no_lease(&number.to_string()))
    }

    async fn command(&self, number: u64, command: LeaseCommand) -> Result<(), Refusal> {
        let gone = || Refusal::no_lease(&number.to_string());
        let commands = self.state().slots.get(&number).map(|slot| slot.commands.clone());
        commands.ok_or_else(gone)?.send(command).await.map_err(|_| gone())
    }

    /// Everything has ended: gives back all leases, and waits for the store, but not for ever.
    pub(super) async fn release_all(&self, patience: Duration) {
        let numbers: Vec<u64> = self.state().slots.keys().copied().collect();
        let mut releases = JoinSet::new();
        for number in numbers {
            let (answer, released) = oneshot::channel();
            if self.command(number, LeaseCommand::Release(answer)).await.is_ok() {
                releases.spawn(released);
            }
        }
        if timeout(patience, releases.join_all()).await.is_err() {
            tracing::warn!(
                "not given back: the store does not answer; the leases run out by themselves"
            );
        }
    }

    /// Kills who has not stopped in time. Returns only if it cannot do so any more.
    pub(super) async fn kill_overdue(&self) -> std::io::Error {
        let timer = match BootTimer::new().and_then(sys::watch) {
            Ok(timer) => timer,
            Err(error) => return error,
        };
        loop {
            let (due, wake_at) = {
                let mut state = self.state();
                (state.table.poll(Moment::now()), state.table.wake_at())
            };
            for process in due {
                tracing::warn!(
                    pid = process.pid,
                    "killed: it has not stopped in time after its lease was lost"
                );
                let killed = descendants::kill_tree(process.pid, process.start);
                let watched = killed.into_iter().filter_map(|it| sys::watch(it).ok()).collect();
                self.state().dying.insert(process, Arc::new(watched));
            }
            if let Err(error) = timer.get_ref().set(wake_at) {
                return error;
            }
            tokio::select! {
                () = self.changed.notified() => {}
                ready = timer.readable() => match ready {
                    Ok(mut ready) => ready.clear_ready(),
                    Err(error) => return error,
                },
            }
        }
    }

    /// Changes the table, and tells the guardian what follows from it.
    fn change<T>(&self, change: impl FnOnce(&mut HolderState) -> T) -> T {
        let mut state = self.state();
        let result = change(&mut state);
        let deadlines = state.table.guardian_deadlines();
        if deadlines != state.told {
            state.told = deadlines;
            self.guardian.tell(Order::Deadlines(deadlines));
        }
        drop(state);
        self.changed.notify_one();
        result
    }

    fn state(&self) -> MutexGuard<'_, HolderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lease that was asked for; it is taken back unless it becomes final.
struct PendingGrant<'a> {
    holder: &'a LeaseHolder,
    number: u64,
    /// The number of the lifeline that the guardian has.
    lifeline: Option<u64>,
    is_final: bool,
}

impl Drop for PendingGrant<'_> {
    fn drop(&mut self) {
        if self.is_final {
            return;
        }
        self.holder.change(|state| state.table.remove(self.number));
        if let Some(lifeline) = self.lifeline {
            self.holder.guardian.tell(Order::LetGo(lifeline));
        }
    }
}

/// One lease, for as long as its process holds it.
struct LeaseKeeping {
    holder: Arc<LeaseHolder>,
    number: u64,
    lifeline: u64,
    peer: Arc<Peer>,
    news: watch::Sender<LeaseView>,
}

impl LeaseKeeping {
    async fn keep(self, tenure: Tenure, mut commands: mpsc::Receiver<LeaseCommand>) {
        let tenure = Arc::new(tenure);
        let mut notes = JoinSet::new();
        let mut tick = tokio::time::interval(tick_interval(&self.holder.settings));
        let mut is_lost = false;
        let answer = loop {
            tokio::select! {
                biased;
                () = self.peer.ended() => break None,
                loss = tenure.lost(), if !is_lost => {
                    is_lost = true;
                    self.tell_lost(loss);
                }
                command = commands.recv() => match command {
                    Some(LeaseCommand::WriteNote(note, answer)) => {
                        let tenure = tenure.clone();
                        notes.spawn(async move { answer.send(tenure.write_note(note).await).is_ok() });
                    }
                    Some(LeaseCommand::Release(answer)) => break Some(answer),
                    None => break None,
                },
                _ = tick.tick(), if !is_lost => self.look_for_renewal(&tenure),
                Some(_) = notes.join_next(), if !notes.is_empty() => {}
            }
        };
        notes.shutdown().await;
        if answer.is_none() {
            self.wait_for_the_killed().await;
        }
        self.forget();
        let is_confirmed = match Arc::into_inner(tenure) {
            Some(tenure) if !is_lost => {
                let patience = self.holder.settings.stop_budget.max(crate::run::HURRY);
                timeout(patience, tenure.release()).await.is_ok()
            }
            // It is given back in the background, if it still can be.
            _ => false,
        };
        if let Some(answer) = answer {
            // Whoever hung up does not want an answer.
            let _ = answer.send(is_confirmed);
        }
    }

    fn tell_lost(&self, loss: Loss) {
        tracing::warn!(pid = self.peer.id.pid, lease = %self.news.borrow().name, "lost: {loss}");
        self.holder.change(|state| state.table.lost(Moment::now(), self.number, loss));
        self.holder.publish(self.number, &self.news);
    }

    fn look_for_renewal(&self, tenure: &Tenure) {
        let (deadline, dead) = (tenure.deadline(), tenure.kill_deadline());
        if self.holder.change(|state| state.table.renewed(self.number, deadline, dead)) {
            self.holder.publish(self.number, &self.news);
        }
    }

    /// What was killed together with the process may take a moment longer to end.
    async fn wait_for_the_killed(&self) {
        let killed = self.holder.state().dying.get(&self.peer.id).cloned();
        for process in killed.iter().flat_map(|killed| killed.iter()) {
            // What cannot be waited for was killed all the same.
            let _ = process.readable().await;
        }
    }

    fn forget(&self) {
        self.holder.change(|state| {
            state.table.remove(self.number);
            state.slots.remove(&self.number);
            if state.table.held_by(&[self.peer.id]).is_empty() {
                state.dying.remove(&self.peer.id);
            }
        });
        self.holder.guardian.tell(Order::LetGo(self.lifeline));
        self.news.send_modify(|view| view.state = LeaseState::Released);
    }
}

/// How many requests about one lease may wait.
const COMMANDS_MAX: usize = 16;
