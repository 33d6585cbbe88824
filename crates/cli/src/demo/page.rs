//! The page of the demonstration: what all processes say, put together, and the faults as buttons.
#![allow(clippy::disallowed_methods, reason = "a demonstration runs in real time")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;
use tenure_cluster::Status;
use tenure_cluster::transport::Version;
use tenure_lease::{Moment, Nonce, Store};
use tenure_manage::board::{Board, Note};
use tenure_manage::document::{
    Cluster, Cut, Decision, Downing, EntryKind, Node, Regions, Singleton,
};
use tenure_manage::sight::LeaseSight;
use tenure_manage::{Change, Changed, Managed, Refused, Running, Settings, Token};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use super::script::Action;
use super::show::{Event, Kind, Show};
use super::stage::State;
use super::wire::Seen;
use super::{ARBITRATION, CLUSTER, FORMATION, LEASE, LEDGER, WORKER, map, name};
use crate::exit::{self, Failure};

/// The page, while it is served.
pub(super) struct Page {
    board: Arc<Board>,
    running: Running,
    token: String,
    orders: mpsc::Receiver<Order>,
    /// Each process's status as it was last shown, and since when.
    known: BTreeMap<usize, (String, u64)>,
    last: Option<Decision>,
    /// What the processes say of their shards.
    said: Arc<Mutex<Vec<Regions>>>,
    /// Whom, by number, a decision was about, what it called itself then, and why.
    why: BTreeMap<usize, (String, String)>,
}

/// A button was pressed.
pub(super) struct Order {
    pub(super) action: Action,
    text: String,
    answer: oneshot::Sender<Result<Changed, Refused>>,
}

impl Order {
    pub(super) fn done(self) {
        let changed = Changed { change: "demo".into(), node: None, text: self.text };
        let _ = self.answer.send(Ok(changed)); // Whoever pressed may be gone.
    }

    pub(super) fn not_now(self, why: &str) {
        let _ = self.answer.send(Err(Refused::NotNow(why.into())));
    }
}

impl Page {
    /// Serves it at this address, with a token for this time only.
    pub(super) async fn open(
        listen: &str,
        nodes: usize,
        store: Store,
        ttl: Duration,
    ) -> Result<Self, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::new(exit::USAGE, error.to_string());
        let token = Nonce::random().to_string();
        let settings = Settings {
            listen: listen.into(),
            write_token: Some(Token::new(&token).map_err(|error| failed(&error))?),
            ..Settings::default()
        };
        let (board, (sender, orders)) = (Arc::new(Board::default()), mpsc::channel(ORDERS));
        let said = Arc::<Mutex<Vec<Regions>>>::default();
        let controls = Arc::new(Controls { nodes, orders: sender, said: said.clone() });
        let running = tenure_manage::serve(settings, board.clone(), controls, None)
            .await
            .map_err(|error| failed(&error))?;
        tokio::spawn(look_at_leases(store, ttl, board.clone()));
        let (known, why) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { board, running, token, orders, known, last: None, said, why })
    }

    /// Where to look, with what it takes to press.
    pub(super) fn url(&self) -> String {
        format!("{}#token={}", self.running.url(), self.token)
    }

    /// The next button. Cancel-safe.
    pub(super) async fn next(&mut self) -> Order {
        match self.orders.recv().await {
            Some(order) => order,
            // The server has the other end.
            None => std::future::pending().await,
        }
    }

    /// Shows how it is now.
    pub(super) fn show(&mut self, show: &mut Show) {
        let (now, now_ms) = (Moment::now(), now_ms());
        let at = |event: &Event| now_ms.saturating_sub(millis(now.since(event.at)));
        for event in std::mem::take(&mut show.unposted) {
            let kind = match event.kind {
                Kind::Fault => EntryKind::Fault,
                Kind::Work => EntryKind::Singleton,
                Kind::Refused => EntryKind::Lease,
                Kind::Decision => EntryKind::Decision,
                Kind::Other => EntryKind::Member,
            };
            if let Some(decided) = &event.decided {
                let by = event.node.map(|number| node(show, number));
                // The side that ends says so, too; what the other one decided is the whole story.
                let told = |last: &Decision| by.as_ref().is_some_and(|by| last.down.contains(by));
                if !self.last.as_ref().is_some_and(told) {
                    for number in &decided.down {
                        let why = (node(show, *number), decided.reason.clone());
                        self.why.insert(*number, why);
                    }
                    self.last = Some(Decision {
                        time_ms: at(&event),
                        by,
                        outcome: event.reason.clone().unwrap_or_default(),
                        down: decided.down.iter().map(|number| node(show, *number)).collect(),
                        text: decided.reason.clone(),
                    });
                }
            }
            let note = Note::new(kind, event.text.clone());
            let node = event.node.map(|number| node(show, number));
            self.board.note(
                at(&event),
                Note { node, reason: event.reason.clone().map(Into::into), ..note },
            );
        }
        let cluster = self.cluster(show, now_ms);
        self.board.set_cluster(cluster);
        self.board.set_singletons(vec![singleton(show, now, now_ms)]);
        if let Some(places) = &show.places {
            let name = |number| node(show, number);
            self.board.set_shards(vec![map::shards(places, name)]);
            let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
            *said = vec![map::regions(places, name)];
        }
    }

    fn cluster(&mut self, show: &Show, now_ms: u64) -> Cluster {
        let reference = reference(show);
        let mut nodes = Vec::new();
        for number in (1..=show.nodes()).chain([0]) {
            let (status, why) = self.status(show, number);
            let known = self.known.entry(number).or_insert_with(|| (status.clone(), now_ms));
            if known.0 != status {
                *known = (status.clone(), now_ms);
            }
            let seen = show.views.get(&number);
            let up_number =
                reference.and_then(|it| show.views[&it].of(number)).map(|it| it.up_number);
            nodes.push(Node {
                node: node(show, number),
                address: show.stage.address(number).to_string(),
                name: Some(name(number)),
                status,
                up_number: up_number.unwrap_or_default(),
                roles: if number == 0 { Vec::new() } else { vec![WORKER.into()] },
                protocol: Version::OURS.to_string(),
                version: None,
                since_ms: self.known[&number].1,
                seen: seen.is_some_and(|view| view.converged),
                why,
            });
        }
        let view = reference.map(|number| &show.views[&number]);
        Cluster {
            cluster: CLUSTER.into(),
            id: view.map(|view| view.cluster.to_string()),
            me: None,
            name: None,
            ready: true,
            not_ready: None,
            warnings: Vec::new(),
            leader: view.and_then(|view| view.leader).map(|number| node(show, number)),
            oldest: view.and_then(|view| view.oldest).map(|number| node(show, number)),
            converged: view.is_some_and(|view| view.converged),
            unreachable: cuts(show, &nodes),
            nodes,
            downing: Downing { strategy: Some("lease-majority".into()), last: self.last.clone() },
            demo: Some(demo(show)),
        }
    }

    /// How a process stands in the cluster, and why it is not in it.
    fn status(&mut self, show: &Show, number: usize) -> (String, Option<String>) {
        let state = &show.stage.actors[number].state;
        if let State::Gone(why) = state {
            return ("gone".into(), Some((*why).into()));
        }
        let paused = matches!(state, State::Paused(_));
        // Of one that stands still the others know more than it does itself.
        let told = match reference(show).filter(|_| paused) {
            Some(other) => show.views[&other].of(number),
            None => show.views.get(&number).and_then(|view| view.of(number)),
        };
        let why = |page: &Self| page.why.get(&number).map(|(_, why)| why.clone());
        match told {
            Some(Seen { status: Status::Down, .. }) => ("down".into(), why(self)),
            Some(Seen { status, .. }) => {
                // It is up again, as another; it may take itself for up for a while after it was not.
                if *status == Status::Up {
                    let me = node(show, number);
                    self.why.retain(|it, (then, _)| *it != number || *then == me);
                }
                (status.word().into(), None)
            }
            None => {
                let why = why(self).unwrap_or_else(|| "it looks for the cluster".into());
                ("outside".into(), Some(why))
            }
        }
    }
}

/// Whose view is shown where one has to be: of those that are up and run, one that sees the most of
/// the others up.
fn reference(show: &Show) -> Option<usize> {
    let up = show.views.iter().filter(|(number, view)| {
        view.up && matches!(show.stage.actors[**number].state, State::Runs | State::Leaves)
    });
    let count = |members: &[Seen]| {
        members.iter().filter(|it| it.status == Status::Up && it.missed_by.is_empty()).count()
    };
    up.max_by_key(|(number, view)| (count(&view.members), usize::MAX - **number)).map(|it| *it.0)
}

/// Who cannot reach whom, each as it says itself.
fn cuts(show: &Show, nodes: &[Node]) -> Vec<Cut> {
    let counts = |id: &String| {
        let apart = ["down", "gone", "outside"];
        nodes.iter().any(|it| it.node == *id && !apart.contains(&it.status.as_str()))
    };
    let mut cuts = Vec::new();
    for (from, view) in &show.views {
        if !matches!(show.stage.actors[*from].state, State::Runs | State::Leaves) {
            continue;
        }
        let missed = view.members.iter().filter(|seen| seen.missed_by.contains(from));
        cuts.extend(
            missed.map(|seen| Cut { from: node(show, *from), to: node(show, seen.number) }),
        );
    }
    cuts.retain(|cut| counts(&cut.from) && counts(&cut.to));
    cuts
}

fn singleton(show: &Show, now: Moment, now_ms: u64) -> Singleton {
    let work = show.history.holder(now);
    let since = work.map_or(now, |work| work.started);
    Singleton {
        name: LEDGER.into(),
        host: work.map(|work| node(show, work.node)),
        token: work.map(|work| work.token.to_string()),
        since_ms: now_ms.saturating_sub(millis(now.since(since))) / 1000 * 1000,
        waiting: 0,
        why_not: work.is_none().then(|| "nobody works just now".into()),
    }
}

/// What only the demonstration knows.
fn demo(show: &Show) -> serde_json::Value {
    let address = |number: &usize| show.stage.address(*number).to_string();
    let sides: Vec<Vec<String>> =
        show.stage.sides.iter().map(|side| side.iter().map(address).collect()).collect();
    let without_store: Vec<String> = show.stage.without_store.iter().map(address).collect();
    let processes: Vec<_> = (0..=show.nodes())
        .map(|number| {
            let (state, why) = match &show.stage.actors[number].state {
                State::Runs => ("runs", None),
                State::Paused(_) => ("paused", None),
                State::Leaves => ("leaves", None),
                State::Gone(why) => ("gone", Some(*why)),
            };
            // Each has a page of its own, as long as it runs: what this one node knows.
            let url = show.urls.get(&number).filter(|_| state != "gone");
            json!({"number": number, "address": address(&number), "state": state, "why": why, "url": url})
        })
        .collect();
    let holder = show.history.holder(Moment::now()).map(|work| work.node);
    json!({
        "sides": sides,
        "without_store": without_store,
        "processes": processes,
        "holder": holder,
        "jobs": {"sent": show.jobs.sent, "acknowledged": show.jobs.acknowledged},
        "controls": ["cut", "heal", "kill", "pause", "leave", "restart", "store-away", "store-back"],
    })
}

/// A process as a node: as it last called itself.
fn node(show: &Show, number: usize) -> String {
    let own = show.names.get(&number).cloned();
    own.unwrap_or_else(|| format!("{}#{:016x}", show.stage.address(number), 0))
}

/// The buttons.
struct Controls {
    nodes: usize,
    orders: mpsc::Sender<Order>,
    said: Arc<Mutex<Vec<Regions>>>,
}

impl Managed for Controls {
    fn ready(&self) -> Result<(), String> {
        Ok(())
    }

    fn change(&self, change: Change) -> tenure_manage::Boxed<'_, Result<Changed, Refused>> {
        Box::pin(async move {
            let Change::Demo(text) = change else {
                let why = "the demonstration has controls of its own, under /api/demo/";
                return Err(Refused::NotFound(why.into()));
            };
            let action = Action::parse(&text, self.nodes).map_err(Refused::Unclear)?;
            let over = || Refused::Over("the demonstration is over".into());
            let (answer, answered) = oneshot::channel();
            let order = Order { action, text, answer };
            self.orders.send(order).await.map_err(|_| over())?;
            answered.await.map_err(|_| over())?
        })
    }

    fn regions(&self) -> tenure_manage::Boxed<'_, Vec<Regions>> {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Box::pin(async { said })
    }

    fn is_demo(&self) -> bool {
        true
    }
}

/// Reads the leases' records, which the processes do not stop.
async fn look_at_leases(store: Store, ttl: Duration, board: Arc<Board>) {
    let kind = store.info().kind;
    let purposes = [
        (LEASE, format!("singleton {LEDGER}")),
        (FORMATION, "formation".into()),
        (ARBITRATION, "arbitration".into()),
    ];
    let mut sights =
        purposes.map(|(name, purpose)| (name, LeaseSight::new(name, kind, Some(purpose), ttl)));
    loop {
        for (name, sight) in &mut sights {
            let said = match timeout(PATIENCE, store.inspect(name)).await {
                Ok(said) => said.map_err(|error| error.to_string()),
                Err(_) => Err(format!("no answer from the store within {PATIENCE:?}")),
            };
            // Of the worker's the processes tell more.
            if let Some(note) = sight.saw(Moment::now(), now_ms(), said).filter(|_| *name != LEASE)
            {
                board.note(now_ms(), note);
            }
        }
        board.set_leases(sights.iter().map(|(_, sight)| sight.document()).collect());
        sleep(LOOK).await;
    }
}

fn now_ms() -> u64 {
    millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// How many buttons may be pressed before the first one has its effect.
const ORDERS: usize = 16;
const LOOK: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(2);
