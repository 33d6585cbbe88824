//! Messages between nodes: to a *receiver*, which has a name on its node.
//!
//! ```no_run
//! # use tenure_cluster::Cluster;
//! # async fn example(cluster: Cluster) -> Result<(), Box<dyn std::error::Error>> {
//! use serde::{Deserialize, Serialize};
//! use tenure_cluster::messaging::Ask;
//!
//! #[derive(Serialize, Deserialize)]
//! enum Counter { Add(u64), Get }
//!
//! struct Get;
//! impl Ask for Get { type Reply = u64; }
//! impl From<Get> for Counter { fn from(_: Get) -> Self { Self::Get } }
//!
//! // On one node:
//! let mut counter = cluster.receiver::<Counter>("counter")?;
//! tokio::spawn(async move {
//!     let mut total = 0;
//!     while let Some(received) = counter.recv().await {
//!         match received.message {
//!             Counter::Add(count) => total += count,
//!             Counter::Get => drop(received.reply.answer::<Get>(total).await),
//!         }
//!     }
//! });
//!
//! // On any node:
//! let node = cluster.view().oldest(None).cloned().ok_or("nobody is up")?;
//! let counter = cluster.to::<Counter>(&node, "counter");
//! counter.tell(Counter::Add(2)).await?;
//! let total = counter.ask(Get).within(std::time::Duration::from_secs(2)).await?;
//! # Ok(()) }
//! ```
//!
//! # What is promised
//!
//! - **At most once, in order.** What one node sends to one receiver arrives in the order in which
//!   it was sent, each message once or not at all. For *exactly once in effect*, see [`reliable`].
//! - **Nothing silent.** A message that is lost is an error to its sender ([`NotDone`],
//!   [`AskError`]), or a [`DeadLetter`] on its sender's node, and is counted. That includes what a process
//!   had received and not yet handled when it died ([`Lost::Unknown`]): the sender's node counts what it
//!   told until it hears that it is *settled*, that is, handled, refused or given back. A receiver says so
//!   by dropping the [`Reply`] that came with a message; keep it until the message is handled. Only the
//!   death of the sender's own node takes its messages along without a word.
//! - **Unknown is not no.** [`AskError`] says whether the question certainly was not handled, or
//!   may have been.
//! - **Bounded, each for itself.** A receiver that does not keep up fills its mailbox; then
//!   [`Sender::ask`] and [`Sender::try_tell`] are refused at once, and [`Sender::tell`] waits, on the
//!   node of the sender, after some megabytes for that receiver are on their way. What goes to other
//!   receivers does not wait along, nor do answers. One that is full and has taken nothing for a second
//!   ([`PATIENCE`]) is *stuck*, and refuses everything until it takes something again; so nobody
//!   waits for it for ever.
//!
//! What is posted ([`Sender::post`]) overtakes all that, and may be lost in silence.

mod codec;
mod dead;
mod driver;
mod error;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod mailbox;
mod message;
mod origin;
mod protocol;
mod receiver;
pub mod reliable;
mod sender;
pub mod telemetry;
mod unreadable;
mod wire;

pub use dead::{DeadLetter, DeadLetters, Lost};
pub(crate) use driver::Messaging;
pub use driver::{BOARD, PATIENCE};
pub use error::{AskError, NotDone, ReceiverError, Unknown};
pub use message::{Ask, Json, Message, Positional, decode};
pub use origin::Origin;
pub use protocol::Protocol;
pub use receiver::{Expects, Receipt, Received, Receiver, Reply};
pub use sender::{Asking, Sender};
pub use tenure_wire::CodecError;
