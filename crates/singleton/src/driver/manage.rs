//! Drives the manager of one singleton on this node.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::task::JoinSet;

use tenure_cluster::{Cluster, Node, Views};
use tenure_lease::backend::{StoreError, StoreErrorKind};
use tenure_lease::planted::{self, GlueBug};
use tenure_lease::{LeaseError, Loss, Moment, Standby, Tenure};

use super::inbox::Place;
use super::instance::{Instance, Work};
use super::post::{Did, Managed, Post, Wish};
use crate::builder::{Guard, Probe};
use crate::manager::{Effect, Manager, Stance, StopReason};
use crate::{Settings, StartError, Word, telemetry};

/// Starts the manager. It ends when this node is out of the cluster and hosts nothing.
pub(crate) fn manage(
    cluster: Cluster,
    name: Arc<str>,
    guard: Option<Guard>,
    settings: Settings,
    work: Work,
) -> Result<(), StartError> {
    let post = Post::of(&cluster)?;
    let (wish, wishes) = mpsc::channel(1);
    let Some(managed) = post.manage(&name, wish) else {
        return Err(StartError::Started(name));
    };
    if let Some(inbox) = &work.inbox {
        inbox.clone().open(&cluster).inspect_err(|_| post.unmanage(&name))?;
    }
    telemetry::managed(&name);
    let (leave, leaving) = mpsc::channel(1);
    let (over, is_over) = watch::channel(false);
    cluster.before_leaving(move || {
        let (leave, mut is_over) = (leave.clone(), is_over.clone());
        async move {
            let _ = leave.try_send(()); // Asked already, or over, is as good.
            let _ = is_over.wait_for(|over| *over).await;
        }
    });
    let me = cluster.me();
    let now = Moment::now();
    let mut manager = Manager::new(me.clone(), &name, guard.is_some(), settings.clone(), now);
    if managed == Managed::Again {
        manager.announce(now);
    }
    let task = Task {
        me,
        words: post.words(&name),
        views: cluster.views(),
        said: manager.word(),
        manager,
        settings,
        cluster,
        name,
        guard,
        work,
        post,
        stance: Stance::Out,
        standby: None,
        probe: None,
        past: None,
        tenure: None,
        instance: None,
        releasing: None,
        wishes,
        asking: JoinSet::new(),
        stoppers: Vec::new(),
        is_stopped: false,
        over,
    };
    tokio::spawn(task.run(leaving));
    Ok(())
}

struct Task {
    /// The incarnation that `manager` manages for.
    me: Node,
    cluster: Cluster,
    name: Arc<str>,
    guard: Option<Guard>,
    work: Work,
    settings: Settings,
    manager: Manager,
    post: Arc<Post>,
    words: broadcast::Receiver<(Node, Word)>,
    views: Views,
    /// What proxies on this node were told last.
    said: Word,
    stance: Stance,
    standby: Option<Standby>,
    /// Asks a store that has not answered, until it does.
    probe: Option<Probe>,
    /// What the standby says of a time before that, and until when it may: it waits longer after each
    /// failure.
    past: Option<(StoreError, Moment)>,
    tenure: Option<Held>,
    instance: Option<Instance>,
    releasing: Option<tokio::task::JoinHandle<()>>,
    wishes: mpsc::Receiver<Wish>,
    /// Asks other nodes whether they have a manager; each of them once a second at most.
    asking: JoinSet<(Node, bool)>,
    /// Those who wait until it is stopped on this node.
    stoppers: Vec<oneshot::Sender<()>>,
    /// It is: all that is left to do is to say so.
    is_stopped: bool,
    over: watch::Sender<bool>,
}

struct Held {
    tenure: Arc<Tenure>,
    lost: bool,
}

/// What a round waits for.
enum Happened {
    View(Option<Arc<tenure_cluster::View>>),
    Word(Node, Word),
    Acquired(Box<Result<Tenure, LeaseError>>),
    Store(bool),
    Lost(Loss),
    Ended(Result<(), crate::BoxError>),
    Released,
    Leave,
    Wish(Wish),
    Absent(Node),
    Time,
}

impl Task {
    async fn run(mut self, mut leaving: mpsc::Receiver<()>) {
        let (mut out, mut left, mut deaf, mut alone) = (false, false, false, false);
        loop {
            while let Some(effect) = self.manager.next_effect() {
                if !self.carry_out(effect) {
                    continue;
                }
                self.work.set_place(Place::Away);
                let is_retired = self.manager.is_retired();
                if (left || is_retired) && !out {
                    self.post.bid_farewell(&self.cluster, &self.name).await;
                }
                if is_retired {
                    self.work.close_inbox().await;
                    self.stopped();
                } else if left || out || !self.next_life(&mut leaving).await {
                    self.over.send_replace(true);
                    self.post.unmanage(&self.name);
                    return;
                }
            }
            if self.is_stopped && (out || self.cluster.me() != self.me) {
                return self.post.unmanage(&self.name);
            }
            if self.instance.is_none() && !self.manager.hosts() {
                self.work.set_place(Place::Away);
            }
            self.say();
            let happened = tokio::select! {
                biased;
                loss = lost(&self.tenure) => Happened::Lost(loss),
                ended = ended(&mut self.instance) => Happened::Ended(ended),
                () = released(&mut self.releasing) => Happened::Released,
                view = self.views.next(), if !out => Happened::View(view),
                asked = leaving.recv(), if !left => {
                    left = true;
                    match asked {
                        Some(()) => Happened::Leave,
                        None => continue,
                    }
                }
                // The post has the other end.
                wish = self.wishes.recv(), if !alone => match wish {
                    Some(wish) => Happened::Wish(wish),
                    None if self.is_stopped => return, // Another has taken its place.
                    None => {
                        alone = true;
                        continue;
                    }
                },
                acquired = acquired(&self.standby) => Happened::Acquired(Box::new(acquired)),
                answers = answers(&self.standby, &mut self.probe, &mut self.past) => {
                    Happened::Store(answers)
                }
                word = self.words.recv(), if !deaf => match word {
                    Ok((from, word)) => Happened::Word(from, word),
                    Err(error) => {
                        deaf = error == broadcast::error::RecvError::Closed;
                        continue; // What was missed is said again.
                    }
                },
                Some(answer) = self.asking.join_next() => match answer {
                    Ok((node, true)) => Happened::Absent(node),
                    _ => continue,
                },
                () = until(self.manager.next_wake()) => Happened::Time,
            };
            let now = Moment::now();
            match happened {
                // It starts over: what it hosted as its former self ends.
                Happened::View(Some(_)) if self.cluster.me() != self.me => self.manager.out(now),
                Happened::View(Some(view)) => self.manager.view(now, &view),
                Happened::View(None) => {
                    out = true;
                    self.manager.out(now);
                }
                Happened::Word(from, word) => self.manager.heard(now, &from, &word),
                Happened::Acquired(acquired) => self.acquired(now, *acquired),
                Happened::Store(false) if denied(&self.standby) => {
                    let error = self.standby.as_ref().and_then(Standby::trouble);
                    self.refused(now, &error.map_or(LeaseError::Over(Loss::Expired), Into::into));
                }
                Happened::Store(answers) => {
                    // One that does not answer is asked until it does.
                    self.probe = self.guard.as_ref().filter(|_| !answers).map(Guard::probe);
                    if answers {
                        let trouble = self.standby.as_ref().and_then(Standby::trouble);
                        self.past = trouble.map(|trouble| (trouble, now + PAST));
                        self.standby.iter().for_each(Standby::look);
                    }
                    self.manager.store(now, answers);
                }
                Happened::Lost(loss) => {
                    if loss == Loss::Expired {
                        self.probe = self.guard.as_ref().map(Guard::probe);
                    }
                    self.tenure.iter_mut().for_each(|held| held.lost = true);
                    if !planted::has(GlueBug::LeaseLossIgnored) {
                        self.manager.lost(now, loss);
                    }
                }
                Happened::Ended(ended) => {
                    self.ended(ended);
                    self.manager.ended(now);
                }
                Happened::Released => {
                    self.releasing = None;
                    self.manager.released(now);
                }
                Happened::Leave => self.manager.leave(now),
                Happened::Wish(Wish::HandOver(answer)) => {
                    let _ = answer.send(self.manager.hand_over(now)); // Whoever asked may be gone.
                }
                Happened::Wish(Wish::Stop(stopper)) => {
                    self.manager.retire(now);
                    if !self.is_stopped {
                        self.stoppers.push(stopper);
                    }
                }
                Happened::Absent(node) => self.manager.absent(now, &node),
                Happened::Time => self.manager.tick(now),
            }
        }
    }

    /// It is stopped on this node, and its lease is given back. Without a lease nothing would keep two
    /// nodes from hosting it, if it was started here again: then there is no other manager before this
    /// node has joined anew.
    fn stopped(&mut self) {
        self.is_stopped = true;
        self.over.send_replace(true);
        if self.guard.is_some() {
            self.post.set_replaceable(&self.name);
        }
        for stopper in self.stoppers.drain(..) {
            let _ = stopper.send(()); // Whoever waited may be gone.
        }
    }

    /// Nothing is hosted here any more, and this incarnation is out of the cluster. If there is
    /// another, it is managed for from now on; false if not.
    async fn next_life(&mut self, leaving: &mut mpsc::Receiver<()>) -> bool {
        while self.cluster.me() == self.me {
            let out = tokio::select! {
                view = self.views.next() => view.is_none(),
                _ = leaving.recv() => true,
            };
            if out {
                return false;
            }
        }
        self.me = self.cluster.me();
        let (guarded, settings) = (self.guard.is_some(), self.settings.clone());
        self.manager = Manager::new(self.me.clone(), &self.name, guarded, settings, Moment::now());
        self.views = self.cluster.views();
        (self.standby, self.probe) = (None, None);
        self.asking = JoinSet::new();
        true
    }

    /// True when it is over.
    fn carry_out(&mut self, effect: Effect) -> bool {
        match effect {
            Effect::Stand(stance) => self.stand(stance),
            Effect::Look => self.standby.iter().for_each(Standby::look),
            Effect::Start(token) => {
                tracing::info!(singleton = %self.name, %token, "singleton starts here");
                telemetry::started(&self.name);
                self.post.happened(&self.name, Did::Start(token));
                let tenure = self.tenure.as_ref().map(|held| held.tenure.clone());
                let stop_within = self.settings.stop_within;
                let (work, cluster) = (&self.work, &self.cluster);
                let instance =
                    Instance::start(work, cluster, &self.name, token, tenure, stop_within);
                self.instance = Some(instance);
            }
            Effect::Stop(reason) => {
                tracing::info!(singleton = %self.name, %reason, "singleton stops here");
                telemetry::stopped(&self.name, &reason);
                self.post.happened(&self.name, Did::Stop(reason.clone()));
                let budget = self.tenure.as_ref().map(|held| held.tenure.time_to_stop());
                let within = match (&reason, budget) {
                    (StopReason::LeaseLost(_), Some(budget)) => budget,
                    _ => self.settings.stop_within,
                };
                self.instance.iter_mut().for_each(|it| it.stop(reason.clone(), within));
            }
            Effect::Release => {
                let tenure = self.tenure.take();
                self.releasing = Some(tokio::spawn(release(self.name.clone(), tenure)));
            }
            Effect::Tell(to, word) => self.post.tell(&self.cluster, &self.name, &to, word),
            Effect::Ask(to, word) => {
                let (cluster, name) = (self.cluster.clone(), self.name.clone());
                self.asking.spawn(Post::is_absent(cluster, name, to, word));
            }
            Effect::Over => return true,
        }
        false
    }

    fn stand(&mut self, stance: Stance) {
        self.stance = stance;
        if stance == Stance::Out {
            self.standby = None;
            return;
        }
        if self.standby.is_none() {
            match self.guard.as_ref().map(Guard::standby) {
                Some(Ok(standby)) => self.standby = Some(standby),
                Some(Err(error)) => return self.refused(Moment::now(), &error),
                None => return,
            }
        }
        self.standby.iter().for_each(|standby| standby.allow(stance == Stance::Allowed));
    }

    fn acquired(&mut self, now: Moment, acquired: Result<Tenure, LeaseError>) {
        self.standby = None;
        match acquired {
            Ok(tenure) => {
                let token = tenure.token();
                self.tenure = Some(Held { tenure: Arc::new(tenure), lost: false });
                self.manager.won(now, token);
            }
            Err(error) => self.refused(now, &error),
        }
    }

    fn refused(&mut self, now: Moment, error: &LeaseError) {
        tracing::error!(singleton = %self.name, "its lease cannot be asked for: {error}");
        self.standby = None;
        self.manager.refused(now);
    }

    fn ended(&mut self, ended: Result<(), crate::BoxError>) {
        self.instance = None;
        telemetry::ended(&self.name);
        match ended {
            Ok(()) => tracing::info!(singleton = %self.name, "singleton has ended here"),
            Err(error) => {
                telemetry::failed(&self.name);
                self.post.happened(&self.name, Did::Fail(error.to_string()));
                tracing::error!(singleton = %self.name, "singleton failed: {error}");
            }
        }
    }

    /// Tells the proxies on this node what the others were told.
    fn say(&mut self) {
        self.post.say_why_not(&self.name, self.manager.why_not());
        let word = self.manager.word();
        if word != self.said {
            self.said = word.clone();
            self.post.deliver(&self.name, self.cluster.me(), word);
        }
    }
}

/// Gives the lease back, once nothing of the work is left that keeps its guard.
async fn release(name: Arc<str>, held: Option<Held>) {
    let Some(Held { mut tenure, .. }) = held else { return };
    let mut told = false;
    loop {
        match Arc::try_unwrap(tenure) {
            Ok(tenure) => return tenure.release().await,
            Err(kept) => tenure = kept,
        }
        if !told {
            told = true;
            tracing::warn!(singleton = %name, "the singleton has returned, but its guard is still kept");
        }
        tokio::time::sleep(GUARD_POLL).await;
    }
}

async fn lost(held: &Option<Held>) -> Loss {
    match held {
        Some(Held { tenure, lost: false }) => tenure.lost().await,
        _ => std::future::pending().await,
    }
}

async fn ended(instance: &mut Option<Instance>) -> Result<(), crate::BoxError> {
    match instance {
        Some(instance) => instance.ended().await,
        None => std::future::pending().await,
    }
}

async fn released(releasing: &mut Option<tokio::task::JoinHandle<()>>) {
    match releasing {
        Some(task) => drop(task.await),
        None => std::future::pending().await,
    }
}

async fn acquired(standby: &Option<Standby>) -> Result<Tenure, LeaseError> {
    match standby {
        Some(standby) => standby.acquired().await,
        None => std::future::pending().await,
    }
}

/// Waits until the store stops answering, or answers again.
async fn answers(
    standby: &Option<Standby>,
    probe: &mut Option<Probe>,
    past: &mut Option<(StoreError, Moment)>,
) -> bool {
    match (probe, standby) {
        (Some(probe), _) => {
            probe.await;
            true
        }
        (None, Some(standby)) => loop {
            let trouble = match &*past {
                None => standby.changed(None).await,
                Some((past, over)) => tokio::select! {
                    trouble = standby.changed(Some(past)) => trouble,
                    () = until(*over) => standby.trouble(),
                },
            };
            *past = None;
            if trouble.is_some() {
                return false;
            }
        },
        (None, None) => std::future::pending().await,
    }
}

/// Whether the store answers, and says no.
fn denied(standby: &Option<Standby>) -> bool {
    let trouble = standby.as_ref().and_then(Standby::trouble);
    trouble.is_some_and(|trouble| trouble.kind() == StoreErrorKind::Denied)
}

async fn until(moment: Moment) {
    match moment {
        Moment::NEVER => std::future::pending().await,
        moment => tokio::time::sleep(moment.since(Moment::now())).await,
    }
}

/// How long a standby may take to hear that the store answers again.
const PAST: Duration = Duration::from_secs(1);
/// How often to look whether a kept guard is gone.
const GUARD_POLL: Duration = Duration::from_millis(20);
