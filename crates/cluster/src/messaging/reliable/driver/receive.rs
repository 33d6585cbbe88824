use std::marker::PhantomData;
use std::sync::{Arc, Mutex};

use super::super::Record;
use super::super::incoming::{Incoming, Key};
use super::super::packet::{Ack, Packet};
use super::{acks, lock};
use crate::messaging::message::decode;
use crate::messaging::{Message, Messaging, Protocol, Received, Receiver, ReceiverError, Sender};
use crate::{Cluster, Node};

impl Cluster {
    /// Opens a mailbox for numbered messages under a name that nobody else here has; see
    /// [`reliable`](crate::messaging::reliable).
    ///
    /// ```no_run
    /// # async fn example(cluster: tenure_cluster::Cluster) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut payments = cluster.reliable_receiver::<u64>("payments")?;
    /// while let Some(delivery) = payments.recv().await {
    ///     // … enter delivery.record() in the ledger and do it, in one transaction …
    ///     delivery.done();
    /// }
    /// # Ok(()) }
    /// ```
    pub fn reliable_receiver<M: Message>(
        &self,
        name: &str,
    ) -> Result<ReliableReceiver<M>, ReceiverError> {
        Ok(ReliableReceiver {
            packets: Receiver::open(self.messaging(), name, ROOM)?,
            messaging: self.messaging().clone(),
            incoming: Arc::default(),
            _messages: PhantomData,
        })
    }
}

/// Gets numbered messages, each stream in order.
#[derive(Debug)]
pub struct ReliableReceiver<M> {
    packets: Receiver<Packet>,
    messaging: Arc<Messaging>,
    incoming: Arc<Mutex<Incoming>>,
    _messages: PhantomData<fn() -> M>,
}

impl<M: Message> ReliableReceiver<M> {
    /// The next message; `None` when this node is out of the cluster for good. Dropping the future
    /// loses nothing.
    ///
    /// A message that cannot be read holds up those behind it: its sender tries again, until a
    /// receiver (of the newer version, perhaps) can.
    pub async fn recv(&mut self) -> Option<Delivery<M>> {
        loop {
            let received = self.packets.recv().await?;
            if let Some(delivery) = self.delivery(received) {
                return Some(delivery);
            }
        }
    }

    /// The next message if it is here already: to do several in one transaction.
    pub fn try_recv(&mut self) -> Option<Delivery<M>> {
        loop {
            let received = self.packets.try_recv()?;
            if let Some(delivery) = self.delivery(received) {
                return Some(delivery);
            }
        }
    }

    /// What becomes of a packet: a delivery, if it is the next of its stream.
    fn delivery(&self, received: Received<Packet>) -> Option<Delivery<M>> {
        let Packet { head, payload } = received.message;
        let key = (Arc::<str>::from(head.sender), head.stream);
        let (hand_out, ack) = lock(&self.incoming).packet(&key, head.numbers);
        let hold = Hold {
            messaging: self.messaging.clone(),
            incoming: self.incoming.clone(),
            from: received.from,
            key,
            number: head.numbers.number,
        };
        if let Some(ack) = ack {
            hold.tell(ack);
        }
        if !hand_out {
            return None;
        }
        match decode::<M>(&payload) {
            Ok(message) => {
                let (sender, stream) = hold.key.clone();
                let record = Record { sender, stream, number: hold.number };
                Some(Delivery { message, record, hold: Held(Some(hold)) })
            }
            Err(error) => {
                let name = self.packets.name();
                tracing::error!(receiver = name, sender = %hold.key.0, number = hold.number,
                    "a numbered message cannot be read, and those behind it wait: {error}");
                hold.returned();
                None
            }
        }
    }
}

/// A numbered message in the receiver's hands.
///
/// Say [`Delivery::done`] when what it asks for, and its [`Record`], are committed. Dropped before,
/// it will be delivered again, and before all that come after it.
#[derive(Debug)]
#[must_use = "dropping it means that it was not done: it will be delivered again"]
pub struct Delivery<M> {
    message: M,
    record: Record,
    hold: Held,
}

impl<M> Delivery<M> {
    /// The message.
    pub fn message(&self) -> &M {
        &self.message
    }

    /// What to enter in the ledger.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// The message, and what is left of the delivery without it: for whoever passes both on.
    pub fn split(self) -> (M, Delivery<()>) {
        let Self { message, record, hold } = self;
        (message, Delivery { message: (), record, hold })
    }

    /// Says that it is done, for good: effect and record are committed.
    pub fn done(mut self) {
        if let Some(hold) = self.hold.0.take() {
            hold.done();
        }
    }
}

/// Dropped, it says that the message was not done.
#[derive(Debug)]
struct Held(Option<Hold>);

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(hold) = self.0.take() {
            hold.returned();
        }
    }
}

/// What to tell whom about one message.
#[derive(Debug)]
struct Hold {
    messaging: Arc<Messaging>,
    incoming: Arc<Mutex<Incoming>>,
    from: Node,
    key: Key,
    number: u64,
}

impl Hold {
    fn done(self) {
        let ack = lock(&self.incoming).done(&self.key, self.number);
        ack.into_iter().for_each(|ack| self.tell(ack));
    }

    fn returned(self) {
        let ack = lock(&self.incoming).returned(&self.key, self.number);
        ack.into_iter().for_each(|ack| self.tell(ack));
    }

    fn tell(&self, ack: Ack) {
        let spoken = self.messaging.spoken_with(&self.from);
        let name = acks(self.key.1).into();
        let sender = Sender::<Protocol<Ack>>::new(&self.messaging, self.from.clone(), name);
        // Lost, it will be asked for.
        let _ = sender.try_tell(Protocol { message: ack, spoken });
    }
}

/// Some senders' windows.
const ROOM: usize = 4096;
