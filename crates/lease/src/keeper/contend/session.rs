//! The session that stands between a contender and an attached lease.

use std::time::Duration;

use super::{Contender, FlightKind};
use crate::LeaseName;
use crate::backend::{Acquire, Expected, Request};
use crate::clock::Moment;
use crate::keeper::sight::Sight;
use crate::record::{Nonce, Record, SessionRef, Version};
use crate::settings::Rule;

/// What is known of the session that the record in sight is attached to.
pub(super) struct SessionSight {
    session: SessionRef,
    pub(super) sight: Sight,
    /// It ended: the attached record is free.
    over: bool,
}

impl Contender {
    pub(super) fn session_is_over(&self, now: Moment) -> bool {
        if !self.settings.obeys(Rule::TakeSessionFirst) {
            return self.sight.watched_out(now, &self.settings).is_some();
        }
        self.session.as_ref().is_some_and(|session| session.over)
    }

    /// The next step towards ending the session that stands in the way, if one does.
    pub(super) fn session_step(&self, now: Moment, claim: Nonce) -> Option<(FlightKind, Request)> {
        if !self.settings.obeys(Rule::TakeSessionFirst) {
            return None;
        }
        let session = self.session_in_the_way()?;
        let take = |takeover: Option<Version>, ttl| {
            let request = Acquire {
                name: session.session.name.clone(),
                claim,
                owner: self.wish.owner.clone(),
                ttl,
                session: None,
                note: None,
                create: false,
                takeover,
                // Only the tenure that was observed, never one that its node has won since.
                expected: Some(Expected::Term(session.session.term)),
                above: 0,
                unattended: false,
            };
            Some((FlightKind::TakeSession { claim }, Request::Acquire(request)))
        };
        let sight = &session.sight;
        if let Some(record) = sight.watched_out(now, &self.settings) {
            return take(Some(record.version.clone()), record.ttl);
        }
        if let Some(record) = sight.store_expired(now) {
            return take(None, record.ttl);
        }
        Some(self.look())
    }

    /// The session that stands in the way, as far as anybody knows.
    pub(super) fn session_in_the_way(&self) -> Option<&SessionSight> {
        self.session.as_ref().filter(|session| !session.over)
    }

    /// The record of that session.
    pub(super) fn session_to_look_at(&self) -> Option<&LeaseName> {
        self.session_in_the_way().map(|session| &session.session.name)
    }

    /// Keeps the session's sight in step with the record's.
    pub(super) fn follow_session(&mut self) {
        let attached_to = self.sight.record().and_then(Record::session).cloned();
        if self.session.as_ref().map(|session| &session.session) != attached_to.as_ref() {
            self.session = attached_to.map(|session| SessionSight {
                session,
                sight: Sight::Nothing,
                over: false,
            });
        }
    }

    pub(super) fn session_read(&mut self, now: Moment, record: Option<Record>) {
        let Some(session) = &mut self.session else { return };
        let named = session.session.term;
        // Of the same name: this process has won it after whoever had it before.
        let is_ours = self
            .wish
            .session
            .as_ref()
            .is_some_and(|own| own.name == session.session.name && own.term > named);
        let is_released = |record: &Record| record.holder.is_none() && record.token.term >= named;
        let over = is_ours || record.as_ref().is_some_and(is_released);
        // A higher term, held: it was won by somebody who had waited, or else broken or stolen. A lower
        // one: the store has lost history. Either way the next renewal of the tenure that is waited for
        // is refused, as if its record had vanished.
        let record = record.filter(|record| record.token.term == named);
        // Nothing is written in place of a record that has vanished: a later tenure of the session may
        // have vanished with it, and who waits for that one would take the written record, once it is
        // released, for proof that it is over.
        if over || record.is_none() && session.sight.waited_out(now).is_some() {
            session.over = true;
            if self.allowed {
                self.next_at = now;
            }
            return;
        }
        // The attached record names it, so it was there: absent means vanished, also at first sight.
        if record.is_none() && matches!(session.sight, Sight::Nothing) {
            let attached_for = self.sight.record().map_or(Duration::ZERO, |record| record.ttl);
            let wait = attached_for.max(self.settings.ttl);
            session.sight = Sight::vanished(now, wait, &self.settings);
        } else {
            let attempted = self.attempted;
            session.sight.see(now, record, attempted, &self.settings, |record| record.ttl);
        }
        self.schedule(now);
    }

    pub(super) fn session_taken(&mut self, now: Moment, claim: Nonce) {
        self.give_back_session(now, claim);
        if let Some(session) = &mut self.session {
            session.over = true;
        }
        self.next_at = now;
    }

    pub(super) fn give_back_session(&mut self, now: Moment, claim: Nonce) {
        if let Some(session) = &self.session {
            let name = session.session.name.clone();
            self.litter(now, name, claim, vec![claim]);
        }
    }

    /// The session that the record in sight is attached to, if that is known to be over.
    pub(in crate::keeper) fn over_session(&self) -> Option<&SessionRef> {
        self.session.as_ref().filter(|session| session.over).map(|session| &session.session)
    }

    /// Somebody has found that this session is over.
    pub(in crate::keeper) fn session_ended(&mut self, now: Moment, ended: &SessionRef) {
        if let Some(session) = self.session.as_mut().filter(|session| session.session == *ended) {
            session.over = true;
            self.hurry(now);
        }
    }

    /// The session that the record in sight is attached to.
    pub(in crate::keeper) fn attached_to(&self) -> Option<&SessionRef> {
        self.session.as_ref().map(|session| &session.session)
    }
}
