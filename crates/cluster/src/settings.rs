//! Who a node is, where it finds the others, how long things take.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_lease::{Lease, Owner};

use crate::discovery::AnyDiscover;
use crate::downing::Strategy;
use crate::resolver::ResolverSettings;
use crate::transport::TransportSettings;
use crate::{Address, Discover, Discovery, humane};

/// Everything about one node of a cluster. Can be built in code or loaded from a file; only the
/// leases come from code, since they need a store.
///
/// ```
/// use tenure_cluster::Settings;
/// let settings = Settings::new("shop")
///     .address("10.0.0.7:7400".parse().unwrap())
///     .discover("shop-0.shop:7400".parse().unwrap())
///     .identity("certs/");
/// assert!(settings.check().is_ok());
/// let forgot = Settings::new("shop").address("10.0.0.7:7400".parse().unwrap());
/// assert!(forgot.check().unwrap_err().to_string().contains("identity"));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The cluster's name: the same on all its nodes, and in their certificates. Letters, digits,
    /// `-`, `.` and `_`.
    pub cluster: String,
    /// The node's name: what people call it, and what its certificate says. Shards and singletons that
    /// belong to a node go by it, so it should be the same after a restart. At most 253 bytes. Default:
    /// `POD_NAME`, else `HOSTNAME`, else the host's name.
    #[serde(default = "default_name")]
    pub name: String,
    /// Where the others reach this node, `host:port`; also its place in the order of nodes. Default:
    /// `POD_IP`, else the host's name, with the port 7400.
    #[serde(default = "default_address")]
    pub address: Address,
    /// What this node can be used for: words of yours.
    #[serde(default)]
    pub roles: BTreeSet<String>,
    /// The directory with `ca.pem`, `node.pem` and `node.key`; `tenure certs` makes one to start
    /// with.
    #[serde(default)]
    pub identity: Option<PathBuf>,
    /// Instead of an identity: anybody who reaches the port may pass for a node, and read
    /// everything. Only on loopback, unless `transport.allow_plaintext_beyond_loopback` says it
    /// again.
    #[serde(default)]
    pub plaintext_without_any_protection: bool,
    /// Where to ask for a cluster. May be empty if there is a formation lease: its note says where
    /// members are.
    #[serde(default)]
    pub discover: Vec<Discovery>,
    /// Without a formation lease: how long the first of `discover` asks the others before it forms
    /// a cluster. Longer than the slowest node's start. Default 5 s.
    #[serde(default = "default_seed_patience", with = "humane")]
    pub seed_patience: Duration,
    /// How many contact points must be known before this node forms a cluster, itself included: the
    /// addresses that `discover` finds. It keeps a node whose discovery finds only a part of the
    /// others from forming a cluster of its own. At most as many as are always found, and at most
    /// as many nodes as are started together. Default 1.
    #[serde(default = "default_contacts_min")]
    pub contacts_min: usize,
    /// Whether a node that was declared down or removed joins again by itself, as a new
    /// incarnation. Otherwise it is over, and the process should end and be started again:
    /// [`Cluster::leave_when_terminated`](crate::Cluster::leave_when_terminated) returns an error then,
    /// and `/alive` turns false. Default false: what a program started beside its singletons and
    /// shards was stopped by nobody, and a new process has nothing left over.
    #[serde(default)]
    pub rejoin: bool,
    /// Settings of yours that must be the same on every node: one that differs is not let in, and
    /// is told both values.
    #[serde(default)]
    pub must_agree: BTreeMap<String, String>,
    /// The version of your application, as operators should see it: `tenure cluster status`, the page and
    /// `tenure_cluster_versions` tell it for each member. Nothing depends on it. At most 128 bytes.
    #[serde(default)]
    pub version: Option<String>,
    /// The timing of membership.
    #[serde(default)]
    pub membership: MembershipSettings,
    /// The transport.
    #[serde(default)]
    pub transport: TransportSettings,
    /// When the resolver decides.
    #[serde(default)]
    pub resolver: ResolverSettings,
    /// How a split is settled: the same on all nodes. Without it, whoever is unreachable stays so
    /// until it answers again or an operator declares it down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub downing: Option<Strategy>,
    /// Ways of users' own to find nodes.
    #[serde(skip)]
    pub(crate) discover_with: Vec<AnyDiscover>,
    /// The lease that guards the cluster's formation.
    #[serde(skip)]
    pub(crate) formation: Option<Lease>,
    /// The lease that settles ties.
    #[serde(skip)]
    pub(crate) arbitration: Option<Lease>,
}

impl Settings {
    /// The defaults, for a cluster of this name.
    pub fn new(cluster: impl Into<String>) -> Self {
        Self {
            cluster: cluster.into(),
            name: default_name(),
            address: default_address(),
            roles: BTreeSet::new(),
            identity: None,
            plaintext_without_any_protection: false,
            discover: Vec::new(),
            seed_patience: default_seed_patience(),
            contacts_min: default_contacts_min(),
            rejoin: false,
            must_agree: BTreeMap::new(),
            version: None,
            membership: MembershipSettings::default(),
            transport: TransportSettings::default(),
            resolver: ResolverSettings::default(),
            downing: None,
            discover_with: Vec::new(),
            formation: None,
            arbitration: None,
        }
    }

    /// Sets the node's name.
    pub fn name(self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// Sets where the others reach this node.
    pub fn address(self, address: Address) -> Self {
        Self { address, ..self }
    }

    /// Adds a role.
    pub fn role(mut self, role: impl Into<String>) -> Self {
        self.roles.insert(role.into());
        self
    }

    /// Sets the directory with the node's certificate.
    pub fn identity(self, directory: impl Into<PathBuf>) -> Self {
        Self { identity: Some(directory.into()), ..self }
    }

    /// Adds a way to find others.
    pub fn discover(mut self, discovery: Discovery) -> Self {
        self.discover.push(discovery);
        self
    }

    /// Adds a way of your own to find others; they are asked after those of
    /// [`discover`](Self::discover).
    pub fn discover_with(mut self, discover: impl Discover) -> Self {
        self.discover_with.push(AnyDiscover::new(discover));
        self
    }

    /// Sets the lease that guards the cluster's formation. All nodes must name the same one.
    pub fn formation(self, lease: Lease) -> Self {
        Self { formation: Some(lease), ..self }
    }

    /// Sets how a split is settled: the same on all nodes. Without it, whoever is unreachable stays
    /// so until it answers again or an operator declares it down.
    pub fn downing(self, strategy: Strategy) -> Self {
        Self { downing: Some(strategy), ..self }
    }

    /// Sets the lease that [`Strategy::LeaseMajority`] asks: the same on all nodes.
    pub fn arbitration(self, lease: Lease) -> Self {
        Self { arbitration: Some(lease), ..self }
    }

    /// The lease that guards the cluster's formation.
    pub fn formation_lease(&self) -> Option<&Lease> {
        self.formation.as_ref()
    }

    /// The lease that [`Strategy::LeaseMajority`] asks.
    pub fn arbitration_lease(&self) -> Option<&Lease> {
        self.arbitration.as_ref()
    }

    /// Checks what can be checked before joining.
    pub fn check(&self) -> Result<(), SettingsError> {
        let refuse = |text: &str| Err(SettingsError(text.into()));
        if self.identity.is_none() && !self.plaintext_without_any_protection {
            return refuse(
                "set identity to a directory with ca.pem, node.pem and node.key (`tenure certs` \
                 makes one), or plaintext_without_any_protection to try things out on one machine",
            );
        }
        if self.identity.is_some() && self.plaintext_without_any_protection {
            return refuse("identity and plaintext_without_any_protection exclude each other");
        }
        if self.discover.is_empty() && self.formation.is_none() {
            return refuse(
                "set discover to some nodes, or give a formation lease: otherwise there is no \
                 way to find the cluster",
            );
        }
        let lengths = [
            ("name", self.name.len(), NAME_MAX),
            ("version", self.version.as_ref().map_or(0, String::len), VERSION_MAX),
        ];
        for (name, len, max) in lengths {
            if len > max {
                return Err(SettingsError(format!(
                    "{name} has {len} bytes, and at most {max} are allowed: all members keep it, and \
                     tell each other; set {name} to something shorter"
                )));
            }
        }
        for discovery in &self.discover {
            if let Some(feature) = discovery.missing_feature() {
                return Err(SettingsError(format!(
                    "discover {discovery} needs the feature {feature}, and this program was built \
                     without it: take another way to find nodes, or build it with that"
                )));
            }
        }
        if self.formation.is_none() && !matches!(self.discover.first(), Some(Discovery::Node(_))) {
            return refuse(
                "without a formation lease the first of discover must be a node, the same on all \
                 nodes: that one forms the cluster",
            );
        }
        let is_node = |discovery: &Discovery| matches!(discovery, Discovery::Node(_));
        let known = self.discover.len() + 1;
        if self.contacts_min == 0 {
            return refuse("contacts_min must be at least 1: the node itself counts");
        }
        if self.discover.iter().all(is_node) && self.contacts_min > known {
            return Err(SettingsError(format!(
                "contacts_min {} can never be met: discover finds {known} with this node; set \
                 contacts_min lower, or discover more",
                self.contacts_min
            )));
        }
        self.downing.as_ref().map_or(Ok(()), Strategy::check)?;
        let needs_lease = matches!(self.downing, Some(Strategy::LeaseMajority(_)));
        if needs_lease != self.arbitration.is_some() {
            return refuse(
                "lease-majority needs an arbitration lease, and nothing else uses one: set both or \
                 neither",
            );
        }
        self.check_leases()?;
        self.transport.check().map_err(|error| SettingsError(error.to_string()))?;
        self.membership.check()
    }
}

impl Settings {
    /// Refuses leases that could never be held, or that would settle nothing.
    fn check_leases(&self) -> Result<(), SettingsError> {
        let (formation, arbitration) = (self.formation.as_ref(), self.arbitration.as_ref());
        for (purpose, lease) in [("formation", formation), ("arbitration", arbitration)] {
            if let Some(lease) = lease
                && let Err(error) = lease.check()
            {
                let name = lease.name().map_or_else(|_| String::new(), |name| format!(" {name}"));
                return Err(SettingsError(format!(
                    "the {purpose} lease{name} can never be held: {error}; change its name or ttl"
                )));
            }
        }
        match (formation, arbitration) {
            (Some(formation), Some(arbitration)) if formation.name() == arbitration.name() => {
                Err(SettingsError(
                    "the formation and the arbitration lease must be two leases: the leader holds \
                     the first one all the time; change the name of one of them"
                        .into(),
                ))
            }
            // Verdicts outlive clusters, and are told apart by the clusters' ids. Without a
            // formation lease these come from a clock, and one that was ahead once would make every
            // later cluster take the record for that of a newer one, and end.
            (None, Some(_)) => Err(SettingsError(
                "lease-majority needs a formation lease as well: only its terms tell an older \
                 cluster's verdict from a newer one's; set formation to a name in the same store"
                    .into(),
            )),
            _ => Ok(()),
        }
    }
}

fn default_name() -> String {
    Owner::this_process().name
}

fn default_address() -> Address {
    let host = std::env::var("POD_IP").ok().filter(|ip| !ip.is_empty());
    let host = host.unwrap_or_else(default_name);
    let text = if host.contains(':') { format!("[{host}]:7400") } else { format!("{host}:7400") };
    Address::new(&text).unwrap_or_else(|_| LOOPBACK.parse().expect("an address"))
}

fn default_contacts_min() -> usize {
    1
}

fn default_seed_patience() -> Duration {
    Duration::from_secs(5)
}

/// How many bytes a node's name may have: as a name in the DNS.
pub(crate) const NAME_MAX: usize = 253;
/// How many bytes the application's version may have.
pub(crate) const VERSION_MAX: usize = 128;
const LOOPBACK: &str = "127.0.0.1:7400";

/// The timing of membership: how soon a silent node is noticed, how soon news is everywhere.
///
/// The defaults suit a data centre. `Membership` itself never removes anybody, so being too quick
/// here costs noise, not members.
///
/// ```
/// use tenure_cluster::MembershipSettings;
/// let settings = MembershipSettings::default();
/// assert_eq!(settings.detection().as_millis(), 4522);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MembershipSettings {
    /// How often a node asks those it watches for a sign of life. Shorter notices sooner, and costs
    /// two small frames per watched node each time. Default 1 s.
    #[serde(with = "humane")]
    pub heartbeat_interval: Duration,
    /// How long a node may be silent beyond what is usual before it counts as unreachable: longer
    /// than the pauses of a healthy process (garbage, swap, a virtual machine that moves). The
    /// longer, the later a dead one is noticed. Default 3 s.
    #[serde(with = "humane")]
    pub acceptable_pause: Duration,
    /// How sure a detector must be, as the negative logarithm of the probability that it is wrong
    /// by chance. Between 1 and 16; the usual spread of answers is multiplied by about its square
    /// root. Default 8.
    pub threshold: f64,
    /// How many others a node watches, at most. Everybody watches everybody up to one more than
    /// this; beyond that each is watched by this many. Default 9.
    pub watched: usize,
    /// How often news is exchanged with somebody while all agree. While they do not, five times as
    /// often. Default 1 s.
    #[serde(with = "humane")]
    pub gossip_interval: Duration,
    /// How long somebody who is only joining may be unreachable before it is given up: it has no
    /// say and hosts nothing, so it just starts over. Default 3 s.
    #[serde(with = "humane")]
    pub joining_patience: Duration,
    /// How long a leaving node waits for the others to take notice before it hands over anyway;
    /// they cannot while somebody is unreachable. Default 10 s.
    #[serde(with = "humane")]
    pub leave_timeout: Duration,
    /// How long what this node hosts may take to stop and to be handed over when it leaves
    /// ([`Cluster::before_leaving`](crate::Cluster::before_leaving)); then it goes without waiting
    /// any longer. Longer than the longest stop of yours, and shorter than whoever stops the process
    /// waits before it kills it. Default 30 s.
    #[serde(with = "humane")]
    pub hand_over_timeout: Duration,
    /// For how long a removed incarnation is remembered by name; after that it is recognised as a
    /// ghost by its age. Longer than any message is on its way or any process stands still. Costs
    /// some 100 bytes for each restart in this time. Default 1 day.
    #[serde(with = "humane")]
    pub keep_removed: Duration,
    /// Which rule to leave out, so that a test can see that it is needed.
    #[cfg(feature = "planted")]
    #[serde(skip)]
    pub without: Option<Rule>,
}

impl Default for MembershipSettings {
    fn default() -> Self {
        Self {
            heartbeat_interval: Duration::from_secs(1),
            acceptable_pause: Duration::from_secs(3),
            threshold: 8.0,
            watched: 9,
            gossip_interval: Duration::from_secs(1),
            joining_patience: Duration::from_secs(3),
            leave_timeout: Duration::from_secs(10),
            hand_over_timeout: Duration::from_secs(30),
            keep_removed: Duration::from_secs(24 * 60 * 60),
            #[cfg(feature = "planted")]
            without: None,
        }
    }
}

impl MembershipSettings {
    /// Checks that they make sense together.
    pub fn check(&self) -> Result<(), SettingsError> {
        let positive = [
            ("heartbeat_interval", self.heartbeat_interval),
            ("acceptable_pause", self.acceptable_pause),
            ("gossip_interval", self.gossip_interval),
            ("joining_patience", self.joining_patience),
            ("leave_timeout", self.leave_timeout),
            ("hand_over_timeout", self.hand_over_timeout),
            ("keep_removed", self.keep_removed),
        ];
        for (name, value) in positive {
            if value < Duration::from_millis(1) {
                return Err(SettingsError(format!("{name} {value:?} must be at least 1 ms")));
            }
        }
        if !(1.0..=16.0).contains(&self.threshold) {
            return Err(SettingsError(format!(
                "threshold {} must be between 1 and 16",
                self.threshold
            )));
        }
        if self.watched == 0 {
            return Err(SettingsError("watched must be at least 1".into()));
        }
        if self.keep_removed < self.detection() * 10 {
            return Err(SettingsError(format!(
                "keep_removed {:?} must be at least ten times the detection time {:?}",
                self.keep_removed,
                self.detection()
            )));
        }
        Ok(())
    }

    /// How long after its last sign of life a node counts as unreachable, in a network that does
    /// not stutter.
    pub fn detection(&self) -> Duration {
        crate::reachability::Detector::new(self, tenure_lease::Moment::ZERO)
            .steady_deadline(self)
            .since(tenure_lease::Moment::ZERO)
    }

    /// Whether a rule is to be followed; always, outside of tests.
    #[cfg(feature = "planted")]
    pub(crate) fn obeys(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    #[cfg(not(feature = "planted"))]
    #[inline]
    pub(crate) const fn obeys(&self, _rule: Rule) -> bool {
        true
    }
}

/// A safety rule that can be left out to see that the tests notice.
#[cfg_attr(not(feature = "planted"), allow(unreachable_pub, dead_code))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Nobody becomes up, exiting or removed while a member that is not down is unreachable.
    NobodyUpDuringSplit,
    /// Removed incarnations stay out.
    RefuseGhosts,
    /// Being unreachable is an observation; it changes no status.
    DetectorRemovesNobody,
    /// The leader acts only on a view that everybody has seen.
    ActOnlyOnConvergence,
    /// Sides are counted on the last converged membership as well as on the present one.
    CountOnBoth,
    /// One node of a side decides and asks.
    OneAsks,
    /// A lease that was not won downs nobody; only a verdict does.
    LostMeansWait,
    /// When every side asks, a majority that gets no answer waits.
    UnknownMeansWait,
    /// The lease is acquired only if its record is still the one that was read.
    AskConditionally,
    /// A node that joins must prove that it is the one that answers at its address.
    ProveAddress,
    /// When every side asks, a member that was replaced at its address is settled by a verdict too.
    ReplacedByVerdict,
    /// A member that holds the formation lease is proof that its cluster lives.
    MemberRestartsAsking,
    /// A candidate that wins the formation lease before it may form a cluster gives it back.
    CandidateGivesBack,
}

/// Settings that cannot work, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SettingsError(pub String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_members_keep_has_a_length() {
        let settings = || {
            let address: Address = "127.0.0.1:7400".parse().unwrap();
            Settings::new("shop").identity("certs").discover(Discovery::Node(address))
        };
        let named = |len| settings().name("n".repeat(len)).check();
        let versioned = |len| Settings { version: Some("v".repeat(len)), ..settings() }.check();
        assert_eq!(named(NAME_MAX), Ok(()));
        assert_eq!(versioned(VERSION_MAX), Ok(()));
        let refused = named(NAME_MAX + 1).unwrap_err().to_string();
        assert!(refused.starts_with("name has 254 bytes, and at most 253"), "{refused}");
        let refused = versioned(VERSION_MAX + 1).unwrap_err().to_string();
        assert!(refused.starts_with("version has 129 bytes, and at most 128"), "{refused}");
    }
}
