//! An outgoing data link.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::BytesMut;
use tenure_lease::Moment;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

use super::greet::{Greeted, dial};
use super::socket::{self, Stream};
use super::stuck::{Progress, StuckLane};
use super::{Established, Failures, Flag, Shared, random};
use crate::Node;
use crate::transport::account::ReceiverAccount;
use crate::transport::backoff::Backoff;
use crate::transport::outbox::{Outbox, Segment};
use crate::transport::{
    Closed, Direction, Down, Event, Lane, SendError, TransportSettings, frame, telemetry,
};

/// The way for messages to one process. Cheap to clone; all clones share one bounded buffer.
///
/// Messages arrive in the order in which they were sent, or not at all: when the link is cut, some
/// may be missing, and [`Event::Down`] says how many are in doubt.
#[derive(Clone, Debug)]
pub struct DataLane(Arc<DataLink>);

impl DataLane {
    pub(super) fn new(link: Arc<DataLink>) -> Self {
        Self(link)
    }

    /// For whom it is.
    pub fn node(&self) -> &Node {
        &self.0.node
    }

    /// Whether it takes no more messages, for good.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.0.outbox.is_closed()
    }

    /// Sends the message that `encode` appends to an empty frame, after waiting for room if need
    /// be; who waits longest goes first. Dropping the future before it is done means that nothing
    /// was sent.
    pub async fn send_with(&self, encode: impl FnOnce(&mut Vec<u8>)) -> Result<(), SendError> {
        self.0.outbox.append(encode).await
    }

    /// Sends the message that `encode` appends if there is room for it now.
    #[inline]
    pub fn try_send_with(&self, encode: impl FnOnce(&mut Vec<u8>)) -> Result<(), SendError> {
        self.0.outbox.try_append(encode)
    }

    /// So many messages that were sent came back, or were refused: what becomes of them is known.
    pub(crate) fn take_back(&self, count: u64) {
        self.0.account.take_back(count);
    }
}

#[derive(Debug)]
pub(super) struct DataLink {
    node: Node,
    outbox: Outbox,
    stop: Flag,
    ended: Flag,
    progress: Progress,
    account: ReceiverAccount,
}

impl DataLink {
    pub(super) fn new(node: Node, settings: &TransportSettings) -> Self {
        let outbox = Outbox::new(settings.data_buffer, settings.data_frame_max);
        let (stop, ended, progress) = (Flag::new(), Flag::new(), Progress::default());
        Self { node, outbox, stop, ended, progress, account: ReceiverAccount::default() }
    }

    /// Whether messages have waited for this long without any of them arriving.
    pub(super) fn stuck(&self, after: Duration) -> Option<StuckLane> {
        self.progress.stuck(after, &self.node.address, Lane::Data)
    }

    /// Takes no more messages.
    pub(super) fn close(&self, why: Closed) {
        self.outbox.close(why);
    }

    /// Ends the link at once, whatever still waits.
    pub(super) fn stop(&self) {
        self.stop.raise();
    }

    /// Whether it is closed because the process at the other end is gone for good.
    fn is_process_gone(&self) -> bool {
        let why = self.outbox.closed();
        why.is_some_and(|why| matches!(*why, Closed::Forgotten | Closed::OtherIncarnation(_)))
    }

    /// The transport was closed before the link's task could start.
    pub(super) fn never_ran(&self) {
        self.close(Closed::Transport);
        self.ended.raise();
    }

    /// Waits until the link's task has ended.
    pub(super) async fn ended(&self) {
        self.ended.raised().await;
    }
}

/// Opens the link whenever there is something to send, until it is closed.
pub(super) async fn run(shared: Arc<Shared>, link: Arc<DataLink>) {
    let _ended = Ended(&link);
    keep_open(&shared, &link).await;
    let messages = link.outbox.discard();
    if messages > 0 {
        telemetry::lost(0, messages);
        tracing::warn!(node = %link.node, messages, "messages were never sent");
        shared.tell(Event::Unsent { node: link.node.clone(), messages }).await;
    }
    let messages = link.account.unsettled();
    if messages > 0 && link.is_process_gone() {
        telemetry::unsettled(messages);
        tracing::warn!(node = %link.node, messages, "messages were in the memory of a node that is gone");
        shared.tell(Event::Unsettled { node: link.node.clone(), messages }).await;
    }
}

struct Ended<'a>(&'a DataLink);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.ended.raise();
    }
}

async fn keep_open(shared: &Shared, link: &DataLink) {
    let settings = &shared.settings;
    let mut backoff = Backoff::new(settings.reconnect_min, settings.reconnect_max);
    let mut failures = Failures::new(Lane::Data);
    loop {
        let dialed = link.stop.unless(async {
            match wanted(link).await {
                true => Some(dial(shared, &link.node.address, Lane::Data).await),
                false => None,
            }
        });
        let Some(dialed) = dialed.await.flatten() else {
            return;
        };
        match dialed {
            Err(refusal) => {
                link.progress.opened(Some(refusal.clone()));
                failures.add(shared, &link.node.address, refusal).await;
            }
            Ok(Greeted { peer, .. }) if peer.node != link.node => {
                let Node { address, incarnation } = link.node.clone();
                let (dialed, expected) = (address.clone(), Some(incarnation));
                let actual = peer.node.clone();
                shared.tell(Event::OtherNode { dialed, expected, actual }).await;
                if peer.node.address == address {
                    link.close(Closed::OtherIncarnation(peer.node.clone()));
                    return;
                }
            }
            Ok(Greeted { mut stream, peer, shown }) => {
                failures.clear();
                link.progress.opened(None);
                let (lane, direction) = (Lane::Data, Direction::Outgoing);
                let established = Established::new(shared, peer, shown, lane, direction).await;
                let (since, tally) = (Moment::now(), Tally::default());
                let served = serve(&established, link, &tally, &mut stream);
                let why = match link.stop.unless(served).await {
                    Some(why) => why,
                    None => {
                        hear_last_report(link, &tally, &mut stream).await;
                        Down::Closed
                    }
                };
                let unknown = tally.unknown();
                telemetry::lost(unknown, 0);
                let is_outdated = why == Down::Outdated;
                established.end(stream, why, unknown).await;
                backoff.ended(since, Moment::now());
                if is_outdated {
                    continue; // At once: senders wait.
                }
            }
        }
        if link.stop.unless(sleep(backoff.wait(random()))).await.is_none() {
            return;
        }
    }
}

/// Waits until there is something to send; false when there never will be.
async fn wanted(link: &DataLink) -> bool {
    let outbox = &link.outbox;
    loop {
        if !outbox.is_empty_or_park() {
            link.progress.begin();
            return true;
        }
        link.progress.end();
        if outbox.closed().is_some() {
            return false;
        }
        outbox.filled().await;
    }
}

/// Messages of one connection. All in one task; the compiler wants atomics nevertheless.
#[derive(Default)]
struct Tally {
    sent: AtomicU64,
    arrived: AtomicU64,
    /// A report has come, and all that were sent have arrived.
    all_arrived: Notify,
}

impl Tally {
    fn unknown(&self) -> u64 {
        self.sent.load(Relaxed).saturating_sub(self.arrived.load(Relaxed))
    }
}

async fn serve(
    established: &Established<'_>,
    link: &DataLink,
    tally: &Tally,
    stream: &mut Stream,
) -> Down {
    let silence = match stream.be_patient(established.shared.settings.silence_max) {
        Ok(silence) => silence,
        Err(error) => return socket::cut(&error),
    };
    let (read, write) = tokio::io::split(stream);
    let (retire_in, retiring) = watch::channel(None);
    // All go on at the same time: reports must be read while a write waits.
    tokio::select! {
        why = send(established, link, tally, write, retiring) => why,
        why = hear(link, tally, read) => why,
        why = retire(established, retire_in) => why,
        () = silence.noticed() => Down::Cut("nothing was heard of the peer any more".into()),
    }
}

/// Has the link end when it is outdated. From then on nothing more is taken from the outbox, and
/// what was sent is waited for, so that nothing is in doubt.
async fn retire(established: &Established<'_>, retiring: watch::Sender<Option<Down>>) -> Down {
    let mut why = established.outdated().await;
    loop {
        retiring.send_replace(Some(why.clone()));
        sleep(SETTLE).await;
        // The peer does not take what was sent to it. For as long as nothing is wrong with its
        // certificate, it has all the time that it wants.
        if why != Down::Outdated {
            return why;
        }
        retiring.send_replace(None);
        if let Ok(again) = timeout(SETTLE, established.outdated()).await {
            why = again;
        }
    }
}

/// Writes what is in the outbox, until there is a reason not to.
async fn send(
    established: &Established<'_>,
    link: &DataLink,
    tally: &Tally,
    mut write: WriteHalf<&mut Stream>,
    mut retiring: watch::Receiver<Option<Down>>,
) -> Down {
    let outbox = &link.outbox;
    let idle_timeout = established.shared.settings.idle_timeout;
    let mut idle = Box::pin(sleep(idle_timeout));
    let mut used = false;
    loop {
        let retire = retiring.borrow_and_update().clone();
        if retire.is_none()
            && let Some(segment) = outbox.take()
        {
            used = true;
            link.progress.begin();
            let segment = Taken { outbox, segment };
            tally.sent.fetch_add(segment.segment.frames, Relaxed);
            if let Err(error) = write.write_all(&segment.segment.bytes).await {
                return socket::cut(&error);
            }
            established.bytes.increment(segment.segment.bytes.len() as u64);
            continue;
        }
        if let Err(error) = write.flush().await {
            return socket::cut(&error);
        }
        let closing = outbox.closed().is_some();
        let settles = closing || retire.is_some();
        if settles && tally.unknown() == 0 {
            return retire.unwrap_or(Down::Closed);
        }
        let takes = retire.is_none();
        tokio::select! {
            () = outbox.filled(), if takes => {}
            () = tally.all_arrived.notified(), if settles => {}
            // Its sender is dropped together with this future.
            _ = retiring.changed() => {}
            () = &mut idle => {
                if !std::mem::take(&mut used) && tally.unknown() == 0 {
                    return Down::Idle;
                }
                idle.as_mut().reset(Instant::now() + idle_timeout);
            }
        }
    }
}

/// A segment on its way; however that ends, its room is free again.
struct Taken<'a> {
    outbox: &'a Outbox,
    segment: Segment,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.outbox.done(std::mem::take(&mut self.segment));
    }
}

/// Reads how many messages have arrived, and how many are settled.
async fn hear(link: &DataLink, tally: &Tally, mut read: ReadHalf<&mut Stream>) -> Down {
    let mut bytes = BytesMut::with_capacity(64);
    loop {
        match read.read_buf(&mut bytes).await {
            Ok(0) => return Down::ByPeer,
            Ok(_) => {}
            Err(error) => return socket::cut(&error),
        }
        let frames = match frame::take(&mut bytes, REPORT_MAX) {
            Ok(frames) => frames,
            Err(error) => return Down::Frame(error),
        };
        for report in frames {
            let Some((arrived, settled)) = read_report(&report) else {
                return Down::Cut("the peer's report of arrivals cannot be read".into());
            };
            // A peer that reports more than there was is not believed.
            let arrived = arrived.min(tally.sent.load(Relaxed));
            let before = tally.arrived.swap(arrived, Relaxed);
            link.account.report(arrived.saturating_sub(before), settled);
        }
        if tally.unknown() == 0 {
            link.progress.end();
            tally.all_arrived.notify_one();
        } else {
            link.progress.go_on();
        }
    }
}

/// How many have arrived, and how many are settled. A later version may report more behind that.
fn read_report(report: &[u8]) -> Option<(u64, u64)> {
    let (arrived, rest) = report.split_first_chunk()?;
    let (settled, _) = rest.split_first_chunk()?;
    Some((u64::from_le_bytes(*arrived), u64::from_le_bytes(*settled)))
}

/// What has arrived, or is settled, may be about to be reported: a peer that left in order is not gone yet.
async fn hear_last_report(link: &DataLink, tally: &Tally, stream: &mut Stream) {
    let (read, _write) = tokio::io::split(stream);
    let all_settled = async {
        while tally.unknown() + link.account.unsettled() > 0 {
            tally.all_arrived.notified().await;
        }
    };
    tokio::select! {
        biased;
        () = all_settled => {}
        _ = hear(link, tally, read) => {}
        () = sleep(LAST_REPORT) => {}
    }
}

/// How long to wait for a last report: some times as long as a peer waits before it reports.
const LAST_REPORT: Duration = Duration::from_millis(100);
/// How long what was sent on an outdated link may take to arrive.
const SETTLE: Duration = Duration::from_secs(2);
/// Bytes of a report: two counts.
pub(super) const REPORT: usize = 16;
/// No version reports more.
const REPORT_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_may_grow() {
        let report = [7, 3, 1].map(u64::to_le_bytes);
        assert_eq!(read_report(report[..2].as_flattened()), Some((7, 3)));
        assert_eq!(read_report(report.as_flattened()), Some((7, 3)));
        assert_eq!(read_report(&report.as_flattened()[..15]), None);
    }
}
