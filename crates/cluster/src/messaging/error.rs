use std::sync::Arc;
use std::time::Duration;

use crate::Node;
use crate::messaging::CodecError;
use crate::transport::{Closed, SendError};

/// Why a message certainly was not handled, nor will be.
///
/// ```
/// use tenure_cluster::messaging::NotDone;
/// let error = NotDone::NoSuchReceiver("counter".into());
/// assert_eq!(error.to_string(), "not done: nobody there is called \"counter\"");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotDone {
    /// Too much is waiting for the node, or in the receiver's mailbox.
    #[error("not done: there is no room")]
    Full,
    /// There was no room on the way before the time was over.
    #[error("not done: it could not be sent within {0:?}")]
    NotSentWithin(Duration),
    /// Longer than the transport allows.
    #[error(
        "not done: a message of {len} bytes is longer than {max}, transport.data_frame_max (or control_frame_max, for what is posted)"
    )]
    TooLong {
        /// The message's length.
        len: usize,
        /// What is allowed.
        max: usize,
    },
    /// The message could not be written.
    #[error("not done: the message cannot be encoded: {0}")]
    Encoding(CodecError),
    /// There is no receiver of this name on the node.
    #[error("not done: nobody there is called {0:?}")]
    NoSuchReceiver(Arc<str>),
    /// The receiver could not read it: it expects another type, or another version of it.
    #[error("not done: the receiver {receiver:?} cannot read it: {detail}")]
    Unreadable {
        /// The receiver's name.
        receiver: Arc<str>,
        /// What it said: for the most part the name and version that were sent, and those that it
        /// expects, `sent Cart@2, expected Cart@1`, and on which node.
        detail: Arc<str>,
    },
    /// The other node, of a newer version, refused it for a reason that this one does not know.
    #[error("not done: the receiver {0:?} refused it")]
    Refused(Arc<str>),
    /// The node is not, or no longer, a member.
    #[error("not done: {0} is not a member of the cluster")]
    NotAMember(Node),
    /// The way to the node has just been closed.
    #[error("not done: {0}")]
    Closed(Arc<Closed>),
}

impl NotDone {
    pub(crate) fn from_send(error: SendError, failed: Option<CodecError>) -> Self {
        match (error, failed) {
            (_, Some(error)) => Self::Encoding(error),
            (SendError::Full, _) => Self::Full,
            (SendError::TooLong { len, max }, _) => Self::TooLong { len, max },
            (SendError::Empty, _) => Self::Encoding(CodecError::new("nothing was written")),
            (SendError::Closed(why), _) => Self::Closed(why),
        }
    }
}

/// Why nobody knows whether a question was handled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// No answer came in time.
    #[error("unknown: it was sent, and no answer came within {0:?}")]
    NoAnswer(Duration),
    /// The connection was cut, or the node is gone.
    #[error("unknown: it was sent, and then the connection was cut")]
    Cut,
    /// The receiver dropped the [`Reply`](crate::messaging::Reply). It had the question in its
    /// hands, so it may have done a part of it or all.
    #[error("unknown: the receiver gave no answer, and never will")]
    Unanswered,
    /// The answer cannot be read.
    #[error("unknown: there was an answer that cannot be read: {0}")]
    Unreadable(CodecError),
}

/// Why there is no answer.
///
/// ```no_run
/// # use std::time::Duration;
/// # use tenure_cluster::messaging::{Ask, AskError, Sender};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Pay;
/// # impl Ask for Pay { type Reply = (); }
/// # async fn example(till: Sender<Pay>) {
/// match till.ask(Pay).within(Duration::from_secs(2)).await {
///     Ok(()) => println!("paid"),
///     Err(AskError::NotDone(why)) => println!("not paid, try again: {why}"),
///     Err(AskError::Unknown(why)) => println!("look before you pay again: {why}"),
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// It certainly was not handled, nor will be.
    #[error(transparent)]
    NotDone(#[from] NotDone),
    /// It may have been handled, or may yet be.
    #[error(transparent)]
    Unknown(#[from] Unknown),
}

/// Why there is no receiver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiverError {
    /// There is one of this name.
    #[error("this node has a receiver called {0:?} already; drop it first, or choose another name")]
    Taken(Arc<str>),
    /// It cannot be one.
    #[error("a receiver's name has 1 to 255 bytes, not {0}")]
    Name(usize),
    /// It is over.
    #[error("this node is out of the cluster")]
    Ended,
}
