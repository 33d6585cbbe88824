//! How a cluster comes to be: exactly one, of however many nodes start at once.
//!
//! Nodes that find nobody to join contend for the *formation lease*. Whoever wins it forms the
//! cluster; the term of that tenure is the cluster's id, and the lease's note says the id and where
//! to find members, so that the store is also a way to find the cluster. The cluster's leader keeps
//! the lease for as long as there is one, and its note says under which term a *member* holds it:
//! every other tenure is that of a *candidate*, a node that is in no cluster.
//!
//! A candidate that finds an id in the note does not know whether that cluster lives. It may be
//! able to reach the store and none of the members: a certificate of another authority, a wrong
//! address, a blocked port. So:
//!
//! - A member that takes or renews the lease proves that the cluster lives. A candidate that sees
//!   this stays outside, and asks from the beginning.
//! - A candidate that wins gives the lease back at once, for the cluster's next leader to take. It
//!   contends again, and forms a cluster if it wins, when no member has held the lease for one ttl
//!   and the detection time, and it has asked every contact in the note for the detection time
//!   since its first win. Tenures of other candidates prove nothing, or candidates would keep each
//!   other waiting for ever.
//! - A leader that leaves names the next one in the note before it gives the lease back, and
//!   candidates leave the lease alone for the detection time.
//!
//! If members do live, and neither they reach the store nor the candidate them, two clusters come
//! to be, with different ids. A leader that finds another id than its own in the note therefore
//! looks for that cluster's members, and when the two meet, the one with the lower id gives way.
//! Until they have met, every note that a leader writes says where to find the other cluster:
//! leaders change, and a node believes that a newer cluster exists only where it looked for one.
//!
//! While the store is away, the cluster lives on, and nobody forms another.
//!
//! Without a store, the *first* of the configured seeds forms a cluster when no other seed has
//! answered for a while ([`Formation::by_seed_order`]). That promises less: a first seed that
//! restarts while it is cut off from all others forms a second cluster, which gives way to nobody
//! until the two meet.

mod candidacy;
mod note;

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_lease::Moment;

use crate::membership::Membership;
use crate::settings::MembershipSettings;
use crate::view::{Status, View};
use crate::{Address, Node};
use candidacy::Candidacy;
pub use note::{FormationNote, FormationSight, ReadNote, UnreadableNote};

/// One node's part in forming and finding the cluster. Pure.
#[derive(Clone, Debug)]
pub struct Formation {
    guard: Guard,
    /// How many contact points must be known before this node forms a cluster, itself included.
    contacts_min: usize,
    discovered: Vec<Address>,
    /// What the lease's record said when it was last read, of what could be read.
    note: Option<FormationNote>,
    /// Whether the note was unreadable when the record was last read.
    unreadable: bool,
    asking: Vec<Address>,
    /// While this node is in no cluster and does not contend: when to look at the record next.
    look_at: Option<Moment>,
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
    Lease(Box<Candidacy>),
    /// The order of the seeds; the first waits this long for the others.
    SeedOrder {
        patience: Duration,
        since: Option<Moment>,
    },
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormationEffect {
    /// Ask these for a cluster.
    Join(Vec<Address>),
    /// Contend for the formation lease, look at its record meanwhile, and keep at both. The record's
    /// note stays as it is.
    Contend,
    /// Stop contending, or release the lease.
    Withdraw,
    /// Read the record once, and call [`Formation::saw`].
    Look,
    /// Form a cluster with this id: the term of the lease that was won.
    Form(u64),
    /// Form a cluster with an id that is probably higher than those of others: a wall clock's.
    FormUnguarded,
    /// Put this into the record, and call [`Formation::wrote`] when it stands there. To be tried
    /// again for as long as the lease is held and no other note is to be written.
    WriteNote(FormationNote),
    /// There may be another cluster: say to these which one this is, so that one of the two gives
    /// way.
    Meet(Vec<Address>),
}

/// Why a node that is in no cluster forms none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormationObstacle {
    /// A member of this cluster holds the formation lease: it must be joined.
    ClusterLives(u64),
    /// Whether this cluster lives is not known yet.
    Asking(u64),
    /// What the note says cannot be read.
    Unreadable(UnreadableNote),
    /// Fewer contact points are known than the settings require.
    TooFewContacts {
        /// How many are known, this node included.
        known: usize,
        /// How many must be.
        required: usize,
    },
}

impl Formation {
    /// Guarded by a lease with this ttl.
    pub fn by_lease(ttl: Duration, settings: &MembershipSettings) -> Self {
        Self::new(Guard::Lease(Box::new(Candidacy::new(ttl, settings.clone()))))
    }

    /// Without a store: the first of the discovered addresses forms the cluster if nobody has let
    /// it in for this long. All nodes must discover the same addresses in the same order.
    pub fn by_seed_order(patience: Duration) -> Self {
        Self::new(Guard::SeedOrder { patience, since: None })
    }

    /// Forms no cluster while fewer contact points are known, this node included.
    pub fn contacts_min(self, contacts_min: usize) -> Self {
        Self { contacts_min, ..self }
    }

    fn new(guard: Guard) -> Self {
        Self {
            guard,
            contacts_min: 1,
            discovered: Vec::new(),
            note: None,
            unreadable: false,
            asking: Vec::new(),
            look_at: None,
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

    /// The lease's record was read.
    pub fn saw(&mut self, sight: &FormationSight, now: Moment) {
        if let Guard::Lease(candidacy) = &mut self.guard {
            candidacy.see(sight, self.note.as_ref(), now);
        }
        self.read(sight.note.clone());
    }

    /// This note stands in the record, as it was asked for.
    pub fn wrote(&mut self, note: FormationNote) {
        self.read(Ok(Some(note)));
    }

    /// The lease was won, with this term; its record said this before.
    pub fn won(&mut self, term: u64, note: ReadNote, now: Moment) {
        let found = note.as_ref().ok().and_then(Option::as_ref);
        if let Guard::Lease(candidacy) = &mut self.guard {
            candidacy.win(found, self.note.as_ref(), now);
        }
        self.held = Some(term);
        self.written = note.clone().ok().flatten();
        self.read(note);
    }

    /// The lease was lost, or withdrawn from.
    pub fn lost(&mut self) {
        self.held = None;
        self.contending = false;
        self.written = None;
    }

    fn read(&mut self, note: ReadNote) {
        self.unreadable = note.is_err();
        if let Ok(Some(note)) = note {
            self.note = Some(note);
            self.unread = true;
        }
    }

    /// The cluster in the note, as far as it was read.
    pub fn noted_cluster(&self) -> Option<u64> {
        self.note.as_ref().map(|note| note.cluster)
    }

    /// Whom this node asks for a cluster.
    pub fn contacts(&self) -> &[Address] {
        &self.asking
    }

    /// Why this node, which is in no cluster, forms none; `None` if it may.
    pub fn obstacle(&self, own: &Address, now: Moment) -> Option<FormationObstacle> {
        let Guard::Lease(candidacy) = &self.guard else { return self.too_few_contacts(own) };
        if self.unreadable {
            return Some(FormationObstacle::Unreadable(UnreadableNote));
        }
        let Some(note) = &self.note else { return self.too_few_contacts(own) };
        if self.held == Some(note.cluster) {
            return None; // It has said in the note that it does.
        }
        if candidacy.member_may_hold(now) {
            return Some(FormationObstacle::ClusterLives(note.cluster));
        }
        match candidacy.asked_enough_at() {
            Some(at) if at <= now => self.too_few_contacts(own),
            _ => Some(FormationObstacle::Asking(note.cluster)),
        }
    }

    fn too_few_contacts(&self, own: &Address) -> Option<FormationObstacle> {
        let own = (!self.discovered.contains(own)).then_some(own);
        let known = self.discovered.iter().chain(own).collect::<BTreeSet<_>>().len();
        let required = self.contacts_min;
        (known < required).then_some(FormationObstacle::TooFewContacts { known, required })
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
        match (&self.guard, self.look_at) {
            (Guard::Lease(_), Some(look)) => look,
            (Guard::SeedOrder { patience, since: Some(since) }, _) => *since + *patience,
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
        let obstacle = self.obstacle(own, now);
        let first = self.discovered.first() == Some(own);
        match &mut self.guard {
            Guard::Lease(candidacy) => match self.held {
                Some(term) if obstacle.is_none() => self.form(term, own, effects),
                // The noted cluster's next leader may be about to take the lease: of two sides of a
                // split, the one that lives on.
                Some(_) if candidacy.gives_back() => {
                    self.withdraw(effects);
                    self.look_at = Some(now + LOOK);
                }
                Some(_) if self.look_at.is_some_and(|at| at > now) => {}
                Some(_) => self.look_at = Some(now + LOOK),
                None if self.is_turn(own, now) => self.contend(effects),
                None => {
                    self.withdraw(effects);
                    if self.look_at.is_none_or(|at| at <= now) {
                        self.look_at = Some(now + LOOK);
                        effects.push(FormationEffect::Look);
                    }
                }
            },
            Guard::SeedOrder { patience, since } => {
                // The others have nothing to wake up for.
                if !first || obstacle.is_some() {
                    *since = None;
                } else if now >= *since.get_or_insert(now) + *patience {
                    *since = None;
                    effects.push(FormationEffect::FormUnguarded);
                }
            }
        }
    }

    /// Whether this node, which is in no cluster, should contend for the lease: to find out whether
    /// a member holds it, and again when it may form a cluster.
    fn is_turn(&self, own: &Address, now: Moment) -> bool {
        let Guard::Lease(candidacy) = &self.guard else { return false };
        let next = self.note.as_ref().and_then(|note| note.next.as_ref());
        let of_another = next.is_some_and(|next| next != own)
            && candidacy.handed_over_until().is_some_and(|until| now < until);
        let asked = candidacy.asked_enough_at().is_none_or(|at| at <= now) || self.note.is_none();
        asked && !of_another && !self.unreadable && self.too_few_contacts(own).is_none()
    }

    /// Says so in the record before it forms a cluster: one that is in no note would never be found
    /// by those that it replaces, if this node lost the lease just then.
    fn form(&mut self, term: u64, own: &Address, effects: &mut Vec<FormationEffect>) {
        self.look_at = None;
        let contacts = vec![own.clone()];
        let (member, next, other) = (Some(term), None, Vec::new());
        let note = FormationNote { cluster: term, contacts, member, next, other };
        if self.note.as_ref() == Some(&note) {
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
        self.look_at = None;
        self.asking.clear();
        if let Guard::SeedOrder { since, .. } = &mut self.guard {
            *since = None;
            return;
        }
        let Some(view) = membership.view() else { return };
        // Who is only joining starts over if all others are gone, and would be in the way of those
        // outside who could form a cluster.
        if view.member(membership.me()).is_some_and(|own| !own.is_full()) {
            return self.withdraw(effects);
        }
        // Who sees no leader, because nobody answers, looks at the record too: there may be a newer
        // cluster, and nobody else who would tell.
        let successor = membership.leader().filter(|leader| *leader != membership.me());
        match (self.held, successor) {
            (None, Some(_)) => self.withdraw(effects),
            // What stands there may name a newer cluster.
            (Some(_), Some(_)) if self.unreadable => self.withdraw(effects),
            (Some(term), Some(next)) => {
                let note = self.noted(term, view, Some(next));
                match self.note.as_ref() == Some(&note) {
                    true => self.withdraw(effects),
                    false => self.write(note, effects),
                }
            }
            (held, None) => {
                self.meet_noted(cluster, effects);
                match held {
                    None => self.contend(effects),
                    Some(_) if self.unreadable => {}
                    Some(term) => self.write(self.noted(term, view, None), effects),
                }
            }
        }
    }

    /// Looks for the members of another cluster than this node's, if the note names one.
    fn meet_noted(&mut self, cluster: u64, effects: &mut Vec<FormationEffect>) {
        if std::mem::take(&mut self.unread) {
            let other = self.other_than(cluster);
            if !other.is_empty() {
                effects.push(FormationEffect::Meet(other.to_vec()));
            }
        }
    }

    /// Where the note says that another cluster can be found.
    fn other_than(&self, cluster: u64) -> &[Address] {
        match &self.note {
            Some(note) if note.cluster != cluster => &note.contacts,
            Some(note) => &note.other,
            None => &[],
        }
    }

    /// What a member writes that holds the lease under this term, and hands it over to `next`.
    fn noted(&self, term: u64, view: &View, next: Option<&Node>) -> FormationNote {
        let is_up = |status| (Status::Up..=Status::Leaving).contains(&status);
        let up = view.members().filter(|(_, member)| is_up(member.status));
        let members: BTreeSet<&Address> = view.members().map(|(node, _)| &node.address).collect();
        let other = self.other_than(view.cluster()).iter();
        FormationNote {
            cluster: view.cluster(),
            contacts: up.map(|(node, _)| node.address.clone()).take(MOST_CONTACTS).collect(),
            member: Some(term),
            next: next.map(|node| node.address.clone()),
            other: other.filter(|address| !members.contains(address)).cloned().collect(),
        }
    }

    fn write(&mut self, note: FormationNote, effects: &mut Vec<FormationEffect>) {
        if self.written.as_ref() != Some(&note) {
            self.written = Some(note.clone());
            effects.push(FormationEffect::WriteNote(note));
        }
    }

    fn contend(&mut self, effects: &mut Vec<FormationEffect>) {
        self.look_at = None;
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

/// How often to look for a cluster that somebody else has formed.
const LOOK: Duration = Duration::from_millis(500);
/// Enough to find somebody who lives.
const MOST_CONTACTS: usize = 16;
