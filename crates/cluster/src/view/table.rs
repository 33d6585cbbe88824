use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::Node;

/// Whom one observer cannot reach. Written by that observer alone, so that the higher version is
/// the newer one and nothing else needs to be merged. (A process that was resumed twice may write
/// two rows with one version; then the order of their contents decides, so that all agree.)
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Row {
    /// Rises with each change.
    #[serde(rename = "v", deserialize_with = "super::wire::number")]
    pub version: u64,
    /// The members that do not answer the observer.
    #[serde(rename = "u")]
    pub unreachable: Arc<BTreeSet<Node>>,
}
