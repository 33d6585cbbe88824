//! Where to ask for a cluster.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Address, AddressError};

/// A way to find nodes. They need not be members; whoever is answers.
///
/// ```
/// use tenure_cluster::Discovery;
/// let one: Discovery = "shop-0.shop:7400".parse().unwrap();
/// let all: Discovery = "dns:shop.default.svc:7400".parse().unwrap();
/// assert_eq!(all.to_string(), "dns:shop.default.svc:7400");
/// # let _ = one;
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Discovery {
    /// A node at this address.
    Node(Address),
    /// A node at each address that this name stands for, like a headless service in Kubernetes.
    /// Looked up again and again until this node is in.
    Dns(Address),
}

impl FromStr for Discovery {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        match text.strip_prefix("dns:") {
            Some(name) => name.parse().map(Self::Dns),
            None => text.parse().map(Self::Node),
        }
    }
}

impl fmt::Display for Discovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(address) => write!(f, "{address}"),
            Self::Dns(name) => write!(f, "dns:{name}"),
        }
    }
}

impl TryFrom<String> for Discovery {
    type Error = AddressError;

    fn try_from(text: String) -> Result<Self, AddressError> {
        text.parse()
    }
}

impl From<Discovery> for String {
    fn from(discovery: Discovery) -> Self {
        discovery.to_string()
    }
}
