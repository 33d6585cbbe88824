//! Numbered workers in five real processes that are killed, stopped, cut in two and restarted: each runs
//! at most once at any moment, with a token that rises, and is back soon.
//!
//! One round by default; `TENURE_ROUNDS=10 cargo test -p tenure-sharding --test daemon_processes --
//! --nocapture` plays ten, and checks times strictly.
#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_methods, reason = "real processes take real time")]

mod processes;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use processes::log::Log;
use processes::{LONG, NODES, Process, TTL, WORKERS, free_address};
use tenure_lease::Moment;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    processes::child().await;
}

struct Shop {
    place: PathBuf,
    addresses: Vec<String>,
    nodes: Vec<Process>,
    started: usize,
    log: Log,
    /// Those that SIGSTOP has stopped.
    stopped: BTreeSet<String>,
    figures: BTreeMap<&'static str, (Vec<Duration>, Vec<Duration>)>,
}

impl Shop {
    fn open() -> Self {
        let place = std::env::temp_dir().join(format!("tenure-daemons-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir_all(&place).unwrap();
        let log = Log::new(&place.join("log"));
        let addresses = (0..NODES).map(|_| free_address()).collect();
        let (stopped, figures) = (BTreeSet::new(), BTreeMap::new());
        let mut shop =
            Self { place, addresses, nodes: Vec::new(), started: 0, log, stopped, figures };
        for node in 0..NODES {
            let process = shop.start(node);
            shop.nodes.push(process);
        }
        shop.settle();
        shop
    }

    fn start(&mut self, node: usize) -> Process {
        self.started += 1;
        let name = format!("{node}-{}", self.started);
        Process::start(&self.place, &self.addresses[node], name)
    }

    fn restart(&mut self, node: usize) {
        self.nodes[node] = self.start(node);
    }

    fn until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        loop {
            self.log.read();
            if holds(self) {
                return;
            }
            let running = self.log.running();
            assert!(began.elapsed() < LONG, "waited for {what}: {running:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until all run, every node has its share, and all agree on who is a member: who has not
    /// heard of a newcomer would count the sides of a split differently.
    fn settle(&mut self) {
        self.until("all to run, spread", |shop| {
            let running = shop.log.running();
            let on = |name: &str| running.values().filter(|it| **it == name).count();
            let fair = WORKERS as usize / NODES - 1;
            let settled =
                |it: &Process| on(&it.name) >= fair && shop.log.members(&it.name) == NODES;
            running.len() == WORKERS as usize && shop.nodes.iter().all(settled)
        });
        self.log.check(&self.stopped);
    }

    /// Waits until all run on other nodes than those that something happened to, and notes how long
    /// that took.
    fn back(&mut self, what: &'static str, since: Moment, hit: &[usize]) {
        let hit: Vec<String> = hit.iter().map(|node| self.nodes[*node].name.clone()).collect();
        self.until("all to be back", |shop| {
            let running = shop.log.running();
            let elsewhere = |name: &&&str| !hit.iter().any(|it| it == **name);
            running.values().filter(elsewhere).count() == WORKERS as usize
        });
        self.log.check(&self.stopped);
        let moves = self.log.since(since);
        assert!(moves.gaps.len() >= hit.len() * 2, "{what}: some have moved: {moves:?}");
        // On a machine that is busy with other tests everything takes longer.
        let most = if rounds().1 { TTL + BACK } else { (TTL + BACK) * 3 };
        assert!(moves.back <= most, "{what}: {moves:?}");
        assert!(moves.gaps.iter().all(|gap| *gap <= most), "{what}: {moves:?}");
        let (gaps, backs) = self.figures.entry(what).or_default();
        gaps.extend(moves.gaps);
        backs.push(moves.back);
    }

    fn coordinator(&mut self) -> usize {
        let coordinator =
            |shop: &Self| shop.nodes.iter().position(|process| shop.log.coordinates(&process.name));
        self.until("one that coordinates", |shop| coordinator(shop).is_some());
        coordinator(self).unwrap()
    }

    /// One that does not coordinate.
    fn another(&mut self, number: usize) -> usize {
        (self.coordinator() + 1 + number % (NODES - 1)) % NODES
    }

    fn kill(&mut self, what: &'static str, node: usize) {
        let since = Moment::now();
        self.nodes[node].kill();
        self.back(what, since, &[node]);
        self.restart(node);
        self.settle();
    }

    /// SIGSTOP, until its session is over and its workers run elsewhere; then it goes on, and none of
    /// its workers does.
    fn pause(&mut self, node: usize) {
        self.stopped.insert(self.nodes[node].name.clone());
        let (since, began) = (Moment::now(), Instant::now());
        self.nodes[node].stop(true);
        self.back("stopped for longer than its ttl", since, &[node]);
        std::thread::sleep((TTL + Duration::from_millis(500)).saturating_sub(began.elapsed()));
        self.nodes[node].stop(false);
        self.nodes[node].end(); // Others have declared it down.
        self.until("its last words", |_| true);
        let late = self.log.late(&self.nodes[node].name);
        println!("stopped: {late} times one would have worked, had it not asked");
        self.restart(node);
        self.settle();
    }

    /// Two nodes on one side, three on the other; the smaller side ends.
    fn split(&mut self, smaller: [usize; 2]) {
        let (few, many): (Vec<_>, Vec<_>) = (0..NODES).partition(|node| smaller.contains(node));
        let addresses = |nodes: &[usize]| {
            let all: Vec<&str> = nodes.iter().map(|node| &*self.addresses[*node]).collect();
            all.join(" ")
        };
        let (from_few, from_many) = (addresses(&few), addresses(&many));
        let since = Moment::now();
        for (side, others) in [(&few, from_many), (&many, from_few)] {
            side.iter().for_each(|node| self.nodes[*node].order(&others));
        }
        self.back("cut, two and three", since, &few);
        for node in &few {
            self.nodes[*node].end();
        }
        many.iter().for_each(|node| self.nodes[*node].order(""));
        few.iter().for_each(|node| self.restart(*node));
        self.settle();
    }

    /// These leave, one after the other, and come back.
    fn roll(&mut self, nodes: impl Iterator<Item = usize>) {
        for node in nodes {
            let since = Moment::now();
            self.nodes[node].order("leave");
            assert!(self.nodes[node].end().success());
            self.back("leaves", since, &[node]);
            let since = Moment::now();
            self.restart(node);
            self.settle();
            let moves = self.log.since(since);
            let (gaps, backs) = self.figures.entry("joins again").or_default();
            gaps.extend(moves.gaps);
            backs.push(moves.back);
        }
    }

    fn close(mut self) {
        self.log.read();
        let runs = self.log.check(&self.stopped);
        println!("{runs} times a worker began; none ran twice at once");
        for (what, (gaps, backs)) in &mut self.figures {
            let (gap, back) = (figures(gaps), figures(backs));
            println!("{what}: {gap} of {} moves; all back after {back}", gaps.len());
        }
        drop(self.nodes);
        std::fs::remove_dir_all(&self.place).unwrap();
    }
}

fn figures(times: &mut [Duration]) -> String {
    times.sort();
    match times {
        [] => "none".into(),
        times => format!("p50 {:?}, max {:?}", times[times.len() / 2], times[times.len() - 1]),
    }
}

/// How many, and whether times are checked strictly.
fn rounds() -> (usize, bool) {
    match std::env::var("TENURE_ROUNDS") {
        Ok(count) => (count.parse().expect("TENURE_ROUNDS is a number"), true),
        Err(_) => (1, false),
    }
}

#[test]
fn at_most_one_of_each_and_back_soon() {
    if std::env::var_os("TENURE_CHILD").is_some() {
        return;
    }
    let mut shop = Shop::open();
    for round in 0..rounds().0 {
        let coordinator = shop.coordinator();
        shop.kill("kill -9 of the one that coordinates", coordinator);
        let another = shop.another(round);
        shop.kill("kill -9 of another", another);
        let (coordinator, another) = (shop.coordinator(), shop.another(round));
        shop.pause(if round % 2 == 0 { another } else { coordinator });
        let (coordinator, another) = (shop.coordinator(), shop.another(round));
        let third = shop.another(round + 1);
        shop.split([if round % 2 == 0 { coordinator } else { another }, third]);
        let first = shop.coordinator();
        shop.roll((0..NODES).map(|turn| (first + turn) % NODES));
    }
    shop.close();
}

/// On top of the ttl.
const BACK: Duration = Duration::from_secs(2);
