use std::time::Duration;

use tenure_lease::Moment;
use tenure_lease::record::Version;

use super::note::{FormationNote, FormationSight};
use crate::settings::{MembershipSettings, Rule};

/// What a node that is in no cluster knows about the one in the note: whether it lives, and for how
/// long this node has asked for it.
///
/// Whoever reaches the store but no member (a certificate of another authority, a wrong address, a
/// blocked port) would otherwise wait beside a healthy cluster until its leader leaves, win the
/// lease in that moment, and form a second cluster that nobody can join.
#[derive(Clone, Debug)]
pub(super) struct Candidacy {
    settings: MembershipSettings,
    /// After how long a silent node counts as unreachable.
    detection: Duration,
    /// The ttl of the formation lease.
    ttl: Duration,
    /// When the record was last seen, or won.
    seen_at: Option<Moment>,
    /// The record's version when it was last seen.
    version: Option<Version>,
    /// When there was last reason to believe that a member lives: it had taken or renewed the lease
    /// since the look before, or nobody knows, because the store did not answer this node.
    member_seen: Option<Moment>,
    /// When this node first won the lease after that. It gave the lease back, so that a member
    /// could take it.
    first_win: Option<Moment>,
    /// Since when the note has named the leader that takes the lease next.
    handing_over: Option<Moment>,
}

impl Candidacy {
    pub(super) fn new(ttl: Duration, settings: MembershipSettings) -> Self {
        let detection = settings.detection();
        Self {
            settings,
            detection,
            ttl,
            seen_at: None,
            version: None,
            member_seen: None,
            first_win: None,
            handing_over: None,
        }
    }

    /// The record was seen. Before that, the note was `known`.
    pub(super) fn see(
        &mut self,
        sight: &FormationSight,
        known: Option<&FormationNote>,
        now: Moment,
    ) {
        let changed = self.version.as_ref() != Some(&sight.version);
        let note = sight.note.as_ref().ok().and_then(Option::as_ref);
        if sight.held_by_member() && changed || self.missed_something(known, note, now) {
            self.restart(now);
        }
        match note.and_then(|note| note.next.as_ref()) {
            Some(_) => drop(self.handing_over.get_or_insert(now)),
            None => self.handing_over = None,
        }
        self.seen_at = Some(now);
        self.version = Some(sight.version.clone());
    }

    /// This node won the lease, and found this note. Before that, the note was `known`.
    pub(super) fn win(
        &mut self,
        note: Option<&FormationNote>,
        known: Option<&FormationNote>,
        now: Moment,
    ) {
        if self.missed_something(known, note, now) {
            self.restart(now);
        }
        self.first_win.get_or_insert(now);
        self.seen_at = Some(now);
    }

    /// Whether a member held the lease, or may have, without this node's seeing it: between two
    /// looks, or while the store did not answer for a whole ttl.
    fn missed_something(
        &self,
        known: Option<&FormationNote>,
        note: Option<&FormationNote>,
        now: Moment,
    ) -> bool {
        let was_blind = self.seen_at.is_some_and(|at| now.since(at) > self.ttl);
        let by_another = known.is_some_and(|known| {
            note.is_some_and(|note| (note.cluster, note.member) != (known.cluster, known.member))
        });
        was_blind || by_another
    }

    /// A member of the noted cluster may live: this node must ask for it from the beginning.
    fn restart(&mut self, now: Moment) {
        if self.settings.obeys(Rule::MemberRestartsAsking) {
            self.member_seen = Some(now);
            self.first_win = None;
        }
    }

    /// When this node has asked every contact in the note for long enough; `None` if it has not
    /// won the lease since a member was last seen.
    ///
    /// The next leader takes the lease within one ttl and the time in which a dead leader is
    /// noticed; and a member that does not answer for that time counts as unreachable.
    pub(super) fn asked_enough_at(&self) -> Option<Moment> {
        let quiet = self.member_seen.map_or(Moment::ZERO, |seen| seen + self.ttl + self.detection);
        Some((self.first_win? + self.detection).max(quiet))
    }

    /// Whether a win that comes too early is given back at once.
    pub(super) fn gives_back(&self) -> bool {
        self.settings.obeys(Rule::CandidateGivesBack)
    }

    /// Until when the lease is left to the leader that the note names.
    pub(super) fn handed_over_until(&self) -> Option<Moment> {
        Some(self.handing_over? + self.detection)
    }

    /// Whether a member of the noted cluster was seen to hold the lease so lately that it may
    /// still.
    pub(super) fn member_may_hold(&self, now: Moment) -> bool {
        let most = self.ttl + self.detection;
        self.member_seen.is_some_and(|seen| now < seen + most)
    }
}
