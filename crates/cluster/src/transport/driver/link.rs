//! What links of all kinds have in common.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::sync::watch;
use tokio::time::timeout;

use super::Shared;
use super::outdated::Shown;
use super::socket::Stream;
use crate::Address;
use crate::transport::{Direction, Down, Event, Lane, Link, Peer, Refusal, telemetry};

/// A link that is up, for as long as it lives.
pub(super) struct Established<'a> {
    pub(super) shared: &'a Shared,
    pub(super) link: Link,
    pub(super) shown: Shown,
    pub(super) bytes: metrics::Counter,
}

impl<'a> Established<'a> {
    pub(super) async fn new(
        shared: &'a Shared,
        peer: Arc<Peer>,
        shown: Shown,
        lane: Lane,
        direction: Direction,
    ) -> Self {
        telemetry::up(lane, direction, 1.0);
        shared.remember_spoken(&peer);
        let bytes = telemetry::bytes(lane, direction);
        let link = Link { peer, lane, direction };
        let established = Self { shared, link, shown, bytes };
        tracing::debug!(link = ?established.link, "link up");
        shared.tell(Event::Up(established.link.clone())).await;
        established
    }

    pub(super) async fn end(self, mut stream: Stream, why: Down, unknown: u64) {
        let link = self.link.clone();
        if matches!(why, Down::Idle | Down::Replaced | Down::Outdated | Down::Closed) {
            let _ = timeout(GOODBYE, stream.shutdown()).await;
        }
        match &why {
            Down::Idle | Down::ByPeer | Down::Replaced | Down::Outdated | Down::Closed
                if unknown == 0 =>
            {
                tracing::debug!(?link, "link down: {why}");
            }
            _ => tracing::warn!(
                peer = %link.peer.node, name = link.peer.name, lane = link.lane.word(),
                direction = link.direction.word(), unknown, "link down: {why}"
            ),
        }
        self.shared.tell(Event::Down { link, why, unknown }).await;
    }
}

impl Drop for Established<'_> {
    fn drop(&mut self) {
        telemetry::up(self.link.lane, self.link.direction, -1.0);
    }
}

/// Tells of failed attempts to open a link: when they begin and when the reason changes.
pub(super) struct Failures {
    lane: Lane,
    last: Option<Refusal>,
}

impl Failures {
    pub(super) fn new(lane: Lane) -> Self {
        Self { lane, last: None }
    }

    pub(super) async fn add(&mut self, shared: &Shared, address: &Address, refusal: Refusal) {
        telemetry::failed(&refusal);
        if self.last.as_ref() == Some(&refusal) {
            return;
        }
        self.last = Some(refusal.clone());
        tracing::warn!(%address, lane = self.lane.word(), "cannot open a link: {refusal}");
        let address = address.clone();
        shared.tell(Event::Failed { address, lane: self.lane, refusal }).await;
    }

    pub(super) fn clear(&mut self) {
        self.last = None;
    }
}

/// Something that is asked to stop once, and waited for.
#[derive(Debug)]
pub(super) struct Flag(watch::Sender<bool>);

impl Flag {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(false))
    }

    pub(super) fn is_raised(&self) -> bool {
        *self.0.borrow()
    }

    pub(super) fn raise(&self) {
        self.0.send_replace(true);
    }

    pub(super) async fn raised(&self) {
        // The sender is in `self`, so it cannot be gone.
        let _ = self.0.subscribe().wait_for(|raised| *raised).await;
    }

    /// What comes of `future`, unless the flag is raised first.
    pub(super) async fn unless<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            output = future => Some(output),
            () = self.raised() => None,
        }
    }
}

/// A peer that does not take a goodbye is not waited for.
pub(super) const GOODBYE: Duration = Duration::from_millis(500);
