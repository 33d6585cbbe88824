//! A slot each second on five machines, of which one is killed every three seconds and one stands still now and
//! then, while the store goes away for as long as the ttl every four rounds: every slot is accounted for, none is
//! run twice without having been interrupted, none is settled twice.
//!
//! `TENURE_CRON_SECONDS=1200` makes it twenty minutes. On stores that live on servers it runs with
//! `scripts/servers run -- cargo test-all --test cron_rounds`.
#![cfg(all(target_os = "linux", feature = "all-stores"))]
#![allow(clippy::disallowed_methods)] // Real processes, real time.

mod away;
mod common;
mod redis_server;

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use away::{Directory, Network, Switch};
use common::*;
use redis_server::Redis;
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
    away: Away,
}

/// How a store goes away.
enum Away {
    /// A server of this test's own, which is stopped.
    Server(Redis),
    /// The network to servers that other tests use as well.
    Network(Switch),
    Directory(Directory),
}

impl Away {
    /// Nobody reaches the store for a while.
    fn take_away(&self, outage: u64) {
        let length = Duration::from_secs(4);
        match self {
            Self::Server(server) => {
                server.goes_away();
                std::thread::sleep(length);
                server.comes_back();
            }
            Self::Network(switch) => {
                let hangs = outage.is_multiple_of(2);
                switch.set(if hangs { Network::Hangs } else { Network::Closes });
                std::thread::sleep(length);
                switch.set(Network::Passes);
            }
            Self::Directory(directory) => {
                directory.exchange();
                std::thread::sleep(length);
                directory.exchange();
            }
        }
    }
}

impl Place {
    fn rounds(&self, dir: &Dir, seconds: u64) {
        let mut machines: Vec<Process> = (0..5).map(|number| self.start(dir, number)).collect();
        let mut seen = Seen::default();
        let begun = Instant::now();
        let (mut kills, mut stops, mut outages, mut restarts) = (0, 0, 0, 0);
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
            if round.is_multiple_of(4) {
                // One starts while the store goes away.
                machines[victim].signal(libc::SIGKILL);
                machines[victim].end(SOON);
                machines[victim] = self.start(dir, victim);
                self.away.take_away(outages);
                kills += 1;
                outages += 1;
            }
            // What gives up is started again, as a service manager does it.
            for (number, machine) in machines.iter_mut().enumerate() {
                if !machine.is_running() {
                    *machine = self.start(dir, number);
                    restarts += 1;
                }
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
            "{}: {} s, {kills} kills, {stops} stops, {outages} outages, {restarts} restarts: {counts}",
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

fn seconds() -> u64 {
    std::env::var("TENURE_CRON_SECONDS").map_or(60, |text| text.parse().unwrap())
}

fn job() -> String {
    format!("tick-{}", std::process::id())
}

#[test]
fn file() {
    let dir = Dir::new("cron-rounds-file");
    let away = Away::Directory(Directory(dir.join("leases")));
    let place = Place { name: "file", url: dir.url(), job: job(), away };
    place.rounds(&dir, seconds());
}

/// With a server of its own, which stands still now and then.
#[test]
fn redis() {
    let dir = Dir::new("cron-rounds-redis");
    let Some(server) = Redis::start(&dir) else { return };
    let url = server.url();
    let place = Place { name: "redis", url, job: job(), away: Away::Server(server) };
    place.rounds(&dir, seconds());
}

/// The value of a variable that `scripts/servers` sets.
fn server(variable: &str) -> Option<String> {
    let value = std::env::var(variable).ok();
    if value.is_none() {
        eprintln!("skipped: {variable} is not set; run it by: scripts/servers run -- cargo test …");
    }
    value
}

fn on_server(name: &'static str, url: impl FnOnce(&Switch, &Dir) -> String) {
    let dir = Dir::new(&format!("cron-rounds-{name}"));
    let switch = Switch::default();
    let url = url(&switch, &dir);
    let place = Place { name, url, job: job(), away: Away::Network(switch) };
    place.rounds(&dir, seconds());
}

#[test]
fn etcd() {
    let Some(members) = server("TENURE_TEST_ETCD") else { return };
    on_server("etcd", |switch, _| format!("etcd://{}/tests/cron", switch.in_front_of(&members)));
}

#[test]
fn postgres() {
    let Some(url) = server("TENURE_TEST_POSTGRES") else { return };
    on_server("postgres", |switch, _| switch.in_front_of(&url));
}

#[test]
fn kubernetes() {
    let Some(user) = server("TENURE_TEST_KUBE_USER") else { return };
    on_server("kubernetes", |switch, dir| {
        let config = switch.in_front_of(&std::fs::read_to_string(user).unwrap());
        let path = dir.join("kubeconfig");
        std::fs::write(&path, config).unwrap();
        format!("k8s://tenure-test?kubeconfig={}", path.display())
    });
}
