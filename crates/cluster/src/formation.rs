//! How a cluster comes to be: exactly one, of however many nodes start at once.
//!
//! Nodes that find nobody to join contend for the *formation lease*. Whoever wins it forms the
//! cluster; the term of that tenure is the cluster's id, and the lease's note says the id and where
//! to find members, so that the store is also a way to find the cluster. The cluster's leader keeps
//! the lease for as long as there is one.
//!
//! Somebody who wins the lease and finds an id in the note does not know whether that cluster still
//! lives: its leader may have lost the store, or be on its way out. So it asks the contact points
//! for one ttl first. If they do live and it cannot reach them, two clusters come to be, with
//! different ids. A leader that finds another id than its own in the note therefore looks for that
//! cluster's members, and when the two meet, the one with the lower id gives way.
//!
//! While the store is away, the cluster lives on, and nobody forms another.
//!
//! Without a store, the *first* of the configured seeds forms a cluster when no other seed has
//! answered for a while ([`Formation::by_seed_order`]). That promises less: a first seed that
//! restarts while it is cut off from all others forms a second cluster, which gives way to nobody
//! until the two meet.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_lease::Moment;

use crate::Address;
use crate::membership::Membership;
use crate::view::Status;

/// What stands in the formation lease's note, as JSON that people can read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormationNote {
    /// The cluster that was formed last.
    pub cluster: u64,
    /// Where to find members of it.
    pub contacts: Vec<Address>,
}

impl FormationNote {
    /// Reads a note; an empty one, or one that is not ours, says nothing.
    pub fn parse(note: &[u8]) -> Option<Self> {
        serde_json::from_slice(note).ok()
    }

    /// For the record.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default() // Numbers and strings always serialise.
    }
}

/// One node's part in forming and finding the cluster. Pure.
#[derive(Clone, Debug)]
pub struct Formation {
    guard: Guard,
    discovered: Vec<Address>,
    /// What the lease's record said when it was last read.
    note: Option<FormationNote>,
    /// Since when this node has asked for the cluster of this id.
    asked: Option<(u64, Moment)>,
    asking: Vec<Address>,
    contending: bool,
    held: Option<u64>,
    /// The note was read since the last look at it.
    unread: bool,
    /// What the record was told to say.
    written: Option<FormationNote>,
}

/// What keeps two nodes from forming a cluster each.
#[derive(Clone, Debug)]
enum Guard {
    /// A lease with this ttl.
    Lease { ttl: Duration },
    /// The order of the seeds; the first waits this long for the others.
    SeedOrder { patience: Duration, since: Option<Moment> },
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormationEffect {
    /// Ask these for a cluster.
    Join(Vec<Address>),
    /// Contend for the formation lease, and keep at it. The record's note stays as it is.
    Contend,
    /// Stop contending, or release the lease.
    Withdraw,
    /// Form a cluster with this id: the term of the lease that was won.
    Form(u64),
    /// Form a cluster with an id that is probably higher than those of others: a wall clock's.
    FormUnguarded,
    /// Put this into the record, and call [`Formation::read`] when it stands there. To be tried again
    /// for as long as the lease is held and no other note is to be written.
    WriteNote(FormationNote),
    /// There may be another cluster: say to these which one this is, so that one of the two gives
    /// way.
    Meet(Vec<Address>),
}

impl Formation {
    /// Guarded by a lease with this ttl.
    pub fn by_lease(ttl: Duration) -> Self {
        Self::new(Guard::Lease { ttl })
    }

    /// Without a store: the first of the discovered addresses forms the cluster if nobody has let
    /// it in for this long. All nodes must discover the same addresses in the same order.
    pub fn by_seed_order(patience: Duration) -> Self {
        Self::new(Guard::SeedOrder { patience, since: None })
    }

    fn new(guard: Guard) -> Self {
        Self {
            guard,
            discovered: Vec::new(),
            note: None,
            asked: None,
            asking: Vec::new(),
            contending: false,
            held: None,
            unread: false,
            written: None,
        }
    }

    /// Discovery found these.
    pub fn discovered(&mut self, contacts: Vec<Address>) {
        self.discovered = contacts;
    }

    /// The lease's record was read, by whatever means.
    pub fn read(&mut self, note: Option<FormationNote>) {
        if note.is_some() {
            self.note = note;
            self.unread = true;
        }
    }

    /// The lease was won, with this term; its record said this before.
    pub fn won(&mut self, term: u64, note: Option<FormationNote>) {
        self.held = Some(term);
        self.written = note.clone();
        self.read(note);
    }

    /// The lease was lost, or withdrawn from.
    pub fn lost(&mut self) {
        self.held = None;
        self.contending = false;
        self.written = None;
    }

    /// What is to be done now. To be called after each of the above, whenever the membership
    /// changed, and at [`next_wake`](Self::next_wake).
    pub fn poll(&mut self, membership: &Membership, now: Moment) -> Vec<FormationEffect> {
        let mut effects = Vec::new();
        if membership.is_ended() {
            self.withdraw(&mut effects);
            return effects;
        }
        match membership.cluster() {
            None => self.outside(membership, now, &mut effects),
            Some(cluster) => self.inside(cluster, membership, &mut effects),
        }
        effects
    }

    /// When [`poll`](Self::poll) has something to do by itself.
    pub fn next_wake(&self) -> Moment {
        // While its note is being written, there is nothing to do but wait for that.
        let forming = self.written.as_ref().map(|note| note.cluster) == self.held;
        match (&self.guard, self.held, self.asked) {
            (Guard::Lease { ttl }, Some(_), Some((_, since))) if !forming => since + *ttl,
            (Guard::SeedOrder { patience, since: Some(since) }, ..) => *since + *patience,
            _ => Moment::NEVER,
        }
    }

    fn outside(
        &mut self,
        membership: &Membership,
        now: Moment,
        effects: &mut Vec<FormationEffect>,
    ) {
        let own = &membership.me().address;
        let noted = self.note.iter().flat_map(|note| &note.contacts);
        let contacts: BTreeSet<&Address> =
            self.discovered.iter().chain(noted).filter(|address| *address != own).collect();
        let contacts: Vec<Address> = contacts.into_iter().cloned().collect();
        if contacts != self.asking {
            self.asking.clone_from(&contacts);
            effects.push(FormationEffect::Join(contacts));
        }
        if let Some(note) = &self.note
            && self.held != Some(note.cluster)
            && self.asked.is_none_or(|(cluster, _)| cluster != note.cluster)
        {
            self.asked = Some((note.cluster, now));
        }
        match (&mut self.guard, self.held) {
            (Guard::Lease { .. }, None) => self.contend(effects),
            (Guard::Lease { ttl }, Some(term)) => {
                let asked_enough = self.asked.is_none_or(|(_, since)| since + *ttl <= now);
                if asked_enough {
                    self.form(term, own, effects);
                }
            }
            (Guard::SeedOrder { patience, since }, _) => {
                // The others have nothing to wake up for.
                if self.discovered.first() == Some(own)
                    && now >= *since.get_or_insert(now) + *patience
                {
                    *since = None;
                    effects.push(FormationEffect::FormUnguarded);
                }
            }
        }
    }

    /// Says so in the record before it forms a cluster: one that is in no note would never be found
    /// by those that it replaces, if this node lost the lease just then.
    fn form(&mut self, term: u64, own: &Address, effects: &mut Vec<FormationEffect>) {
        let note = FormationNote { cluster: term, contacts: vec![own.clone()] };
        if self.note.as_ref() == Some(&note) {
            self.asked = None;
            effects.push(FormationEffect::Form(term));
        } else {
            self.write(note, effects);
        }
    }

    fn inside(
        &mut self,
        cluster: u64,
        membership: &Membership,
        effects: &mut Vec<FormationEffect>,
    ) {
        self.asked = None;
        self.asking.clear();
        if let Guard::SeedOrder { since, .. } = &mut self.guard {
            *since = None;
            return;
        }
        let Some(view) = membership.view() else { return };
        // Who sees no leader, because nobody answers, looks at the record too: there may be a newer
        // cluster, and nobody else who would tell.
        // But not who is only joining: it starts over, and would be in the way of those outside who
        // could form one.
        let joins = view.member(membership.me()).is_some_and(|own| own.status == Status::Joining);
        if joins || membership.leader().is_some_and(|leader| leader != membership.me()) {
            return self.withdraw(effects);
        }
        if std::mem::take(&mut self.unread)
            && let Some(note) = &self.note
            && note.cluster != cluster
        {
            effects.push(FormationEffect::Meet(note.contacts.clone()));
        }
        if self.held.is_none() {
            return self.contend(effects);
        }
        let is_up = |status| (Status::Up..=Status::Leaving).contains(&status);
        let contacts = view
            .members()
            .filter(|(_, member)| is_up(member.status))
            .map(|(node, _)| node.address.clone())
            .take(MOST_CONTACTS)
            .collect();
        self.write(FormationNote { cluster, contacts }, effects);
    }

    fn write(&mut self, note: FormationNote, effects: &mut Vec<FormationEffect>) {
        if self.written.as_ref() != Some(&note) {
            self.written = Some(note.clone());
            effects.push(FormationEffect::WriteNote(note));
        }
    }

    fn contend(&mut self, effects: &mut Vec<FormationEffect>) {
        if !self.contending {
            self.contending = true;
            effects.push(FormationEffect::Contend);
        }
    }

    fn withdraw(&mut self, effects: &mut Vec<FormationEffect>) {
        if self.contending || self.held.is_some() {
            self.lost();
            effects.push(FormationEffect::Withdraw);
        }
    }
}

/// Enough to find somebody who lives.
const MOST_CONTACTS: usize = 16;
