//! What sharding is built on, how long things take, and how much there may be.

use std::time::Duration;

use tenure_cluster::Role;

use crate::{ShardKey, Strategy, Version};

/// What guards against a shard in two places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setup {
    /// Nothing but the membership. Two nodes that see different members may both coordinate.
    Gossip,
    /// A lease for the coordinator. A node's shards move when it was removed and a margin has
    /// passed; what a removed node still does, the fence refuses.
    Lease,
    /// A lease for the coordinator and a session for every region. A node's shards move when its
    /// session was released or taken over.
    Sessions,
}

/// How a kind of entity is sharded. The same on all nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What guards it.
    pub setup: Setup,
    /// How many shards there are. For good: it says where every entity belongs. Ten for each node
    /// that there will ever be is a good number.
    pub shards: u32,
    /// What entities are placed by, besides their ids. For good, as the number of shards. Without one
    /// whoever chooses ids can choose their shard. Default: none.
    pub shard_key: Option<ShardKey>,
    /// Which nodes host shards and coordinate; the others only send. All, if not set.
    pub role: Option<Role>,
    /// How often what was not answered is sent again, and regions are asked whether they still host
    /// what the coordinator believes. Default 1 s.
    pub resend_interval: Duration,
    /// How long regions are waited for before shards are first given to those that have answered,
    /// and before somebody's session is suspected to be over. Default 2 s.
    pub patience: Duration,
    /// How often the number of shards per region is looked at. Default 10 s.
    pub rebalance_interval: Duration,
    /// How many shards may be on their way from one region to another for balance. Each of them
    /// buffers its messages meanwhile. Default 8.
    pub rebalance_limit: usize,
    /// How long an older node must have been reachable before the coordinator gives way to it.
    /// Default 3 s.
    pub stable_after: Duration,
    /// Without sessions: how long after the removal of a node its shards are given to others. Longer
    /// than it takes the node to notice, and to stop. Default 10 s.
    pub removal_margin: Duration,
    /// How long a node that leaves waits for its shards to be taken before it just stops them.
    /// Default 10 s.
    pub hand_over_timeout: Duration,
    /// How many requests for the place of a shard a coordinator keeps, at most. Default 100,000.
    pub requests_max: usize,
    /// How many messages to one shard a region keeps while it has no place. Default 10,000.
    pub buffer_messages: usize,
    /// How many bytes of messages, likewise. Default 16 MiB.
    pub buffer_bytes: usize,
    /// How many messages wait for an entity that is at another; all entities of a shard together keep
    /// `buffer_messages` at most. More are refused. Default 1,000.
    pub mailbox: usize,
    /// How long a shard may take to stop when it is handed off, and an entity when it is passivated; then
    /// they are dropped where they await. After the loss of a session it has the session's stop budget instead. Default 10 s.
    pub stop_within: Duration,
    /// The pause before an entity that failed twice without a success between is made again; it
    /// doubles with each failure, up to thirty times this. Default 1 s.
    pub restart_backoff: Duration,
    /// How shards are given to regions. Default: to those that have least.
    pub strategy: Strategy,
    /// The version of the application on this node; the one setting that may differ.
    pub version: Version,
    /// After how much time without a message an entity is passivated; `None`: never. Default 15 min,
    /// but never for entities that are remembered.
    pub passivate_after: Option<Duration>,
    /// How many entities one node keeps before those are passivated that have had no message for
    /// longest. Those that are at work stay, so that there may be more by as many. Each thread of the
    /// runtime keeps its share of them, one at least. `None`: any number. Default 1,000,000, but any
    /// number of those that are remembered.
    pub entities_max: Option<usize>,
    /// Which rule to leave out, so that a test can see that it is needed.
    #[cfg(feature = "planted")]
    pub without: Option<Rule>,
}

impl Settings {
    /// So many shards, guarded by this.
    pub fn new(setup: Setup, shards: u32) -> Self {
        Self {
            setup,
            shards,
            shard_key: None,
            role: None,
            resend_interval: Duration::from_secs(1),
            patience: Duration::from_secs(2),
            rebalance_interval: Duration::from_secs(10),
            rebalance_limit: 8,
            stable_after: Duration::from_secs(3),
            removal_margin: Duration::from_secs(10),
            hand_over_timeout: Duration::from_secs(10),
            requests_max: 100_000,
            buffer_messages: 10_000,
            buffer_bytes: 16 << 20,
            mailbox: 1000,
            stop_within: Duration::from_secs(10),
            restart_backoff: Duration::from_secs(1),
            strategy: Strategy::LeastShards,
            version: Version::default(),
            passivate_after: Some(PASSIVATE_AFTER),
            entities_max: Some(ENTITIES_MAX),
            #[cfg(feature = "planted")]
            without: None,
        }
    }

    /// What other nodes are told, and must have as well: the number of shards, and in the upper half a
    /// fingerprint of the key.
    pub(crate) fn placing(&self) -> u32 {
        let key = self.shard_key.as_ref().map_or(0, ShardKey::fingerprint);
        self.shards | u32::from(key) << 16
    }

    /// What is remembered is there for good: it is not passivated, unless somebody has chosen so.
    pub(crate) fn remember(&mut self) {
        self.passivate_after.take_if(|after| *after == PASSIVATE_AFTER);
        self.entities_max.take_if(|most| *most == ENTITIES_MAX);
    }

    /// Checks that they make sense.
    pub fn check(&self) -> Result<(), SettingsError> {
        if self.shards == 0 || self.shards > SHARDS_MAX {
            return Err(SettingsError(format!(
                "shards {} must be between 1 and {SHARDS_MAX}",
                self.shards
            )));
        }
        let positive = [
            ("resend_interval", self.resend_interval),
            ("patience", self.patience),
            ("rebalance_interval", self.rebalance_interval),
            ("hand_over_timeout", self.hand_over_timeout),
            ("restart_backoff", self.restart_backoff),
            ("passivate_after", self.passivate_after.unwrap_or(TIME_MAX)),
        ];
        for (name, value) in positive {
            if value < Duration::from_millis(1) {
                return Err(SettingsError(format!("{name} {value:?} must be at least 1 ms")));
            }
        }
        let others = [
            ("stable_after", self.stable_after),
            ("removal_margin", self.removal_margin),
            ("stop_within", self.stop_within),
        ];
        for (name, value) in positive.into_iter().chain(others) {
            if value > TIME_MAX {
                return Err(SettingsError(format!("{name} {value:?} must be at most a year")));
            }
        }
        let at_least_one = [
            ("rebalance_limit", self.rebalance_limit),
            ("requests_max", self.requests_max),
            ("buffer_messages", self.buffer_messages),
            ("buffer_bytes", self.buffer_bytes),
            ("mailbox", self.mailbox),
            ("entities_max", self.entities_max.unwrap_or(1)),
        ];
        for (name, value) in at_least_one {
            if value == 0 {
                return Err(SettingsError(format!("{name} must be at least 1")));
            }
        }
        Ok(())
    }

    pub(crate) fn has_sessions(&self) -> bool {
        self.setup == Setup::Sessions
    }

    /// Whether a rule is to be followed; always, outside of tests.
    #[cfg(feature = "planted")]
    pub(crate) fn obeys(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    #[cfg(not(feature = "planted"))]
    #[inline(always)]
    pub(crate) const fn obeys(&self, _rule: Rule) -> bool {
        true
    }
}

/// A safety rule that can be left out to see that the tests notice.
#[cfg_attr(not(feature = "planted"), allow(dead_code))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A shard that nobody has reported is taken until the whole roster has answered or is over.
    UnreportedIsTaken,
    /// No directive is sent before the whole roster has answered or is over.
    WholeRosterFirst,
    /// A region starts a shard only for a token above all that it has seen, HandOff included.
    TokensMustBeAbove,
    /// The end of a session frees a shard; the end of a membership does not.
    OnlySessionsFree,
    /// An answer is about one allocation, and says which.
    AnswersNameTheAllocation,
    /// Entities fence with the shard's token, never with the session's.
    FenceWithTheShardsToken,
    /// A coordinator acts only while it holds its lease.
    OnlyWithTheLease,
    /// A directive names the session that it is for.
    DirectivesNameTheSession,
    /// A host is on the roster before it is sent its first directive.
    RosterBeforeDirective,
    /// A region obeys only the coordinator that it is registered with.
    OnlyTheRegisteredIsObeyed,
    /// What comes back after later messages were sent on is lost, and does not follow them.
    LateReturnsAreLost,
    /// Whose message was returned gets everything back until it has sent a mark.
    ReturnsUntilTheMark,
}

/// Settings that cannot work, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SettingsError(String);

/// So that all that is said about all of them fits in one control frame.
const SHARDS_MAX: u32 = u16::MAX as u32;
/// By default: whoever makes up ids must not fill the memory for good.
const PASSIVATE_AFTER: Duration = Duration::from_secs(15 * 60);
const ENTITIES_MAX: usize = 1_000_000;
/// What is longer is meant as "for ever", and could not be added to the time.
pub(crate) const TIME_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_cannot_be_added_up_are_refused() {
        let settings = Settings::new(Setup::Gossip, 10);
        settings.check().unwrap();
        let ever = Settings { stop_within: Duration::MAX, ..settings.clone() };
        assert!(ever.check().unwrap_err().to_string().starts_with("stop_within"));
        let never = Settings { passivate_after: Some(Duration::ZERO), ..settings };
        assert!(never.check().unwrap_err().to_string().starts_with("passivate_after"));
    }
}
