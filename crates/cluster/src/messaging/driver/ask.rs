//! Questions that wait for their answers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_lease::planted::{self, GlueBug};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::{Messaging, Node, Route, lock, telemetry, wire};
use crate::messaging::message::{decode, encode};
use crate::messaging::{AskError, Expects, Message, NotDone, Unknown};

/// The questions of this node.
#[derive(Debug)]
pub(super) struct Asks {
    pub(super) waiting: Mutex<HashMap<u64, Asked>>,
    pub(super) next: AtomicU64,
}

#[derive(Debug)]
pub(super) struct Asked {
    node: Node,
    name: Arc<str>,
    end: oneshot::Sender<Outcome>,
}

type Outcome = Result<Vec<u8>, AskError>;

impl Messaging {
    pub(crate) async fn ask<M: Message, R: Message>(
        self: &Arc<Self>,
        node: &Node,
        name: &Arc<str>,
        message: M,
        time: Duration,
    ) -> Result<R, AskError> {
        let body = self.ask_for(node, name, message, Expects::Answer, time).await?;
        decode::<R>(&body).map_err(|error| Unknown::Unreadable(error).into())
    }

    /// The same for the bytes of an answer, or for a receipt, which has none.
    pub(crate) async fn ask_for<M: Message>(
        self: &Arc<Self>,
        node: &Node,
        name: &Arc<str>,
        message: M,
        expects: Expects,
        time: Duration,
    ) -> Result<Vec<u8>, AskError> {
        let deadline = Instant::now() + time;
        let (ask, outcome) = self.asks.begin(node, name, expects);
        let sent = timeout_at(deadline, self.send_question(node, name, message, ask.number));
        match sent.await {
            Err(_) => return Err(NotDone::NotSentWithin(time).into()),
            Ok(sent) => sent?,
        }
        match timeout_at(deadline, outcome).await {
            Err(_) if planted::has(GlueBug::NoAnswerIsNotDone) => {
                Err(NotDone::NotSentWithin(time).into())
            }
            Err(_) => Err(Unknown::NoAnswer(time).into()),
            // Not reached: whoever takes it out of the table says why.
            Ok(Err(_)) => Err(Unknown::Cut.into()),
            Ok(Ok(outcome)) => outcome,
        }
    }

    async fn send_question<M: Message>(
        self: &Arc<Self>,
        node: &Node,
        name: &Arc<str>,
        message: M,
        number: u64,
    ) -> Result<(), NotDone> {
        match self.route(node, name)? {
            Route::Own(mailbox) => self.try_put_own(&mailbox, message, Some(number)),
            Route::Lane(lane) => {
                let mut failed = None;
                let encode = encode(&mut failed, message, |out| {
                    wire::put_ask(out, name.as_bytes(), number);
                });
                let sent = lane.send_with(encode).await;
                sent.map_err(|error| NotDone::from_send(error, failed))
            }
        }
    }

    /// Sends an answer.
    pub(crate) async fn answer<R: Message>(
        self: &Arc<Self>,
        to: &Node,
        ask: u64,
        reply: R,
    ) -> Result<(), NotDone> {
        if self.is_me(to) {
            let mut body = Vec::new();
            reply.encode(&mut body).map_err(NotDone::Encoding)?;
            self.returned(to, wire::Back::Answer { ask, body: &body });
            return Ok(());
        }
        let lane = self.lane(to)?;
        let mut failed = None;
        let encode = encode(&mut failed, reply, |out| {
            wire::put_back(out, wire::Back::Answer { ask, body: &[] });
        });
        let sent = lane.send_with(encode).await;
        sent.map_err(|error| NotDone::from_send(error, failed))
    }
}

impl Asks {
    fn begin(
        &self,
        node: &Node,
        name: &Arc<str>,
        expects: Expects,
    ) -> (Ask<'_>, oneshot::Receiver<Outcome>) {
        let mut number = self.next.fetch_add(1, Relaxed) & !wire::RECEIPT;
        if expects == Expects::Receipt {
            number |= wire::RECEIPT;
        }
        let (end, outcome) = oneshot::channel();
        let asked = Asked { node: node.clone(), name: name.clone(), end };
        lock(&self.waiting).insert(number, asked);
        (Ask { asks: self, number }, outcome)
    }

    pub(super) fn end(&self, from: &Node, number: u64, outcome: Outcome) {
        self.end_with(from, number, |_| outcome);
    }

    /// Ends a question, if it was asked of this node and somebody still waits.
    pub(super) fn end_with(
        &self,
        from: &Node,
        number: u64,
        outcome: impl FnOnce(&Arc<str>) -> Outcome,
    ) {
        let mut waiting = lock(&self.waiting);
        let asked = match waiting.get(&number) {
            Some(asked) if asked.node == *from => waiting.remove(&number),
            _ => None,
        };
        drop(waiting);
        match asked {
            Some(asked) => {
                let outcome = outcome(&asked.name);
                let _ = asked.end.send(outcome);
            }
            None => telemetry::late(),
        }
    }

    /// Ends all questions that were asked of a node, or of anybody.
    pub(super) fn cut(&self, node: Option<&Node>) {
        let mut waiting = lock(&self.waiting);
        let is_cut = |asked: &Asked| node.is_none_or(|node| asked.node == *node);
        let cut: Vec<_> = waiting.extract_if(|_, asked| is_cut(asked)).collect();
        drop(waiting);
        for (_, asked) in cut {
            let why = match planted::has(GlueBug::CutQuestionIsNotDone) {
                true => NotDone::Full.into(),
                false => Unknown::Cut.into(),
            };
            let _ = asked.end.send(Err(why));
        }
    }
}

/// A question, for as long as somebody waits.
struct Ask<'a> {
    asks: &'a Asks,
    number: u64,
}

impl Drop for Ask<'_> {
    fn drop(&mut self) {
        lock(&self.asks.waiting).remove(&self.number);
    }
}
