//! The split-brain resolver's strategies: what a side does when it cannot reach the others.
//!
//! A strategy is a pure function from what one node believes (a [`Situation`]) to a [`Decision`].
//! It reads no clock, asks no store and remembers nothing, so that every split of a small cluster
//! can be tried, and people can ask what would happen (`tenure downing decide`).
//!
//! All strategies share the same frame, which is here; each of them has a file of its own.
//!
//! 1. The [`Side`] is worked out: who reaches each other here, who is out of reach, and who is
//!    *indirectly connected*: reached by some of this side, not by others. Of those, as few as
//!    possible are given up, so that the rest see each other.
//! 2. Nothing is decided while nobody is out of reach, or while somebody of this side has not seen
//!    the view that is being decided on.
//! 3. Joining members are not counted and have no say. If only they are out of reach, they are
//!    downed without a count.
//! 4. The strategy counts this side against the whole membership and says whether it goes on.
//!
//! A decision is one for the whole side: it comes out the same whichever of its nodes asks, its
//! leader carries it out, and the others follow.
//!
//! # Who is counted
//!
//! Members that are up, leaving or exiting. One that is on its way out still counts until it is
//! down: whether it has come further may be known to one side only, and two sides that count
//! different memberships can both be the majority. (Leave exiting members out, and of `{a, b}` and
//! `{c, d}` the side that knows `d` to be exiting has two of three, while the other has two of four
//! and asks the lease.) For the same reason sides are counted on the last *converged* membership,
//! which all have seen, and, if it changed since, also on the present one. A side has won or lost
//! only if it has under both.

mod count;
mod down_all;
mod keep_majority;
mod keep_oldest;
mod keep_referee;
mod lease_majority;
mod side;
mod situation;
mod static_quorum;
mod written;

use std::fmt::{self, Display};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use count::Counts;
pub use count::Standing;
pub use down_all::DownAll;
pub use keep_majority::KeepMajority;
pub use keep_oldest::KeepOldest;
pub use keep_referee::KeepReferee;
pub use lease_majority::{LeaseMajority, Mode};
pub use side::Side;
pub use situation::{Converged, HasAddress, Seat, Situation, SituationError};
pub use static_quorum::StaticQuorum;

use crate::Address;
use crate::settings::SettingsError;

/// How a cluster decides which side of a split goes on.
///
/// It must be the same on every node. In a file it is a table:
///
/// ```toml
/// strategy = "static-quorum"
/// quorum_size = 3
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "written::Written", into = "written::Written")]
pub enum Strategy {
    /// The side with at least so many members.
    StaticQuorum(StaticQuorum),
    /// The side with the oldest member.
    KeepOldest(KeepOldest),
    /// The side with a certain member.
    KeepReferee(KeepReferee),
    /// The larger side.
    KeepMajority(KeepMajority),
    /// The larger side; of equal ones that which wins a lease.
    LeaseMajority(LeaseMajority),
    /// None.
    DownAll(DownAll),
}

impl Strategy {
    /// What the side of the node that believes this does.
    pub fn decide<N: HasAddress>(&self, situation: &Situation<N>) -> Decision<N> {
        let Some(side) = situation.side() else {
            return Decision::stay("this node is down already");
        };
        if side.gone.is_empty() && side.dropped.is_empty() {
            return Decision::stay("nobody is unreachable");
        }
        if side.leader(None).is_none() {
            return Decision::stay(
                "there are only joining members here, and they have no say: they start over",
            );
        }
        if !side.unseen.is_empty() {
            let unseen = side::names(side.unseen.iter().map(|seat| &seat.node));
            return Decision::stay(format!("not everybody here has seen this view yet: {unseen}"));
        }
        if !side.dropped.iter().chain(&side.gone).any(|seat| seat.counts()) {
            let reason = "only joining members are unreachable, and they have no say".into();
            return Decision::Down { nodes: nodes([&side.dropped, &side.gone]), reason };
        }
        if let Some(role) = self.role()
            && Counts::of(&side, Some(role)).each().all(|count| count.all() == 0)
        {
            return Decision::stay(format!("no member has the role {role}: is it misspelt?"));
        }
        let outcome = match self {
            Self::StaticQuorum(strategy) => strategy.judge(&side),
            Self::KeepOldest(strategy) => strategy.judge(&side),
            Self::KeepReferee(strategy) => strategy.judge(&side),
            Self::KeepMajority(strategy) => strategy.judge(&side),
            Self::LeaseMajority(strategy) => strategy.judge(&side),
            Self::DownAll(strategy) => strategy.judge(),
        };
        outcome.of(&side)
    }

    /// The role that members must have to be counted.
    pub(crate) fn role(&self) -> Option<&str> {
        match self {
            Self::StaticQuorum(strategy) => strategy.role.as_deref(),
            Self::KeepOldest(strategy) => strategy.role.as_deref(),
            Self::KeepMajority(strategy) => strategy.role.as_deref(),
            Self::LeaseMajority(strategy) => strategy.role.as_deref(),
            Self::KeepReferee(_) | Self::DownAll(_) => None,
        }
    }

    /// Checks what can be checked without a cluster.
    pub fn check(&self) -> Result<(), SettingsError> {
        let refuse = |text: String| Err(SettingsError(text));
        match self {
            Self::StaticQuorum(StaticQuorum { size: 0, .. }) => {
                refuse("quorum_size 0 must be at least 1".into())
            }
            Self::KeepReferee(KeepReferee { address, .. }) => match Address::new(address) {
                Ok(_) => Ok(()),
                Err(error) => refuse(format!("referee: {error}")),
            },
            Self::LeaseMajority(LeaseMajority { acquire_timeout, .. })
                if *acquire_timeout < Duration::from_millis(1) =>
            {
                refuse(format!("acquire_timeout {acquire_timeout:?} must be at least 1 ms"))
            }
            _ => Ok(()),
        }
    }

    /// Whether nobody's membership ends but by a verdict.
    pub fn only_by_verdict(&self) -> bool {
        matches!(self, Self::LeaseMajority(strategy) if strategy.mode == Mode::Always)
    }

    /// Who carries the decision out for its side: its leader, or with a [`LeaseMajority`] that has
    /// a role the first that may ask, if there is one.
    pub fn decider<N: HasAddress>(&self, situation: &Situation<N>) -> Option<N> {
        let side = situation.side()?;
        let role = match self {
            Self::LeaseMajority(strategy) => strategy.role.as_deref(),
            _ => None,
        };
        side.leader(role).or_else(|| side.leader(None)).cloned()
    }
}

/// What a side does, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision<N> {
    /// Declare these down: the others, or this side itself.
    Down {
        /// Who.
        nodes: Vec<N>,
        /// Why, in a sentence.
        reason: String,
    },
    /// Change nothing, and look again when the view has changed.
    Stay {
        /// Why, in a sentence.
        reason: String,
    },
    /// Ask the lease. If it is won, declare `down` down; if not, follow the verdict that its record
    /// holds; if nobody knows, keep asking.
    AskLease {
        /// How long to wait before the first attempt, so that a larger side can be first.
        after: Duration,
        /// Who goes on if it is won.
        survivors: Vec<N>,
        /// Who does not.
        down: Vec<N>,
        /// Why, in a sentence.
        reason: String,
    },
}

impl<N> Decision<N> {
    /// Why, in a sentence.
    pub fn reason(&self) -> &str {
        match self {
            Self::Down { reason, .. } | Self::Stay { reason } | Self::AskLease { reason, .. } => {
                reason
            }
        }
    }

    /// Who would be declared down; for a lease that is asked, if it is won.
    pub fn down(&self) -> &[N] {
        match self {
            Self::Down { nodes, .. } => nodes,
            Self::Stay { .. } => &[],
            Self::AskLease { down, .. } => down,
        }
    }

    fn stay(reason: impl Into<String>) -> Self {
        Self::Stay { reason: reason.into() }
    }
}

impl<N: HasAddress> Display for Decision<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let down = || side::names(self.down().iter());
        let reason = self.reason();
        match self {
            Self::Down { .. } => write!(f, "down {}: {reason}", down()),
            Self::Stay { .. } => write!(f, "stay: {reason}"),
            Self::AskLease { after, .. } if after.is_zero() => {
                write!(f, "ask the lease, and if it is won down {}: {reason}", down())
            }
            Self::AskLease { after, .. } => write!(
                f,
                "ask the lease after {after:?}, and if it is won down {}: {reason}",
                down()
            ),
        }
    }
}

/// For how long a view must not have changed before anything is counted on it, by the size of the
/// cluster. A split is noticed node by node; counted too early, half of a cluster looks like
/// a few that are missing. The larger the cluster, the longer until all have noticed and told.
pub fn default_stable_after(members: usize) -> Duration {
    Duration::from_secs(match members {
        0..=10 => 3,
        11..=50 => 5,
        51..=100 => 6,
        _ => 9,
    })
}

/// What a strategy says about a side.
enum Outcome {
    /// It goes on, the others are down.
    Survive(String),
    /// It downs itself.
    End(String),
    /// It downs everybody.
    EndAll(String),
    /// It cannot tell.
    Wait(String),
    /// The lease decides.
    Ask { after: Duration, reason: String },
}

impl Outcome {
    fn of<N: HasAddress>(self, side: &Side<'_, N>) -> Decision<N> {
        let others = || nodes([&side.dropped, &side.gone]);
        match self {
            Self::Survive(reason) => Decision::Down { nodes: others(), reason },
            Self::End(reason) => {
                Decision::Down { nodes: nodes([&side.here, &side.dropped]), reason }
            }
            Self::EndAll(reason) => {
                Decision::Down { nodes: nodes([&side.here, &side.dropped, &side.gone]), reason }
            }
            Self::Wait(reason) => Decision::Stay { reason },
            Self::Ask { after, reason } => {
                Decision::AskLease { after, survivors: nodes([&side.here]), down: others(), reason }
            }
        }
    }
}

/// In the order of addresses, as people look for them.
fn nodes<N: HasAddress, const K: usize>(of: [&Vec<&Seat<N>>; K]) -> Vec<N> {
    let mut nodes: Vec<N> = of.into_iter().flatten().map(|seat| seat.node.clone()).collect();
    // Each of the lists is sorted already, which a stable sort makes use of.
    nodes.sort();
    nodes
}
