//! Entities that are remembered are back after every process was killed, on their new nodes, once.
#![cfg(feature = "sqlite")]
#![allow(clippy::disallowed_methods, reason = "real processes take real time")]

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tenure_cluster::messaging::Received;
use tenure_cluster::{Address, Cluster};
use tenure_lease::Token;
use tenure_sharding::{BoxError, Entity, Hosted, Shardings as _, SqliteRemember};

const ENTITIES: usize = 60;

/// Writes down that it is there.
struct Note {
    log: PathBuf,
    process: String,
}

impl Note {
    fn write(&self, what: &str, hosted: &Hosted) -> Result<(), BoxError> {
        let Token { term, step } = hosted.token();
        let line = format!("{} {what} {} {term} {step}\n", self.process, hosted.id());
        let mut log = OpenOptions::new().create(true).append(true).open(&self.log)?;
        Ok(log.write_all(line.as_bytes())?) // In one go: lines do not mix.
    }
}

impl Entity for Note {
    type Message = u64;

    async fn started(&mut self, hosted: &Hosted) -> Result<(), BoxError> {
        self.write("starts", hosted)
    }

    async fn receive(&mut self, _: Received<u64>, hosted: &Hosted) -> Result<(), BoxError> {
        self.write("receives", hosted)
    }
}

/// One of the processes: hosts entities until it is killed. The first one of all sends each a message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    let Ok(process) = std::env::var("TENURE_CHILD") else { return };
    let place = PathBuf::from(std::env::var("TENURE_PLACE").unwrap());
    let url = format!("file:{}", place.join("leases").display());
    let store = tenure_lease::open(&url).await.unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut settings = tenure_cluster::Settings::new("notes")
        .name(&process)
        .address(Address::new(&free.to_string()).unwrap())
        .formation(store.lease("notes.formation").ttl(Duration::from_secs(3)));
    settings.plaintext_without_any_protection = true;
    let cluster = Cluster::join(settings).await.unwrap();
    let ttl = Duration::from_secs(3);
    let session = store.lease(&format!("notes.{process}")).ttl(ttl).kept_session().unwrap();
    let remember = SqliteRemember::open(place.join("entities.db")).unwrap();
    let log = place.join("log");
    let made = process.clone();
    let kind = cluster.sharding("note").shards(24).lease(store.lease("notes.all").ttl(ttl));
    let notes = kind
        .session(&session)
        .remember_entities(remember)
        .start(move |_| Note { log: log.clone(), process: made.clone() })
        .unwrap();
    if process == "0-0" {
        for id in 0..ENTITIES {
            notes.entity(&format!("note-{id}")).tell(1).await.unwrap();
        }
    }
    std::future::pending().await
}

/// Killed with this.
struct Killed(Vec<Child>);

impl Killed {
    fn start(place: &Path, round: usize) -> Self {
        let child = |number| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "child", "--nocapture"])
                .env("TENURE_CHILD", format!("{round}-{number}"))
                .env("TENURE_PLACE", place)
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        };
        Self((0..3).map(child).collect())
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill(); // With SIGKILL.
            let _ = child.wait();
        }
    }
}

/// Where each entity was started in a round, and with which token; and how many messages there were.
fn read(place: &Path, round: usize) -> (BTreeMap<String, Vec<(String, Token)>>, usize) {
    let log = std::fs::read_to_string(place.join("log")).unwrap_or_default();
    let (mut starts, mut received) = (BTreeMap::<_, Vec<_>>::new(), 0);
    for line in log.lines() {
        let [process, what, id, term, step] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line:?}");
        };
        received += usize::from(what == "receives");
        if what == "starts" && process.starts_with(&format!("{round}-")) {
            let token = Token::new(term.parse().unwrap(), step.parse().unwrap());
            starts.entry(id.to_owned()).or_default().push((process.to_owned(), token));
        }
    }
    (starts, received)
}

#[test]
fn back_after_all_were_killed() {
    if std::env::var_os("TENURE_CHILD").is_some() {
        return;
    }
    let place = std::env::temp_dir().join(format!("tenure-remembered-{}", std::process::id()));
    std::fs::create_dir_all(&place).unwrap();
    let mut before = BTreeMap::new();
    for round in 0..3 {
        let children = Killed::start(&place, round);
        let began = Instant::now();
        while read(&place, round).0.len() < ENTITIES || read(&place, round).1 < ENTITIES {
            assert!(began.elapsed() < Duration::from_secs(60), "{:?}", read(&place, round));
            std::thread::sleep(Duration::from_millis(50));
        }
        let took = began.elapsed();
        // Long enough for what is there twice to show.
        std::thread::sleep(Duration::from_secs(1));
        drop(children);
        let (starts, received) = read(&place, round);
        assert_eq!(received, ENTITIES, "nobody sends them anything later");
        let mut nodes = BTreeMap::<_, usize>::new();
        for (id, places) in &starts {
            // A shard may move for balance: then it is there once more, with a higher token.
            let tokens: Vec<Token> = places.iter().map(|(_, token)| *token).collect();
            assert!(tokens.windows(2).all(|it| it[0] < it[1]), "{id}: {places:?}");
            let (node, token) = places.last().unwrap();
            *nodes.entry(node.clone()).or_default() += 1;
            assert!(before.insert(id.clone(), *token).is_none_or(|it| it < *token), "{id}");
        }
        println!("round {round}: {} entities after {took:?}, on {nodes:?}", starts.len());
    }
    std::fs::remove_dir_all(&place).unwrap();
}
