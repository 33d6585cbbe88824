//! Why a connection is refused, and how often that is worth a line in the log.

use std::time::Duration;

use tenure_lease::Moment;

use super::frame::FrameError;
use super::handshake::Version;
use crate::Address;

/// Why a connection was refused. The text is logged on both sides and names both values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// TLS failed: no certificate, one of another authority, one that has expired, garbage.
    #[error("TLS failed: {0}")]
    Tls(String),
    /// Its certificate is not of this cluster.
    #[error("its certificate is not for cluster \"{cluster}\": it names {named}")]
    Certificate {
        /// Ours.
        cluster: String,
        /// The URIs that it does name.
        named: String,
    },
    /// What it sent is not this protocol.
    #[error("it does not speak Tenure's protocol")]
    NotTenure,
    /// It speaks the protocol wrongly.
    #[error("{0}")]
    Malformed(String),
    /// It sent something that is no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// No version in common.
    #[error(
        "it speaks version {theirs} of the protocol and we speak {ours}: all nodes of a cluster \
         must have the same major version"
    )]
    Version {
        /// What we speak.
        ours: Version,
        /// What it speaks.
        theirs: Version,
    },
    /// It belongs to another cluster.
    #[error("it is of cluster \"{theirs}\", not of \"{ours}\"")]
    Cluster {
        /// Our cluster's name.
        ours: String,
        /// What it said.
        theirs: String,
    },
    /// It calls itself something that its certificate does not.
    #[error("it calls itself \"{claimed}\", but its certificate is for {certified}")]
    Name {
        /// What it said.
        claimed: String,
        /// What the certificate says.
        certified: String,
    },
    /// It says that it is at an address where this node knows another one.
    #[error(
        "it calls itself \"{claimed}\" and says that its address is {address}, which is that of \
         \"{known}\"; if \"{known}\" is gone, the next attempt succeeds"
    )]
    OtherName {
        /// The address.
        address: Address,
        /// What it said.
        claimed: String,
        /// Who is there, as far as this node knows.
        known: String,
    },
    /// Two nodes were given one address.
    #[error("it says that its address is {0}, which is ours: each node needs its own")]
    OurAddress(Address),
    /// It took too long to say who it is.
    #[error("it did not finish its greeting within {0:?}")]
    Slow(Duration),
    /// Too many connections, or too many that have not yet said who they are.
    #[error("there are too many {0} already")]
    TooMany(&'static str),
    /// Neither encrypted nor from this machine.
    #[error(
        "connections without TLS are only for this machine, unless allow_plaintext_beyond_loopback \
         is set"
    )]
    BeyondLoopback,
    /// The connection ended or failed before the greeting was over.
    #[error("the connection failed: {0}")]
    Cut(String),
    /// The other side refused us; this is what it said.
    #[error("it refused us: {0}")]
    ByPeer(String),
}

impl Refusal {
    /// One word, for the metric's label.
    pub fn reason(&self) -> &'static str {
        KINDS[self.index()]
    }

    fn index(&self) -> usize {
        match self {
            Self::Tls(_) => 0,
            Self::Certificate { .. } => 1,
            Self::NotTenure => 2,
            Self::Malformed(_) => 3,
            Self::Frame(_) => 4,
            Self::Version { .. } => 5,
            Self::Cluster { .. } => 6,
            Self::Name { .. } => 7,
            Self::OurAddress(_) => 8,
            Self::Slow(_) => 9,
            Self::TooMany(_) => 10,
            Self::BeyondLoopback => 11,
            Self::Cut(_) => 12,
            Self::ByPeer(_) => 13,
            Self::OtherName { .. } => 14,
        }
    }
}

/// Says which refusals are logged, so that a stranger cannot flood the log: a few at once, then one
/// in a while, for each kind apart.
#[derive(Debug, Default)]
pub(crate) struct LogLimit {
    kinds: [Kind; KINDS.len()],
}

#[derive(Clone, Copy, Debug, Default)]
struct Kind {
    /// When the budget was last refilled, and how much of it is used.
    since: Option<Moment>,
    used: u32,
    silent: u64,
}

impl LogLimit {
    /// Whether this one is logged; if so, how many were not since the last.
    pub(crate) fn admit(&mut self, now: Moment, refusal: &Refusal) -> Option<u64> {
        let kind = &mut self.kinds[refusal.index()];
        if kind.since.is_none_or(|since| now.since(since) >= PERIOD) {
            kind.since = Some(now);
            kind.used = 0;
        }
        if kind.used == PER_PERIOD {
            kind.silent += 1;
            return None;
        }
        kind.used += 1;
        Some(std::mem::take(&mut kind.silent))
    }
}

const KINDS: [&str; 15] = [
    "tls",
    "certificate",
    "not_tenure",
    "malformed",
    "frame",
    "version",
    "cluster",
    "name",
    "our_address",
    "slow",
    "too_many",
    "beyond_loopback",
    "cut",
    "by_peer",
    "other_name",
];
const PERIOD: Duration = Duration::from_secs(10);
const PER_PERIOD: u32 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_but_not_logged() {
        let mut limit = LogLimit::default();
        let at = |millis| Moment::ZERO + Duration::from_millis(millis);
        let logged: Vec<_> =
            (0..1000).filter_map(|n| limit.admit(at(n), &Refusal::NotTenure)).collect();
        assert_eq!(logged, [0, 0, 0, 0, 0]);
        assert_eq!(limit.admit(at(1000), &Refusal::BeyondLoopback), Some(0), "kinds are apart");
        assert_eq!(limit.admit(at(10_000), &Refusal::NotTenure), Some(995));
    }
}
