use serde::{Deserialize, Serialize};

use tenure_cluster::messaging::Ask;
use tenure_lease::Token;

/// What managers and proxies of one singleton say to each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Word {
    /// What does your node do about it?
    Who,
    /// What the sender does about it.
    State {
        /// Under which token it hosts the singleton, if it does.
        hosting: Option<Token>,
        /// Whether it could.
        able: bool,
    },
    /// The sender has stopped hosting, and the lease is given back; one that leaves says it for good,
    /// also if it never hosted.
    HandedOver {
        /// The last token it hosted under; the lowest of all if it never did. Whoever knows of a higher
        /// one need not care.
        token: Token,
    },
}

impl Ask for Letter {
    /// Whether there is a manager of that singleton.
    type Reply = bool;
}

/// A word, and of which singleton.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Letter {
    pub(crate) singleton: String,
    pub(crate) word: Word,
}
