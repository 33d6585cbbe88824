//! What processes that share a directory do to each other: killed, stopped, racing.
#![allow(clippy::disallowed_methods)]

mod file_support;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use file_support::{Process, Scratch, role};
use tenure_lease::backend::{Acquire, Acquired, Backend as _, Release, Released, Renew, Renewed};
use tenure_lease::{FileStore, LeaseName, Moment, Nonce, Owner, Settings, Store, Tenure};
use tokio::time::sleep;

const NAME: &str = "nightly";

/// Plays the role that another test gave this process.
#[tokio::test]
#[ignore = "started by the other tests, as a process of its own"]
async fn child() {
    let Some((role, directory)) = role() else { return };
    let files = FileStore::open(&directory).unwrap();
    let store = Store::new(files.clone());
    match role.split_once(' ').unwrap() {
        ("hold", millis) => {
            let ttl = Duration::from_millis(millis.parse().unwrap());
            let tenure = store.lease(NAME).ttl(ttl).acquire().await.unwrap();
            println!("<held>{}", tenure.token());
            let loss = tenure.lost().await;
            println!("<lost>{loss:?}");
            tenure.release().await;
            println!("<released>");
            std::future::pending::<()>().await;
        }
        ("supervise", program) => {
            let lease = store.lease(NAME).settings(campaign());
            let tenure = lease.acquire().await.unwrap();
            let lifeline = Stdio::from(files.lifeline(tenure.claim()).unwrap());
            let mut child =
                Command::new(program).arg("60").stdin(lifeline).stdout(Stdio::null()).spawn();
            println!("<child>{}", child.as_mut().unwrap().id());
            std::future::pending::<()>().await;
        }
        ("work", me) => work(&store, &directory, me).await,
        ("roam", me) => roam(&store, &directory, me).await,
        other => panic!("{other:?}"),
    }
}

/// Wins the lease again and again, and says from when to when it was at work.
async fn work(store: &Store, directory: &Path, me: &str) {
    let log = OpenOptions::new().create(true).append(true).open(directory.join("log"));
    let (mut log, pid) = (log.unwrap(), std::process::id());
    loop {
        let tenure = store.lease(NAME).settings(campaign()).owner(me).acquire().await.unwrap();
        // A line is one write: whoever is killed leaves a whole one or none.
        let mut say = |what: &str| {
            let (term, now) = (tenure.token().term, Moment::now().as_nanos());
            log.write_all(format!("{what} {term} {now} {pid}\n").as_bytes()).unwrap();
        };
        say("begin");
        sleep(Duration::from_micros(Nonce::random().bits() as u64 % 20_000)).await;
        say("end");
        tenure.release().await;
    }
}

/// Wins the lease again and again, by whatever way it becomes free, and writes notes.
async fn roam(store: &Store, directory: &Path, me: &str) {
    let mut log = OpenOptions::new().create(true).append(true).open(directory.join("log")).unwrap();
    loop {
        let lease = store.lease(NAME).ttl(Duration::from_millis(400)).owner(me);
        let tenure = lease.acquire().await.unwrap();
        // In one write, as above.
        log.write_all(format!("begin {}\n", tenure.token().term).as_bytes()).unwrap();
        // A loss here is one of the things that are being tested.
        let _ = tenure.write_note(tenure.token().to_string().into_bytes()).await;
        sleep(Duration::from_micros(Nonce::random().bits() as u64 % 20_000)).await;
        if Nonce::random().bits().is_multiple_of(2) {
            tenure.release().await;
        }
    }
}

/// So long that nobody is succeeded by time.
fn campaign() -> Settings {
    Settings::new(Duration::from_secs(60))
}

/// What takes longer than this was found out by looking again, not by being told.
fn by_polling() -> Duration {
    campaign().renew_interval / 2
}

fn store(scratch: &Scratch) -> Store {
    Store::new(FileStore::open(&scratch.path).unwrap())
}

/// What the workers have written so far; none if there is nothing yet.
fn log(scratch: &Scratch) -> Vec<String> {
    let text = std::fs::read_to_string(scratch.path.join("log")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Another contender of this process, with a view of the directory of its own.
fn waiting(scratch: &Scratch) -> impl Future<Output = Tenure> + use<> {
    let lease = store(scratch).lease(NAME).settings(campaign());
    async move { lease.acquire().await.unwrap() }
}

#[tokio::test]
async fn a_killed_holder_is_succeeded_at_once() {
    let scratch = Scratch::new();
    let mut took = Vec::new();
    for _ in 0..20 {
        let mut holder = Process::start("hold 60000", &scratch.path);
        let former = holder.expect("held");
        let waiting = tokio::spawn(waiting(&scratch));
        sleep(Duration::from_millis(30)).await;
        assert!(!waiting.is_finished());
        let killed = Moment::now();
        holder.kill();
        let tenure = waiting.await.unwrap();
        took.push(Moment::now().since(killed));
        assert!(tenure.token() > former.parse().unwrap());
        tenure.release().await;
    }
    took.sort();
    println!("from kill -9 to the successor: median {:?}, worst {:?}", took[10], took[19]);
    // What else the machine does can only add to it.
    assert!(took[0] < Duration::from_millis(100), "{took:?}");
    assert!(took[19] < by_polling(), "{took:?}");
}

#[tokio::test]
async fn a_released_lease_is_taken_at_once() {
    let scratch = Scratch::new();
    let mut took = Vec::new();
    for _ in 0..20 {
        let tenure = store(&scratch).lease(NAME).acquire().await.unwrap();
        let waiting = tokio::spawn(waiting(&scratch));
        sleep(Duration::from_millis(30)).await;
        let released = Moment::now();
        tenure.release().await;
        let tenure = waiting.await.unwrap();
        took.push(Moment::now().since(released));
        tenure.release().await;
    }
    took.sort();
    println!("from release to the successor: median {:?}, worst {:?}", took[10], took[19]);
    assert!(took[0] < Duration::from_millis(100), "{took:?}");
    assert!(took[19] < by_polling(), "{took:?}");
}

#[tokio::test]
async fn a_stopped_holder_is_succeeded_after_its_ttl_and_then_gives_way() {
    let (scratch, ttl) = (Scratch::new(), Duration::from_secs(3));
    let mut holder = Process::start(&format!("hold {}", ttl.as_millis()), &scratch.path);
    let former = holder.expect("held");
    sleep(Duration::from_millis(1400)).await;
    holder.signal("-STOP");
    let stopped = Moment::now();
    let tenure = store(&scratch).lease(NAME).acquire().await.unwrap();
    let waited = Moment::now().since(stopped);
    println!("from stop to the successor: {waited:?}, with a ttl of {ttl:?}");
    // Its last renewal was up to a third of the ttl before the stop.
    assert!(waited > ttl / 2 && waited < ttl + Duration::from_secs(3), "{waited:?}");
    assert!(tenure.token() > former.parse().unwrap());
    holder.signal("-CONT");
    println!("it wakes up: {}", holder.expect("lost"));
    holder.expect("released");
    sleep(Duration::from_millis(100)).await;
    assert!(tenure.is_held());
    let record = store(&scratch).inspect(NAME).await.unwrap().unwrap();
    assert!(record.is_of(tenure.claim()));
}

/// Workers that are killed at any moment, also in the middle of an operation: nobody overlaps, no
/// term comes twice or goes back, nobody has to wait for a ttl, and no litter is left.
#[tokio::test]
async fn killed_workers_leave_neither_a_second_holder_nor_a_stall() {
    let scratch = Scratch::new();
    let start = |number: usize| Process::start(&format!("work worker-{number}"), &scratch.path);
    let mut workers: Vec<_> = (0..4).map(start).collect();
    // By their process ids, until when they were surely alive.
    let mut killed = BTreeMap::new();
    while killed.len() < 100 {
        let random = Nonce::random().bits() as u64;
        sleep(Duration::from_micros(random % 60_000)).await;
        let victim = (random >> 32) as usize % workers.len();
        killed.insert(workers[victim].pid(), Moment::now());
        workers[victim].kill();
        workers[victim] = start(victim);
    }
    let patience = Moment::now() + by_polling() * 2;
    let goal = log(&scratch).len() + 100;
    while log(&scratch).len() < goal {
        assert!(Moment::now() < patience, "those who live do not go on");
        sleep(Duration::from_millis(10)).await;
    }
    killed.extend(workers.iter().map(|worker| (worker.pid(), Moment::now())));
    drop(workers);

    let log = log(&scratch);
    let mut worked: Vec<Worked> = Vec::new();
    for line in &log {
        let fields: Vec<&str> = line.split(' ').collect();
        let [what, term, at, pid] = fields[..] else { panic!("{line}") };
        let (term, at) = (term.parse().unwrap(), Moment::from_nanos(at.parse().unwrap()));
        match (what, worked.last_mut()) {
            ("begin", _) => {
                worked.push(Worked { term, begin: at, end: killed[&pid.parse().unwrap()] });
            }
            ("end", Some(last)) if last.term == term => last.end = at,
            _ => panic!("{line:?} after another one began: {log:#?}"),
        }
    }
    let pairs = || worked.iter().zip(worked.iter().skip(1));
    assert!(pairs().all(|(one, next)| one.term < next.term), "{log:#?}");
    assert!(pairs().all(|(one, next)| one.end <= next.begin), "{log:#?}");
    let pause = pairs().map(|(one, next)| next.begin.since(one.begin)).max().unwrap();
    println!("{} kills, {} tenures, longest pause {pause:?}", killed.len(), worked.len());
    assert!(pause < by_polling(), "somebody waited for a ttl: {pause:?}");

    let tenure = store(&scratch).lease(NAME).acquire().await.unwrap();
    let patience = Moment::now() + by_polling();
    while scratch.files().len() > 4 {
        let files = scratch.files();
        assert!(Moment::now() < patience, "head, record, alive and log: {files:?}");
        sleep(Duration::from_millis(10)).await;
    }
    tenure.release().await;
}

/// A tenure of a worker, which ended by itself or with the worker.
struct Worked {
    term: u64,
    begin: Moment,
    end: Moment,
}

/// Workers that are stopped at any moment for longer than the ttl, woken up again, or killed: no
/// token is given twice, the others go on, and the record stays sound.
#[tokio::test]
async fn stopped_workers_block_nobody_and_overwrite_nothing() {
    let scratch = Scratch::new();
    let start = |number: usize| Process::start(&format!("roam worker-{number}"), &scratch.path);
    let mut workers: Vec<_> = (0..4).map(start).collect();
    let mut stops = 0;
    while stops < 20 || log(&scratch).len() <= 50 {
        assert!(stops < 200, "nobody goes on");
        let random = Nonce::random().bits() as u64;
        let victim = (random >> 32) as usize % workers.len();
        workers[victim].signal("-STOP");
        stops += 1;
        sleep(Duration::from_millis(random % 800)).await;
        if random >> 20 & 3 == 0 {
            workers[victim] = start(victim);
        } else {
            workers[victim].signal("-CONT");
        }
    }
    drop(workers);
    let log = log(&scratch);
    let mut terms: Vec<u64> = log.iter().map(|line| line[6..].parse().unwrap()).collect();
    let count = terms.len();
    println!("{stops} stops, {count} tenures");
    terms.sort();
    terms.dedup();
    assert_eq!(terms.len(), count, "no token twice");
    let tenure = store(&scratch).lease(NAME).acquire().await.unwrap();
    assert!(tenure.token().term > *terms.last().unwrap());
    tenure.release().await;
}

/// A descriptor that a child inherited keeps the lease when its parent is killed.
#[tokio::test]
async fn a_lifeline_keeps_the_lease_until_its_last_holder_is_gone() {
    let scratch = Scratch::new();
    let mut supervisor = Process::start("supervise sleep", &scratch.path);
    let child = supervisor.expect("child");
    let waiting = tokio::spawn(waiting(&scratch));
    sleep(Duration::from_millis(50)).await;
    supervisor.kill();
    supervisor.reap();
    sleep(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished(), "what it supervised is still running");
    let killed = Moment::now();
    assert!(Command::new("kill").args(["-9", &child]).status().unwrap().success());
    waiting.await.unwrap().release().await;
    let took = Moment::now().since(killed);
    println!("from the death of a supervised program to the successor: {took:?}");
    assert!(took < by_polling(), "{took:?}");
}

#[tokio::test]
async fn an_operation_costs_little() {
    let scratch = Scratch::new();
    let store = FileStore::open(&scratch.path).unwrap();
    let name = LeaseName::new(NAME).unwrap();
    let ttl = Duration::from_secs(60);
    let mut times = [const { Vec::new() }; 5];
    for round in 0..100_u8 {
        let mut last = Moment::now();
        let mut lap = |index: usize| {
            times[index].push(Moment::now().since(last));
            last = Moment::now();
        };
        let (claim, nonces) = (Nonce::random(), [Nonce::random(), Nonce::random()]);
        let request = Acquire {
            name: name.clone(),
            claim,
            owner: Owner::this_process(),
            ttl,
            session: None,
            note: None,
            create: true,
            takeover: None,
            expected: None,
            above: 0,
            unattended: false,
        };
        let Ok(Acquired::Won { token, .. }) = store.acquire(request).await else { panic!() };
        lap(0);
        let renew = |known, nonce, note| Renew {
            name: name.clone(),
            claim,
            token,
            known: vec![known],
            nonce,
            ttl,
            note,
            fresh_connection: false,
        };
        assert_eq!(store.renew(renew(claim, nonces[0], None)).await, Ok(Renewed::Yes));
        lap(1);
        let note = Some(vec![round]);
        assert_eq!(store.renew(renew(nonces[0], nonces[1], note)).await, Ok(Renewed::Yes));
        lap(2);
        assert!(store.read(vec![name.clone()]).await.unwrap()[0].is_some());
        lap(3);
        let release = Release { name: name.clone(), claim, known: vec![nonces[1]] };
        assert_eq!(store.release(release).await, Ok(Released::Yes));
        lap(4);
    }
    for (what, times) in ["acquire", "renew", "note", "read", "release"].iter().zip(&mut times) {
        times.sort();
        println!("{what}: median {:?}, worst {:?}", times[50], times[99]);
    }
}

#[tokio::test]
async fn opening_says_what_is_wrong() {
    let error = tenure_lease::open("file:/proc/nowhere/leases").await.err().unwrap();
    assert!(error.to_string().contains("/proc/nowhere"), "{error}");
    let scratch = Scratch::new();
    File::create(scratch.path.join("file")).unwrap();
    let url = format!("file:{}/file", scratch.path.display());
    let error = tenure_lease::open(&url).await.err().unwrap();
    assert!(error.to_string().contains("not a directory"), "{error}");
    let url = format!("file://{}/leases", scratch.path.display());
    let store = tenure_lease::open(&url).await.unwrap();
    store.preflight(NAME).await.unwrap();
    let tenure = store.lease(NAME).try_acquire().await.unwrap();
    assert!(tenure.is_some());
    assert!(store.lease(NAME).try_acquire().await.unwrap().is_none());
}
