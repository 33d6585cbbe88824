//! An outgoing control link.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tenure_lease::Moment;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::greet::{Greeted, dial};
use super::link::GOODBYE;
use super::socket::{self, Stream};
use super::stuck::{Progress, StuckLane};
use super::{Established, Failures, Flag, Shared, lock, random};
use crate::transport::backoff::Backoff;
use crate::transport::control_queue::ControlQueue;
use crate::transport::{Direction, Down, Event, Lane, TransportSettings, telemetry};
use crate::{Address, Incarnation};

#[derive(Debug)]
pub(super) struct ControlLink {
    address: Address,
    queue: Mutex<ControlQueue>,
    /// Somebody else claims to be at the address: the link is to be opened, to see who is there.
    unproven: AtomicBool,
    filled: Notify,
    stop: Flag,
    progress: Progress,
}

impl ControlLink {
    pub(super) fn new(address: Address, settings: &TransportSettings) -> Self {
        let queue = ControlQueue::new(settings.control_queue, settings.control_frame_max * 2);
        Self {
            address,
            queue: Mutex::new(queue),
            unproven: AtomicBool::new(false),
            filled: Notify::new(),
            stop: Flag::new(),
            progress: Progress::default(),
        }
    }

    /// Whether it could not be opened for this long.
    pub(super) fn stuck(&self, after: Duration) -> Option<StuckLane> {
        self.progress.stuck(after, &self.address, Lane::Control)
    }

    pub(super) fn push(&self, now: Moment, only_to: Option<Incarnation>, frame: Bytes) {
        let dropped = lock(&self.queue).push(now, only_to, frame);
        telemetry::control_dropped("full", dropped);
        self.filled.notify_one();
    }

    /// Opens the link although there is nothing to send, unless it is open.
    pub(super) fn ask_for_proof(&self) {
        self.unproven.store(true, Relaxed);
        self.filled.notify_one();
    }

    pub(super) fn stop(&self) {
        self.stop.raise();
    }

    /// Whether there is no reason to open it.
    pub(super) fn is_unwanted(&self) -> bool {
        lock(&self.queue).is_empty() && !self.unproven.load(Relaxed)
    }

    /// Waits until there is something to send that is not too old for it.
    async fn wanted(&self) {
        loop {
            {
                let mut queue = lock(&self.queue);
                telemetry::control_dropped("stale", queue.drop_stale(Moment::now()));
                if !queue.is_empty() || self.unproven.load(Relaxed) {
                    return;
                }
            }
            self.filled.notified().await;
        }
    }
}

/// Opens the link whenever there is something to send, until it is stopped, or until there has been
/// nothing to send for a while: then it is forgotten, since addresses that a peer only claims would
/// otherwise become more and more.
pub(super) async fn run(shared: Arc<Shared>, link: Arc<ControlLink>) {
    let (shared, link) = (&*shared, &link);
    let settings = &shared.settings;
    let mut backoff = Backoff::new(settings.reconnect_min, settings.reconnect_max);
    let mut failures = Failures::new(Lane::Control);
    loop {
        let dialed = link.stop.unless(async {
            timeout(UNUSED, link.wanted()).await.ok()?;
            let dialed = dial(shared, &link.address, Lane::Control).await;
            link.unproven.store(false, Relaxed);
            Some(dialed)
        });
        let dialed = match dialed.await {
            Some(Some(dialed)) => dialed,
            Some(None) if !shared.forget_unwanted(&link.address, link) => continue,
            Some(None) | None => return,
        };
        match dialed {
            Err(refusal) => {
                // Frames that wait too long are dropped, so that it is not always wanted.
                link.progress.begin();
                link.progress.opened(Some(refusal.clone()));
                failures.add(shared, &link.address, refusal).await;
            }
            Ok(Greeted { peer, .. }) if peer.node.address != link.address => {
                link.progress.end();
                let (dropped, expected) = lock(&link.queue).discard();
                telemetry::control_dropped("other_node", dropped);
                let (dialed, actual) = (link.address.clone(), peer.node.clone());
                shared.tell(Event::OtherNode { dialed, expected, actual }).await;
            }
            Ok(Greeted { mut stream, peer, shown }) => {
                failures.clear();
                link.progress.end();
                let (lane, direction) = (Lane::Control, Direction::Outgoing);
                let established = Established::new(shared, peer, shown, lane, direction).await;
                let since = Moment::now();
                let too_late = async {
                    link.stop.raised().await;
                    sleep(GOODBYE).await;
                };
                let why = tokio::select! {
                    why = serve(&established, link, &mut stream) => why,
                    () = too_late => Down::Closed,
                };
                let is_outdated = why == Down::Outdated;
                established.end(stream, why, 0).await;
                backoff.ended(since, Moment::now());
                if is_outdated {
                    continue; // At once: heartbeats go on.
                }
            }
        }
        if link.stop.unless(sleep(backoff.wait(random()))).await.is_none() {
            return;
        }
    }
}

/// Until the link ends. One that is stopped first sends what waits: the last words of a node that
/// goes, that others are to go with it for instance.
async fn serve(established: &Established<'_>, link: &ControlLink, stream: &mut Stream) -> Down {
    let (shared, peer) = (established.shared, &established.link.peer);
    let mut idle = Box::pin(sleep(shared.settings.idle_timeout));
    let mut outdated = std::pin::pin!(established.outdated());
    let mut used = false;
    let mut stopping = false;
    let mut nothing = [0];
    loop {
        let taken = lock(&link.queue).take(Moment::now(), peer.node.incarnation);
        telemetry::control_dropped("stale", taken.stale);
        telemetry::control_dropped("other_node", taken.misdirected);
        if taken.misdirected > 0 {
            let (dialed, actual) = (link.address.clone(), peer.node.clone());
            shared.tell(Event::OtherNode { dialed, expected: taken.expected, actual }).await;
        }
        if !taken.bytes.is_empty() {
            used = true;
            established.bytes.increment(taken.bytes.len() as u64);
            if let Err(error) = write(stream, &taken.bytes).await {
                return socket::cut(&error);
            }
            continue;
        }
        if stopping {
            return Down::Closed;
        }
        tokio::select! {
            () = link.stop.raised() => stopping = true,
            () = link.filled.notified() => link.unproven.store(false, Relaxed),
            why = &mut outdated => return why,
            read = stream.read(&mut nothing) => return match read {
                Ok(0) => Down::ByPeer,
                Ok(_) => Down::Cut("the peer sent something on a lane that is ours".into()),
                Err(error) => socket::cut(&error),
            },
            () = &mut idle => {
                if !std::mem::take(&mut used) {
                    return Down::Idle;
                }
                idle.as_mut().reset(tokio::time::Instant::now() + shared.settings.idle_timeout);
            }
        }
    }
}

async fn write(stream: &mut Stream, bytes: &[u8]) -> std::io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}

/// For how long a link that is not open stays, in case it is wanted again: what is known of failed
/// attempts goes with it.
const UNUSED: Duration = Duration::from_secs(10);
