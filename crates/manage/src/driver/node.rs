//! Watches a node, and writes what it sees on the board.

use std::sync::Arc;
use std::time::Duration;

use tenure_cluster::{Cluster, Events, Views};
use tenure_lease::{Lease, LeaseEvent, Loss};
use tenure_singleton::{Did, Happenings};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::{Looked, Stop, now};
use crate::board::{Board, Note};
use crate::document::{self, EntryKind};
use crate::manage::{Boxed, Change, Changed, Manage, Managed, Refused, Sharded, Watched};
use crate::sight::{ClusterSight, LeaseSight, find};

/// Begins to watch.
pub(crate) fn watch(manage: Manage) -> (Arc<Board>, Arc<dyn Managed>, Looked, Stop) {
    let Manage { cluster, singletons, leases, shards, .. } = manage;
    let (board, looked) = (Arc::new(Board::default()), Looked::default());
    let node = Arc::new(Node { cluster: cluster.clone(), singletons, shards });
    let settings = cluster.settings();
    let strategy = settings.downing.as_ref().map(|strategy| strategy.name());
    let mut watcher = Watcher {
        sight: ClusterSight::new(&settings.name, &settings.cluster, strategy),
        views: Some(cluster.views()),
        events: Some(cluster.events()),
        hosts: Vec::new(),
        node: node.clone(),
        board: board.clone(),
    };
    watcher.write();
    let stop = Stop(vec![
        tokio::spawn(watcher.run()).abort_handle(),
        tokio::spawn(look_at_leases(leases, board.clone(), looked.clone())).abort_handle(),
    ]);
    (board, node, looked, stop)
}

struct Watcher {
    node: Arc<Node>,
    board: Arc<Board>,
    sight: ClusterSight,
    /// None once the node is out of the cluster for good.
    views: Option<Views>,
    events: Option<Events>,
    /// Where each singleton was, as it was last said.
    hosts: Vec<Option<String>>,
}

impl Watcher {
    async fn run(mut self) {
        let mut leases = tenure_lease::news();
        let mut happenings = Happenings::of(&self.node.cluster).ok();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                event = next_event(&mut self.events) => match event {
                    Some(event) => {
                        let note = self.sight.happened(now().ms, &self.node.cluster.me(), &event);
                        self.note(note);
                    }
                    None => {
                        self.events = None;
                        let why = self.node.ready().err().unwrap_or_default();
                        self.note(Some(Note::new(EntryKind::Member, why)));
                    }
                },
                there = next_view(&mut self.views) => if !there {
                    self.views = None;
                },
                news = leases.next() => {
                    let reason = match &news.what {
                        LeaseEvent::Won { expired: Some(_), .. } => Some(Loss::Expired.reason()),
                        LeaseEvent::Won { .. } => None,
                        LeaseEvent::Lost(loss) => Some(loss.reason()),
                    };
                    let note = Note::new(EntryKind::Lease, news.to_string());
                    self.note(Some(Note { reason: reason.map(Into::into), ..note.node(self.node.cluster.me()) }));
                    continue;
                }
                happening = next_happening(&mut happenings) => {
                    let reason = match &happening.what {
                        Did::Stop(reason) => Some(reason.word()),
                        Did::Start(_) | Did::Fail(_) => None,
                    };
                    let note = Note::new(EntryKind::Singleton, happening.to_string());
                    self.note(Some(Note { reason: reason.map(Into::into), ..note.node(self.node.cluster.me()) }));
                }
                _ = ticks.tick() => {}
            }
            self.write();
            // Bursts of views are one picture.
            sleep(BETWEEN).await;
        }
    }

    fn note(&self, note: Option<Note>) {
        if let Some(note) = note {
            self.board.note(now().ms, note);
        }
    }

    /// Writes everything anew; what is as it was changes nothing.
    fn write(&mut self) {
        let (cluster, now) = (&self.node.cluster, now());
        let (view, seen) = cluster.seen();
        let me = cluster.me();
        let looked = self.sight.look(now.ms, &me, &view, &seen, cluster.ready());
        let warnings = cluster.warnings().to_vec();
        self.board.set_cluster(document::Cluster { warnings, ..looked });
        let mut singletons: Vec<_> =
            self.node.singletons.iter().map(|it| it.look(now.ms)).collect();
        self.hosts.resize(singletons.len(), None);
        let known = self.board.singletons();
        for (singleton, told) in singletons.iter_mut().zip(&mut self.hosts) {
            // It is counted back from now, and comes out a little different each time.
            let same =
                known.iter().find(|it| it.name == singleton.name && it.host == singleton.host);
            if let Some(same) = same.filter(|it| it.token == singleton.token) {
                singleton.since_ms = same.since_ms;
            }
            if *told != singleton.host {
                told.clone_from(&singleton.host);
                let name = &singleton.name;
                let note = match (&singleton.host, &singleton.token) {
                    (Some(host), Some(token)) => {
                        let text = format!("{name} runs on {host}, with token {token}");
                        Note::new(EntryKind::Singleton, text).node(host)
                    }
                    _ => Note::new(
                        EntryKind::Singleton,
                        format!("{name} runs nowhere, as far as is known here"),
                    ),
                };
                self.board.note(now.ms, note);
            }
        }
        self.board.set_singletons(singletons);
        self.board.set_shards(self.node.shards.iter().map(|it| it.look()).collect());
    }
}

async fn next_event(events: &mut Option<Events>) -> Option<tenure_cluster::Event> {
    match events {
        Some(events) => events.next().await,
        None => std::future::pending().await,
    }
}

/// Whether there is another view; waits for ever when there was none.
async fn next_view(views: &mut Option<Views>) -> bool {
    match views {
        Some(views) => views.next().await.is_some(),
        None => std::future::pending().await,
    }
}

async fn next_happening(happenings: &mut Option<Happenings>) -> tenure_singleton::Happening {
    match happenings {
        Some(happenings) => happenings.next().await,
        None => std::future::pending().await,
    }
}

/// Reads the records of leases: once a second while somebody looks, and now and then otherwise.
async fn look_at_leases(leases: Vec<(Lease, Option<String>)>, board: Arc<Board>, looked: Looked) {
    let mut sights: Vec<(Lease, LeaseSight)> = leases
        .into_iter()
        .filter_map(|(lease, purpose)| {
            let (name, kind) = (lease.name().ok()?.to_string(), lease.store().info().kind);
            let sight = LeaseSight::new(&name, kind, purpose, lease.timing().ttl);
            Some((lease, sight))
        })
        .collect();
    if sights.is_empty() {
        return;
    }
    loop {
        for (lease, sight) in &mut sights {
            let said = read(lease).await;
            let now = now();
            if let Some(note) = sight.saw(now.moment, now.ms, said) {
                board.note(now.ms, note);
            }
        }
        board.set_leases(sights.iter().map(|(_, sight)| sight.document()).collect());
        for _ in 0..SELDOM {
            sleep(LOOK).await;
            if looked.lately() {
                break;
            }
        }
    }
}

async fn read(lease: &Lease) -> Result<Option<tenure_lease::Record>, String> {
    let name = lease.name().map_err(|error| error.to_string())?.as_str();
    let store = lease.store();
    match timeout(STORE_PATIENCE, store.inspect(name)).await {
        Ok(said) => said.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer from the store within {STORE_PATIENCE:?}")),
    }
}

/// What operators change.
pub(super) struct Node {
    cluster: Cluster,
    singletons: Vec<Box<dyn Watched>>,
    shards: Vec<Box<dyn Sharded>>,
}

impl Managed for Node {
    fn alive(&self) -> Result<(), String> {
        // Out for good, whatever the reason: only a new process can join again.
        match self.cluster.is_over() {
            false => Ok(()),
            true => self.cluster.ready().map_err(|not| not.0),
        }
    }

    fn ready(&self) -> Result<(), String> {
        self.cluster.ready().map_err(|not| not.0)
    }

    fn change(&self, change: Change) -> Boxed<'_, Result<Changed, Refused>> {
        Box::pin(self.carry_out(change))
    }

    fn regions(&self) -> Boxed<'_, Vec<document::Regions>> {
        // All at once: a node that does not answer is waited for once.
        let asked: JoinSet<_> = self.shards.iter().map(|kind| kind.regions()).collect();
        Box::pin(async {
            let mut kinds = asked.join_all().await;
            kinds.sort_by(|one, other| one.kind.cmp(&other.kind));
            kinds
        })
    }
}

impl Node {
    async fn carry_out(&self, change: Change) -> Result<Changed, Refused> {
        let member = |text: &str| find(&self.cluster.view(), text).map_err(Refused::NotFound);
        let changed = |change: &str, node: Option<String>, text: String| {
            Ok(Changed { change: change.into(), node, text })
        };
        if self.cluster.is_over() {
            return Err(Refused::Over("this node is out of the cluster".into()));
        }
        match change {
            Change::Leave(None) => {
                let (leaver, me) = (self.cluster.clone(), self.cluster.me().to_string());
                tokio::spawn(async move { leaver.leave().await });
                changed("leaving", Some(me.clone()), format!("{me} is asked to leave"))
            }
            Change::Leave(Some(text)) => {
                let node = member(&text)?;
                self.cluster.ask_to_leave(&node).await;
                changed("leaving", Some(node.to_string()), format!("{node} is asked to leave"))
            }
            Change::Down(text) => {
                let node = member(&text)?;
                self.cluster.down(&node).await;
                changed("down", Some(node.to_string()), format!("{node} is declared down"))
            }
            Change::HandOver(name) => {
                let found = self.singletons.iter().find(|it| it.name() == name);
                let singleton = found.ok_or_else(|| {
                    Refused::NotFound(format!("{name:?} is no singleton that this node shows"))
                })?;
                let next = singleton.hand_over().await.map_err(|it| Refused::NotNow(it.0))?;
                let text = format!("{name} is handed over to {next}");
                changed("hand_over", Some(next.to_string()), text)
            }
            Change::Rebalance(kind) => {
                let found = self.shards.iter().find(|it| it.kind() == kind);
                let shards = found.ok_or_else(|| {
                    Refused::NotFound(format!("{kind:?} is no kind of shards that this node shows"))
                })?;
                shards.rebalance().map_err(|it| Refused::NotNow(it.to_string()))?;
                let me = self.cluster.me().to_string();
                changed("rebalance", Some(me), format!("the shards of {kind} are evened out"))
            }
            Change::Demo(_) => Err(Refused::NotFound("this is no demonstration".into())),
        }
    }
}

/// How often everything is looked at although nothing is heard.
const TICK: Duration = Duration::from_millis(500);
/// Between two looks, at least.
const BETWEEN: Duration = Duration::from_millis(100);
/// How often leases are looked at while somebody looks at us.
const LOOK: Duration = Duration::from_secs(1);
/// And how many times that when nobody does.
const SELDOM: u32 = 15;
const STORE_PATIENCE: Duration = Duration::from_secs(2);
