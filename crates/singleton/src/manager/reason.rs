use std::fmt;

use tenure_cluster::Node;
use tenure_lease::Loss;

/// Why a singleton has to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// The lease is lost: another node may host it from [`kill_deadline`] on. There is no time for
    /// anything but to stop.
    ///
    /// [`kill_deadline`]: tenure_lease::Tenure::kill_deadline
    LeaseLost(Loss),
    /// It moves to a node that is better placed.
    HandOver(Node),
    /// This node leaves the cluster.
    Leaving,
    /// It was stopped on this node ([`Proxy::stop`](crate::Proxy::stop)); others host it.
    Stopped,
    /// This node was declared down, or is out of the cluster for another reason.
    OutOfCluster,
    /// It has failed or returned, and will be started again: whatever it had started ends first.
    Ended,
}

impl StopReason {
    /// The reason in one word, for metrics and logs.
    pub fn word(&self) -> &'static str {
        match self {
            Self::LeaseLost(_) => "lease_lost",
            Self::HandOver(_) => "hand_over",
            Self::Leaving => "leaving",
            Self::Stopped => "stopped",
            Self::OutOfCluster => "out_of_cluster",
            Self::Ended => "ended",
        }
    }
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeaseLost(loss) => write!(f, "the lease is lost: {loss}"),
            Self::HandOver(node) => write!(f, "it is handed over to {node}"),
            Self::Leaving => f.write_str("this node leaves"),
            Self::Stopped => f.write_str("it was stopped on this node"),
            Self::OutOfCluster => f.write_str("this node is out of the cluster"),
            Self::Ended => f.write_str("it has ended, and will be started again"),
        }
    }
}
