//! Steps of the contender, and what it shares with the holder about leases and their resources.

use std::fmt::Display;

use super::Sessions;
use super::state::{LeaseRecord, SessionRecord, State, TTL};
use crate::engine::Steps;

impl Sessions {
    /// Everything that the contender may do. It never pauses.
    pub(super) fn contender_steps(&self, state: &State, steps: &mut Steps<'_, State>) {
        self.contender_watches_session(state, steps);
        self.contender_judges_session(state, steps);
        self.contender_uses_leases(state, steps);
    }

    fn contender_watches_session(&self, state: &State, steps: &mut Steps<'_, State>) {
        if state.contender.session_unchanged.is_some() {
            return;
        }
        let vanished = state.session == SessionRecord::Absent;
        let waits = !vanished || self.rules.vanished_is_waited_out;
        let mut next = *state;
        next.contender.session_unchanged = Some(if waits { 0 } else { TTL });
        next.contender.judged_expired = None;
        steps.step(next, format_args!("the contender looks at the session's record"));
    }

    /// The session's record has not changed for its time to live, by the contender's clock: the
    /// contender takes it over, so that the former holder's next renewal is refused. One that has
    /// vanished refuses it already.
    ///
    /// Without the rule it only remembers its judgement. A store compares and sets one record, so
    /// that the session may be renewed before the contender comes to take the lease's.
    fn contender_judges_session(&self, state: &State, steps: &mut Steps<'_, State>) {
        let released = matches!(state.session, SessionRecord::Released { .. });
        if state.contender.session_unchanged != Some(TTL) || released {
            return;
        }
        let mut next = *state;
        let vanished = state.session == SessionRecord::Absent;
        if vanished || !self.rules.session_is_taken_over_first {
            next.contender.judged_expired = Some(state.session_term_top);
            steps.step(next, format_args!("the contender judges the session expired"));
        } else if !self.session_terms_used_up(state) {
            let term = next.raise_session_term(&self.rules);
            next.write_session(SessionRecord::Released { term });
            steps.step(next, format_args!("the contender takes the session over, term {term}"));
        }
    }

    fn contender_uses_leases(&self, state: &State, steps: &mut Steps<'_, State>) {
        let contender = &state.contender;
        for lease in self.leases() {
            let mut next = *state;
            next.contender.vanished[lease] = state.absence(lease, contender.vanished[lease]);
            steps.step(next, format_args!("the contender looks whether lease {lease} exists"));
            let held_term = contender.lease_terms[lease];
            if held_term != 0 {
                self.effects_of_term(state, lease, held_term, &"contender", steps);
                let mut next = *state;
                next.contender.lease_terms[lease] = 0;
                next.leases[lease] = LeaseRecord::Released { term: held_term };
                steps.step(next, format_args!("the contender stops and releases lease {lease}"));
                continue;
            }
            let expired = contender.judged_expired;
            let free = self.lease_is_free(state, lease, contender.vanished[lease], expired);
            if free && !self.lease_terms_used_up(state, lease) {
                let mut next = *state;
                let term = next.raise_lease_term(lease, &self.rules);
                next.leases[lease] = LeaseRecord::OfContender { term };
                next.contender.lease_terms[lease] = term;
                next.contender.vanished[lease] = None;
                steps.step(next, format_args!("the contender takes lease {lease}, term {term}"));
            }
        }
    }

    /// Whether a lease may be taken by somebody who saw `vanished` ticks ago that its record was
    /// missing, and who has judged the session of term `judged_expired` expired.
    pub(super) fn lease_is_free(
        &self,
        state: &State,
        lease: usize,
        vanished: Option<u8>,
        judged_expired: Option<u8>,
    ) -> bool {
        match state.leases[lease] {
            LeaseRecord::Absent => !self.rules.vanished_is_waited_out || vanished == Some(TTL),
            LeaseRecord::Released { .. } => true,
            LeaseRecord::OfContender { .. } => false,
            LeaseRecord::OfSession { session_term, .. } => match state.session {
                SessionRecord::Released { term } if term >= session_term => true,
                SessionRecord::Held { term, .. } if term > session_term => true,
                _ => judged_expired == Some(session_term),
            },
        }
    }

    /// Reads and writes, under a lease's `term`, of what the lease guards.
    pub(super) fn effects_of_term(
        &self,
        state: &State,
        lease: usize,
        term: u8,
        who: &dyn Display,
        steps: &mut Steps<'_, State>,
    ) {
        let resource = state.resources[lease];
        if term > resource.read {
            let mut next = *state;
            next.resources[lease].read = term;
            if self.rules.fence_is_raised_before_read {
                next.resources[lease].fence = resource.fence.max(term);
            }
            steps.step(next, format_args!("the {who} opens resource {lease} with term {term}"));
        }
        if term > resource.fence {
            let mut next = *state;
            next.resources[lease].fence = term;
            next.resources[lease].read = resource.read.max(term);
            steps.step(next, format_args!("the {who} writes resource {lease} with term {term}"));
        }
    }
}
