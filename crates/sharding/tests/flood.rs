//! A flood to an entity that is slow, and to a node that is stopped, with real processes that may not
//! have much memory: what is unbounded somewhere ends one of them. The other entities go on.
#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_methods, reason = "real processes take real time")]

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tenure_cluster::messaging::{Ask, Received};
use tenure_cluster::{Cluster, Settings};
use tenure_sharding::{BoxError, Entity, EntityRef, Hosted, Sharding, Shardings as _};
use tokio::time::{sleep, timeout};

/// All that a process may have of addresses, and so of memory.
const MEMORY_KIB: u64 = 320 << 10;
/// How many KiB are sent in all: three times that.
const FLOOD: u64 = 3 * MEMORY_KIB;
const MESSAGE: usize = 1 << 10;
const SHARDS: u32 = 16;
const HOSTS: usize = 2;
const SECOND: Duration = Duration::from_secs(1);

#[derive(Serialize, Deserialize)]
enum Message {
    Bytes(Vec<u8>),
    Where,
}

struct Where;

impl Ask for Where {
    type Reply = u32;
}

impl From<Where> for Message {
    fn from(_: Where) -> Self {
        Self::Where
    }
}

/// Takes what it is told; one that is called slow never gets through with the first.
struct Sink;

impl Entity for Sink {
    type Message = Message;

    async fn receive(
        &mut self,
        received: Received<Message>,
        hosted: &Hosted,
    ) -> Result<(), BoxError> {
        match received.message {
            Message::Bytes(_) if hosted.id() == "slow" => drop(hosted.stopping().await),
            Message::Bytes(_) => {}
            Message::Where => received.reply.answer::<Where>(std::process::id()).await?,
        }
        Ok(())
    }
}

#[test]
fn a_slow_entity_slows_only_those_who_send_to_it() {
    let mut all = Processes::start("slow");
    let told = all.sender.expect("told");
    println!("slow entity: {told}");
    all.are_well();
}

#[test]
fn a_stopped_node_stops_only_what_is_on_it() {
    let mut all = Processes::start("stopped");
    let pid: u32 = all.sender.expect("stop").parse().unwrap();
    let stopped = all.hosts.iter().find(|host| host.0.id() == pid).expect("it is a host");
    stopped.signal("-STOP");
    let told = all.sender.expect("told");
    println!("stopped node: {told}");
    stopped.signal("-CONT");
    all.sender.expect("served again");
    all.are_well();
}

/// Two that host, one that sends.
struct Processes {
    sender: Process,
    hosts: Vec<Process>,
}

impl Processes {
    fn start(what: &str) -> Self {
        let sockets = [(); HOSTS + 1].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let addresses = sockets.map(|socket| socket.local_addr().unwrap().to_string()).join(" ");
        let hosts = (0..HOSTS).map(|_| "host").zip(0..);
        let hosts = hosts.map(|(role, own)| Process::start(role, own, &addresses)).collect();
        Self { sender: Process::start(what, HOSTS, &addresses), hosts }
    }

    /// Nobody was ended by want of memory.
    fn are_well(&mut self) {
        for host in &mut self.hosts {
            assert!(host.0.try_wait().unwrap().is_none(), "a host has ended");
            println!("a host had {} KiB at most", memory_kib(host.0.id()));
        }
    }
}

/// This test program, in which the test `child` plays a role. Killed when it is dropped.
struct Process(Child, Option<BufReader<ChildStdout>>);

impl Process {
    fn start(role: &str, own: usize, addresses: &str) -> Self {
        // Threads would reserve more addresses than they use.
        let mut child = Command::new("sh")
            .arg("-c")
            .arg(format!("ulimit -v {MEMORY_KIB} && exec \"$0\" \"$@\""))
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"])
            .env("MALLOC_ARENA_MAX", "1")
            .env("TENURE_TEST_ROLE", format!("{role} {own} {addresses}"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = child.stdout.take().map(BufReader::new);
        Self(child, lines)
    }

    /// Its next line of this kind, without the words themselves.
    fn expect(&mut self, words: &str) -> String {
        let lines = self.1.as_mut().unwrap();
        loop {
            let mut line = String::new();
            assert_ne!(lines.read_line(&mut line).unwrap(), 0, "it ended before {words:?}");
            // The test harness writes to the same place, and not always whole lines.
            if let Some((_, rest)) = line.split_once(&format!("<{words}>")) {
                return rest.trim().to_owned();
            }
        }
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill").arg(signal).arg(self.0.id().to_string()).status();
        assert!(status.unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Not a test of its own: what the processes of the others run.
#[tokio::test]
#[ignore = "a part of other tests"]
async fn child() {
    let Ok(role) = std::env::var("TENURE_TEST_ROLE") else { return };
    let mut words = role.split(' ');
    let (role, own) = (words.next().unwrap(), words.next().unwrap().parse().unwrap());
    let addresses: Vec<&str> = words.collect();
    let cluster = Cluster::join(settings(&addresses, own)).await.unwrap();
    let kind = cluster.sharding("sink").shards(SHARDS).role("host");
    if role == "host" {
        let _sinks = kind.start(|_| Sink).unwrap();
        return std::future::pending().await;
    }
    let sinks = kind.proxy().unwrap();
    let homes = homes(&sinks).await;
    match role {
        "slow" => {
            let outcome = flood(&cluster, &sinks, &homes, &[sinks.entity("slow")]).await;
            println!("\n<told> {outcome}");
        }
        _ => {
            let (_, victim) = homes[0].clone();
            let (there, others): (Vec<_>, Vec<_>) =
                homes.into_iter().partition(|(_, host)| *host == victim);
            println!("\n<stop> {victim}");
            let targets: Vec<_> = there.iter().map(|(id, _)| sinks.entity(id)).collect();
            let outcome = flood(&cluster, &sinks, &others, &targets).await;
            println!("\n<told> {outcome}");
            for (id, _) in there {
                while sinks.entity(&id).ask(Where).within(SECOND).await.is_err() {}
            }
            println!("\n<served again>");
        }
    }
    std::future::pending().await
}

fn settings(addresses: &[&str], own: usize) -> Settings {
    let mut settings = Settings::new("shop").name("node").address(addresses[own].parse().unwrap());
    for seed in &addresses[..HOSTS] {
        settings = settings.discover(seed.parse().unwrap());
    }
    if own < HOSTS {
        settings = settings.role("host");
    }
    settings.plaintext_without_any_protection = true;
    settings.seed_patience = Duration::from_millis(200);
    settings.membership.heartbeat_interval = Duration::from_millis(200);
    settings.membership.acceptable_pause = SECOND;
    settings
}

/// Which process each of some entities is in, once shards are evened out: no more of them move.
async fn homes(sinks: &Sharding<Message>) -> Vec<(String, u32)> {
    let began = Instant::now();
    loop {
        let mut homes = Vec::new();
        for number in 0..2 * SHARDS {
            let id = format!("sink-{number}");
            if let Ok(host) = sinks.entity(&id).ask(Where).within(SECOND).await {
                homes.push((id, host));
            }
        }
        let shards = sinks.status().homes;
        let (all, half) = (2 * SHARDS as usize, SHARDS as usize / HOSTS);
        let is_even = |host| shards.iter().filter(|(_, other)| other == host).count() == half;
        if homes.len() == all && shards.iter().all(|(_, host)| is_even(host)) {
            return homes;
        }
        assert!(began.elapsed() < 40 * SECOND, "all have a home in half a minute: {homes:?}");
    }
}

/// What came of a flood.
#[derive(Default)]
struct Outcome {
    sent: AtomicU64,
    /// Its sender was told at once.
    refused: AtomicU64,
    /// Its sender had to wait for long.
    held_back: AtomicU64,
    /// Its sender was told later, by a dead letter.
    dead: AtomicU64,
}

/// Sends all of it to these, and asks the others all the while.
async fn flood(
    cluster: &Cluster,
    sinks: &Sharding<Message>,
    others: &[(String, u32)],
    targets: &[EntityRef<Message>],
) -> String {
    let outcome = Arc::new(Outcome::default());
    let senders: Vec<_> = (0..SENDERS)
        .map(|number| tokio::spawn(send(targets[number % targets.len()].clone(), outcome.clone())))
        .collect();
    let (told, mut letters) = (outcome.clone(), cluster.dead_letters());
    let counting = tokio::spawn(async move {
        while let Some(letter) = letters.next().await {
            told.dead.fetch_add(letter.count, SeqCst);
        }
    });
    let (mut asked, mut longest) = (0, Duration::ZERO);
    while !senders.iter().all(tokio::task::JoinHandle::is_finished) {
        for (id, _) in others {
            let began = Instant::now();
            let answer = sinks.entity(id).ask(Where).within(10 * SECOND).await;
            assert!(answer.is_ok(), "{id} goes on: {answer:?}");
            longest = longest.max(began.elapsed());
            asked += 1;
        }
        sleep(Duration::from_millis(5)).await;
    }
    counting.abort();
    let Outcome { sent, refused, held_back, dead } = &*outcome;
    let [sent, refused, held_back, dead] =
        [sent, refused, held_back, dead].map(|count| count.load(SeqCst));
    assert!(refused + held_back + dead > 0, "senders are told, or held back");
    let memory = memory_kib(std::process::id());
    format!(
        "{sent} KiB sent, {refused} refused, {held_back} held back, {dead} dead letters; {asked} \
         questions to others, the longest {longest:?}; {memory} KiB at most"
    )
}

/// One sender's part. It gives up when it is held back for good.
async fn send(target: EntityRef<Message>, outcome: Arc<Outcome>) {
    let mut in_vain = 0;
    for _ in 0..FLOOD / SENDERS as u64 {
        let message = Message::Bytes(vec![0; MESSAGE]);
        let count = match timeout(HELD_BACK, target.tell(message)).await {
            Ok(Ok(())) => &outcome.sent,
            Ok(Err(_)) => &outcome.refused,
            Err(_) => &outcome.held_back,
        };
        in_vain = if std::ptr::eq(count, &outcome.held_back) { in_vain + 1 } else { 0 };
        if in_vain == IN_VAIN {
            return;
        }
        if count.fetch_add(1, SeqCst) % 64 == 0 {
            tokio::task::yield_now().await; // One that never waits would keep others from their turn.
        }
    }
}

/// The most that a process had in memory.
fn memory_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

const SENDERS: usize = 8;
/// How long a sender waits for one message to be taken.
const HELD_BACK: Duration = Duration::from_millis(200);
const IN_VAIN: u32 = 20;
