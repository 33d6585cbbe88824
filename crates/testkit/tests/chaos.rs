//! Eight processes on one `file:` lease, killed, stopped and told to end at random.
//!
//! Each works under the lease and writes to a fenced SQLite table. All of them share one machine and
//! so one boot clock, which puts what they did in one order. `TENURE_CHAOS=60s` runs for a minute.
#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_methods)] // real processes, in real time

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rusqlite::Connection;
use tenure_lease::fence::{FenceError, SqliteFence};
use tenure_lease::{LeaseError, LeaseName, Moment, Tenure, Token};
use tenure_testkit::history::{Event, History};
use tenure_testkit::sim::Random;

const PROCESSES: usize = 8;
const TTL: Duration = Duration::from_secs(1);
const TABLE: &str = "CREATE TABLE IF NOT EXISTS writes (number INTEGER PRIMARY KEY, term INTEGER)";

#[test]
fn eight_processes_killed_and_stopped_never_work_at_once() {
    let time = std::env::var("TENURE_CHAOS").unwrap_or_else(|_| "15s".into());
    let time = Duration::from_secs(time.trim_end_matches('s').parse().expect("such as 60s"));
    let seed = u64::from(std::process::id());
    println!("seed {seed}, for {time:?}");
    let directory = std::env::temp_dir().join(format!("tenure-chaos-{seed}"));
    std::fs::create_dir_all(&directory).unwrap();
    let mut chaos = Chaos::new(directory, seed);
    let end = Moment::now() + time;
    while Moment::now() < end {
        chaos.strike();
    }
    let faults = (chaos.kills, chaos.stops, chaos.terms);
    let (history, refused) = chaos.finish();
    let violations = history.violations();
    let changes = history.tenures();
    println!(
        "(kills, stops, terminations) {faults:?}: {changes} tenures, {refused} writes refused"
    );
    assert!(violations.is_empty(), "{violations:#?}");
    // Half a change of holder in every second is little.
    let wanted = (time.as_secs() / 2) as usize;
    assert!(changes >= wanted, "only {changes} changes of holder, {wanted} expected");
}

struct Chaos {
    directory: PathBuf,
    random: Random,
    workers: Vec<Child>,
    /// What this process did to the others, in the order of the boot clock.
    deeds: Vec<(Moment, Event)>,
    killed: Vec<(Moment, u32)>,
    /// Who is stopped, and until when.
    stopped: Vec<(Moment, u32)>,
    kills: u32,
    stops: u32,
    terms: u32,
}

impl Chaos {
    fn new(directory: PathBuf, seed: u64) -> Self {
        let workers = (0..PROCESSES).map(|_| start(&directory)).collect();
        Self {
            directory,
            random: Random::new(seed),
            workers,
            deeds: Vec::new(),
            killed: Vec::new(),
            stopped: Vec::new(),
            kills: 0,
            stops: 0,
            terms: 0,
        }
    }

    /// Does something to somebody; mostly to whoever works now.
    fn strike(&mut self) {
        std::thread::sleep(self.random.up_to(Duration::from_millis(300)));
        let now = Moment::now();
        for (_, process) in self.stopped.extract_if(.., |(until, _)| *until <= now) {
            signal(process, "CONT");
        }
        let holder = self.holder();
        let index = match holder {
            Some(holder) if self.random.percent(70) => holder,
            _ => self.random.within(0..PROCESSES as u64) as usize,
        };
        let process = self.workers[index].id();
        if self.stopped.iter().any(|(_, stopped)| *stopped == process) {
            return;
        }
        match self.random.within(0..3) {
            0 => {
                // What it did until now, it did; a successor that began before is an overlap.
                self.killed.push((Moment::now(), process));
                self.workers[index].kill().unwrap();
                self.workers[index].wait().unwrap();
                self.kills += 1;
            }
            1 => {
                self.deeds.push((Moment::now(), Event::Impaired { process }));
                signal(process, "STOP");
                self.stopped.push((Moment::now() + TTL + self.random.up_to(TTL), process));
                self.stops += 1;
                return;
            }
            _ => {
                signal(process, "TERM");
                self.workers[index].wait().unwrap();
                self.terms += 1;
            }
        }
        self.workers[index] = start(&self.directory);
    }

    /// Who wrote the last line of the log.
    fn holder(&self) -> Option<usize> {
        let log = std::fs::read_to_string(self.directory.join("log")).ok()?;
        let process: u32 = log.lines().last()?.split(' ').nth(2)?.parse().ok()?;
        self.workers.iter().position(|worker| worker.id() == process)
    }

    fn finish(mut self) -> (History, usize) {
        for worker in &mut self.workers {
            self.killed.push((Moment::now(), worker.id()));
            worker.kill().unwrap();
            worker.wait().unwrap();
        }
        let log = std::fs::read_to_string(self.directory.join("log")).unwrap();
        let mut events = self.deeds;
        let mut open: Vec<(u32, Token)> = Vec::new();
        let lease = LeaseName::new("chaos").unwrap();
        let mut refused = 0;
        for line in log.lines() {
            let [at, what, process, token] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("a torn line: {line:?}");
            };
            let at = Moment::from_nanos(at.parse().unwrap());
            let (process, token): (u32, Token) = (process.parse().unwrap(), token.parse().unwrap());
            let lease = lease.clone();
            match what {
                "start" => {
                    open.push((process, token));
                    events.push((at, Event::Started { lease, token, process }));
                }
                "end" => {
                    open.retain(|entry| *entry != (process, token));
                    events.push((at, Event::Ended { lease, token, process }));
                }
                "refused" => refused += 1,
                other => panic!("{other:?} in the log"),
            }
        }
        // Who was killed at work ended there.
        for (process, token) in open {
            let (at, _) = self.killed.iter().find(|(_, killed)| *killed == process).unwrap();
            let lease = lease.clone();
            events.push((*at, Event::Ended { lease, token, process }));
        }
        events.sort_by_key(|(at, _)| *at);
        let mut history = History::default();
        for (at, event) in events {
            history.push(at, event);
        }
        // The table's own order is the order in which the writes were accepted.
        let end = Moment::now();
        let table = Connection::open(self.directory.join("table.db")).unwrap();
        let mut rows = table.prepare("SELECT term FROM writes ORDER BY number").unwrap();
        let terms = rows.query_map([], |row| row.get::<_, i64>(0)).unwrap();
        for term in terms {
            let token = Token::new(term.unwrap() as u64, 0);
            history.push(end, Event::Effect { resource: lease.clone(), token });
        }
        let _ = std::fs::remove_dir_all(&self.directory); // The table is still open.
        (history, refused)
    }
}

fn start(directory: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "worker", "--ignored", "--nocapture", "--quiet"])
        .env("TENURE_CHAOS_WORKER", directory)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

fn signal(process: u32, name: &str) {
    let status = Command::new("kill").args(["-s", name, &process.to_string()]).status().unwrap();
    assert!(status.success());
}

/// One of the eight; the test above starts it.
#[test]
#[ignore = "the test above starts it"]
fn worker() {
    let Some(directory) = std::env::var_os("TENURE_CHAOS_WORKER") else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(work(Path::new(&directory)));
}

async fn work(directory: &Path) {
    let url = format!("file:{}", directory.join("leases").display());
    let store = tenure_lease::open(&url).await.unwrap();
    let mut terminated =
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).unwrap();
    let lease = store.lease("chaos").ttl(TTL);
    let contend = async {
        loop {
            let worked = lease.run(async |tenure| {
                work_under(tenure, directory).await;
                Ok::<_, LeaseError>(())
            });
            worked.await.unwrap();
        }
    };
    tokio::select! {
        () = contend => {}
        _ = terminated.recv() => {}
    }
}

/// Writes until the lease is lost or the fence refuses.
async fn work_under(tenure: &Tenure, directory: &Path) {
    let token = tenure.token();
    let mut table = Connection::open(directory.join("table.db")).unwrap();
    table.busy_timeout(Duration::from_secs(5)).unwrap();
    let activity = Activity::start(directory, token);
    let mut fence = None;
    while tenure.is_held() {
        match write(&mut fence, token, &mut table) {
            Ok(()) => {}
            Err(FenceError::Refused { .. }) => {
                activity.say("refused");
                return;
            }
            // A stopped process may hold the database for longer than anybody waits.
            Err(FenceError::Sqlite(_)) => {}
            Err(error) => panic!("{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Logs the beginning of the work and, however it ends but by a kill, its end.
struct Activity {
    log: File,
    token: Token,
}

impl Activity {
    fn start(directory: &Path, token: Token) -> Self {
        let log = OpenOptions::new().create(true).append(true).open(directory.join("log"));
        let activity = Self { log: log.unwrap(), token };
        activity.say("start");
        activity
    }

    fn say(&self, what: &str) {
        let (now, process) = (Moment::now().as_nanos(), std::process::id());
        // One write, so that lines of different processes do not mix.
        let line = format!("{now} {what} {process} {}\n", self.token);
        (&self.log).write_all(line.as_bytes()).unwrap();
    }
}

impl Drop for Activity {
    fn drop(&mut self) {
        self.say("end");
    }
}

fn write(
    fence: &mut Option<SqliteFence>,
    token: Token,
    table: &mut Connection,
) -> Result<(), FenceError> {
    let raised = match fence {
        Some(fence) => fence,
        None => {
            table.execute_batch(TABLE)?;
            fence.insert(SqliteFence::raise_token(token, table, "writes")?)
        }
    };
    let transaction = raised.begin(table)?;
    transaction.execute("INSERT INTO writes (term) VALUES (?1)", [token.term as i64])?;
    transaction.commit()?;
    Ok(())
}
