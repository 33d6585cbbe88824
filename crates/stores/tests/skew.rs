//! Wall clocks that are wrong by a minute change nothing: the holder's is a minute ahead and the
//! contender's a minute behind, and the other way round. While the holder lives nobody takes the
//! lease; once it is killed, nobody waits for a clock to catch up.
#![cfg(all(target_os = "linux", feature = "all-stores"))]
#![allow(clippy::disallowed_methods)] // Real processes, real servers, real time.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use tenure_lease::{Moment, Nonce};

/// Leases end by the service's own clock. The date that a request is signed with may be a quarter of
/// an hour off.
#[test]
fn azure_blob() {
    let url = || {
        let endpoint = server("AZURE")?;
        Some(format!("azblob://devstoreaccount1/skew?endpoint={endpoint}&key={AZURITE_KEY}"))
    };
    let Some(made) = url() else { return };
    let store = tenure_stores::azure_blob::AzureBlobStore::new(&made).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(store.create_container()).unwrap();
    skewed(url, Duration::from_secs(15));
}

#[test]
fn consul() {
    skewed(|| Some(format!("consul://{}/skew", server("CONSUL")?)), Duration::from_secs(10));
}

#[test]
fn dynamodb() {
    let url = || {
        let endpoint = server("DYNAMODB")?;
        Some(format!("dynamodb://tenure-skew?region=eu-west-1&endpoint={endpoint}&create=true"))
    };
    skewed(url, TTL);
}

#[test]
fn etcd() {
    skewed(|| Some(format!("etcd://{}/skew", server("ETCD")?)), TTL);
}

#[test]
fn kubernetes() {
    let url = || Some(format!("k8s://tenure-test?kubeconfig={}", server("KUBE_USER")?));
    skewed(url, TTL);
}

#[test]
fn postgres() {
    skewed(|| server("POSTGRES"), TTL);
}

#[test]
fn redis() {
    skewed(|| Some(format!("redis://{}", server("REDIS")?)), TTL);
}

fn server(name: &str) -> Option<String> {
    let variable = format!("TENURE_TEST_{name}");
    let found = std::env::var(&variable).ok();
    if found.is_none() {
        eprintln!("skipped: {variable} is not set; scripts/test starts the servers");
    }
    found
}

fn skewed(url: impl Fn() -> Option<String>, ttl: Duration) {
    let Some(url) = url() else { return };
    let Some(library) = LIBRARIES.iter().find(|library| Path::new(library).exists()) else {
        eprintln!("skipped: no libfaketime; apt-get install faketime");
        return;
    };
    let both = [("+60s", "-60s"), ("-60s", "+60s")];
    std::thread::scope(|scope| {
        for (holder, contender) in both {
            let url = &url;
            scope.spawn(move || one(&Skewed { url, ttl, library }, holder, contender));
        }
    });
}

struct Skewed<'a> {
    url: &'a str,
    ttl: Duration,
    library: &'a str,
}

fn one(skewed: &Skewed<'_>, holder: &str, contender: &str) {
    let (ttl, name) = (skewed.ttl, format!("skew-{}", Nonce::random()));
    let mut holder = Process::start(skewed, &name, holder);
    holder.held(CERTIFICATE + ttl * 2).expect("the first one holds it");
    let contender = Process::start(skewed, &name, contender);
    assert_eq!(contender.held(ttl * 2), None, "taken from a living holder");
    holder.child.kill().unwrap();
    let killed = Moment::now();
    holder.child.wait().unwrap();
    let held = contender.held(CERTIFICATE + ttl * 3).expect("nobody waits for ever");
    let after = held.since(killed);
    println!("{after:?} after the kill, ttl {ttl:?}");
    // It was renewed a renewal interval before the kill at the earliest.
    assert!(after >= ttl / 2, "taken after {after:?}, with a ttl of {ttl:?}");
}

struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Process {
    fn start(skewed: &Skewed<'_>, name: &str, skew: &str) -> Self {
        let Skewed { url, ttl, library } = skewed;
        // Not through the program `faketime`, which stays in between and would be killed instead.
        let mut child = Command::new(std::env::current_exe().unwrap())
            .env("LD_PRELOAD", library)
            .env("FAKETIME", skew)
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .args(["--exact", "holder", "--ignored", "--nocapture", "--quiet"])
            .env("TENURE_SKEWED", format!("{name} {} {url}", ttl.as_millis()))
            .env("AWS_ACCESS_KEY_ID", "test")
            .env("AWS_SECRET_ACCESS_KEY", "test")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self { child, lines }
    }

    /// When it says that it holds the lease, if it says so within this time.
    fn held(&self, time: Duration) -> Option<Moment> {
        let end = Moment::now() + time;
        loop {
            let line = self.lines.recv_timeout(end.since(Moment::now())).ok()?;
            if line == "held" {
                return Some(Moment::now());
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Holds the lease until it is killed; the tests above start it.
#[test]
#[ignore = "the tests above start it"]
fn holder() {
    let Ok(order) = std::env::var("TENURE_SKEWED") else { return };
    let [name, ttl, url] = order.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = loop {
            // A certificate may not be valid yet where the clock is behind.
            match tenure_stores::open(url).await {
                Ok(store) => break store,
                Err(error) => println!("{error}"),
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        };
        let ttl = Duration::from_millis(ttl.parse().unwrap());
        let tenure = store.lease(name).ttl(ttl).acquire().await.unwrap();
        println!("held");
        println!("lost {}", tenure.lost().await);
    });
}

/// Where the store allows it: short, because it is waited for, and long enough to be renewed by a
/// process that a busy machine lets wait.
const TTL: Duration = Duration::from_secs(6);

/// A server's certificate that has just been made is not valid yet for whoever is a minute behind.
const CERTIFICATE: Duration = Duration::from_secs(65);

/// Of Azurite's development account; it is public, and the same everywhere.
const AZURITE_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw%3D%3D";

/// Where Debian puts it.
const LIBRARIES: [&str; 2] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
];
