//! One process of the demonstration: a node of the cluster, or the client.
//!
//! It is told what to do on stdin and tells on stdout what it sees; it ends with the demonstration.
#![allow(clippy::disallowed_methods, reason = "processes of a demonstration run in real time")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tenure_cluster::downing::{LeaseMajority, Strategy};
use tenure_cluster::messaging::reliable::ReliableReceiver;
use tenure_cluster::transport::Switch;
use tenure_cluster::{Address, Cluster, Node, Settings};
use tenure_lease::Store;
use tenure_lease::fence::FenceError;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines, Stdin};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::ledger::{Ledger, is_busy};
use super::outage::Outage;
use super::singleton::{self, Hosted, Stop};
use super::wire::{Order, Report, Seen, now, say};
use super::{ARBITRATION, CERTS, CLUSTER, FORMATION, LEASE, LEDGER, WORKER, client, name};
use crate::duration;
use crate::exit::Failure;
use crate::store::StoreArgs;

/// What a process is started with.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// Where certificates and ledger are.
    #[arg(long)]
    directory: PathBuf,
    /// Everybody's address; the client's first.
    #[arg(long, value_delimiter = ',')]
    addresses: Vec<Address>,
    /// Which of them this one has.
    #[arg(long)]
    number: usize,
    #[arg(long, value_parser = duration::parse)]
    ttl: Duration,
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
    let outage = Outage::new(&args.store.open().await?);
    let store = Store::new(outage.clone());
    let switch = Switch::default();
    let settings = settings(args, &store, &switch);
    let cluster = Cluster::start(settings).map_err(|error| Failure::new(1, error.to_string()))?;
    let (host, hosts) = watch::channel(None);
    let finish = watch::Sender::new(false);
    let orders = Orders {
        lines: BufReader::new(tokio::io::stdin()).lines(),
        cluster: &cluster,
        switch,
        outage,
        host,
        finish: finish.clone(),
    };
    let live = async {
        match args.number {
            0 => client::run(&cluster, hosts, finish.subscribe()).await,
            _ => hosting(args, &cluster, &store).await,
        }
    };
    tokio::select! {
        () = orders.follow() => {}
        () = views(args, &cluster) => {}
        ending = cluster.ended() => {
            // A node that left still tells that its worker has stopped, which was before.
            tracing::info!("out of the cluster: {ending}");
        }
        () = live => {}
    }
    Ok(ExitCode::SUCCESS)
}

fn settings(args: &Args, store: &Store, switch: &Switch) -> Settings {
    let name = name(args.number);
    let lease = |of: &str| store.lease(of).ttl(args.ttl).owner(&name);
    let mut settings = Settings::new(CLUSTER)
        .name(&name)
        .address(args.addresses[args.number].clone())
        .identity(args.directory.join(CERTS).join(&name))
        .formation(lease(FORMATION))
        .arbitration(lease(ARBITRATION))
        .downing(Strategy::LeaseMajority(LeaseMajority {
            role: Some(WORKER.into()),
            ..LeaseMajority::default()
        }));
    if args.number > 0 {
        settings = settings.role(WORKER);
    }
    settings.rejoin = true;
    settings.membership.heartbeat_interval = Duration::from_millis(250);
    settings.membership.acceptable_pause = Duration::from_secs(1);
    settings.membership.gossip_interval = Duration::from_millis(250);
    settings.membership.joining_patience = Duration::from_secs(2);
    settings.membership.leave_timeout = Duration::from_secs(3);
    settings.resolver.stable_after = Some(Duration::from_secs(1));
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
    host: watch::Sender<Option<Node>>,
    finish: watch::Sender<bool>,
}

impl Orders<'_> {
    /// Until the demonstration ends, or it was told to leave and has.
    async fn follow(mut self) {
        while let Ok(Some(line)) = self.lines.next_line().await {
            match serde_json::from_str(&line) {
                Ok(Order::Cut(from)) => self.switch.cut(from),
                Ok(Order::Store { answers }) => self.outage.set(answers),
                Ok(Order::Host(node)) => drop(self.host.send_replace(node)),
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

fn view(args: &Args, cluster: &Cluster) -> Report {
    let (me, view) = (cluster.me(), cluster.view());
    let number = |node: &Node| args.addresses.iter().position(|it| *it == node.address);
    let seen = |(node, member): (&Node, &tenure_cluster::Member)| {
        let missed_by = view.observations().filter(|(_, subject)| *subject == node);
        let mut missed_by: Vec<_> = missed_by.filter_map(|(by, _)| number(by)).collect();
        missed_by.sort_unstable();
        Some(Seen { number: number(node)?, status: member.status, missed_by })
    };
    let up = view.member(&me).is_some_and(|it| it.status == tenure_cluster::Status::Up);
    Report::View { up, members: view.members().filter_map(seen).collect() }
}

/// Contends for the worker's place, and does its work.
async fn hosting(args: &Args, cluster: &Cluster, store: &Store) {
    let lease = store.lease(LEASE).ttl(args.ttl).owner(name(args.number));
    let hosted = singleton::host(cluster, lease, |hosted| work(args, hosted)).await;
    if let Err(error) = hosted {
        say(&Report::Trouble(format!("{} cannot contend: {error}", name(args.number))));
    }
    std::future::pending().await
}

/// One tenure's work, from before the first thing that it does until after the last.
async fn work(args: &Args, hosted: Hosted) {
    let token = hosted.token();
    say(&Report::Started { token, node: hosted.cluster().me(), at: now() });
    let mut activity = Activity { token, why: "dropped".into() };
    activity.why = append(args, &hosted).await;
}

/// Says that the work has ended, however it does.
struct Activity {
    token: tenure_lease::Token,
    why: String,
}

impl Drop for Activity {
    fn drop(&mut self) {
        say(&Report::Stopped { token: self.token, why: std::mem::take(&mut self.why), at: now() });
    }
}

/// Appends jobs to the ledger until it must stop, and says why it did.
async fn append(args: &Args, hosted: &Hosted) -> String {
    let path = args.directory.join(LEDGER);
    let mut ledger = loop {
        match Ledger::open(&path, args.number, hosted.token()) {
            Ok(ledger) => break ledger,
            Err(error) if is_busy(&error) => {}
            Err(error) => return failed(&error),
        }
        if let Ok(stop) = timeout(AGAIN, hosted.stopping()).await {
            return stop.to_string();
        }
    };
    let mut jobs = match hosted.cluster().reliable_receiver::<u64>(LEDGER) {
        Ok(jobs) => jobs,
        Err(error) => return error.to_string(),
    };
    loop {
        let first = tokio::select! {
            biased;
            stop = hosted.stopping() => {
                if let Stop::Lost(_) = stop
                    && let Err(error @ FenceError::Refused { .. }) = ledger.write_without_looking()
                {
                    failed(&error);
                }
                return stop.to_string();
            }
            first = jobs.recv() => first,
        };
        let Some(first) = first else {
            return "out of the cluster".into();
        };
        match ledger.write(batch(&mut jobs, first)) {
            Ok(()) => {}
            Err(error) if is_busy(&error) => sleep(AGAIN).await,
            Err(error @ FenceError::Refused { .. }) => {
                // The fence knew first; the lease says why in a moment.
                let refused = failed(&error);
                let stop = timeout(WHY, hosted.stopping()).await;
                return stop.map_or(refused, |stop| stop.to_string());
            }
            Err(error) => return failed(&error),
        }
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
const AGAIN: Duration = Duration::from_millis(10);
/// How long a lease that is over may take to be known to be.
const WHY: Duration = Duration::from_secs(1);
const BATCH: usize = 64;
