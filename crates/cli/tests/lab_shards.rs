//! Nodes that host shards, in network namespaces: however they are split, one of them coordinates.
#![cfg(all(target_os = "linux", feature = "demo"))]
#![allow(clippy::disallowed_methods)]

mod common;
mod net;
mod nodes;

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::*;
use net::{Net, at};
use serde_json::Value;
use tenure_lease::Moment;

/// Five processes as those of the demonstration are, each in a place of its own. Its fields are dropped
/// in their order.
struct Lab {
    nodes: Vec<Option<Node>>,
    /// When somebody coordinated, from and to, and who.
    coordinated: Arc<Mutex<Vec<(Moment, Moment, usize)>>>,
    dir: Dir,
    net: Net,
}

struct Node {
    process: Process,
    seen: Arc<Mutex<Seen>>,
    /// It ends when this is closed.
    _orders: ChildStdin,
}

/// What a node has said of itself.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    up: bool,
    /// How many members all of them know to be in; none, while that is not so.
    agreed: usize,
    hosted: u64,
    /// Since when.
    coordinates: Option<Moment>,
}

impl Lab {
    fn new(name: &str) -> Self {
        let net = Net::new(name, NODES as u8);
        let dir = Dir::new(&format!("lab-{name}"));
        let names: Vec<String> = (1..=NODES).map(|number| format!("node-{number}")).collect();
        let certs = tenure()
            .current_dir(dir.path())
            .args(["certs", "new", "--cluster", "demo"])
            .args(&names)
            .output()
            .unwrap();
        assert!(certs.status.success(), "{certs:?}");
        let nodes = (0..=NODES).map(|_| None).collect();
        let mut lab = Self { nodes, coordinated: Arc::default(), dir, net };
        (1..=NODES).for_each(|number| lab.start(number));
        lab
    }

    fn start(&mut self, number: usize) {
        // The first is the client's, which there is none of here.
        let addresses: Vec<String> =
            [NODES + 1].into_iter().chain(1..=NODES).map(|n| at(n as u8)).collect();
        let log = self.dir.join(&format!("node-{number}.log"));
        let log = File::options().create(true).append(true).open(log).unwrap();
        let inside = self.net.inside(number);
        let mut command = Command::new(&inside[0]);
        command
            .args(&inside[1..])
            .arg(tenure().get_program())
            .args(["demo-process", "--directory", "."])
            .args(["--addresses", &addresses.join(","), "--number", &number.to_string()])
            .args(["--ttl", "3s", "--sharding=sessions"])
            .current_dir(self.dir.path())
            .env_remove("RUST_LOG")
            .env("TENURE_LEASE", self.dir.url())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log);
        let mut child = command.spawn().unwrap();
        let (orders, words) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let seen = Arc::<Mutex<Seen>>::default();
        let (said, coordinated) = (seen.clone(), self.coordinated.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(words).lines().map_while(Result::ok) {
                hear(number, &serde_json::from_str(&line).unwrap(), &said, &coordinated);
            }
        });
        self.nodes[number] = Some(Node { process: Process::of(child), seen, _orders: orders });
    }

    fn seen(&self, number: usize) -> Seen {
        self.nodes[number].as_ref().map_or(Seen::default(), |node| *node.seen.lock().unwrap())
    }

    /// Waits until all of these are up and agree on that (a split before that may be counted differently by
    /// its sides), host all shards between them, and one of them coordinates; who.
    fn served_by(&self, numbers: &[usize], within: Duration) -> usize {
        let what = format!("{numbers:?} to host all shards in {}", self.dir.path().display());
        until(&what, within, || {
            let seen: Vec<(usize, Seen)> = numbers.iter().map(|n| (*n, self.seen(*n))).collect();
            let all = seen.iter().all(|(_, seen)| seen.up && seen.agreed == numbers.len())
                && seen.iter().map(|(_, seen)| seen.hosted).sum::<u64>() == SHARDS;
            let mut active = seen.iter().filter(|(_, seen)| seen.coordinates.is_some());
            match (active.next(), active.next()) {
                (Some((number, _)), None) if all => Some(*number),
                _ => None,
            }
        })
    }

    /// Waits until it has ended, since it was declared down.
    fn put_out(&mut self, number: usize, within: Duration) {
        let node = self.nodes[number].take().expect("it was started");
        let Node { mut process, _orders, .. } = node;
        assert_eq!(code(process.end(within)), DECLARED_DOWN);
    }

    /// At no moment did two coordinate.
    fn one_at_a_time(&self) -> usize {
        let mut all = self.coordinated.lock().unwrap().clone();
        for number in 1..=NODES {
            if let Some(since) = self.seen(number).coordinates {
                all.push((since, Moment::now(), number));
            }
        }
        all.sort_by_key(|(from, ..)| *from);
        for pair in all.windows(2) {
            assert!(pair[0].1 <= pair[1].0, "two coordinated at once: {pair:?}");
        }
        all.len()
    }
}

fn hear(
    number: usize,
    said: &Value,
    seen: &Mutex<Seen>,
    coordinated: &Mutex<Vec<(Moment, Moment, usize)>>,
) {
    let mut seen = seen.lock().unwrap();
    if let Some(view) = said.get("view") {
        seen.up = view["up"] == true;
        let members = view["members"].as_array().unwrap().len();
        seen.agreed = if view["converged"] == true { members } else { 0 };
    }
    if let Some(shards) = said.get("shards") {
        seen.hosted = shards["hosted"].as_array().unwrap().len() as u64;
        let now = || Some(Moment::now());
        match shards["coordinates"].is_u64() {
            true => seen.coordinates = seen.coordinates.or_else(now),
            false => seen.coordinates = None,
        }
    }
    if let Some(span) = said.get("coordinated") {
        let moment = |which: &str| Moment::from_nanos(span[which].as_u64().unwrap());
        coordinated.lock().unwrap().push((moment("from"), moment("to"), number));
    }
}

/// Two against three: the coordinator is among the two, then among the three, and so on.
#[test]
#[ignore = "needs root and nft: scripts/lab test"]
fn of_two_sides_one_coordinates() {
    let mut lab = Lab::new("shards");
    let all: Vec<usize> = (1..=NODES).collect();
    let mut coordinator = lab.served_by(&all, SOON * 2);
    for round in 0..nodes::rounds(1) {
        let mut others: Vec<usize> = all.iter().copied().filter(|n| *n != coordinator).collect();
        let mut few = if round % 2 == 0 { vec![coordinator] } else { vec![others.remove(0)] };
        few.push(others.remove(0));
        let many: Vec<usize> = all.iter().copied().filter(|n| !few.contains(n)).collect();
        lab.net.cut(&list(&few), &list(&many));
        let start = Instant::now();
        for number in &few {
            lab.put_out(*number, SETTLED.saturating_sub(start.elapsed()));
        }
        let settled = start.elapsed();
        lab.served_by(&many, SETTLED.saturating_sub(start.elapsed()));
        let served = start.elapsed();
        let spans = lab.one_at_a_time();
        lab.net.heal();
        few.iter().for_each(|number| lab.start(*number));
        coordinator = lab.served_by(&all, SOON * 2);
        lab.one_at_a_time();
        println!(
            "{few:?}|{many:?}, round {round}: the few have ended after {settled:?}, the others \
             serve all shards after {served:?}; {spans} coordinators so far, one at a time"
        );
    }
}

fn list(numbers: &[usize]) -> String {
    numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

const NODES: usize = 5;
const SHARDS: u64 = 64;
/// As a node ends that was declared down.
const DECLARED_DOWN: i32 = 79;
/// To notice, to settle and to wait for a ttl takes less.
const SETTLED: Duration = Duration::from_secs(20);
