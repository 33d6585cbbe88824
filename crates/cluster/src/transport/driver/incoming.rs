//! Links that peers opened to us.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::BytesMut;
use tenure_lease::Moment;
use tokio::io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use super::claims::Admission;
use super::data::REPORT;
use super::greet::Greeted;
use super::link::GOODBYE;
use super::socket::{self, Stream};
use super::{Established, Flag, Shared, lock};
use crate::transport::{Direction, Down, Event, Frames, Lane, SenderAccount, frame};
use crate::{Address, Node};

/// Who is connected to us. A node has one link for each lane: a second one means that it has given
/// the first up.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    links: HashMap<(Sender, Lane), Arc<Running>>,
    /// Where each node's messages go. Kept for a while after its link has ended, so that what it
    /// sends on its next one comes after what is still waiting.
    queues: HashMap<Sender, Queue>,
    /// What has become of each node's messages, until that node is forgotten.
    accounts: HashMap<Sender, Arc<SenderAccount>>,
}

/// A node together with its certified name, so that nobody can replace another one's links.
type Sender = (Node, String);

#[derive(Debug)]
struct Running {
    stop: Flag,
    ended: Flag,
}

#[derive(Debug)]
struct Queue {
    frames: mpsc::Sender<Frames>,
    used: Moment,
}

impl Incoming {
    pub(super) fn len(&self) -> usize {
        self.links.len()
    }

    /// Ends all links from a node.
    pub(super) fn stop(&mut self, node: &Node) {
        for (((from, _), _), running) in &self.links {
            if from == node {
                running.stop.raise();
            }
        }
        self.queues.retain(|(from, _), _| from != node);
        self.accounts.retain(|(from, _), _| from != node);
    }

    /// Ends all links from an address but those of this name.
    pub(super) fn stop_others(&mut self, address: &Address, name: &str) {
        let is_other = |from: &Sender| from.0.address == *address && from.1 != name;
        for ((from, _), running) in &self.links {
            if is_other(from) {
                running.stop.raise();
            }
        }
        self.queues.retain(|from, _| !is_other(from));
        self.accounts.retain(|from, _| !is_other(from));
    }

    /// Ends all links.
    pub(super) fn stop_all(&mut self) {
        self.links.values().for_each(|running| running.stop.raise());
        self.queues.clear();
    }

    /// Lets go of the queues of nodes that have been away for long.
    pub(super) fn sweep(&mut self, now: Moment, idle: Duration) {
        let links = &self.links;
        self.queues.retain(|sender, queue| {
            links.contains_key(&(sender.clone(), Lane::Data)) || now.since(queue.used) < idle
        });
    }

    /// The account of a node. With more than `max` of them, those of nodes that are not connected and
    /// have nothing here are forgotten.
    fn account(&mut self, sender: &Sender, max: usize) -> Arc<SenderAccount> {
        if self.accounts.len() >= max && !self.accounts.contains_key(sender) {
            let links = &self.links;
            self.accounts.retain(|sender, account| {
                !account.is_closed() || links.contains_key(&(sender.clone(), Lane::Data))
            });
        }
        let new = || Arc::new(SenderAccount::new(sender.0.clone()));
        self.accounts.entry(sender.clone()).or_insert_with(new).clone()
    }

    /// The queue for a node's messages, and its other end if it is new.
    fn queue(
        &mut self,
        sender: &Sender,
        room: usize,
    ) -> (mpsc::Sender<Frames>, Option<mpsc::Receiver<Frames>>) {
        if let Some(queue) = self.queues.get(sender)
            && !queue.frames.is_closed()
        {
            return (queue.frames.clone(), None);
        }
        let (frames, receiver) = mpsc::channel(room);
        let queue = Queue { frames: frames.clone(), used: Moment::now() };
        self.queues.insert(sender.clone(), queue);
        (frames, Some(receiver))
    }
}

/// Reads from a peer until its link ends.
pub(super) async fn run(
    shared: Arc<Shared>,
    greeted: Greeted,
    lane: Lane,
    // Given back when the link has ended.
    _admission: Admission,
) {
    let Greeted { mut stream, peer, shown } = greeted;
    let sender = (peer.node.clone(), peer.name.clone());
    let registered = Registered::new(&shared, (sender.clone(), lane)).await;
    let direction = Direction::Incoming;
    let established = Established::new(&shared, peer.clone(), shown, lane, direction).await;
    // How many messages were handed over.
    let arrived = AtomicU64::new(0);
    let account = match lane {
        Lane::Control => None,
        Lane::Data => {
            Some(lock(&shared.incoming).account(&sender, shared.settings.connections_max))
        }
    };
    let reading = async {
        match &account {
            None => control(&established, &mut stream).await,
            Some(account) => {
                let room = shared.settings.incoming_batches;
                let (queue, new) = lock(&shared.incoming).queue(&sender, room);
                if let Some(frames) = new {
                    let (from, account) = (peer.clone(), account.clone());
                    shared.tell(Event::Data { from, frames, account }).await;
                }
                data(&established, &mut stream, queue, &arrived, account).await
            }
        }
    };
    let reading = async {
        tokio::select! {
            why = reading => why,
            why = established.outdated() => why,
        }
    };
    let why = match registered.running.stop.unless(reading).await {
        Some(why) => why,
        None if registered.is_in(&lock(&shared.incoming)) => Down::Closed,
        None => Down::Replaced,
    };
    if let Some(account) = &account
        && matches!(why, Down::Closed | Down::Replaced | Down::Outdated)
    {
        // What has arrived is not in doubt when this end closes.
        let counts = [arrived.load(Relaxed), account.settled()];
        let _ = timeout(GOODBYE, report(&mut stream, counts)).await;
    }
    established.end(stream, why, 0).await;
}

/// Tells the peer how many of its messages have arrived on this link, and how many of all are settled.
async fn report(back: &mut (impl AsyncWrite + Unpin), counts: [u64; 2]) -> std::io::Result<()> {
    let mut bytes = [0; frame::HEADER + REPORT];
    bytes[0] = REPORT as u8;
    bytes[frame::HEADER..].copy_from_slice(counts.map(u64::to_le_bytes).as_flattened());
    back.write_all(&bytes).await?;
    back.flush().await
}

/// A link in the table, for as long as it lives.
struct Registered<'a> {
    shared: &'a Shared,
    key: (Sender, Lane),
    running: Arc<Running>,
}

impl<'a> Registered<'a> {
    /// Enters the link in place of a former one, whose end it waits for: frames must not overtake.
    async fn new(shared: &'a Shared, key: (Sender, Lane)) -> Self {
        let running = Arc::new(Running { stop: Flag::new(), ended: Flag::new() });
        let former = lock(&shared.incoming).links.insert(key.clone(), running.clone());
        let registered = Self { shared, key, running };
        if let Some(former) = former {
            former.stop.raise();
            former.ended.raised().await;
        }
        registered
    }

    fn is_in(&self, incoming: &Incoming) -> bool {
        incoming.links.get(&self.key).is_some_and(|now| Arc::ptr_eq(now, &self.running))
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        let mut incoming = lock(&self.shared.incoming);
        if self.is_in(&incoming) {
            incoming.links.remove(&self.key);
        }
        if let Some(queue) = incoming.queues.get_mut(&self.key.0) {
            queue.used = Moment::now();
        }
        self.running.ended.raise();
    }
}

async fn control(established: &Established<'_>, stream: &mut Stream) -> Down {
    let shared = established.shared;
    let mut read = BytesMut::new();
    loop {
        read.reserve(CONTROL_READ);
        match stream.read_buf(&mut read).await {
            Ok(0) => return ended(&read),
            Ok(count) => established.bytes.increment(count as u64),
            Err(error) => return socket::cut(&error),
        }
        loop {
            match frame::take(&mut read, shared.settings.control_frame_max) {
                Ok(frames) if frames.is_empty() => break,
                Ok(frames) => {
                    let from = established.link.peer.clone();
                    shared.tell(Event::Control { from, frames }).await;
                }
                Err(error) => return Down::Frame(error),
            }
        }
    }
}

async fn data(
    established: &Established<'_>,
    stream: &mut Stream,
    queue: mpsc::Sender<Frames>,
    arrived: &AtomicU64,
    account: &SenderAccount,
) -> Down {
    let max = established.shared.settings.data_frame_max;
    let (mut stream, mut back) = tokio::io::split(stream);
    let mut read = BytesMut::new();
    let mut room = DATA_READ_MIN;
    let mut batch = Frames::default();
    // The peer is told in a while what has arrived, once for many, and then what is settled, until all is.
    let (mut report_due, mut delay) = (Box::pin(sleep(REPORT_DELAY)), REPORT_DELAY);
    let (mut unreported, mut reported) = (false, [0; 2]);
    let mut unwanted = std::pin::pin!(queue.closed());
    loop {
        if batch.is_empty() {
            batch = match frame::take(&mut read, max) {
                Ok(frames) => frames,
                Err(error) => return Down::Frame(error),
            };
        }
        let full = !batch.is_empty();
        if !full && read.capacity() - read.len() < room.min(RECORD) {
            read.reserve(room);
        }
        let spare = read.capacity() - read.len();
        tokio::select! {
            biased;
            () = &mut report_due, if unreported => {
                unreported = !account.is_closed();
                let counts = [arrived.load(Relaxed), account.settled()];
                delay = match counts == reported {
                    true => (delay * 2).min(REPORT_DELAY_MAX),
                    false => REPORT_DELAY,
                };
                report_due.as_mut().reset(Instant::now() + delay);
                if counts != reported
                    && let Err(error) = report(&mut back, counts).await
                {
                    return socket::cut(&error);
                }
                reported = counts;
            }
            () = &mut unwanted => return Down::Closed,
            room = queue.reserve(), if full => {
                let Ok(room) = room else {
                    return Down::Closed; // Nobody wants them.
                };
                arrived.fetch_add(batch.len() as u64, Relaxed);
                account.arrive(batch.len() as u64);
                room.send(std::mem::take(&mut batch));
                if !unreported || delay > REPORT_DELAY {
                    (unreported, delay) = (true, REPORT_DELAY);
                    report_due.as_mut().reset(Instant::now() + REPORT_DELAY);
                }
            }
            count = stream.read_buf(&mut read), if !full => match count {
                Ok(0) => return ended(&read),
                Ok(count) => {
                    established.bytes.increment(count as u64);
                    // Who has much to say gets more room; most links are quiet.
                    if count == spare {
                        room = (room * 4).min(DATA_READ_MAX);
                    }
                }
                Err(error) => return socket::cut(&error),
            },
        }
    }
}

fn ended(rest: &[u8]) -> Down {
    match frame::end(rest) {
        Ok(()) => Down::ByPeer,
        Err(error) => Down::Frame(error),
    }
}

/// Reports are for the case of a cut; until then they only cost.
const REPORT_DELAY: Duration = Duration::from_millis(20);
/// A receiver may take its time: there is a look at least so often whether it has settled something.
const REPORT_DELAY_MAX: Duration = Duration::from_secs(1);
const CONTROL_READ: usize = 4 << 10;
/// Messages share a buffer of at least and at most so many bytes, unless one is longer.
const DATA_READ_MIN: usize = 4 << 10;
const DATA_READ_MAX: usize = 128 << 10;
/// What TLS gives at a time. If less than that is left of a buffer, a new one is begun.
const RECORD: usize = 16 << 10;
