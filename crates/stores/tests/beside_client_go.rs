//! Tenure and client-go's leader election side by side, on one API server that stops answering.
//!
//! Both hold ten leases, each with a client of its own and the default timing of its side: a ttl of
//! 15 s here; 15 s, 10 s and 2 s there. The API server is stopped and continued (SIGSTOP, SIGCONT),
//! and the test counts the tenures that each side lost in that outage. The outage that was measured
//! counts, not the one that was meant: stopping a server takes its time. `scripts/beside-client-go`
//! builds client-go's side (`tests/client-go`) and runs this test.
//!
//! Each outage meets new holders. A server that continues answers all waiting renewals at once, so
//! holders that have lived through an outage renew in step ever after, and the next outage would
//! meet all of them at one phase of their renewals.
#![cfg(feature = "all-stores")]
#![allow(clippy::disallowed_methods)] // Real servers, in real time.

mod kubernetes_support;
mod server;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use tenure_lease::{Moment, Nonce, Settings, Store};
use tenure_testkit::conformance::block_on;

use kubernetes_support::Cluster;
use server::fresh;

#[test]
fn outages_beside_client_go() {
    let Some(program) = std::env::var_os("TENURE_TEST_CLIENT_GO") else {
        println!(
            "outages_beside_client_go: skipped, because TENURE_TEST_CLIENT_GO names no program; run \
             it as \"scripts/beside-client-go\""
        );
        return;
    };
    let Some((cluster, _turn)) = Cluster::find_alone("outages_beside_client_go") else { return };
    block_on(async {
        let mut outages = Vec::new();
        for _ in 0..rounds() {
            for length in lengths() {
                let mut holders = Holders::start(&cluster, &program).await;
                outages.push(holders.live_through(&cluster, length).await);
            }
        }
        print_table(&outages);
        let survived = Settings::default().outage_survived();
        for outage in outages.iter().filter(|outage| outage.measured <= survived) {
            assert_eq!(outage.lost_by(Side::Tenure), 0, "tenures lost in {outage:?}");
        }
    });
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Tenure,
    ClientGo,
}

/// What happened to one lease of one side.
#[derive(Debug)]
struct HolderEvent {
    side: Side,
    lease: String,
    /// Whether a tenure started; otherwise one was lost.
    started: bool,
    at: SystemTime,
}

/// Tenure's side: holds one lease, and contends for it again after each loss.
async fn hold(store: Store, events: Sender<HolderEvent>) {
    let name = fresh("beside").to_string();
    let lease = store.lease(&name);
    let report = async |started| {
        let (lease, at) = (name.clone(), SystemTime::now());
        let event = HolderEvent { side: Side::Tenure, lease, started, at };
        // Nobody listens any more to a holder that is being ended.
        let _ = events.send(event).await;
    };
    loop {
        let tenure = lease.acquire().await.expect("acquired");
        report(true).await;
        let loss = tenure.lost().await;
        println!("{name}: {loss}");
        report(false).await;
    }
}

/// client-go's side: the program that holds its leases, which ends with the test.
struct ClientGo(Child);

impl ClientGo {
    fn start(mut command: Command, events: Sender<HolderEvent>) -> Self {
        let child = command.stdout(Stdio::piped()).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let output = child.stdout.take().expect("it is piped");
        thread::spawn(move || forward_events(output, &events));
        Self(child)
    }
}

impl Drop for ClientGo {
    fn drop(&mut self) {
        // A program that cannot be ended has ended; the test has its verdict.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Until the program or the test ends.
fn forward_events(output: ChildStdout, events: &Sender<HolderEvent>) {
    for line in BufReader::new(output).lines() {
        let line = line.expect("the program writes text");
        let fields: serde_json::Value = serde_json::from_str(&line).expect("a line of JSON");
        let text = |key: &str| fields[key].as_str().expect("a field of text").to_owned();
        let event = HolderEvent {
            side: Side::ClientGo,
            lease: text("lease"),
            started: text("event") == "started",
            at: UNIX_EPOCH + Duration::from_nanos(fields["at"].as_u64().expect("a time")),
        };
        if events.blocking_send(event).is_err() {
            return;
        }
    }
}

/// One outage that all holders lived through.
#[derive(Debug)]
struct Outage {
    length: Duration,
    /// From before the server was stopped until after it was continued.
    measured: Duration,
    /// Which tenures were lost, and how long after the beginning of the outage.
    lost: Vec<(Side, String, Duration)>,
}

impl Outage {
    fn lost_by(&self, side: Side) -> usize {
        self.lost.iter().filter(|(of, ..)| *of == side).count()
    }
}

/// The leases of both sides. Dropping it ends the holders.
struct Holders {
    _tenure: JoinSet<()>,
    _client_go: ClientGo,
    events: Receiver<HolderEvent>,
    /// The leases that are held now, as far as events have told.
    held: BTreeSet<(Side, String)>,
}

impl Holders {
    /// Both sides hold all of their leases, at phases of their renewals that differ.
    async fn start(cluster: &Cluster, program: &OsStr) -> Self {
        let (sender, events) = channel(EVENTS_MAX);
        let mut command = Command::new(program);
        command.arg("-kubeconfig").arg(cluster.kubeconfig());
        command.args(["-leases", &LEASES.to_string(), "-prefix", fresh("client-go").as_str()]);
        let client_go = ClientGo::start(command, sender.clone());
        let mut tenure = JoinSet::new();
        for _ in 0..LEASES {
            tenure.spawn(hold(cluster.store().await, sender.clone()));
            sleep(Settings::default().renew_interval / LEASES as u32).await;
        }
        let held = BTreeSet::new();
        let mut holders = Self { _tenure: tenure, _client_go: client_go, events, held };
        holders.await_all().await;
        holders
    }

    async fn live_through(&mut self, cluster: &Cluster, length: Duration) -> Outage {
        // Outages begin at any phase of the renewals.
        sleep(random_below(Settings::default().renew_interval)).await;
        let (begun, begun_at) = (Moment::now(), SystemTime::now());
        cluster.servers(&["pause", "kube-apiserver"]).await;
        sleep(length.saturating_sub(Moment::now().since(begun))).await;
        cluster.servers(&["resume", "kube-apiserver"]).await;
        let measured = Moment::now().since(begun);

        let mut lost = Vec::new();
        let settled = SETTLED_AFTER.saturating_sub(measured).max(RENEWED_AFTER);
        let until = tokio::time::Instant::now() + settled;
        while let Ok(event) = tokio::time::timeout_at(until, self.next()).await {
            if !event.started {
                let after = event.at.duration_since(begun_at).unwrap_or_default();
                lost.push((event.side, event.lease, after));
            }
        }
        self.await_all().await;
        let outage = Outage { length, measured, lost };
        println!("{outage:.2?}");
        outage
    }

    /// Waits until both sides hold all of their leases.
    async fn await_all(&mut self) {
        while self.held.len() < 2 * LEASES {
            let event = timeout(HELD_WITHIN, self.next()).await;
            event.unwrap_or_else(|_| panic!("only {:?} are held", self.held));
        }
    }

    async fn next(&mut self) -> HolderEvent {
        let event = self.events.recv().await.expect("the holders live as long as the test");
        let lease = (event.side, event.lease.clone());
        if event.started {
            self.held.insert(lease);
        } else {
            self.held.remove(&lease);
        }
        event
    }
}

fn print_table(outages: &[Outage]) {
    println!("| outage | measured | outages | tenures | lost by Tenure | lost by client-go |");
    println!("|---|---|---|---|---|---|");
    for length in lengths() {
        let these: Vec<_> = outages.iter().filter(|outage| outage.length == length).collect();
        let measured = || these.iter().map(|outage| outage.measured);
        let (Some(least), Some(most)) = (measured().min(), measured().max()) else { continue };
        let lost = |side| these.iter().map(|outage| outage.lost_by(side)).sum::<usize>();
        println!(
            "| {length:?} | {least:.2?} to {most:.2?} | {} | {} of each | {} | {} |",
            these.len(),
            these.len() * LEASES,
            lost(Side::Tenure),
            lost(Side::ClientGo),
        );
    }
}

fn random_below(limit: Duration) -> Duration {
    limit.mul_f64((Nonce::random().bits() % 1_000) as f64 / 1_000.0)
}

/// How long the outages are meant to be: `TENURE_OUTAGES`, in seconds, separated by commas.
fn lengths() -> Vec<Duration> {
    let lengths = std::env::var("TENURE_OUTAGES").unwrap_or_else(|_| "2,4,6,7".to_owned());
    let seconds = |text: &str| text.parse().expect("TENURE_OUTAGES is a list of numbers");
    lengths.split(',').map(|text| Duration::from_secs(seconds(text))).collect()
}

/// How many outages of each length.
fn rounds() -> usize {
    let rounds = std::env::var("TENURE_ROUNDS").unwrap_or_else(|_| "1".to_owned());
    rounds.parse().expect("TENURE_ROUNDS is a number")
}

/// Leases of each side.
const LEASES: usize = 10;
/// Far more than both sides can report before the test looks.
const EVENTS_MAX: usize = 1_024;
/// From the beginning of an outage until each tenure that it ended is lost: client-go gives up 10 s
/// after it began a renewal, which is at most 2 s after the last one; Tenure gives up earlier.
const SETTLED_AFTER: Duration = Duration::from_secs(13);
/// From the end of an outage until each side has renewed at its ordinary pace, at least.
const RENEWED_AFTER: Duration = Duration::from_secs(4);
/// From a loss until the lease is held again, at most: a ttl, and time to notice.
const HELD_WITHIN: Duration = Duration::from_secs(40);
