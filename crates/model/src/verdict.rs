//! The verdict: which side of a split lives on, as `LeaseMajority` decides it.
//!
//! # The protocol
//!
//! While some members are unreachable, those who reach each other form a *side*. The side's leader,
//! its lowest node, decides for it, and the others learn of it by gossip. In mode `ties` a strict
//! majority lives on and downs the others, a minority downs itself, and a side of exactly half asks
//! for the arbitration lease: who gets it lives on. In mode `always` every side asks.
//!
//! Who gets the lease writes a *verdict* into its note: a generation, and the nodes that survive.
//! The note outlives the lease. Before a side decides anything it reads the record. If the verdict
//! there is newer than the one that the side knows, it is followed, however late: whoever is among
//! the survivors merges it, all others are Down; whoever is not is Down itself. Otherwise the side
//! may ask for the next generation, on condition that the record is still the one that it read.
//!
//! Sides are counted on the members that last agreed with each other and, if a status changed
//! since, on the present ones too; where the two counts disagree the side waits. In `ties` a side
//! announces the generation that it will ask for before it asks; from then on its members ask even
//! as a majority, since the answer may be on its way. While any member is unreachable the leader
//! makes no joiner Up, and it does so only on a view that every member has seen.
//!
//! Nodes that some reach and others do not are *indirectly connected*: of those whom links connect
//! the one with the most cut links is dropped until the rest reach each other. The rest is a side,
//! counted over the whole membership. Those who were dropped decide nothing; if the side ends, they
//! are looked at anew.
//!
//! # The abstraction
//!
//! There is no time: what a protocol waits for happens whenever it can, so that whatever the waits
//! are, their order is covered. Nodes are numbered; a lower number is a lower address and an older
//! member. A node knows at once who is dead, and who is cut from whom among those whom links
//! connect to it; sides that are decided on an older picture are covered by cuts that *shift*. A
//! request for the lease is under way for any time, is applied also after its sender died, and its
//! answer may be lost; reading the record may fail each time; the lease may expire at any time.
//!
//! [`Network::Arbitrary`] leaves the network out altogether: any leader may decide for any side at
//! any time, and anybody may gossip with anybody. This covers every partition there is, partial,
//! one-way, shifting or flapping, and stale pictures of them.
//!
//! # What is not modelled
//!
//! - Time: `stable_after`, and the two seconds for which a minority waits in `always`.
//! - Removal of those who are Down, and with it rows that come back as ghosts. `Exiting` is part of
//!   leaving.
//! - A node that comes back: it would be a new incarnation, that is a joiner. How a cluster comes
//!   back.
//! - Generations above [`Scenario::generation_max`]. States there count as good.
//! - One-way cuts in `ties`: a link is cut for both of its ends.
//!
//! # What was found
//!
//! `always` leaves one survivor under every partition. `ties` does for clean splits that heal, and
//! are agreed upon, before the next; also for one partial cut, for two in a row, and for two of
//! either kind that shift. Three splits that shift, or two and a leaver, can leave two: a majority's
//! decision was taken without the store, and still spreads. Safe but stuck, for an operator to
//! resolve, is in `ties` a side whose two counts disagree and that has lost, before all agreed on
//! the first decision, the node which could settle it: of five nodes two are cut off, and of the
//! three left one dies. In both modes nobody may be left: after a crash, and in `ties` when the
//! links are cut so that no majority reaches itself (or one does, but loses a node to
//! [`Sides::MostCutDropped`]). Then formation has to help.
//!
//! # What must be
//!
//! Never do two [settled clusters](Violation::TwoSettledClusters) live beside each other. For
//! liveness, every state can go on, without another fault, to one in which somebody is alive and
//! all who are agree on it; [`Scenario::all_may_die`] says whether nobody will do too.

mod decide;
mod membership;
mod network;
mod state;
mod store;

use std::fmt;

use crate::engine::{Model, Steps};
use crate::node_set::NodeSet;

pub use self::network::Links;
pub use self::state::State;
use self::state::{Life, NODES_MAX, Node, Record, Status};

/// The verdict model, with the rules that its nodes follow and the faults that they meet.
#[derive(Clone, Copy, Debug)]
pub struct LeaseMajority {
    /// What the nodes and the store do to stay safe.
    pub rules: Rules,
    /// How many nodes, which faults, and how far to look.
    pub scenario: Scenario,
}

/// The rules of the protocol.
///
/// Most of them close a hole: without one, two clusters live. Some are there for liveness alone, and
/// say so. Three are second fences, which nothing that was explored needs while the others stand:
/// [`record_is_read_first`], [`leader_waits_while_unreachable`] and [`verdict_travels_whole`].
///
/// [`record_is_read_first`]: Self::record_is_read_first
/// [`leader_waits_while_unreachable`]: Self::leader_waits_while_unreachable
/// [`verdict_travels_whole`]: Self::verdict_travels_whole
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// What a request for the lease looks at.
    pub acquisition: Acquisition,
    /// Which memberships a side is counted on.
    pub counts: Counts,
    /// Who makes up a side where some reach a node and others do not.
    pub sides: Sides,
    /// A side reads the record before it decides. It is what tells the losers; that no loser wins
    /// is up to the acquisition.
    pub record_is_read_first: bool,
    /// The note outlives the lease. Otherwise a late side finds nothing and asks.
    pub note_is_kept: bool,
    /// In `always`, a majority that cannot read the record waits. Otherwise it lives on beside a
    /// minority that has asked.
    pub unknown_means_wait: bool,
    /// In `ties`, a side asks only when all of it know that it will, and then asks even as a
    /// majority. Otherwise a request whose outcome nobody heard decides against a majority that
    /// lived on without.
    pub asks_are_announced: bool,
    /// A side decides only when all of it have its leader's view. Otherwise it is counted on
    /// statuses that its own members know to be out of date.
    pub side_has_seen_view: bool,
    /// Whoever only the older of two merged views knows, and who is not among the newer verdict's
    /// survivors, is Down. There is nobody like that while the leader waits for convergence.
    pub verdict_travels_whole: bool,
    /// While a member is unreachable the leader makes nobody Up. Otherwise joiners turn half into a
    /// majority, were it not for the two counts.
    pub leader_waits_while_unreachable: bool,
    /// The leader makes nodes Up only on a view that all have seen. Otherwise a verdict that is
    /// read late downs a member that it could not know, which then asks alone.
    pub leader_waits_for_convergence: bool,
    /// The last word of a leaver is its whole view. Otherwise a loser that it reaches learns that
    /// the leaver has gone, but not that it has lost, and counts itself among those who are left.
    pub leavers_tell_their_view: bool,
    /// For liveness: a request that is refused means wait. Otherwise a side ends though nobody else
    /// lives on.
    pub lost_means_wait: bool,
    /// For liveness: in `ties`, a minority that cannot read the record waits. Otherwise it ends
    /// though it may be the one that survives.
    pub minority_waits_for_record: bool,
    /// For liveness: in `ties`, a minority whose request is unanswered waits. Otherwise it ends, and
    /// then wins.
    pub minority_waits_for_its_ask: bool,
    /// For liveness: a verdict that is merged counts as a convergence on its survivors. Otherwise a
    /// side waits for ever that cannot converge.
    pub verdict_counts_as_convergence: bool,
    /// For liveness: the leader downs joiners that it cannot reach. Otherwise they block it for
    /// ever.
    pub lost_joiners_are_downed: bool,
}

impl Rules {
    /// The protocol as it is.
    pub const ALL: Self = Self {
        acquisition: Acquisition::IfUnchanged,
        counts: Counts::Both,
        record_is_read_first: true,
        note_is_kept: true,
        lost_means_wait: true,
        unknown_means_wait: true,
        minority_waits_for_record: true,
        minority_waits_for_its_ask: true,
        asks_are_announced: true,
        side_has_seen_view: true,
        verdict_counts_as_convergence: true,
        verdict_travels_whole: true,
        leader_waits_while_unreachable: true,
        leader_waits_for_convergence: true,
        leavers_tell_their_view: true,
        lost_joiners_are_downed: true,
        sides: Sides::MostCutDropped,
    };

    /// A verdict that is kept and read first, and a leader that waits while somebody is
    /// unreachable: the protocol as one would first think of it. The tests show what it lacks.
    pub const BARE: Self = Self {
        acquisition: Acquisition::Unconditional,
        counts: Counts::DoubtIsEqual,
        minority_waits_for_its_ask: false,
        asks_are_announced: false,
        side_has_seen_view: false,
        verdict_counts_as_convergence: false,
        verdict_travels_whole: false,
        leader_waits_for_convergence: false,
        leavers_tell_their_view: false,
        lost_joiners_are_downed: false,
        ..Self::ALL
    };
}

/// What a request for the lease looks at, besides that the lease is free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acquisition {
    /// The rule: it is refused unless the record is still the one that its sender read.
    IfUnchanged,
    /// It is told what the record said before. Too late: the verdict is overwritten by then.
    CheckedAfterwards,
    /// Nothing.
    Unconditional,
}

/// How a side is counted when a status changed since the members last agreed. (If none did, there
/// is only one count.)
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counts {
    /// The rule: a majority or a minority under both counts is one, a minority under neither is
    /// equal, and all else waits.
    Both,
    /// Only the present members count.
    PresentOnly,
    /// What is no majority under both counts is equal.
    DoubtIsEqual,
    /// What is a minority under either count is one.
    DoubtIsMinority,
}

/// Who makes up a side, of those whom links connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sides {
    /// The rule: as long as two are cut from each other, the one with the most cut links is
    /// dropped, of several the youngest.
    MostCutDropped,
    /// The most nodes that all reach each other; of several such sets the one with the oldest
    /// nodes. It finds a majority wherever there is one, which the rule does not.
    LargestKept,
    /// Everybody takes those whom it reaches itself for its side. Sides overlap then.
    OwnReach,
}

/// When the lease is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// Only by a side of exactly half.
    Ties,
    /// By every side.
    Always,
}

/// The nodes, what may happen to them, and the bounds of the exploration.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// When the lease is asked for.
    pub mode: Mode,
    /// How many nodes there are at first, all of them Up.
    pub nodes: u8,
    /// How the network behaves.
    pub network: Network,
    /// So many processes end unasked.
    pub crashes: u8,
    /// So many nodes join, at any time.
    pub joiners: u8,
    /// So many nodes leave, at any time.
    pub leavers: u8,
    /// No verdict gets a generation above this one.
    pub generation_max: u8,
    /// Whether a state counts as good in which nobody is left after a crash, a leaver, or cuts that
    /// may tear the nodes into more than two sides.
    pub all_may_die: bool,
}

impl Scenario {
    /// Four nodes, one clean split, and a lease for ties.
    pub const TIES: Self = Self {
        mode: Mode::Ties,
        nodes: 4,
        network: Network::Splits { count: 1, calm: false },
        crashes: 0,
        joiners: 0,
        leavers: 0,
        generation_max: 2,
        all_may_die: true,
    };

    /// Three nodes, any network, and a lease for everything.
    pub const ALWAYS: Self =
        Self { mode: Mode::Always, nodes: 3, network: Network::Arbitrary, ..Self::TIES };
}

/// How the network behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Network {
    /// It is left out: any leader decides for any side, anybody gossips with anybody.
    Arbitrary,
    /// Clean splits into two, which heal at any time.
    Splits {
        /// How many.
        count: u8,
        /// The next one comes only after the last has healed and everybody agrees. Otherwise one
        /// may turn into the next at once, with decisions of the last still spreading.
        calm: bool,
    },
    /// Links are cut, in any combination.
    PartialCuts {
        /// How often.
        count: u8,
        /// As for splits.
        calm: bool,
        /// Whether they heal.
        heals: bool,
        /// If given, only these links are cut.
        only: Option<Links>,
    },
}

impl Network {
    fn count(self) -> u8 {
        match self {
            Self::Arbitrary => 0,
            Self::Splits { count, .. } | Self::PartialCuts { count, .. } => count,
        }
    }
}

/// What must never happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Violation {
    /// Two sets of living nodes without a node in common, each of which agrees on exactly itself
    /// as the members.
    TwoSettledClusters,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TwoSettledClusters => "two settled clusters live beside each other",
        })
    }
}

impl Model for LeaseMajority {
    type State = State;
    type Violation = Violation;

    fn initial(&self) -> Vec<State> {
        let Scenario { nodes: count, joiners, .. } = self.scenario;
        assert!(usize::from(count + joiners) <= NODES_MAX, "there is no room for so many nodes");
        let members = NodeSet::first(usize::from(count));
        let mut node = Node { life: Life::Alive, converged: members, ..Node::ABSENT };
        node.set_status(members, Status::Up);
        let mut nodes = [Node::ABSENT; NODES_MAX];
        members.iter().for_each(|member| nodes[member] = node);
        vec![State {
            nodes,
            record: Record { generation: 0, survivors: NodeSet::EMPTY, holder: None },
            cut: Links::NONE,
            cuts_left: self.scenario.network.count(),
            crashes_left: self.scenario.crashes,
            joiners_left: joiners,
            leavers_left: self.scenario.leavers,
        }]
    }

    fn steps(&self, state: &State, steps: &mut Steps<'_, State>) {
        self.network_steps(state, steps);
        self.lease_ends(state, steps);
        for node in 0..NODES_MAX {
            self.request_steps(state, node, steps);
            match state.nodes[node].life {
                Life::Alive => self.node_steps(state, node, steps),
                Life::NotStarted if state.joiners_left > 0 => {
                    self.join_steps(state, node, steps);
                    break;
                }
                Life::NotStarted | Life::Dead => {}
            }
        }
    }

    fn violation(&self, state: &State) -> Option<Violation> {
        let settled = || state.alive().iter().filter_map(|node| state.settled_around(node));
        let has_neighbour = |one: NodeSet| settled().any(|other| (one & other).is_empty());
        settled().any(has_neighbour).then_some(Violation::TwoSettledClusters)
    }

    fn good(&self, state: &State) -> bool {
        let Scenario { network, generation_max, crashes, leavers, all_may_die, .. } = self.scenario;
        let at_bound = |node: &Node| {
            let asked = node.request.map_or(0, |request| request.generation);
            node.generation == generation_max || asked == generation_max
        };
        if state.record.generation == generation_max || state.nodes.iter().any(at_bound) {
            return true;
        }
        let alive = state.alive();
        // Joiners who are left alone start over, which is a matter of formation.
        if alive.iter().all(|node| !state.nodes[node].counted().contains(node)) {
            let ended = state.crashes_left < crashes || state.leavers_left < leavers;
            let torn =
                matches!(network, Network::PartialCuts { count, .. } if state.cuts_left < count);
            return all_may_die && (ended || torn);
        }
        alive.iter().all(|node| state.nodes[node].members() == alive)
    }

    fn describe(&self, state: &State) -> String {
        let Record { generation, survivors, holder } = state.record;
        let mut text = format!("record {generation} {survivors}");
        if let Some(holder) = holder {
            text += &format!(" held by {holder}");
        }
        if !state.cut.is_empty() {
            text += &format!("; cut {}", state.cut);
        }
        for (number, node) in state.nodes.iter().enumerate() {
            match node.life {
                Life::NotStarted => {}
                Life::Dead => text += &format!("; {number} dead"),
                Life::Alive => {
                    let Node { generation, asked, converged, .. } = node;
                    text += &format!(
                        "; {number} counts {}, converged {converged}, verdict {generation}, asked \
                         {asked}",
                        node.counted()
                    );
                }
            }
        }
        text
    }
}

impl LeaseMajority {
    /// Everything that a living node may do.
    fn node_steps(&self, state: &State, node: usize, steps: &mut Steps<'_, State>) {
        self.gossip_steps(state, node, steps);
        self.converge_step(state, node, steps);
        self.end_steps(state, node, steps);
        if state.nodes[node].counted().contains(node) {
            self.leader_steps(state, node, steps);
            self.decisions(state, node, steps);
        } else {
            self.rejoin_steps(state, node, steps);
        }
    }
}
