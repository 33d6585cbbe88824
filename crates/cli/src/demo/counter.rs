//! The counters: entities by key, each of which appends what it is told to the book of its shard.
#![allow(clippy::disallowed_methods, reason = "processes of a demonstration run in real time")]

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_cluster::Cluster;
use tenure_cluster::messaging::{Ask, Received};
use tenure_lease::fence::FenceError;
use tenure_lease::{Store, Token};
use tenure_sharding::{BoxError, Entity, Hosted, Sharding, Shardings as _, StopReason};
use tokio::time::sleep;

use super::book::{Book, Books, Written};
use super::ledger::is_busy;
use super::node::{Args, lease};
use super::wire::{Report, now, say};
use super::{COORDINATOR, COUNTERS, Setup, WORKER, name};

/// How many shards there are.
pub(super) const SHARDS: u32 = 64;
/// How many counters: every shard has some.
pub(super) const KEYS: u32 = 300;

/// What a counter is asked: to write, with the number that comes next. The answer comes when that is
/// committed, or was before.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Write {
    pub(super) number: u64,
}

impl Ask for Write {
    type Reply = ();
}

/// What a counter is called.
pub(super) fn id(key: u32) -> String {
    format!("counter-{key}")
}

/// Hosts counters on this node.
pub(super) fn host(
    args: &Args,
    setup: Setup,
    store: &Store,
    cluster: &Cluster,
) -> Result<Sharding<Write>, BoxError> {
    let mut kind = cluster.sharding(COUNTERS).shards(SHARDS).role(WORKER).lease(lease(
        args,
        store,
        COORDINATOR,
    ));
    if setup == Setup::Sessions {
        let own = format!("{COUNTERS}.{}", name(args.number));
        kind = kind.session(&lease(args, store, &own).kept_session()?);
    }
    let books = Books::new(&args.directory, args.number);
    let make = move |id: &str| Counter { key: key(id), books: books.clone(), open: None };
    Ok(kind.start(make)?)
}

/// The number in what a counter is called.
fn key(id: &str) -> u32 {
    id.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or(u32::MAX)
}

/// Tells what is here, and whether this node coordinates, whenever that changes.
pub(super) async fn tell(counters: Sharding<Write>) {
    let mut last = None;
    let mut coordinates: Option<(u64, u64)> = None;
    loop {
        let status = counters.status();
        let term = status.coordinator.as_ref().map_or(0, |(_, term)| *term);
        let report = Report::Shards {
            hosted: status.hosted,
            entities: status.entities,
            waiting: status.waiting,
            coordinates: status.coordinates.then_some(term),
        };
        if last.as_ref() != Some(&report) {
            say(&report);
            last = Some(report);
        }
        match (status.coordinates, &mut coordinates) {
            (true, Some((_, to))) => *to = now(),
            (true, none) => *none = Some((now(), now())),
            (false, some) => {
                if let Some((from, to)) = some.take() {
                    say(&Report::Coordinated { from, to });
                }
            }
        }
        sleep(LOOK).await;
    }
}

/// Waits until nothing is hosted here any more, for a while.
pub(super) async fn have_ended(counters: &Sharding<Write>, within: Duration) {
    let ended = async {
        while !counters.status().hosted.is_empty() {
            sleep(LOOK).await;
        }
    };
    let _ = tokio::time::timeout(within, ended).await;
}

struct Counter {
    key: u32,
    books: Books,
    open: Option<(Book, Activity)>,
}

impl Entity for Counter {
    type Message = Write;

    async fn started(&mut self, hosted: &Hosted) -> Result<(), BoxError> {
        let activity = Activity::begin(self.key, hosted.token());
        let book = patiently(hosted, || self.books.open(hosted.shard(), hosted.token(), self.key));
        self.open = Some((book.await?, activity));
        Ok(())
    }

    async fn receive(
        &mut self,
        received: Received<Write>,
        hosted: &Hosted,
    ) -> Result<(), BoxError> {
        let Some((book, _)) = &self.open else { return Ok(()) };
        let number = received.message.number;
        match patiently(hosted, || book.write(number)).await? {
            // Who does not hear of it asks again.
            Written::Done => drop(received.reply.answer::<Write>(()).await),
            Written::TooEarly => {
                say(&Report::Trouble(format!("{} came too early at {}", number, hosted.id())));
            }
        }
        Ok(())
    }

    /// It writes once more if its session is lost, as a program does that does not look.
    async fn stopped(&mut self, reason: StopReason) {
        if let (StopReason::SessionLost(_), Some((book, _))) = (reason, &self.open) {
            let _ = book.write_without_looking().inspect_err(refused);
        }
    }
}

/// Tries again while somebody else is just writing, which only a host can be that was stopped.
async fn patiently<T>(
    hosted: &Hosted,
    mut act: impl FnMut() -> Result<T, FenceError>,
) -> Result<T, FenceError> {
    loop {
        match act() {
            Err(error) if is_busy(&error) && hosted.is_held() => sleep(AGAIN).await,
            result => return result.inspect_err(refused),
        }
    }
}

fn refused(error: &FenceError) {
    if let FenceError::Refused { .. } = error {
        say(&Report::WriteRefused);
    }
}

/// Says that a counter is at work, until after the last thing that it does.
struct Activity {
    key: u32,
    token: Token,
}

impl Activity {
    fn begin(key: u32, token: Token) -> Self {
        say(&Report::Began { key, token, at: now() });
        Self { key, token }
    }
}

impl Drop for Activity {
    fn drop(&mut self) {
        let Self { key, token } = *self;
        say(&Report::Ended { key, token, at: now() });
    }
}

/// How often to look at the status.
const LOOK: Duration = Duration::from_millis(20);
const AGAIN: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_shard_has_a_counter() {
        let shards: BTreeSet<u32> =
            (0..KEYS).map(|key| tenure_sharding::shard_of(&id(key), SHARDS).0).collect();
        assert_eq!(shards.len(), SHARDS as usize);
        assert_eq!(key(&id(17)), 17);
    }
}
