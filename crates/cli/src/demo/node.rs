//! One process of the demonstration: a node of the cluster, or the client.
//!
//! It is told what to do on stdin and tells on stdout what it sees; it ends with the demonstration.
#![allow(clippy::disallowed_methods, reason = "processes of a demonstration run in real time")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tenure_cluster::downing::{LeaseMajority, Strategy};
use tenure_cluster::messaging::reliable::ReliableReceiver;
use tenure_cluster::transport::Switch;
use tenure_cluster::{Address, Cluster, Ending, Node, Settings};
use tenure_lease::fence::FenceError;
use tenure_lease::{Lease, Store, Token};
use tenure_manage::{Manage, Recorder};
use tenure_singleton::{BoxError, Hosted, Singletons as _, StopReason};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines, Stdin};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::ledger::{Ledger, is_busy};
use super::outage::Outage;
use super::wire::{DECLARED_DOWN, Decided, Order, Report, Seen, Sees, now, say};
use super::{
    ARBITRATION, CERTS, CLUSTER, DATABASE, FORMATION, LEASE, LEDGER, Load, WORKER, client, counter,
    name, writes,
};
use crate::duration;
use crate::exit::{self, Failure};
use crate::store::StoreArgs;

/// What a process is started with.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// Where certificates and ledger are.
    #[arg(long)]
    pub(super) directory: PathBuf,
    /// Everybody's address; the client's first.
    #[arg(long, value_delimiter = ',')]
    addresses: Vec<Address>,
    /// Which of them this one has.
    #[arg(long)]
    pub(super) number: usize,
    #[arg(long, value_parser = duration::parse)]
    pub(super) ttl: Duration,
    /// Serve its own management API, to be read on this machine.
    #[arg(long)]
    manage: bool,
    #[command(flatten)]
    load: Load,
}

pub(crate) fn main(args: &Args) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::system("cannot start", &error))?;
    let outcome = runtime.block_on(run(args));
    // Whatever still waits for a store, a peer or an order is not waited for.
    runtime.shutdown_background();
    outcome
}

async fn run(args: &Args) -> Result<ExitCode, Failure> {
    // Before anything is measured.
    let recorder = args.manage.then(Recorder::install).transpose();
    let recorder = recorder.map_err(|error| Failure::new(exit::SYSTEM, error.to_string()))?;
    let outage = Outage::new(&args.store.open().await?);
    let store = Store::new(outage.clone());
    let switch = Switch::default();
    let settings = settings(args, &store, &switch);
    let failed = |error: &dyn std::fmt::Display| Failure::new(exit::SYSTEM, error.to_string());
    let cluster = Cluster::start(settings).map_err(|error| failed(&error))?;
    let finish = watch::Sender::new(false);
    let worker = Worker {
        ledger: args.directory.join(DATABASE),
        number: args.number,
        busy: Arc::new(watch::Sender::new(false)),
    };
    let mut manage = Manage::new(&cluster).listen("127.0.0.1:0");
    if args.number > 0 {
        let (lease, work) = (lease(args, &store, LEASE), worker.clone());
        let proxy = cluster
            .singleton(LEDGER)
            .lease(lease.clone())
            .role(WORKER)
            .run(move |hosted| work.clone().work(hosted))
            .map_err(|error| failed(&error))?;
        manage = manage.lease(&lease, Some(&format!("singleton {LEDGER}"))).singleton(&proxy);
    }
    let counters = match args.load.sharding {
        Some(setup) if args.number > 0 => {
            Some(counter::host(args, setup, &store, &cluster).map_err(|error| failed(&error))?)
        }
        _ => None,
    };
    if let Some(counters) = &counters {
        manage = manage.sharding(counters);
    }
    let _managed = match recorder {
        Some(recorder) => {
            let running = manage.metrics(recorder).start().await.map_err(|error| failed(&error))?;
            say(&Report::Listens(running.url()));
            Some(running)
        }
        None => None,
    };
    let orders = Orders {
        lines: BufReader::new(tokio::io::stdin()).lines(),
        cluster: &cluster,
        switch,
        outage: outage.clone(),
        finish: finish.clone(),
    };
    let client = async {
        match args.number {
            0 if args.load.sharding.is_some() => {
                let writes = writes::run(&cluster, args.load.rate, finish.subscribe());
                tokio::join!(client::run(&cluster, finish.subscribe()), writes);
            }
            0 => client::run(&cluster, finish.subscribe()).await,
            _ => std::future::pending().await,
        }
    };
    if let Some(counters) = &counters {
        // Also while it ends.
        tokio::spawn(counter::tell(counters.clone()));
    }
    tokio::select! {
        () = orders.follow() => return Ok(ExitCode::SUCCESS),
        () = views(args, &cluster) => {}
        () = decisions(args, &cluster) => {}
        () = client => {}
        () = asked(&outage) => {}
        ending = cluster.ended() => tracing::info!("out of the cluster: {ending}"),
    }
    if let Some(counters) = &counters {
        counter::have_ended(counters, ENDING).await;
    }
    worker.has_ended().await;
    Ok(match cluster.ended().await {
        Ending::Left => ExitCode::SUCCESS,
        _ => ExitCode::from(DECLARED_DOWN),
    })
}

/// A lease with the timing of the demonstration.
pub(super) fn lease(args: &Args, store: &Store, of: &str) -> Lease {
    store.lease(of).ttl(args.ttl).owner(name(args.number))
}

fn settings(args: &Args, store: &Store, switch: &Switch) -> Settings {
    let name = name(args.number);
    let mut settings = Settings::new(CLUSTER)
        .name(&name)
        .address(args.addresses[args.number].clone())
        .identity(args.directory.join(CERTS).join(&name))
        .formation(lease(args, store, FORMATION))
        .arbitration(lease(args, store, ARBITRATION))
        .downing(Strategy::LeaseMajority(LeaseMajority {
            role: Some(WORKER.into()),
            ..LeaseMajority::default()
        }));
    if args.number > 0 {
        settings = settings.role(WORKER);
    }
    // Only the client comes back by itself, to go on with its jobs.
    settings.rejoin = args.number == 0;
    if args.ttl < DEFAULT_TTL {
        settings.membership.heartbeat_interval = Duration::from_millis(250);
        settings.membership.acceptable_pause = Duration::from_secs(1);
        settings.membership.gossip_interval = Duration::from_millis(250);
        settings.membership.joining_patience = Duration::from_secs(2);
        settings.membership.leave_timeout = Duration::from_secs(3);
        settings.resolver.stable_after = Some(Duration::from_secs(1));
    }
    settings.transport.silence_max = Duration::from_secs(2);
    settings.transport.reconnect_max = Duration::from_millis(250);
    settings.transport.switch = Some(switch.clone());
    settings
}

/// What it is told to do.
struct Orders<'a> {
    lines: Lines<BufReader<Stdin>>,
    cluster: &'a Cluster,
    switch: Switch,
    outage: Outage,
    finish: watch::Sender<bool>,
}

impl Orders<'_> {
    /// Until the demonstration ends, or it was told to leave and has.
    async fn follow(mut self) {
        while let Ok(Some(line)) = self.lines.next_line().await {
            match serde_json::from_str(&line) {
                Ok(Order::Cut(from)) => self.switch.cut(from),
                Ok(Order::Store { answers }) => self.outage.set(answers),
                Ok(Order::Finish) => drop(self.finish.send_replace(true)),
                Ok(Order::Leave) => return self.cluster.leave().await,
                Err(error) => say(&Report::Trouble(format!("no order: {line}: {error}"))),
            }
        }
    }
}

/// Tells what the cluster looks like from here, whenever that changes.
async fn views(args: &Args, cluster: &Cluster) {
    let mut last = None;
    loop {
        let report = view(args, cluster);
        if last.as_ref() != Some(&report) {
            say(&report);
            last = Some(report);
        }
        sleep(LOOK).await;
    }
}

/// Tells how often the store was asked.
async fn asked(outage: &Outage) {
    loop {
        say(&Report::Asked(outage.asked()));
        sleep(ASKED).await;
    }
}

fn view(args: &Args, cluster: &Cluster) -> Report {
    let (me, (view, known_by)) = (cluster.me(), cluster.seen());
    let number = |node: &Node| number(args, node);
    let seen = |(node, member): (&Node, &tenure_cluster::Member)| {
        let missed_by = view.observations().filter(|(_, subject)| *subject == node);
        let mut missed_by: Vec<_> = missed_by.filter_map(|(by, _)| number(by)).collect();
        missed_by.sort_unstable();
        let (status, up_number) = (member.status, member.up_number);
        Some(Seen { number: number(node)?, status, up_number, missed_by })
    };
    let up = view.member(&me).is_some_and(|it| it.status == tenure_cluster::Status::Up);
    let mut counted = view.members().filter(|(_, it)| it.status < tenure_cluster::Status::Down);
    Report::View(Sees {
        cluster: view.cluster(),
        up,
        leader: view.leader().and_then(number),
        oldest: view.oldest(None).and_then(number),
        converged: counted.all(|(node, _)| known_by.contains(node)),
        // A predecessor on its way out is not the process that is there now.
        members: view
            .members()
            .filter(|(node, _)| node.address != me.address || **node == me)
            .filter_map(seen)
            .collect(),
        me: me.to_string(),
    })
}

fn number(args: &Args, node: &Node) -> Option<usize> {
    args.addresses.iter().position(|it| *it == node.address)
}

/// Tells how splits are decided, if it is by this process.
async fn decisions(args: &Args, cluster: &Cluster) {
    let mut events = cluster.events();
    while let Some(event) = events.next().await {
        if let tenure_cluster::Event::Decided(decided) = event {
            let tenure_cluster::Decided { survives, down, reason } = decided;
            let down = down.iter().filter_map(|node| number(args, node)).collect();
            say(&Report::Decided(Decided { survives, down, reason }));
        }
    }
    std::future::pending().await
}

/// Who appends jobs to the ledger, on this node.
#[derive(Clone)]
struct Worker {
    ledger: PathBuf,
    number: usize,
    busy: Arc<watch::Sender<bool>>,
}

impl Worker {
    /// One tenure's work, from before the first thing that it does until after the last.
    async fn work(self, hosted: Hosted) -> Result<(), BoxError> {
        let token = hosted.token();
        let former = hosted.tenure().and_then(|tenure| tenure.former());
        let expired = former.and_then(|record| record.owner()).map(|owner| owner.name.clone());
        say(&Report::Started { token, expired, at: now() });
        self.busy.send_replace(true);
        let (why, busy) = ("dropped".into(), self.busy.clone());
        let mut activity = Activity { token, why, reason: None, busy };
        let stop = self.append(&hosted).await;
        (activity.why, activity.reason) = (stop.why, stop.reason);
        Ok(())
    }

    /// Appends jobs to the ledger until it must stop, and says why it did.
    async fn append(&self, hosted: &Hosted) -> Stop {
        let mut ledger = loop {
            match Ledger::open(&self.ledger, self.number, hosted.token()) {
                Ok(ledger) => break ledger,
                Err(error) if is_busy(&error) => {}
                Err(error) => return failed(&error).into(),
            }
            if let Ok(stop) = timeout(AGAIN, hosted.stopping()).await {
                return said(&stop);
            }
        };
        let mut jobs = match hosted.reliable_receiver::<u64>() {
            Ok(jobs) => jobs,
            Err(error) => return error.to_string().into(),
        };
        loop {
            let first = tokio::select! {
                biased;
                stop = hosted.stopping() => {
                    if let StopReason::LeaseLost(_) = stop
                        && let Err(error @ FenceError::Refused { .. }) = write_late(&mut ledger)
                    {
                        failed(&error);
                    }
                    return said(&stop);
                }
                first = jobs.recv() => first,
            };
            let Some(first) = first else {
                return said(&hosted.stopping().await); // This node is out of the cluster.
            };
            match ledger.write(batch(&mut jobs, first)) {
                Ok(()) => {}
                Err(error) if is_busy(&error) => sleep(AGAIN).await,
                Err(error @ FenceError::Refused { .. }) => {
                    // The fence knew first; the lease says why in a moment.
                    let refused = failed(&error);
                    let stop = timeout(WHY, hosted.stopping()).await;
                    return stop.map_or(refused.into(), |stop| said(&stop));
                }
                Err(error) => return failed(&error).into(),
            }
        }
    }

    /// Waits until nothing goes on here any more, and its lease was given back.
    async fn has_ended(&self) {
        let mut busy = self.busy.subscribe();
        let _ = timeout(ENDING, busy.wait_for(|busy| !*busy)).await;
        sleep(GIVING_BACK).await;
    }
}

/// Why it stops, in a few words and in one.
struct Stop {
    why: String,
    reason: Option<String>,
}

impl From<String> for Stop {
    fn from(why: String) -> Self {
        Self { why, reason: None }
    }
}

fn said(stop: &StopReason) -> Stop {
    let (why, reason) = match stop {
        StopReason::LeaseLost(loss) => (loss.to_string(), loss.reason()),
        StopReason::HandOver(_) => ("it goes home to an older node".into(), stop.word()),
        stop => (stop.to_string(), stop.word()),
    };
    Stop { why, reason: Some(reason.into()) }
}

/// Says that the work has ended, however it does.
struct Activity {
    token: Token,
    why: String,
    reason: Option<String>,
    busy: Arc<watch::Sender<bool>>,
}

impl Drop for Activity {
    fn drop(&mut self) {
        let (why, reason) = (std::mem::take(&mut self.why), self.reason.take());
        say(&Report::Stopped { token: self.token, why, reason, at: now() });
        self.busy.send_replace(false);
    }
}

type Job = tenure_cluster::messaging::reliable::Delivery<u64>;

/// What else is here already.
fn batch(jobs: &mut ReliableReceiver<u64>, first: Job) -> Vec<Job> {
    let mut batch = vec![first];
    while batch.len() < BATCH
        && let Some(next) = jobs.try_recv()
    {
        batch.push(next);
    }
    batch
}

/// What the worker tries that has lost its lease. Its time may be over, so it does not sleep while
/// others write: each try waits a moment for them by itself.
fn write_late(ledger: &mut Ledger) -> Result<(), FenceError> {
    for _ in 0..LATE_TRIES {
        match ledger.write_without_looking() {
            Err(error) if is_busy(&error) => {}
            written => return written,
        }
    }
    ledger.write_without_looking()
}

fn failed(error: &FenceError) -> String {
    match error {
        FenceError::Refused { held, fence, .. } => {
            say(&Report::Refused { token: *held, fence: *fence });
        }
        error => say(&Report::Trouble(error.to_string())),
    }
    error.to_string()
}

/// How often to look at the view.
const LOOK: Duration = Duration::from_millis(50);
const ASKED: Duration = Duration::from_secs(1);
const AGAIN: Duration = Duration::from_millis(10);
/// Together a second.
const LATE_TRIES: usize = 20;
/// How long a lease that is over may take to be known to be.
const WHY: Duration = Duration::from_secs(1);
/// How long the worker may take to end when the node is out of the cluster.
const ENDING: Duration = Duration::from_secs(2);
/// And its lease to be given back.
const GIVING_BACK: Duration = Duration::from_millis(300);
const BATCH: usize = 64;

/// From here on everything else has its default timing, too.
const DEFAULT_TTL: Duration = Duration::from_secs(15);
