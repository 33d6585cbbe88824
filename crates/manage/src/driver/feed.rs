//! The live stream: what happened, and which documents have changed.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Bytes;
use futures_core::Stream;
use serde::Serialize;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::{Looked, now};
use crate::board::Board;

/// Server-sent events, for as long as somebody reads them. Whoever is slow holds up nobody: what it
/// has not read yet is in the board's bounded past, and it is told what it missed.
pub(crate) struct Feed(mpsc::Receiver<Bytes>);

impl Stream for Feed {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|bytes| bytes.map(Ok))
    }
}

pub(crate) fn feed(
    board: Arc<Board>,
    looked: Looked,
    after: Option<u64>,
    place: OwnedSemaphorePermit,
) -> Feed {
    let (sender, receiver) = mpsc::channel(WAITING);
    tokio::spawn(async move {
        let _place = place;
        // Whoever hung up does not want the rest.
        let _ = run(&board, &looked, after, &sender).await;
    });
    Feed(receiver)
}

async fn run(
    board: &Board,
    looked: &Looked,
    mut after: Option<u64>,
    sender: &mpsc::Sender<Bytes>,
) -> Result<(), mpsc::error::SendError<Bytes>> {
    let (mut versions, mut last) = (board.versions(), board.last());
    let mut beats = interval(BEAT);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut next_change = Instant::now();
    let mut changed = true;
    loop {
        if changed && Instant::now() >= next_change {
            changed = false;
            next_change = Instant::now() + CHANGES;
            let versions = *versions.borrow_and_update();
            sender.send(event(None, "changed", &versions)).await?;
        }
        last.mark_unchanged();
        let (missed, entries) = board.after(after, BACKLOG);
        if missed > 0 {
            sender.send(event(None, "missed", &json!({"count": missed}))).await?;
        }
        for entry in &entries {
            sender.send(event(Some(entry.id), "timeline", entry)).await?;
            after = Some(entry.id);
        }
        after = after.or(Some(0));
        tokio::select! {
            () = sleep_until(next_change), if changed => {}
            it = versions.changed(), if !changed => changed = it.is_ok(),
            _ = last.changed() => {}
            _ = beats.tick() => {
                looked.now();
                sender.send(event(None, "beat", &json!({"time_ms": now().ms}))).await?;
            }
        }
    }
}

fn event(id: Option<u64>, name: &str, data: &impl Serialize) -> Bytes {
    let mut text = String::new();
    if let Some(id) = id {
        let _ = writeln!(text, "id: {id}");
    }
    // Our own types have string keys and no fallible parts; JSON has no line break in it.
    let data = serde_json::to_string(data).expect("an event is JSON");
    let _ = write!(text, "event: {name}\ndata: {data}\n\n");
    text.into()
}

/// How many events may be on their way to a reader.
const WAITING: usize = 64;
/// How much of the past is told at once.
const BACKLOG: usize = 500;
const BEAT: Duration = Duration::from_secs(2);
/// How often changed documents are told, at most.
const CHANGES: Duration = Duration::from_millis(200);
