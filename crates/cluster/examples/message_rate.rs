//! How many typed messages a second one process sends to another over mutual TLS, and what each
//! costs the two of them: in the default form, with the names of fields, and in the positional one.
//!
//! ```sh
//! cargo run --release -p tenure-cluster --example message_rate -- 20000000
//! ```
#![allow(clippy::disallowed_methods, reason = "a measurement in real time")]

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tenure_cluster::certs::Authority;
use tenure_cluster::messaging::{Ask, Message, Positional};
use tenure_cluster::{Address, Cluster, Node, Settings};

/// Some 64 bytes of numbers.
#[derive(Serialize, Deserialize)]
struct Tick {
    number: u64,
    values: [f64; 7],
    kind: u32,
}

/// Some 64 bytes, most of them text.
#[derive(Serialize, Deserialize)]
struct Line {
    number: u64,
    text: String,
}

#[derive(Serialize, Deserialize)]
struct Ping;

impl Ask for Ping {
    type Reply = ();
}

type Error = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [mode, directory, own, other, count] = &arguments[..]
        && mode == "send"
    {
        let addresses = [other.parse()?, own.parse()?];
        return send(join(Path::new(directory), &addresses, 1).await?, count.parse()?).await;
    }
    let count = arguments.first().map_or(Ok(5_000_000), |text| text.parse())?;
    let directory = tempfile::TempDir::new()?;
    let authority = Authority::new("rate")?;
    for name in ["node-0", "node-1"] {
        authority.issue(name, &["127.0.0.1"])?.save(directory.path().join(name))?;
    }
    let sockets = [TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?];
    let addresses = [
        Address::new(&sockets[0].local_addr()?.to_string())?,
        Address::new(&sockets[1].local_addr()?.to_string())?,
    ];
    drop(sockets);
    let cluster = join(directory.path(), &addresses, 0).await?;
    let child = Command::new(std::env::current_exe()?)
        .arg("send")
        .arg(directory.path())
        .args([addresses[1].as_str(), addresses[0].as_str(), &count.to_string()])
        .spawn()?;
    let mut child = Killed(child);
    tokio::try_join!(
        receive(&cluster, "ticks", count, |tick: &Tick| tick.number),
        receive(&cluster, "lines", count, |line: &Line| line.number),
        receive(&cluster, "positional ticks", count, |tick: &Positional<Tick>| tick.0.number),
        receive(&cluster, "positional lines", count, |line: &Positional<Line>| line.0.number),
        answer(&cluster),
    )?;
    child.0.wait()?;
    Ok(())
}

async fn join(directory: &Path, addresses: &[Address; 2], own: usize) -> Result<Cluster, Error> {
    let name = format!("node-{own}");
    let mut settings = Settings::new("rate")
        .address(addresses[own].clone())
        .identity(directory.join(&name))
        .name(name);
    for address in addresses {
        settings = settings.discover(address.as_str().parse()?);
    }
    settings.seed_patience = Duration::from_millis(100);
    Ok(Cluster::join(settings).await?)
}

async fn receive<M: Message>(
    cluster: &Cluster,
    name: &str,
    count: u64,
    number: fn(&M) -> u64,
) -> Result<(), Error> {
    let mut receiver = cluster.receiver_with_room::<M>(name, 16_384)?;
    let mut batch = Vec::with_capacity(1024);
    let (mut next, mut began, mut cpu) = (0, Instant::now(), Duration::ZERO);
    while next < count {
        receiver.recv_many(&mut batch, 1024).await;
        if next == 0 {
            (began, cpu) = (Instant::now(), cpu_time());
        }
        for received in batch.drain(..) {
            assert_eq!(number(&received.message), next);
            next += 1;
        }
    }
    report(&format!("{name} received"), count, began.elapsed(), cpu_time() - cpu);
    Ok(())
}

async fn answer(cluster: &Cluster) -> Result<(), Error> {
    let mut receiver = cluster.receiver::<Ping>("pings")?;
    for _ in 0..ASKED {
        let received = receiver.recv().await.ok_or("out of the cluster")?;
        received.reply.answer::<Ping>(()).await?;
    }
    Ok(())
}

async fn send(cluster: Cluster, count: u64) -> Result<(), Error> {
    let me = cluster.me();
    let view = cluster.view();
    let to = view.members().map(|(node, _)| node).find(|node| **node != me).ok_or("nobody")?;
    let tick = |number| Tick { number, values: [0.1; 7], kind: 7 };
    let line = |number| Line {
        number,
        text: "a line of text that has about sixty bytes in it, for once".into(),
    };
    tell(&cluster, to, "ticks", count, tick).await?;
    tell(&cluster, to, "lines", count, line).await?;
    tell(&cluster, to, "positional ticks", count, |number| Positional(tick(number))).await?;
    tell(&cluster, to, "positional lines", count, |number| Positional(line(number))).await?;
    let pings = cluster.to::<Ping>(to, "pings");
    let mut times = Vec::new();
    for _ in 0..ASKED {
        let began = Instant::now();
        pings.ask(Ping).within(Duration::from_secs(10)).await?;
        times.push(began.elapsed());
    }
    times.sort();
    println!("ask: median {:?}, p99 {:?}", times[ASKED / 2], times[ASKED * 99 / 100]);
    cluster.leave().await;
    Ok(())
}

async fn tell<M: Message>(
    cluster: &Cluster,
    to: &Node,
    name: &str,
    count: u64,
    make: impl Fn(u64) -> M,
) -> Result<(), Error> {
    let mut out = Vec::new();
    make(count / 2).encode(&mut out)?;
    let sender = cluster.to::<M>(to, name);
    let (began, cpu) = (Instant::now(), cpu_time());
    for number in 0..count {
        sender.tell(make(number)).await?;
    }
    report(&format!("{name} ({} bytes) sent", out.len()), count, began.elapsed(), cpu_time() - cpu);
    Ok(())
}

fn report(what: &str, count: u64, time: Duration, cpu: Duration) {
    let rate = count as f64 / time.as_secs_f64() / 1e6;
    let each = cpu.as_nanos() / u128::from(count);
    println!("{what}: {rate:.2} M/s, {each} ns of processor time each");
}

/// Of this process, in all its threads.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|text| text.parse().ok()).unwrap_or(0u64);
    Duration::from_millis(10 * (ticks(11) + ticks(12)))
}

/// Killed when it is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const ASKED: usize = 10_000;
