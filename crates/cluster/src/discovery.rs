//! Where to ask for a cluster.
//!
//! [`Discovery`] is how it is written in a file; [`Discover`] is for ways of your own.

mod kubernetes;
mod srv;

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Address, AddressError};
pub use kubernetes::{KubernetesService, ServicePort};
pub use srv::SrvName;

/// A way to find nodes. They need not be members; whoever is answers. Looked up again and again
/// until this node is in, so that a name may appear later.
///
/// | written | finds |
/// |---|---|
/// | `shop-0.shop:7400` | a node at this address |
/// | `dns:shop.default.svc:7400` | a node at each address (A and AAAA) of the name |
/// | `srv:_cluster._tcp.shop.default.svc` | a node at each target and port of the SRV records |
/// | `srv:_cluster._tcp.shop.service.consul@127.0.0.1:8600` | the same, asked of this DNS server |
/// | `k8s:default/shop:7400` | a node at each endpoint of a Kubernetes service, ready or not |
/// | `k8s:default/shop:cluster` | the same, at the service's port of this name |
///
/// `srv:` needs the feature `srv`, `k8s:` the feature `kubernetes`.
///
/// ```
/// use tenure_cluster::Discovery;
/// let one: Discovery = "shop-0.shop:7400".parse().unwrap();
/// let all: Discovery = "dns:shop.default.svc:7400".parse().unwrap();
/// let slices: Discovery = "k8s:default/shop:7400".parse().unwrap();
/// assert_eq!(slices.to_string(), "k8s:default/shop:7400");
/// # let _ = (one, all);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum Discovery {
    /// A node at this address.
    Node(Address),
    /// A node at each address that this name stands for, like a headless service in Kubernetes.
    Dns(Address),
    /// A node at each target of the SRV records of a name.
    Srv(SrvName),
    /// A node at each endpoint of a service, as the Kubernetes API tells it.
    Kubernetes(KubernetesService),
}

impl Discovery {
    /// The feature that it needs, if this program was built without it.
    pub(crate) fn missing_feature(&self) -> Option<&'static str> {
        match self {
            Self::Srv(_) if !cfg!(feature = "srv") => Some("srv"),
            Self::Kubernetes(_) if !cfg!(feature = "kubernetes-unversioned") => Some("kubernetes"),
            _ => None,
        }
    }
}

impl FromStr for Discovery {
    type Err = DiscoveryError;

    fn from_str(text: &str) -> Result<Self, DiscoveryError> {
        if let Some(name) = text.strip_prefix("dns:") {
            Ok(Self::Dns(name.parse()?))
        } else if let Some(name) = text.strip_prefix("srv:") {
            name.parse().map(Self::Srv)
        } else if let Some(service) = text.strip_prefix("k8s:") {
            service.parse().map(Self::Kubernetes)
        } else {
            Ok(Self::Node(text.parse()?))
        }
    }
}

impl fmt::Display for Discovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(address) => write!(f, "{address}"),
            Self::Dns(name) => write!(f, "dns:{name}"),
            Self::Srv(name) => write!(f, "srv:{name}"),
            Self::Kubernetes(service) => write!(f, "k8s:{service}"),
        }
    }
}

impl TryFrom<String> for Discovery {
    type Error = DiscoveryError;

    fn try_from(text: String) -> Result<Self, DiscoveryError> {
        text.parse()
    }
}

impl From<Discovery> for String {
    fn from(discovery: Discovery) -> Self {
        discovery.to_string()
    }
}

/// What is no way to find nodes, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiscoveryError {
    /// The address in it is none.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// It is not written as it should be.
    #[error("{text:?} is no way to find nodes: write {form}")]
    Form {
        /// What was written.
        text: String,
        /// How it should be.
        form: &'static str,
    },
}

impl DiscoveryError {
    fn form(text: &str, form: &'static str) -> Self {
        Self::Form { text: text.chars().take(80).collect(), form }
    }
}

/// A way of your own to find nodes: a registry, a cloud's API, a file that somebody writes.
///
/// ```
/// use tenure_cluster::{Address, BoxError, Discover, Settings};
///
/// /// One address a line; others append themselves.
/// struct Lines(std::path::PathBuf);
///
/// impl Discover for Lines {
///     async fn find_nodes(&self) -> Result<Vec<Address>, BoxError> {
///         let text = std::fs::read_to_string(&self.0)?;
///         Ok(text.lines().map(str::parse).collect::<Result<_, _>>()?)
///     }
/// }
/// let settings = Settings::new("shop").discover_with(Lines("/var/lib/shop/nodes".into()));
/// ```
pub trait Discover: Send + Sync + 'static {
    /// Where nodes may be; they need not be members, or alive, and this node may be among them.
    ///
    /// Asked about once a second until this node is in a cluster. What has no answer within two
    /// seconds is dropped where it awaits; an error is logged, and what others find counts.
    fn find_nodes(&self) -> impl Future<Output = Result<Vec<Address>, BoxError>> + Send;
}

/// What a [`Discover`] could not do.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// What a way to find nodes comes to.
pub(crate) type Found = Pin<Box<dyn Future<Output = Result<Vec<Address>, BoxError>> + Send>>;

/// Any [`Discover`].
#[derive(Clone)]
pub(crate) struct AnyDiscover(Arc<dyn Fn() -> Found + Send + Sync>);

impl AnyDiscover {
    pub(crate) fn new(discover: impl Discover) -> Self {
        let discover = Arc::new(discover);
        Self(Arc::new(move || {
            let discover = Arc::clone(&discover);
            Box::pin(async move { discover.find_nodes().await })
        }))
    }

    pub(crate) fn find_nodes(&self) -> Found {
        (self.0)()
    }
}

impl fmt::Debug for AnyDiscover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnyDiscover")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for text in [
            "shop-0.shop:7400",
            "dns:shop.default.svc:7400",
            "srv:_cluster._tcp.shop.default.svc",
            "srv:_cluster._tcp.shop.service.consul@127.0.0.1:8600",
            "k8s:default/shop:7400",
            "k8s:default/shop:cluster",
            "k8s:default/shop:cluster?kubeconfig=/etc/kube/config",
        ] {
            assert_eq!(text.parse::<Discovery>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_wrong_says_how_to_write_it() {
        for (text, words) in [
            ("shop", "host:port"),
            ("dns:shop", "host:port"),
            ("srv:", "srv:NAME"),
            ("srv:a b", "srv:NAME"),
            ("srv:_cluster._tcp.shop@dns", "srv:NAME"),
            ("srv:_cluster._tcp.shop:7400", "srv:NAME"),
            ("k8s:shop:7400", "k8s:NAMESPACE/SERVICE:PORT"),
            ("k8s:default/shop", "k8s:NAMESPACE/SERVICE:PORT"),
            ("k8s:default/shop:0", "k8s:NAMESPACE/SERVICE:PORT"),
            ("k8s:default/../shop:1", "k8s:NAMESPACE/SERVICE:PORT"),
            ("k8s:default/shop:1?context=a", "k8s:NAMESPACE/SERVICE:PORT"),
        ] {
            let error = text.parse::<Discovery>().unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
