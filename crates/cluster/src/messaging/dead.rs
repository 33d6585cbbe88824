use std::sync::Arc;

use tokio::sync::broadcast;

use super::telemetry;
use crate::Node;

/// Messages of this node that were accepted for sending, and then lost.
///
/// ```no_run
/// # async fn example(cluster: tenure_cluster::Cluster) {
/// let mut dead = cluster.dead_letters();
/// while let Some(letter) = dead.next().await {
///     eprintln!("{letter}");
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// For which node.
    pub to: Node,
    /// For which receiver, if that is known: what a cut took is not looked into.
    pub receiver: Option<Arc<str>>,
    /// For which entity, if the receiver is a region of a kind of entities and that is known.
    pub id: Option<Arc<str>>,
    /// How many, at most. What a cut took, or a process that is gone, includes questions and answers.
    pub count: u64,
    /// Why.
    pub why: Lost,
    /// What the receiver said of them, if it could not read them: `sent Cart@2, expected Cart@1`.
    pub detail: Option<Arc<str>>,
}

impl DeadLetter {
    /// Of messages that a lane lost, whatever they were.
    pub(super) fn cut(to: &Node, count: u64, why: Lost) -> Self {
        Self { to: to.clone(), receiver: None, id: None, count, why, detail: None }
    }
}

impl std::fmt::Display for DeadLetter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { to, receiver, id, count, why, detail } = self;
        let receiver = receiver.as_deref().unwrap_or("any receiver");
        write!(f, "{count} messages for {receiver}")?;
        id.iter().try_for_each(|id| write!(f, ", entity {id:?},"))?;
        write!(f, " on {to}: {why}")?;
        detail.iter().try_for_each(|detail| write!(f, ": {detail}"))
    }
}

/// Why messages are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Lost {
    /// Nobody there has this name, or has it any more.
    #[error("there is no such receiver")]
    NoSuchReceiver,
    /// The receiver's mailbox was full.
    #[error("the receiver does not keep up")]
    Full,
    /// The receiver could not read them.
    #[error("the receiver cannot read them")]
    Unreadable,
    /// Their connection was cut. They may or may not have arrived.
    #[error("the connection was cut; they may or may not have arrived")]
    Cut,
    /// They had arrived at a process that is gone, and it has not said what became of them: they may or
    /// may not have been handled. Counts what was told; a part may be questions and answers that the process
    /// had not looked at.
    #[error("they had arrived at a node that is gone; they may or may not have been handled")]
    Unknown,
    /// They never left this node: the other is no longer a member.
    #[error("they never left: the node is gone")]
    Unsent,
    /// The receiver had begun to handle them, and failed, or had to stop at once.
    #[error("the receiver began to handle them, and did not finish")]
    Unfinished,
    /// They came back from where the receiver is no more, after later ones had been sent to where it is:
    /// to send them now would break the order.
    #[error("they came back too late: later ones were sent on already")]
    Late,
    /// A reason that only a newer version knows.
    #[error("the receiving node refused them")]
    Refused,
}

impl Lost {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::NoSuchReceiver => "no_such_receiver",
            Self::Full => "full",
            Self::Unreadable => "unreadable",
            Self::Cut => "cut",
            Self::Unknown => "unknown",
            Self::Unsent => "unsent",
            Self::Unfinished => "unfinished",
            Self::Late => "late",
            Self::Refused => "refused",
        }
    }
}

/// The dead letters of a node, from when it was asked for.
#[derive(Debug)]
pub struct DeadLetters {
    letters: broadcast::Receiver<DeadLetter>,
    missed: u64,
}

impl DeadLetters {
    pub(crate) fn new(letters: broadcast::Receiver<DeadLetter>) -> Self {
        Self { letters, missed: 0 }
    }

    /// The next one; `None` when the node is out of the cluster for good.
    pub async fn next(&mut self) -> Option<DeadLetter> {
        loop {
            match self.letters.recv().await {
                Ok(letter) => return Some(letter),
                Err(broadcast::error::RecvError::Lagged(count)) => {
                    self.missed += count;
                    telemetry::dead_letters_missed(count);
                }
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }

    /// How many were not seen here, because more than a thousand waited. The metric counts all.
    pub fn missed(&self) -> u64 {
        self.missed
    }
}
