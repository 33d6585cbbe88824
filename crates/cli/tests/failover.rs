//! How long after a holder was killed (SIGKILL) the next one starts, on every store that lives on a
//! server: the ttl and a second. `TENURE_ROUNDS=10` kills ten holders at the default ttl and checks
//! that time; without it, three at a shorter ttl, and the time is only printed.
#![cfg(all(target_os = "linux", feature = "all-stores"))]
#![allow(clippy::disallowed_methods)] // Real processes, real time.

mod common;

use std::process::Command;
use std::time::{Duration, Instant};

use common::*;

/// A store on a server.
struct Crashing {
    name: &'static str,
    url: String,
    /// What else its client needs to know.
    environment: Vec<(&'static str, &'static str)>,
    /// The shortest ttl that the store keeps, in seconds.
    ttl_min: u64,
    /// After how many ttls the store frees what a dead process held.
    frees_after_ttls: u64,
}

impl Crashing {
    /// Kills some holders at once, each at another moment after a renewal.
    fn run(self) {
        let (rounds, is_timed) = match std::env::var("TENURE_ROUNDS") {
            Ok(rounds) => (rounds.parse().expect("TENURE_ROUNDS is a number"), true),
            Err(_) => (3, false),
        };
        let ttl = if is_timed { 15 } else { self.ttl_min.max(4) };
        let dir = Dir::new(&format!("failover-{}", self.name));
        let mut took: Vec<Duration> = std::thread::scope(|scope| {
            let rounds: Vec<_> = (0..rounds)
                .map(|round| {
                    let (this, dir) = (&self, &dir);
                    scope.spawn(move || this.kill_one(dir, round, ttl))
                })
                .collect();
            rounds.into_iter().map(|round| round.join().expect("a round")).collect()
        });
        took.sort();
        let (median, longest) = (took[took.len() / 2], took[took.len() - 1]);
        println!(
            "{}: ttl {ttl} s, {rounds} holders killed; the next started after {median:.2?} (median), \
             {longest:.2?} (longest)",
            self.name
        );
        let limit = Duration::from_secs(ttl * self.frees_after_ttls + 1);
        assert!(!is_timed || longest <= limit, "{longest:?} is longer than {limit:?}");
    }

    /// From the death of a holder to the start of the next.
    fn kill_one(&self, dir: &Dir, round: u32, ttl: u64) -> Duration {
        let lease = format!("failover-{}-{round}", std::process::id());
        let starts = format!("starts-{round}");
        let begin = || Process::start(&mut self.tenure_run(dir, &lease, &starts, ttl));
        let count = |wanted: usize, within: Duration| {
            until(&format!("{} start {wanted}", self.name), within, || {
                (dir.lines(&starts).len() >= wanted).then_some(())
            });
        };
        let holder = begin();
        count(1, SOON * 2);
        let waiter = begin();
        // Until the waiter has seen the record, and to another phase of the renewals in each round.
        let phase = Duration::from_millis(2_000 + u64::from(round) * 311 % (ttl * 1_000 / 6));
        std::thread::sleep(phase);
        holder.signal(libc::SIGKILL);
        let killed = Instant::now();
        count(2, Duration::from_secs(ttl * self.frees_after_ttls * 2) + SOON);
        let took = killed.elapsed();
        waiter.signal(libc::SIGTERM);
        took
    }

    fn tenure_run(&self, dir: &Dir, lease: &str, starts: &str, ttl: u64) -> Command {
        let mut command = tenure();
        command
            .current_dir(dir.path())
            .envs(self.environment.iter().copied())
            .args(["run", "--lease", &self.url, "--name", lease, "--ttl", &format!("{ttl}s")])
            .args(["--", "sh", "-c", &format!("echo $TENURE_TOKEN >>{starts}; exec sleep 1000")]);
        command
    }
}

/// The variable that `scripts/servers` sets; if it is not set, says why the test is skipped.
fn variable(name: &str) -> Option<String> {
    let variable = format!("TENURE_TEST_{name}");
    let value = std::env::var(&variable).ok();
    if value.is_none() {
        eprintln!("skipped: {variable} is not set; run it by: scripts/servers run -- cargo test …");
    }
    value
}

fn usual(name: &'static str, url: String) -> Crashing {
    Crashing { name, url, environment: Vec::new(), ttl_min: 2, frees_after_ttls: 1 }
}

#[test]
fn etcd() {
    let Some(members) = variable("ETCD") else { return };
    usual("etcd", format!("etcd://{members}/tests/failover")).run();
}

#[test]
fn consul() {
    let Some(server) = variable("CONSUL") else { return };
    let url = format!("consul://{server}/tests/failover");
    Crashing { ttl_min: 10, frees_after_ttls: 2, ..usual("consul", url) }.run();
}

#[test]
fn redis() {
    let Some(server) = variable("REDIS") else { return };
    usual("redis", format!("redis://{server}/0?prefix=failover")).run();
}

#[test]
fn postgres() {
    let Some(url) = variable("POSTGRES") else { return };
    usual("postgres", url).run();
}

#[test]
fn dynamodb() {
    let Some(endpoint) = variable("DYNAMODB") else { return };
    let url = format!("dynamodb://tenure-failover?endpoint={endpoint}&create=true");
    let any_key = vec![
        ("AWS_ACCESS_KEY_ID", "any"),
        ("AWS_SECRET_ACCESS_KEY", "any"),
        ("AWS_REGION", "us-east-1"),
    ];
    Crashing { environment: any_key, ..usual("dynamodb", url) }.run();
}

#[test]
fn kubernetes() {
    let Some(user) = variable("KUBE_USER") else { return };
    usual("kubernetes", format!("k8s://tenure-test?kubeconfig={user}")).run();
}

#[test]
fn azure_blob() {
    let Some(endpoint) = variable("AZURE") else { return };
    let url = format!(
        "azblob://devstoreaccount1/failover?endpoint={endpoint}&prefix=leases&key={AZURE_KEY}"
    );
    // An operator makes the container; here its own client does.
    let container = tenure_stores::azure_blob::AzureBlobStore::new(&url).expect("a URL");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(container.create_container()).expect("a container");
    Crashing { ttl_min: 15, ..usual("azure_blob", url) }.run();
}

/// The key of Azurite's development account, which is public.
const AZURE_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
