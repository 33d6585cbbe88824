//! The account of messages: five processes, of which three host a singleton and entities and fail in every
//! way, while two tell and ask. What was told is handled, or its sender has a dead letter for it; what was
//! asked has an outcome, and that is true; nothing is handled twice; order holds.
//!
//! ```sh
//! TENURE_ACCOUNTED=2000000 cargo test --release -p tenure --all-features --test accounted -- --nocapture
//! ```
//!
//! With the number of messages to tell; 10,000 a second are.
#![cfg(all(target_os = "linux", feature = "sharding", feature = "singleton"))]
#![allow(clippy::disallowed_methods, reason = "real processes take real time")]

mod accounted_kit;
mod node_kit;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use accounted_kit::{HOSTS, Id, SENDERS, TILL, host, host_name, send, store_url};
use tenure::backend::Acquire;
use tenure::{Nonce, Owner};
use tokio::runtime::Runtime;

/// What a process of this test is to be.
const PROCESS: &str = "TENURE_TEST_PROCESS";

/// Not a test of its own: what the processes run.
#[test]
fn child_process() {
    let Ok(what) = std::env::var(PROCESS) else { return };
    let [role, dir, address, numbers @ ..] = &what.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{what}");
    };
    let number = |index: usize| numbers[index].parse::<u64>().unwrap();
    let (dir, index) = (Path::new(dir), number(0) as usize);
    let runtime = Runtime::new().unwrap();
    match *role {
        "host" => runtime.block_on(host(dir, address, index, number(1) as usize)),
        _ => runtime.block_on(send(dir, address, index, number(1), number(2))),
    }
    std::process::exit(0);
}

/// One of the five. Killed when it is dropped.
struct Process(Child);

impl Process {
    fn start(dir: &Path, role: &str, place: usize, numbers: &str) -> Self {
        let pid = std::process::id();
        let address = format!("127.{}.{}.{}:7400", 1 + (pid >> 8) % 254, pid & 0xff, place);
        let log = dir.join(format!("{role}-{place}.log"));
        let log = fs::OpenOptions::new().append(true).create(true).open(log).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["child_process", "--exact", "--nocapture"])
            .env(PROCESS, format!("{role} {} {address} {numbers}", dir.display()))
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        Self(child.unwrap())
    }

    fn host(dir: &Path, block: usize, host: usize, run: usize) -> Self {
        Self::start(dir, "host", block + host, &format!("{host} {run}"))
    }

    #[allow(unsafe_code)]
    fn signal(&self, signal: i32) {
        // SAFETY: takes two numbers; the process is a child of this one that was not waited for.
        unsafe { libc::kill(i32::try_from(self.0.id()).unwrap(), signal) };
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Three hosts, and what is done to them.
struct Hosts<'a> {
    dir: &'a Path,
    /// Where their addresses begin.
    block: usize,
    processes: Vec<Process>,
    runs: usize,
    /// How hosts are disturbed, besides by messages that fail.
    ways: &'static [&'static str],
    done: BTreeMap<&'static str, u32>,
}

impl Hosts<'_> {
    /// Disturbs one, in each way in turn.
    async fn disturb(&mut self, round: usize) {
        let host = round / self.ways.len() % HOSTS;
        let how = self.ways[round % self.ways.len()];
        match how {
            "kill -9" => self.restart(host),
            "SIGTERM" => {
                self.processes[host].signal(libc::SIGTERM);
                let process = &mut self.processes[host].0;
                until("a host that leaves", || process.try_wait().unwrap().is_some()).await;
                self.restart(host);
            }
            "singleton's lease taken" => self.take_lease(TILL).await,
            "session taken" => self.take_lease(&host_name(host)).await,
            _ => self.processes.iter().for_each(|process| process.signal(libc::SIGUSR1)),
        }
        *self.done.entry(how).or_default() += 1;
    }

    fn restart(&mut self, host: usize) {
        self.runs += 1;
        drop(self.processes.remove(host));
        self.processes.insert(host, Process::host(self.dir, self.block, host, self.runs));
    }

    /// As `tenure lease break` does.
    async fn take_lease(&self, name: &str) {
        let store = tenure::open(&store_url(self.dir)).await.unwrap();
        let Some(record) = store.inspect(name).await.unwrap() else { return };
        let request = Acquire {
            name: name.parse().unwrap(),
            claim: Nonce::random(),
            owner: Owner::named("operator"),
            ttl: Duration::from_secs(1),
            session: None,
            note: None,
            create: false,
            takeover: Some(record.version.clone()),
            expected: None,
            above: 0,
            unattended: true,
        };
        let _ = store.backend().acquire(request).await; // It may have moved on.
    }
}

/// What one sender wrote down.
#[derive(Default)]
struct Account {
    told: Vec<Id>,
    /// By outcome.
    asked: BTreeMap<String, Vec<Id>>,
    /// By reason.
    letters: BTreeMap<String, u64>,
}

impl Account {
    fn read(dir: &Path, sender: usize) -> Self {
        let mut account = Self::default();
        let text = fs::read_to_string(dir.join(format!("account-{sender}"))).unwrap();
        for line in text.lines() {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["told", id] => account.told.push(Id(id.parse().unwrap())),
                ["letter", why, count] => {
                    let letters = account.letters.entry(why.to_owned()).or_default();
                    *letters += count.parse::<u64>().unwrap();
                }
                [outcome, id] => {
                    let asked = account.asked.entry(outcome.to_owned()).or_default();
                    asked.push(Id(id.parse().unwrap()));
                }
                _ => panic!("{line}"),
            }
        }
        // Not letters: those who told were told so.
        account.letters.remove("NotDone");
        account
    }

    fn asked(&self, outcome: &str) -> &[Id] {
        self.asked.get(outcome).map_or(&[], |ids| ids)
    }
}

/// Everything that was handled, and when.
fn read_books(dir: &Path) -> Vec<(u64, Id)> {
    let mut handled = Vec::new();
    for file in fs::read_dir(dir).unwrap() {
        let file = file.unwrap();
        if file.file_name().to_string_lossy().starts_with("book-") {
            let bytes = fs::read(file.path()).unwrap();
            let numbers = bytes.as_chunks::<8>().0.as_chunks::<2>().0;
            handled.extend(
                numbers
                    .iter()
                    .map(|&[id, at]| (u64::from_le_bytes(at), Id(u64::from_le_bytes(id)))),
            );
        }
    }
    handled.sort();
    handled
}

fn handled_bytes(dir: &Path) -> u64 {
    let files = fs::read_dir(dir).unwrap().map(|file| file.unwrap());
    let books = files.filter(|file| file.file_name().to_string_lossy().starts_with("book-"));
    books.map(|book| book.metadata().unwrap().len()).sum()
}

/// Whether there are as many dead letters as messages that were not handled, with each sender.
fn is_balanced(dir: &Path, messages: u64) -> bool {
    let books = read_books(dir);
    (0..SENDERS).all(|sender| {
        let is_theirs = |id: &Id| id.sender() == sender && !id.is_asked();
        let handled = books.iter().filter(|(_, id)| is_theirs(id)).count() as u64;
        let letters = fs::read_to_string(dir.join(format!("letters-{sender}"))).unwrap_or_default();
        handled + letters.parse().unwrap_or(0) >= messages / SENDERS as u64
    })
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(120), "waited for {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn every_message_is_accounted_for() {
    let long = std::env::var("TENURE_ACCOUNTED").ok();
    let messages = long.as_ref().map_or(100_000, |text| text.parse().unwrap());
    let ways =
        ["kill -9", "singleton's lease taken", "SIGTERM", "session taken", "hand-over"].as_slice();
    let (_, unknown) = account(messages, 100, ways).await;
    assert!(unknown > 0, "nobody died with messages in its memory");
}

/// Where no process dies in the middle of something, it is certain of each message what became of it.
#[tokio::test]
async fn without_a_death_the_account_is_exact() {
    let ways = ["singleton's lease taken", "SIGTERM", "session taken", "hand-over"].as_slice();
    let (in_doubt, _) = account(50_000, 110, ways).await;
    assert_eq!(in_doubt, 0);
}

async fn account(messages: u64, block: usize, ways: &'static [&'static str]) -> (u64, u64) {
    let seconds = (messages / 10_000).max(1);
    let kept = tempfile::tempdir().unwrap();
    let dir = kept.path();
    let processes = (0..HOSTS).map(|host| Process::host(dir, block, host, 0)).collect();
    let mut hosts = Hosts { dir, block, processes, runs: 0, ways, done: BTreeMap::new() };
    let numbers = |sender| format!("{sender} {} {seconds}", messages / SENDERS as u64);
    let _senders: Vec<_> = (0..SENDERS)
        .map(|sender| Process::start(dir, "sender", block + HOSTS + sender, &numbers(sender)))
        .collect();
    until("the first messages", || handled_bytes(dir) > 0).await;
    let began = Instant::now();
    let all_sent = || (0..SENDERS).all(|sender| dir.join(format!("sent-{sender}")).exists());
    for round in 0.. {
        tokio::time::sleep(Duration::from_millis(1000 + 170 * (round as u64 % 4))).await;
        if all_sent() {
            break;
        }
        assert!(began.elapsed().as_secs() < 120 + 4 * seconds, "not all is sent");
        hosts.disturb(round).await;
    }
    // Until nothing is handled any more; and until whoever was killed is known to be gone, which takes as
    // long as it takes. If the books do not balance by then, they will not.
    let (mut handled, mut since) = (0, Instant::now());
    let began_waiting = Instant::now();
    until("the rest", || {
        let now = handled_bytes(dir);
        if now != std::mem::replace(&mut handled, now) {
            since = Instant::now();
        }
        let quiet = since.elapsed() > Duration::from_secs(6);
        quiet && (is_balanced(dir, messages) || began_waiting.elapsed() > Duration::from_secs(60))
    })
    .await;
    fs::write(dir.join("end"), "").unwrap();
    let accounts = || (0..SENDERS).all(|sender| dir.join(format!("account-{sender}")).exists());
    until("the accounts", accounts).await;
    println!("in {:.0?}, what was done to hosts: {:?}", began.elapsed(), hosts.done);
    judge(dir)
}

/// Checks all of it. How many messages were lost without a dead letter that is certain of it, and how many
/// dead letters say that it is unknown what became of a message.
fn judge(dir: &Path) -> (u64, u64) {
    let books = read_books(dir);
    let mut handled = HashSet::new();
    let mut last: HashMap<u64, Id> = HashMap::new();
    for &(_, id) in &books {
        assert!(handled.insert(id), "{id:?} was handled twice");
        if !id.is_asked() {
            let before = last.insert(id.way(), id);
            assert!(
                before.is_none_or(|before| before < id),
                "{before:?} was handled before {id:?}"
            );
        }
    }
    let (mut in_doubt, mut unknown_letters) = (0, 0);
    for sender in 0..SENDERS {
        let account = Account::read(dir, sender);
        let theirs = handled.iter().filter(|id| id.sender() == sender && !id.is_asked()).count();
        let lost = account.told.iter().filter(|id| !handled.contains(id)).count() as u64;
        let letters: u64 = account.letters.values().sum();
        let unknown = account.asked("unknown");
        let unknown_handled = unknown.iter().filter(|id| handled.contains(id)).count();
        println!(
            "sender {sender}: told {} = {theirs} handled + {lost} not; dead letters for {letters}: {:?}; \
             asked: {} answered, {} not done, {} unknown, of which {unknown_handled} were handled",
            account.told.len(),
            account.letters,
            account.asked("answered").len(),
            account.asked("not_done").len(),
            unknown.len(),
        );
        assert!(lost > 0, "nothing failed");
        assert!(lost <= letters, "{} were lost in silence", lost - letters.min(lost));
        let count = |why| account.letters.get(why).copied().unwrap_or_default();
        let certain = letters - count("Cut") - count("Unknown") - count("Missed");
        assert!(certain <= lost, "dead letters for what was handled");
        in_doubt += lost - certain;
        unknown_letters += count("Unknown");
        for id in account.asked("answered") {
            assert!(handled.contains(id), "{id:?} was answered and not handled");
        }
        for id in account.asked("not_done") {
            assert!(!handled.contains(id), "{id:?} was said not to be done, and was handled");
        }
    }
    (in_doubt, unknown_letters)
}
