//! A slot each second on five machines, of which one is killed every three seconds and one stands still now and
//! then, while the store goes away: every slot is accounted for, none is run twice without having been
//! interrupted, none is settled twice.
//!
//! `TENURE_CRON_SECONDS=1200` makes it twenty minutes. On stores that live on servers it runs with
//! `scripts/servers run -- cargo test-all --test cron_rounds`.
#![cfg(all(target_os = "linux", feature = "all-stores"))]
#![allow(clippy::disallowed_methods)] // Real processes, real time.

mod common;

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::*;
use serde_json::Value;

const SCRIPT: &str = "
exec 9>>probe
flock -n 9 || echo overlap $TENURE_SLOT >>log
echo begin $TENURE_SLOT $TENURE_ATTEMPT $TENURE_OWNER >>log
sleep 0.6
echo end $TENURE_SLOT $TENURE_ATTEMPT >>log
";

/// The store, and how it goes away.
struct Place {
    name: &'static str,
    url: String,
    job: String,
    /// A server of this test's own.
    server: Option<Process>,
}

impl Place {
    fn rounds(&self, dir: &Dir, seconds: u64) {
        let mut machines: Vec<Process> = (0..5).map(|number| self.start(dir, number)).collect();
        let mut seen = Seen::default();
        let begun = Instant::now();
        let (mut kills, mut stops, mut outages) = (0, 0, 0);
        let mut round = 0_u64;
        while begun.elapsed() < Duration::from_secs(seconds) {
            round += 1;
            std::thread::sleep(Duration::from_secs(3));
            // The one that ran last, as a rule; it has the most to lose.
            let last = dir.lines("log").iter().rev().find_map(|line| {
                line.strip_prefix("begin ")?
                    .rsplit(' ')
                    .next()?
                    .strip_prefix("machine-")?
                    .parse()
                    .ok()
            });
            let victim = last.filter(|_| !round.is_multiple_of(4)).unwrap_or(round as usize % 5);
            machines[victim].signal(libc::SIGKILL);
            machines[victim].end(SOON);
            machines[victim] = self.start(dir, victim);
            kills += 1;
            if round.is_multiple_of(3) {
                let still = (victim + 1) % 5;
                machines[still].signal(libc::SIGSTOP);
                std::thread::sleep(Duration::from_secs(6));
                machines[still].signal(libc::SIGCONT);
                stops += 1;
            }
            if round.is_multiple_of(4)
                && let Some(server) = &self.server
            {
                server.signal(libc::SIGSTOP);
                std::thread::sleep(Duration::from_secs(4));
                server.signal(libc::SIGCONT);
                outages += 1;
            }
            seen.look(self);
        }
        // What was left open is run, and settled.
        until("the last open slots", SOON, || {
            seen.look(self);
            (dir.lines("log").last()?.starts_with("end")).then_some(())
        });
        for machine in &mut machines {
            machine.signal(libc::SIGTERM);
        }
        for machine in &mut machines {
            assert_eq!(code(machine.end(SOON)), 143);
        }
        seen.look(self);
        let counts = seen.check(self, dir);
        println!(
            "{}: {} s, {kills} kills, {stops} stops, {outages} outages: {counts}",
            self.name,
            begun.elapsed().as_secs()
        );
    }

    fn start(&self, dir: &Dir, number: usize) -> Process {
        let mut command = tenure();
        command
            .current_dir(dir.path())
            .stderr(Stdio::null())
            .args(["cron", "--lease", &self.url, "--name", &self.job, "--at", "@every 1s"])
            .args(["--missed", "all", "--overlap", "queue", "--ttl", "4s"])
            .args(["--owner", &format!("machine-{number}"), "--", "sh", "-c", SCRIPT]);
        Process::start(&mut command)
    }

    fn ask(&self, what: &str) -> Option<Value> {
        let mut command = tenure();
        command.args(["cron", what, &self.job, "--json", "--lease", &self.url]);
        serde_json::from_slice(&command.stderr(Stdio::null()).output().unwrap().stdout).ok()
    }
}

/// What the history said, look by look; it lists the latest slots only.
#[derive(Default)]
struct Seen {
    settled: BTreeMap<String, Value>,
    settled_twice: u64,
}

impl Seen {
    fn look(&mut self, place: &Place) {
        let Some(history) = place.ask("history") else { return };
        for line in history["settled"].as_array().into_iter().flatten() {
            let slot = line["slot"].to_string();
            match self.settled.get(&slot) {
                Some(before) if before != line => self.settled_twice += 1,
                Some(_) => {}
                None => drop(self.settled.insert(slot, line.clone())),
            }
        }
    }

    fn check(&self, place: &Place, dir: &Dir) -> String {
        let history = place.ask("history").expect("the store is there");
        let next = place.ask("next").expect("the store is there");
        let second = |value: &Value| -> i64 {
            let text = value.as_str().expect("a time");
            let output = Command::new("date").args(["-d", text, "+%s"]).output().unwrap();
            String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
        };
        let slots = second(&next["next"][0]) - 1 - second(&history["since"]);
        let totals = &history["totals"];
        let total = |name: &str| totals[name].as_i64().unwrap();
        let open = i64::from(!history["open"].is_null());
        let settled = total("done") + total("failed") + total("skipped") + total("interrupted");
        let unaccounted = slots - settled - open;
        let log = dir.lines("log");
        let overlaps = log.iter().filter(|line| line.starts_with("overlap")).count();
        let mut begun: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for line in log.iter().filter_map(|line| line.strip_prefix("begin ")) {
            let mut words = line.split(' ');
            let slot = words.next().unwrap();
            begun.entry(slot).or_default().push(words.next().unwrap().parse().unwrap());
        }
        let mut doubled = 0;
        let mut rerun = 0;
        for (slot, attempts) in &begun {
            if attempts.len() > 1 {
                rerun += 1;
                let line = self.settled.get(&format!("{{\"at\":\"{slot}\"}}"));
                let interrupted = line.and_then(|line| line["interrupted"].as_u64());
                let open = history["open"]["slot"]["at"].as_str() == Some(*slot);
                let is_told = open || interrupted.is_some_and(|n| n + 1 >= attempts.len() as u64);
                let rises = attempts.windows(2).all(|pair| pair[0] < pair[1]);
                doubled += u64::from(!is_told || !rises);
            }
        }
        let counts = format!(
            "{slots} slots, {} done, {rerun} run again after an interruption; unaccounted {unaccounted}, run \
             twice without {doubled}, settled twice {}, overlaps {overlaps}",
            total("done"),
            self.settled_twice
        );
        assert_eq!((unaccounted, doubled, self.settled_twice, overlaps), (0, 0, 0, 0), "{counts}");
        assert!(slots > 20 && total("done") > slots / 2, "{counts}: {history}");
        counts
    }
}

fn seconds(usual: u64) -> u64 {
    std::env::var("TENURE_CRON_SECONDS").map_or(usual, |text| text.parse().unwrap())
}

fn job() -> String {
    format!("tick-{}", std::process::id())
}

#[test]
fn file() {
    let dir = Dir::new("cron-rounds-file");
    let place = Place { name: "file", url: dir.url(), job: job(), server: None };
    place.rounds(&dir, seconds(40));
}

/// With a server of its own, which stands still now and then.
#[test]
fn redis() {
    let dir = Dir::new("cron-rounds-redis");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let mut command = Command::new("redis-server");
    command
        .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""])
        .current_dir(dir.path())
        .stdout(Stdio::null());
    let Ok(server) = command.spawn() else {
        println!("skipped: redis-server is not installed");
        return;
    };
    let server = Process::of(server);
    until("Redis", SOON, || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
    let url = format!("redis://127.0.0.1:{port}/0");
    let place = Place { name: "redis", url, job: job(), server: Some(server) };
    place.rounds(&dir, seconds(40));
}

fn on_server(name: &'static str, variable: &str, url: impl Fn(String) -> String) {
    let variable = format!("TENURE_TEST_{variable}");
    let Ok(value) = std::env::var(&variable) else {
        eprintln!("skipped: {variable} is not set; run it by: scripts/servers run -- cargo test …");
        return;
    };
    let dir = Dir::new(&format!("cron-rounds-{name}"));
    let place = Place { name, url: url(value), job: job(), server: None };
    place.rounds(&dir, seconds(40));
}

#[test]
fn etcd() {
    on_server("etcd", "ETCD", |members| format!("etcd://{members}/tests/cron"));
}

#[test]
fn postgres() {
    on_server("postgres", "POSTGRES", |url| url);
}

#[test]
fn kubernetes() {
    on_server("kubernetes", "KUBE_USER", |user| format!("k8s://tenure-test?kubeconfig={user}"));
}
