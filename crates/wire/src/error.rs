/// Why a message cannot be written or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
#[allow(clippy::box_collection, reason = "one word: what is decoded then returns in registers")]
pub struct CodecError(Box<String>);

impl CodecError {
    /// From any error.
    pub fn new(error: impl std::fmt::Display) -> Self {
        Self(Box::new(error.to_string()))
    }
}
