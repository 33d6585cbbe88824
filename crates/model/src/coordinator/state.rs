//! What the model remembers: coordinators, regions, the lease's record, and every message sent.

use std::fmt;

use crate::node_set::NodeSet;

/// One state of the coordinator model.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct State {
    pub(super) regions: [Region; REGIONS_MAX],
    /// Of term 1 and of term 2.
    pub(super) coordinators: [Coordinator; 2],
    /// The term of the coordinator's lease.
    pub(super) term: u8,
    /// The roster in the lease's note.
    pub(super) roster: Sessions,
    /// The sessions that were released or taken over.
    pub(super) over: Sessions,
    pub(super) messages: Messages,
    pub(super) crashes_left: u8,
    pub(super) freezes_left: u8,
    pub(super) removals_left: u8,
}

/// What was sent so far. A message may arrive any number of times, in any order, or never.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Messages {
    /// Regions that each coordinator has greeted.
    pub(super) greetings: [NodeSet; 2],
    /// "Host a shard", from the coordinator of the token's term.
    pub(super) allocate: Mail,
    /// "Stop a shard".
    pub(super) hand_off: Mail,
    /// "A shard is stopped", from a region to whoever listens.
    pub(super) stopped: Mail,
    /// What a region hosted when it registered with the second coordinator.
    pub(super) reports: Mail,
}

impl Messages {
    pub(super) const NONE: Self = Self {
        greetings: [NodeSet::EMPTY; 2],
        allocate: Mail::NONE,
        hand_off: Mail::NONE,
        stopped: Mail::NONE,
        reports: Mail::NONE,
    };
}

/// A process that hosts the shard, or could.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Region {
    pub(super) process: Process,
    /// Whether the cluster counts it as a member.
    pub(super) is_member: bool,
    /// Whether it was frozen since it last renewed its session.
    pub(super) was_frozen: bool,
    pub(super) session: Session,
    /// The term of the coordinator that it is registered with.
    pub(super) registered: u8,
    /// The highest token that it has seen for each shard.
    pub(super) seen: [Token; SHARDS_MAX],
    /// The token under which it hosts each shard.
    pub(super) hosts: [Token; SHARDS_MAX],
}

impl Region {
    /// The process has ended. Its session and its membership are still there.
    pub(super) fn ended(self) -> Self {
        Self {
            process: Process::Ended,
            was_frozen: false,
            registered: 0,
            seen: [Token::NONE; SHARDS_MAX],
            hosts: [Token::NONE; SHARDS_MAX],
            ..self
        }
    }

    pub(super) fn is_active(&self, shard: usize) -> bool {
        self.process != Process::Ended && self.hosts[shard] != Token::NONE
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub(super) enum Process {
    /// There is none.
    Ended,
    Running,
    /// It stands still, and its clock with it.
    Frozen,
}

/// A coordinator, with what it knows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Coordinator {
    /// It has not won the lease yet.
    Waiting,
    Active {
        places: [Place; SHARDS_MAX],
        /// How many allocations it has made.
        allocations: u8,
        /// The sessions that have answered its greeting.
        answered: Sessions,
        /// The roster as it knows it.
        roster: Sessions,
    },
    /// It knows that it has lost the lease.
    Passive,
}

/// Where a coordinator believes a shard to be.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Place {
    /// It has just won, and nobody has said.
    Unknown,
    Free,
    At {
        session: Session,
        token: Token,
    },
    HandingOff {
        session: Session,
        token: Token,
    },
}

/// A region's session. The second one is that of a new incarnation.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Session(u8);

impl Session {
    pub(super) fn new(region: usize, term: u8) -> Self {
        Self(region as u8 * SESSION_TERMS + term - 1)
    }

    pub(super) fn region(self) -> usize {
        usize::from(self.0 / SESSION_TERMS)
    }

    pub(super) fn term(self) -> u8 {
        self.0 % SESSION_TERMS + 1
    }

    /// The sessions of the same region, itself included.
    pub(super) fn of_same_region(self) -> impl Iterator<Item = Self> {
        (1..=SESSION_TERMS).map(move |term| Self::new(self.region(), term))
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.region(), self.term())
    }
}

/// A set of sessions.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Sessions(u8);

impl Sessions {
    pub(super) const NONE: Self = Self(0);
    pub(super) const ALL: Self = Self(u8::MAX);

    pub(super) fn contains(self, session: Session) -> bool {
        self.0 & 1 << session.0 != 0
    }

    pub(super) fn insert(&mut self, session: Session) {
        self.0 |= 1 << session.0;
    }

    pub(super) fn is_covered_by(self, one: Self, other: Self) -> bool {
        self.0 & !one.0 & !other.0 == 0
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = (0..REGIONS_MAX as u8 * SESSION_TERMS).map(Session);
        f.debug_set().entries(all.filter(|session| self.contains(*session))).finish()
    }
}

/// The token of an allocation: the coordinator's term, then the allocation's number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Token(u8);

impl Token {
    /// Below all others: nothing.
    pub(super) const NONE: Self = Self(0);

    pub(super) fn new(term: u8, number: u8) -> Self {
        assert!((1..=2).contains(&term) && (1..=ALLOCATIONS_MAX).contains(&number));
        Self((term - 1) * ALLOCATIONS_MAX + number)
    }

    pub(super) fn term(self) -> u8 {
        self.0.div_ceil(ALLOCATIONS_MAX)
    }

    /// All but [`Token::NONE`].
    pub(super) fn all() -> impl Iterator<Item = Self> {
        (1..TOKENS).map(Self)
    }

    pub(super) fn with_none() -> impl Iterator<Item = Self> {
        (0..TOKENS).map(Self)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NONE {
            return f.write_str("nothing");
        }
        write!(f, "{}.{}", self.term(), self.0 - (self.term() - 1) * ALLOCATIONS_MAX)
    }
}

/// Messages of one kind: to or from a session, about a shard's token.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Mail([u64; SHARDS_MAX]);

impl Mail {
    const NONE: Self = Self([0; SHARDS_MAX]);

    pub(super) fn send(&mut self, session: Session, shard: usize, token: Token) {
        self.0[shard] |= Self::bit(session, token);
    }

    pub(super) fn has(self, session: Session, shard: usize, token: Token) -> bool {
        self.0[shard] & Self::bit(session, token) != 0
    }

    fn bit(session: Session, token: Token) -> u64 {
        1 << (session.0 * TOKENS + token.0)
    }
}

/// How many regions the state has room for.
pub(super) const REGIONS_MAX: usize = 3;
/// How many shards the state has room for.
pub(super) const SHARDS_MAX: usize = 2;
/// How many allocations of one coordinator there are tokens for.
pub(super) const ALLOCATIONS_MAX: u8 = 3;
const SESSION_TERMS: u8 = 2;
const TOKENS: u8 = 2 * ALLOCATIONS_MAX + 1;
