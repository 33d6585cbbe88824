//! The coordinator: a shard or two, each given to one region at a time, through a change of
//! coordinators.
//!
//! # The protocol
//!
//! The coordinator holds a lease and gives a shard to a region with *Allocate*, and takes it back
//! with *HandOff*. The *token* of an allocation is the coordinator's term and a number that rises
//! with each allocation; every directive and every answer carries it. A region obeys only the
//! coordinator that it is registered with, and starts the shard only for a token above all that it
//! has seen for it. Each region holds a session; a directive names the session that it is for.
//!
//! Before its first directive to a region, the coordinator puts the region's session on the
//! *roster*, in its lease's note, so that its successor knows who might host something. The
//! successor greets everybody, and sends nothing else until each session on the roster has answered
//! or is over. A region that has answered obeys no lower term, so that from then on nothing the
//! former coordinator sent makes a difference; the highest token reported says where the shard is.
//! The shard is given away only when its host confirmed that it stopped that very allocation, or
//! when the host's session is over. That the host is no longer a member frees nothing.
//!
//! # The abstraction
//!
//! There are one or two shards and two coordinators, of term 1 and 2, which may both believe that they are
//! active; writes of the first to the roster are refused once the second has won. A message may
//! arrive any number of times, in any order, or never: the state has the set of all that were sent.
//! There is no time. A session is taken over only while its process is frozen or has ended, and a
//! process that was frozen learns of it when it next renews; what it does until then is stale, and
//! is for its token to be told from what is not.
//!
//! # What is not modelled
//!
//! - More than one change of coordinators, more than one return of a region.
//! - Entities, buffers, rebalancing; coordinators and regions without leases or sessions.
//! - More than [`Scenario::allocations_max`] allocations per coordinator. States there count as
//!   good.
//!
//! # What must be
//!
//! [`Violation`] lists what must never happen. For liveness, every state can go on, without another
//! fault, to one in which exactly one region with a living session hosts the shard.

mod directs;
mod region;
mod state;

use std::fmt;

use crate::engine::{Model, Steps};

pub use self::state::State;
use self::state::{
    ALLOCATIONS_MAX, Coordinator, Messages, Place, Process, REGIONS_MAX, Region, SHARDS_MAX,
    Session, Sessions, Token,
};

/// The coordinator model, with the rules that its processes follow and the faults that they meet.
#[derive(Clone, Copy, Debug)]
pub struct Sharding {
    /// What coordinators and regions do to stay safe.
    pub rules: Rules,
    /// What may go wrong, and how far to look.
    pub scenario: Scenario,
}

/// The rules of the protocol. Each closes a hole that is open without it.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// A region starts the shard only for a token *above* all that it has seen. Otherwise an
    /// Allocate that its own HandOff has overtaken is still obeyed.
    pub tokens_must_be_above: bool,
    /// A directive names the session of its region. Otherwise the successor of a region obeys what
    /// was meant for its predecessor.
    pub directives_name_the_session: bool,
    /// A coordinator directs nobody until the whole roster has answered or is over. Otherwise its
    /// predecessor still moves the shard between regions that do not know better.
    pub whole_roster_answers_first: bool,
    /// Until all on the roster have answered or are over, the shard counts as taken. Otherwise one
    /// that nobody who is a member has reported counts as free.
    pub unreported_is_taken: bool,
    /// A session is on the roster before the first directive to it is sent.
    pub on_roster_before_first_directive: bool,
    /// The roster is in the note of the lease, and the next coordinator finds it there.
    pub roster_outlives_coordinator: bool,
    /// An answer says which allocation was stopped. Otherwise an old answer frees a new one.
    pub answers_name_the_allocation: bool,
    /// A region obeys only the coordinator that it is registered with.
    pub only_registered_coordinator_is_obeyed: bool,
    /// The end of a session frees a shard, and the end of a membership does not.
    pub only_sessions_free_shards: bool,
}

impl Rules {
    /// The protocol as it is.
    pub const ALL: Self = Self {
        tokens_must_be_above: true,
        directives_name_the_session: true,
        whole_roster_answers_first: true,
        unreported_is_taken: true,
        on_roster_before_first_directive: true,
        roster_outlives_coordinator: true,
        answers_name_the_allocation: true,
        only_registered_coordinator_is_obeyed: true,
        only_sessions_free_shards: true,
    };
}

/// How many regions, how often each fault may happen, and the bounds of the exploration.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Two or three.
    pub regions: u8,
    /// One or two.
    pub shards: u8,
    /// A region's process ends unasked; regions may also stop by themselves.
    pub crashes: u8,
    /// A region is frozen with its clock, and resumes.
    pub freezes: u8,
    /// A region is removed from the membership while its session lives.
    pub removals: u8,
    /// No coordinator makes more allocations.
    pub allocations_max: u8,
}

impl Scenario {
    /// Two regions, one shard, two allocations, and no fault but what becomes of messages.
    pub const CALM: Self =
        Self { regions: 2, shards: 1, crashes: 0, freezes: 0, removals: 0, allocations_max: 2 };
}

/// What must never happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Violation {
    /// The shard is active in two regions, of which neither was frozen since it last renewed.
    ActiveTwice,
    /// A region that was frozen hosts the shard with a token that is not below the one of another.
    StaleTokenNotBelow,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ActiveTwice => "the shard is active in two regions",
            Self::StaleTokenNotBelow => "a stale region's token is not below its successor's",
        })
    }
}

type ShardingSteps<'a> = Steps<'a, State>;

impl Model for Sharding {
    type State = State;
    type Violation = Violation;

    fn initial(&self) -> Vec<State> {
        assert!(self.regions() <= REGIONS_MAX, "there is no room for so many regions");
        assert!((1..=SHARDS_MAX).contains(&self.shards()), "there is no room for so many shards");
        assert!(self.scenario.allocations_max <= ALLOCATIONS_MAX, "there are too few tokens");
        let region = |number| {
            let exists = number < self.regions();
            Region {
                process: if exists { Process::Running } else { Process::Ended },
                is_member: exists,
                was_frozen: false,
                session: Session::new(number, 1),
                registered: u8::from(exists),
                seen: [Token::NONE; SHARDS_MAX],
                hosts: [Token::NONE; SHARDS_MAX],
            }
        };
        let first = Coordinator::Active {
            places: [Place::Free; SHARDS_MAX],
            allocations: 0,
            answered: Sessions::ALL,
            roster: Sessions::NONE,
        };
        vec![State {
            regions: std::array::from_fn(region),
            coordinators: [first, Coordinator::Waiting],
            term: 1,
            roster: Sessions::NONE,
            over: Sessions::NONE,
            messages: Messages::NONE,
            crashes_left: self.scenario.crashes,
            freezes_left: self.scenario.freezes,
            removals_left: self.scenario.removals,
        }]
    }

    fn steps(&self, state: &State, steps: &mut ShardingSteps<'_>) {
        self.lease_changes_hands(state, steps);
        for term in [1, 2] {
            self.coordinator_steps(state, term, steps);
        }
        for region in 0..self.regions() {
            self.region_steps(state, region, steps);
        }
    }

    fn violation(&self, state: &State) -> Option<Violation> {
        (0..self.shards()).find_map(|shard| {
            let active = || state.regions.iter().filter(|region| region.is_active(shard));
            let fresh = || active().filter(|region| !region.was_frozen);
            if fresh().count() > 1 {
                return Some(Violation::ActiveTwice);
            }
            let successor = fresh().next()?;
            let mut stale = active().filter(|region| region.was_frozen);
            let not_below = stale.any(|region| region.hosts[shard] >= successor.hosts[shard]);
            not_below.then_some(Violation::StaleTokenNotBelow)
        })
    }

    fn good(&self, state: &State) -> bool {
        let used_up = |coordinator: &Coordinator| {
            matches!(coordinator, Coordinator::Active { allocations, .. }
                if *allocations >= self.scenario.allocations_max)
        };
        let is_served = |shard| {
            let hosts = |region: &&Region| {
                let is_running = region.process == Process::Running;
                is_running && region.is_active(shard) && !state.over.contains(region.session)
            };
            state.regions.iter().filter(hosts).count() == 1
        };
        state.coordinators.iter().any(used_up) || (0..self.shards()).all(is_served)
    }

    fn describe(&self, state: &State) -> String {
        let State { term, roster, over, .. } = state;
        let mut text = format!("lease of term {term}, roster {roster:?}, over {over:?}");
        for (term, coordinator) in (1..).zip(state.coordinators) {
            text += &format!("; coordinator {term} {coordinator:?}");
        }
        for region in &state.regions[..self.regions()] {
            let Region { process, is_member, registered, hosts, .. } = region;
            let Region { session, seen, was_frozen, .. } = region;
            text += &format!(
                "; {session:?} {process:?}, member {is_member}, frozen {was_frozen}, registered \
                 with {registered}, seen {seen:?}, hosts {hosts:?}"
            );
        }
        text
    }
}

impl Sharding {
    fn regions(&self) -> usize {
        usize::from(self.scenario.regions)
    }

    fn shards(&self) -> usize {
        usize::from(self.scenario.shards)
    }
}
