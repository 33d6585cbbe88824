//! What the nodes say to each other about their singletons. How it may change: [`tenure_wire`].
//!
//! The heads of messages to a singleton itself are in `driver/frame.rs`.

use serde::{Deserialize, Serialize};

use tenure_cluster::messaging::Ask;
use tenure_lease::Token;
use tenure_wire::WireMessage;

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

impl WireMessage for Letter {}

/// A node that hosts the singleton no more is about to go, and asks everybody to say when nothing is on
/// its way there any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Farewell {
    pub(crate) singleton: String,
}

impl WireMessage for Farewell {}

impl Ask for Farewell {
    type Reply = ();
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tenure_wire::samples;

    use super::*;

    tenure_wire::variants!(Word { Who, State, HandedOver });

    #[test]
    fn every_message_has_samples_that_can_be_read() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/singleton.txt");
        let token = Token::new(7, 1 << 40);
        let words = [
            Word::Who,
            Word::State { hosting: Some(token), able: true },
            Word::State { hosting: None, able: false },
            Word::HandedOver { token },
        ];
        let letters = words.map(|word| Letter { singleton: "report".into(), word });
        let variant_of = |letter: &Letter| variant_of(&letter.word);
        samples::check_message(&file, "Letter", &letters, VARIANTS, variant_of);
        samples::check_struct(&file, "Farewell", &[Farewell { singleton: "report".into() }]);
    }
}
