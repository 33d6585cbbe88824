//! What a coordinator knows from when it has won its lease until it has lost it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure_cluster::Node;
use tenure_lease::record::SessionRef;
use tenure_lease::{LeaseName, Moment, Token};

use super::members::Members;
use crate::{Host, Roster, RosterEntry, Settings, Shard, Version};

#[derive(Clone, Debug)]
pub(super) struct Duty {
    pub(super) term: u64,
    since: Moment,
    /// How long somebody may be silent before it is suspected.
    patience: Duration,
    /// The roster as it stands in the record.
    pub(super) roster: Roster,
    /// The roster that is being written.
    pub(super) writing: Option<(u64, Roster)>,
    pub(super) notes: u64,
    /// It was told that the roster is full.
    pub(super) full: bool,
    /// Everybody who may host something, by a number of this tenure.
    pub(super) hosts: BTreeMap<HostId, Known>,
    next_host: u32,
    /// Sessions that are over, by their last term.
    over: BTreeMap<LeaseName, u64>,
    /// Who was greeted.
    pub(super) greeted: BTreeSet<Node>,
    /// The regions that have answered, and as which host.
    pub(super) regions: BTreeMap<Node, Option<HostId>>,
    places: Vec<Place>,
    /// Those that are nowhere.
    free: BTreeSet<Shard>,
    /// How many are on their way, or nowhere.
    moving: usize,
    /// What each host has, or will have, or has until it confirms that it has not.
    hosted: BTreeMap<HostId, BTreeSet<Shard>>,
    /// How many of them it was asked to give back.
    handing_off: BTreeMap<HostId, usize>,
    /// The number of the last allocation.
    pub(super) step: u64,
    /// Since when it knows where every shard is.
    pub(super) recovered: Option<Moment>,
    /// When to send again what was not answered.
    pub(super) resend_at: Moment,
    /// When to look at the numbers of shards.
    pub(super) rebalance_at: Moment,
    /// When to ask again what has panicked when it was asked where shards go.
    pub(super) place_at: Moment,
    /// It was told that this has panicked.
    pub(super) panicked: bool,
    /// They are not balanced yet.
    pub(super) balancing: bool,
    /// Who could host when that was last looked at.
    pub(super) eligible: BTreeSet<HostId>,
    /// Shards that have a new home, of which not everybody was told.
    pub(super) news: BTreeSet<Shard>,
    /// When to tell everybody: if each shard that moves was told by itself, they would cost as many
    /// messages as there are shards and nodes.
    pub(super) news_at: Moment,
    /// Shards that ended by themselves.
    rests: BTreeMap<Shard, Rest>,
}

/// A shard that ends by itself again and again is not started without pause.
#[derive(Clone, Copy, Debug)]
struct Rest {
    /// How often in a row.
    times: u32,
    last: Moment,
    until: Moment,
}

/// A host, in a table of this tenure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HostId(u32);

/// What is known of a host.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) host: Host,
    pub(super) entry: RosterEntry,
    /// Of the application.
    pub(super) version: Version,
    /// It obeys this coordinator, and no lower term.
    pub(super) answered: bool,
    /// It hosts nothing, and never will.
    pub(super) over: bool,
    /// What it said it hosts, while that is not settled.
    pub(super) claims: BTreeSet<(Shard, Token)>,
}

/// Where a shard is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Somewhere: not everybody who may have it has answered.
    Taken,
    /// Nowhere.
    Free,
    /// Allocated; not confirmed yet.
    Starting { host: HostId, token: Token },
    /// There.
    At { host: HostId, token: Token },
    /// Asked back; not confirmed yet.
    HandingOff { host: HostId, token: Token },
}

impl Place {
    /// Whether nothing is being done about it.
    fn is_still(self) -> bool {
        matches!(self, Self::At { .. } | Self::Taken)
    }

    /// The allocation that is not known to be over.
    pub(super) fn allocation(self) -> Option<(HostId, Token)> {
        match self {
            Self::Taken | Self::Free => None,
            Self::Starting { host, token }
            | Self::At { host, token }
            | Self::HandingOff { host, token } => Some((host, token)),
        }
    }
}

impl Duty {
    pub(super) fn new(term: u64, roster: Roster, settings: &Settings, now: Moment) -> Self {
        let mut duty = Self {
            term,
            since: now,
            patience: settings.patience,
            writing: None,
            notes: 0,
            full: false,
            hosts: BTreeMap::new(),
            next_host: 0,
            over: BTreeMap::new(),
            greeted: BTreeSet::new(),
            regions: BTreeMap::new(),
            places: vec![Place::Taken; settings.shards as usize],
            free: BTreeSet::new(),
            moving: 0,
            hosted: BTreeMap::new(),
            handing_off: BTreeMap::new(),
            step: 0,
            recovered: None,
            resend_at: now + settings.resend_interval,
            rebalance_at: now + settings.rebalance_interval,
            place_at: now,
            panicked: false,
            balancing: false,
            eligible: BTreeSet::new(),
            news: BTreeSet::new(),
            news_at: now,
            rests: BTreeMap::new(),
            roster,
        };
        let hosts: Vec<(Host, RosterEntry)> =
            duty.roster.iter().map(|(host, entry)| (host.clone(), *entry)).collect();
        for (host, entry) in hosts {
            duty.intern(host, entry);
        }
        // Two tenures of one session: the former is over.
        let sessions: Vec<Host> = duty.roster.iter().map(|(host, _)| host.clone()).collect();
        for host in &sessions {
            duty.succeeded_by(host);
        }
        duty
    }

    pub(super) fn next_wake(&self) -> Moment {
        if self.news.is_empty() { self.resend_at } else { self.resend_at.min(self.news_at) }
    }

    pub(super) fn place(&self, shard: Shard) -> Option<Place> {
        self.places.get(shard.0 as usize).copied()
    }

    pub(super) fn set_place(&mut self, shard: Shard, place: Place) {
        let Some(old) = self.places.get_mut(shard.0 as usize) else { return };
        let old = std::mem::replace(old, place);
        self.moving -= usize::from(!old.is_still());
        self.moving += usize::from(!place.is_still());
        match place {
            Place::Free => self.free.insert(shard),
            _ => self.free.remove(&shard),
        };
        if let Place::HandingOff { host, .. } = old {
            *self.handing_off.entry(host).or_default() -= 1;
        }
        if let Place::HandingOff { host, .. } = place {
            *self.handing_off.entry(host).or_default() += 1;
        }
        let (from, to) = (old.allocation(), place.allocation());
        if let Some((host, _)) = from
            && let Some(shards) = self.hosted.get_mut(&host)
        {
            shards.remove(&shard);
        }
        if let Some((host, _)) = to {
            self.hosted.entry(host).or_default().insert(shard);
        }
        if let Some((host, _)) = from
            && self.hosted.get(&host).is_some_and(BTreeSet::is_empty)
        {
            self.hosted.remove(&host);
            self.handing_off.remove(&host);
        }
    }

    /// How many shards a host has and keeps, or is being given.
    pub(super) fn kept(&self, host: HostId) -> usize {
        let hosted = self.hosted.get(&host).map_or(0, BTreeSet::len);
        hosted - self.handing_off.get(&host).copied().unwrap_or(0)
    }

    /// Those that are nowhere, in order.
    pub(super) fn free(&self) -> &BTreeSet<Shard> {
        &self.free
    }

    /// How many are nowhere, or on their way.
    pub(super) fn moving(&self) -> usize {
        self.moving
    }

    /// What is allocated to a host, in order.
    pub(super) fn hosted(&self, host: HostId) -> impl Iterator<Item = (Shard, Place)> {
        let shards = self.hosted.get(&host).into_iter().flatten();
        shards.filter_map(|shard| Some((*shard, self.place(*shard)?)))
    }

    pub(super) fn places(&self) -> impl Iterator<Item = (Shard, Place)> {
        (0..).map(Shard).zip(self.places.iter().copied())
    }

    /// A shard ended by itself. The first time it is given away at once; it rests twice as long
    /// each time that this happens again soon.
    pub(super) fn ended_by_itself(&mut self, shard: Shard, unit: Duration, now: Moment) {
        let most = unit * REST_UNITS_MAX;
        let rest = self.rests.entry(shard).or_insert(Rest { times: 0, last: now, until: now });
        if now >= rest.last + most * 2 {
            rest.times = 0;
        }
        rest.last = now;
        rest.until = match rest.times {
            0 => now,
            times => now + unit.saturating_mul(1 << (times - 1).min(16)).min(most),
        };
        rest.times += 1;
    }

    /// Whether a shard is to be given to somebody now.
    pub(super) fn is_due(&self, shard: Shard, now: Moment) -> bool {
        self.rests.get(&shard).is_none_or(|rest| rest.until <= now)
    }

    pub(super) fn intern(&mut self, host: Host, entry: RosterEntry) -> HostId {
        if let Some((id, _)) = self.hosts.iter().find(|(_, known)| known.host == host) {
            return *id;
        }
        let id = HostId(self.next_host);
        self.next_host += 1;
        let version = Version::default();
        let known =
            Known { host, entry, version, answered: false, over: false, claims: BTreeSet::new() };
        self.hosts.insert(id, known);
        id
    }

    pub(super) fn find(&self, host: &Host) -> Option<HostId> {
        self.hosts.iter().find(|(_, known)| known.host == *host).map(|(id, _)| *id)
    }

    /// Whether this one is over, as far as sessions say.
    pub(super) fn is_over(&self, host: &Host) -> bool {
        let over = |session: &SessionRef| {
            self.over.get(&session.name).is_some_and(|term| session.term <= *term)
        };
        host.session.as_ref().is_some_and(over)
    }

    pub(super) fn session_over(&mut self, session: &SessionRef) {
        let term = self.over.entry(session.name.clone()).or_default();
        *term = session.term.max(*term);
        let ended = |known: &Known| {
            known
                .host
                .session
                .as_ref()
                .is_some_and(|own| own.name == session.name && own.term <= session.term)
        };
        for known in self.hosts.values_mut().filter(|known| ended(known)) {
            known.over = true;
        }
    }

    /// This node hosts as this and nothing else, or nothing: what it was without a session is over.
    pub(super) fn hosts_as(&mut self, node: &Node, host: Option<&Host>) {
        let was = |known: &Known| {
            known.host.node == *node && known.host.session.is_none() && Some(&known.host) != host
        };
        self.hosts.values_mut().filter(|known| was(known)).for_each(|known| known.over = true);
    }

    /// This host is there: earlier tenures of its session are over.
    pub(super) fn succeeded_by(&mut self, host: &Host) {
        let earlier = self.hosts.values().filter(|known| host.succeeds(&known.host));
        let sessions: Vec<SessionRef> =
            earlier.filter_map(|known| known.host.session.clone()).collect();
        for session in sessions {
            self.session_over(&session);
        }
    }

    pub(super) fn note_written(&mut self, number: u64) {
        if let Some((_, roster)) = self.writing.take_if(|(waiting, _)| *waiting == number) {
            self.roster = roster;
        }
    }

    /// The sessions of everybody who may host something.
    pub(super) fn sessions(&self) -> BTreeSet<SessionRef> {
        let living = self.hosts.values().filter(|known| !known.over);
        living.filter_map(|known| known.host.session.clone()).collect()
    }

    /// The sessions that may be over: of those who are out of reach, or do not answer, or are there
    /// without it.
    pub(super) fn suspects(&self, members: &Members, now: Moment) -> BTreeSet<SessionRef> {
        let impatient = now >= self.since + self.patience;
        let is_suspect = |id: &HostId, known: &Known| {
            let present = self.regions.get(&known.host.node);
            let is_there = present == Some(&Some(*id));
            !known.over
                && (!members.is_reachable(&known.host.node)
                    || present.is_some() && !is_there
                    || !known.answered && impatient)
        };
        self.hosts
            .iter()
            .filter(|(id, known)| is_suspect(id, known))
            .filter_map(|(_, known)| known.host.session.clone())
            .collect()
    }
}

/// For how many resend intervals a shard rests, at most.
const REST_UNITS_MAX: u32 = 16;
