use std::marker::PhantomData;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tenure_lease::Moment;
use tokio::sync::{Notify, Semaphore, watch};

use super::super::outgoing::Outgoing;
use super::super::packet::{Ack, Head, OVERHEAD, Packet};
use super::{acks, lock};
use crate::messaging::{
    DeadLetter, DeadLetters, Lost, Message, Messaging, NotDone, Protocol, Received, Receiver,
    ReceiverError, Sender,
};
use crate::transport::Closed;
use crate::{Cluster, Node};

impl Cluster {
    /// Begins a stream of numbered messages to a receiver, wherever it is: `target` says on which
    /// node, and may change at any time. `sender` is what people and ledgers call this sender; it
    /// should be the same after a restart.
    ///
    /// ```no_run
    /// # async fn example(cluster: tenure_cluster::Cluster, node: tenure_cluster::Node) -> Result<(), Box<dyn std::error::Error>> {
    /// let (target, targets) = tokio::sync::watch::channel(Some(node));
    /// let payments = cluster.reliable::<u64>("checkout-3", "payments", targets)?;
    /// let number = payments.send(1999).await?;
    /// payments.done(number).await?;
    /// # drop(target); Ok(()) }
    /// ```
    pub fn reliable<M: Message>(
        &self,
        sender: &str,
        receiver: &str,
        target: watch::Receiver<Option<Node>>,
    ) -> Result<ReliableSender<M>, ReceiverError> {
        for name in [sender, receiver] {
            if !(1..=NAME_MAX).contains(&name.len()) {
                return Err(ReceiverError::Name(name.len()));
            }
        }
        let messaging = self.messaging();
        let stream = tenure_lease::world::random_bits().expect("the operating system's randomness");
        let acks = Receiver::open(messaging, &acks(stream), ACKS)?;
        let (done, _) = watch::channel(0);
        let shared = Arc::new(Shared {
            outgoing: Mutex::new(Outgoing::new()),
            pushed: Notify::new(),
            window: Semaphore::new(WINDOW),
            done,
        });
        let task = Task {
            shared: shared.clone(),
            messaging: messaging.clone(),
            sender: sender.to_owned(),
            receiver: receiver.into(),
            stream,
            to: None,
        };
        let letters = messaging.dead_letters();
        messaging.runtime().spawn(task.run(target, acks, letters));
        let payload_max =
            messaging.frame_max.saturating_sub(OVERHEAD + sender.len() + receiver.len());
        let handle = Arc::new(Handle { messaging: messaging.clone(), shared, payload_max });
        Ok(ReliableSender { handle, _messages: PhantomData })
    }
}

/// A stream of numbered messages. Clones share it; when the last one is dropped, what is not done is
/// given up, as a dead letter: wait for [`ReliableSender::done`] before.
#[derive(Debug)]
pub struct ReliableSender<M> {
    handle: Arc<Handle>,
    _messages: PhantomData<fn(M)>,
}

impl<M> Clone for ReliableSender<M> {
    fn clone(&self) -> Self {
        Self { handle: self.handle.clone(), _messages: PhantomData }
    }
}

#[derive(Debug)]
struct Handle {
    messaging: Arc<Messaging>,
    shared: Arc<Shared>,
    payload_max: usize,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.window.close();
        self.shared.pushed.notify_one();
    }
}

#[derive(Debug)]
struct Shared {
    outgoing: Mutex<Outgoing>,
    pushed: Notify,
    /// Room for messages that are not done. Closed when the stream is.
    window: Semaphore,
    /// How many are done.
    done: watch::Sender<u64>,
}

impl<M: Message> ReliableSender<M> {
    /// Numbers a message and begins to send it, after waiting while too many are not done. From now
    /// on it is sent until it is done, for as long as this process lives. Dropping the future
    /// before it has a number means that it is not sent.
    pub async fn send(&self, message: M) -> Result<u64, NotDone> {
        let Handle { messaging, shared, payload_max } = &*self.handle;
        let mut payload = Vec::new();
        message.encode(&mut payload).map_err(NotDone::Encoding)?;
        let (len, max) = (payload.len(), *payload_max);
        if len > max {
            return Err(NotDone::TooLong { len, max });
        }
        let room = shared.window.acquire_many(weight(len)).await;
        let room = room.map_err(|_| closed())?;
        if messaging.has_ended() {
            return Err(closed());
        }
        room.forget();
        let number = lock(&shared.outgoing).push(payload.into());
        shared.pushed.notify_one();
        Ok(number)
    }

    /// Waits until this message and all before it are done: committed by their receiver. An error
    /// means that this node left the cluster before it heard of it.
    pub async fn done(&self, number: u64) -> Result<(), NotDone> {
        let mut done = self.handle.shared.done.subscribe();
        let settled = done.wait_for(|done| *done >= number || *done == OVER).await;
        match settled.map(|done| *done) {
            Ok(OVER) if lock(&self.handle.shared.outgoing).done() < number => Err(closed()),
            Ok(_) => Ok(()),
            Err(_) => Err(closed()),
        }
    }
}

fn closed() -> NotDone {
    NotDone::Closed(Arc::new(Closed::Transport))
}

/// What sends, and sends again.
struct Task {
    shared: Arc<Shared>,
    messaging: Arc<Messaging>,
    sender: String,
    receiver: Arc<str>,
    stream: u64,
    to: Option<Sender<Packet>>,
}

impl Task {
    async fn run(
        mut self,
        mut target: watch::Receiver<Option<Node>>,
        mut acks: Receiver<Protocol<Ack>>,
        mut letters: DeadLetters,
    ) {
        let mut heard = Vec::new();
        let mut missed = 0;
        let mut settled = false;
        self.aim(target.borrow_and_update().clone());
        while !self.shared.window.is_closed() {
            tokio::select! {
                biased;
                changed = target.changed(), if !settled => match changed {
                    Ok(()) => {
                        let node = target.borrow_and_update().clone();
                        self.aim(node);
                    }
                    Err(_) => settled = true, // The last word holds.
                },
                count = acks.recv_many(&mut heard, ACKS) => {
                    if count == 0 {
                        break;
                    }
                    self.heard(heard.drain(..));
                }
                letter = letters.next() => {
                    let Some(letter) = letter else { break };
                    self.lost(&letter, std::mem::replace(&mut missed, letters.missed()) != missed);
                }
                () = self.send() => {}
            }
        }
        self.end();
    }

    fn aim(&mut self, node: Option<Node>) {
        if self.to.as_ref().map(Sender::node) == node.as_ref() {
            return;
        }
        self.to = node.map(|node| Sender::new(&self.messaging, node, self.receiver.clone()));
        lock(&self.shared.outgoing).retarget(Moment::now());
    }

    /// Sends what there is to send, then waits until there may be more.
    async fn send(&self) {
        let Some(to) = &self.to else {
            return self.shared.pushed.notified().await; // Until there is a target, or it is over.
        };
        loop {
            let now = Moment::now();
            let (next, wake) = {
                let mut outgoing = lock(&self.shared.outgoing);
                (outgoing.next(now), outgoing.next_wake(now))
            };
            let Some((numbers, payload)) = next else {
                return tokio::select! {
                    () = self.shared.pushed.notified() => {}
                    () = until(wake) => {}
                };
            };
            let (sender, stream) = (self.sender.clone(), self.stream);
            let packet = Packet { head: Head { sender, stream, numbers }, payload };
            let unsent = Unsent(&self.shared);
            match to.offer(packet).await {
                Ok(()) => std::mem::forget(unsent),
                Err(_) => {
                    std::mem::forget(unsent);
                    lock(&self.shared.outgoing).back_off(Moment::now());
                }
            }
        }
    }

    fn heard(&self, acks: impl Iterator<Item = Received<Protocol<Ack>>>) {
        let mut outgoing = lock(&self.shared.outgoing);
        let now = Moment::now();
        let mut room = 0;
        for ack in acks {
            let done = outgoing.heard(ack.message.message, now);
            room +=
                done.iter().map(|payload: &Bytes| weight(payload.len()) as usize).sum::<usize>();
        }
        let done = outgoing.done();
        drop(outgoing);
        if room > 0 {
            self.shared.window.add_permits(room);
            self.shared.done.send_replace(done);
        }
    }

    fn lost(&self, letter: &DeadLetter, missed: bool) {
        let Some(to) = &self.to else { return };
        let ours = *to.node() == letter.to;
        let mut outgoing = lock(&self.shared.outgoing);
        match &letter.receiver {
            _ if missed => outgoing.rewind(Moment::now()),
            None if ours => outgoing.rewind(Moment::now()),
            Some(receiver) if ours && *receiver == self.receiver => {
                outgoing.back_off(Moment::now());
            }
            _ => {}
        }
    }

    fn end(&self) {
        self.shared.window.close();
        let outgoing = lock(&self.shared.outgoing);
        let undone = outgoing.last() - outgoing.done();
        drop(outgoing);
        self.shared.done.send_replace(OVER);
        if undone > 0 {
            let (receiver, sender) = (&*self.receiver, &*self.sender);
            tracing::warn!(receiver, sender, undone, "numbered messages are given up");
            if let Some(to) = &self.to {
                let receiver = Some(self.receiver.clone());
                let letter = DeadLetter::cut(to.node(), undone, Lost::Cut);
                self.messaging.dead(DeadLetter { receiver, ..letter });
            }
        }
    }
}

/// A packet that `next` gave out and that has not been sent yet.
struct Unsent<'a>(&'a Shared);

impl Drop for Unsent<'_> {
    fn drop(&mut self) {
        lock(&self.0.outgoing).not_sent();
    }
}

async fn until(moment: Option<Moment>) {
    match moment {
        Some(moment) => tokio::time::sleep(moment.since(Moment::now())).await,
        None => std::future::pending().await,
    }
}

/// How much of the window a message takes: one, and more if it is long.
fn weight(len: usize) -> u32 {
    (1 + len / LONG).min(WINDOW) as u32
}

/// How many messages may be under way.
const WINDOW: usize = 256;
/// 256 messages of this length are 4 MiB.
const LONG: usize = 16 << 10;
/// More than one for each message under way, and the answers to some rounds.
const ACKS: usize = 2 * WINDOW;
/// The longest name of a sender or a receiver.
const NAME_MAX: usize = 200;
/// In place of a number: the stream is over.
const OVER: u64 = u64::MAX;
