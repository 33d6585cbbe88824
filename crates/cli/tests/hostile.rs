//! Connections of strangers, by the thousand, at both ports of a node: they cost it neither its probes nor
//! its heartbeats.
//!
//! `TENURE_HOSTILE=10000` opens as many (as many files as that must be allowed).
#![cfg(all(target_os = "linux", feature = "cluster"))]
#![allow(clippy::disallowed_methods)]

mod common;
mod nodes;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::*;
use nodes::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

/// What a stranger does with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Nothing.
    Silent,
    /// Asks for a long document again and again, and reads nothing.
    Deaf,
    /// Sends a head, one byte at a time.
    Slow,
}

const KINDS: [Kind; 3] = [Kind::Silent, Kind::Deaf, Kind::Slow];

/// What the strangers have achieved.
#[derive(Default)]
struct Tally {
    open: AtomicUsize,
    opened: AtomicUsize,
    stop: AtomicBool,
}

#[test]
fn strangers_cost_neither_probes_nor_heartbeats() {
    let count = std::env::var("TENURE_HOSTILE").map_or(1000, |count| count.parse().unwrap());
    allow_files(count + 1000);
    let membership = "[membership]\nheartbeat_interval = \"200ms\"\nacceptable_pause = \"1s\"";
    let manage = "[manage]\nlisten = \"127.0.0.1:0\"\nwrite_token_file = \"write\"";
    let more = format!("{membership}\n{manage}");
    let mut nodes = Nodes::with_lease("hostile", loopback(170, 3), &more);
    std::fs::write(nodes.dir.join("write"), "a-secret-of-the-operators").unwrap();
    nodes.start_all();
    nodes.formed(3, SOON);
    let manage: SocketAddr = until("the log to say where it listens", SOON, || {
        let lines = nodes.dir.lines("n0.log");
        lines
            .iter()
            .find_map(|line| line.split("url=\"http://").nth(1)?.split('/').next()?.parse().ok())
    });
    let cluster: SocketAddr = nodes.addresses[0].parse().unwrap();
    let pid = nodes.process(0).pid();
    let before = resident_kib(pid);

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let tally = Arc::new(Tally::default());
    let (elsewhere, beside) = runtime.block_on(async {
        for index in 0..count {
            let to = if index % 2 == 0 { manage } else { cluster };
            tokio::spawn(stranger(index, to, tally.clone()));
        }
        sleep(Duration::from_secs(2)).await;
        // From an address of its own, as a kubelet's; and from one that strangers use as well.
        let elsewhere = probe(manage, Ipv4Addr::new(127, 201, 0, 1)).await;
        let beside = probe(manage, source(0)).await;
        (elsewhere, beside)
    });
    let (open, opened) = (tally.open.load(Ordering::Relaxed), tally.opened.load(Ordering::Relaxed));
    let (after, files) =
        (resident_kib(pid), std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count());
    let lost: usize = (0..3).map(|node| nodes.logged(node, "is unreachable")).sum();
    println!(
        "{count} strangers, {open} connected at the end, {opened} connections in all; /alive answered \
         {} of {PROBES} from elsewhere, slowest {:?}, {} of {PROBES} from beside, slowest {:?}; \
         memory {before} KiB before, {after} KiB after, {files} files open; {lost} members lost",
        elsewhere.answered, elsewhere.slowest, beside.answered, beside.slowest,
    );
    tally.stop.store(true, Ordering::Relaxed);
    runtime.shutdown_background();
    assert_eq!(elsewhere.answered, PROBES);
    // Who shares an address with a crowd may be crowded out, but not for long: Kubernetes gives up after
    // three failures in a row, the manifest after six.
    assert!(beside.failed_in_a_row <= 2, "{} in a row", beside.failed_in_a_row);
    for slowest in [elsewhere.slowest, beside.slowest] {
        assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    }
    assert_eq!(lost, 0, "a member missed heartbeats for a second");
    assert!(after < before + 64 * 1024, "{before} KiB before, {after} KiB after");
    nodes.formed(3, SOON);
}

/// Connects, and again whenever it is hung up on.
async fn stranger(index: usize, to: SocketAddr, tally: Arc<Tally>) {
    let kind = KINDS[index / 2 % KINDS.len()];
    while !tally.stop.load(Ordering::Relaxed) {
        if let Ok(stream) = connect(source(index), to).await {
            tally.open.fetch_add(1, Ordering::Relaxed);
            tally.opened.fetch_add(1, Ordering::Relaxed);
            annoy(stream, kind).await;
            tally.open.fetch_sub(1, Ordering::Relaxed);
        }
        sleep(Duration::from_millis(200)).await;
    }
}

/// Returns when it is hung up on.
async fn annoy(mut stream: TcpStream, kind: Kind) {
    let ask = b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    match kind {
        Kind::Silent => {
            let _ = stream.read(&mut [0]).await;
        }
        Kind::Deaf => while stream.write_all(&ask.repeat(100)).await.is_ok() {},
        Kind::Slow => {
            for byte in ask.iter().cycle() {
                let said = timeout(Duration::from_millis(500), stream.read(&mut [0])).await;
                if said.is_ok() || stream.write_all(&[*byte]).await.is_err() {
                    break;
                }
            }
        }
    }
}

struct Probed {
    answered: usize,
    failed_in_a_row: usize,
    slowest: Duration,
}

/// Asks whether it is alive, as a probe does: on a connection of its own each time.
async fn probe(to: SocketAddr, from: Ipv4Addr) -> Probed {
    let mut probed = Probed { answered: 0, failed_in_a_row: 0, slowest: Duration::ZERO };
    let mut failed = 0;
    for _ in 0..PROBES {
        let began = Instant::now();
        let asked = timeout(Duration::from_secs(5), async {
            let mut stream = connect(from, to).await.ok()?;
            stream
                .write_all(b"GET /alive HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n")
                .await
                .ok()?;
            let mut text = String::new();
            stream.read_to_string(&mut text).await.ok()?;
            text.starts_with("HTTP/1.1 200").then_some(())
        });
        let answered = asked.await == Ok(Some(()));
        probed.answered += usize::from(answered);
        failed = if answered { 0 } else { failed + 1 };
        probed.failed_in_a_row = probed.failed_in_a_row.max(failed);
        probed.slowest = probed.slowest.max(began.elapsed());
        sleep(Duration::from_millis(100)).await;
    }
    probed
}

async fn connect(from: Ipv4Addr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.set_recv_buffer_size(4096)?;
    socket.bind((from, 0).into())?;
    socket.connect(to).await
}

/// One of fifty addresses that strangers come from.
fn source(index: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 200, 0, 1 + u8::try_from(index / 2 % 50).unwrap())
}

#[allow(unsafe_code)]
fn allow_files(count: usize) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls only read and write `limit`.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = limit.rlim_cur.max(count as u64).min(limit.rlim_max);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
    assert!(limit.rlim_cur >= count as u64, "{count} files are needed: ulimit -n");
}

fn resident_kib(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().split(' ').next().unwrap().parse().unwrap()
}

const PROBES: usize = 40;
