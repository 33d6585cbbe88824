//! A zombie's late write is refused, shown live.
//!
//! Two workers share one lease and one SQLite ledger. The first is stopped (SIGSTOP) in the middle
//! of its work, for longer than its lease lasts; the second takes over and writes; then the first
//! wakes up (SIGCONT) and goes on with what it was about to write.
//!
//! ```text
//! cargo run --example fenced_write --features sqlite
//! ```
#![allow(clippy::disallowed_methods)] // an example is its own driver

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rusqlite::Connection;
use tenure::fence::{FenceError, SqliteFence};

type Error = Box<dyn std::error::Error + Send + Sync>;

const TTL: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.as_slice() {
        [_, role, directory] if role == "worker" => worker(directory).await,
        _ => show(),
    }
}

/// Holds the lease and writes a line every 100 ms, until it is refused.
async fn worker(directory: &str) -> Result<(), Error> {
    let pid = std::process::id();
    let store = tenure::open(&format!("file:{directory}/leases")).await?;
    let tenure = store.lease("ledger").ttl(TTL).acquire().await?;
    let mut ledger = Connection::open(format!("{directory}/ledger.db"))?;
    ledger.execute_batch("CREATE TABLE IF NOT EXISTS ledger (line TEXT)")?;
    let fence = SqliteFence::raise(&tenure, &mut ledger, "ledger")?;
    println!("{pid} holds token {}", tenure.token());
    for number in 0.. {
        // On purpose no `tenure.is_held()` here: the fence alone must do.
        match fence.begin(&mut ledger) {
            Ok(work) => {
                work.execute("INSERT INTO ledger VALUES (?1)", [format!("{pid} {number}")])?;
                work.commit()?;
                println!("{pid} wrote line {number}");
            }
            Err(error @ FenceError::Refused { .. }) => {
                println!("{pid} was refused: {error}");
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

fn show() -> Result<(), Error> {
    let directory = std::env::temp_dir().join(format!("tenure-fenced-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let (mut first, mut first_lines) = start(&directory)?;
    wait_for(&mut first_lines, "wrote line 3")?;

    println!("--- SIGSTOP to {}: it stands still in the middle of its work", first.id());
    signal(&first, "STOP")?;
    let (mut second, mut second_lines) = start(&directory)?;
    wait_for(&mut second_lines, "wrote line 3")?;

    println!("--- SIGCONT to {}: it goes on, and knows nothing", first.id());
    signal(&first, "CONT")?;
    wait_for(&mut first_lines, "was refused")?;
    println!("--- the zombie's write was refused; the ledger belongs to {}", second.id());

    second.kill()?;
    for child in [&mut first, &mut second] {
        child.wait()?;
    }
    std::fs::remove_dir_all(&directory)?;
    Ok(())
}

type Lines = std::io::Lines<BufReader<std::process::ChildStdout>>;

fn start(directory: &std::path::Path) -> Result<(Child, Lines), Error> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg("worker")
        .arg(directory)
        .stdout(Stdio::piped())
        .spawn()?;
    let lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
    Ok((child, lines))
}

/// Passes a worker's lines on until one of them contains the text.
fn wait_for(lines: &mut Lines, text: &str) -> Result<(), Error> {
    for line in lines {
        let line = line?;
        println!("{line}");
        if line.contains(text) {
            return Ok(());
        }
    }
    Err(format!("the worker ended before it said {text:?}").into())
}

fn signal(child: &Child, name: &str) -> Result<(), Error> {
    let status =
        Command::new("kill").arg(format!("-{name}")).arg(child.id().to_string()).status()?;
    status.success().then_some(()).ok_or_else(|| format!("kill -{name} failed").into())
}
