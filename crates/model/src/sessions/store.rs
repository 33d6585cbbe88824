//! Steps of the store and of the world around it: answers, the operator, time.

use super::Sessions;
use super::state::{
    Answer, DEADLINE, HolderId, LeaseRecord, MARGIN, Process, RequestKind, SessionRecord, State,
    TTL,
};
use crate::engine::Steps;

impl Sessions {
    /// One tick passes for every clock that runs.
    pub(super) fn time_passes(&self, state: &State, steps: &mut Steps<'_, State>) {
        let mut next = *state;
        for holder in &mut next.holders {
            let clock_stands = match holder.process {
                Process::Off => continue,
                Process::Running => false,
                Process::Stopped => !self.rules.boottime,
                Process::Frozen => true,
            };
            if !clock_stands {
                if let Some(tenure) = &mut holder.tenure {
                    count(&mut tenure.age, DEADLINE);
                }
                if let Some(request) = &mut holder.request {
                    count(&mut request.age, DEADLINE);
                }
                holder.session_unchanged.iter_mut().for_each(|ticks| count(ticks, TTL));
                holder.vanished.iter_mut().flatten().for_each(|ticks| count(ticks, TTL));
            } else if holder.process == Process::Frozen {
                if let Some(tenure) = holder.tenure.as_mut().filter(|tenure| tenure.age < DEADLINE)
                {
                    count(&mut tenure.frozen, MARGIN + 1);
                }
                if let Some(request) = &mut holder.request {
                    count(&mut request.frozen, MARGIN + 1);
                }
            }
        }
        let contender = &mut next.contender;
        contender.session_unchanged.iter_mut().for_each(|ticks| count(ticks, TTL));
        contender.vanished.iter_mut().flatten().for_each(|ticks| count(ticks, TTL));
        steps.step(next, format_args!("a tick passes"));
    }

    /// The operator deletes a record by hand. What the contender holds is left alone.
    pub(super) fn operator_deletes(&self, state: &State, steps: &mut Steps<'_, State>) {
        if state.left.session_deletions > 0 && state.session != SessionRecord::Absent {
            let mut next = *state;
            next.left.session_deletions -= 1;
            next.write_session(SessionRecord::Absent);
            steps.fault(next, format_args!("the operator deletes the session's record"));
        }
        if state.left.lease_deletions == 0 {
            return;
        }
        for lease in self.leases() {
            if let LeaseRecord::OfSession { .. } = state.leases[lease] {
                let mut next = *state;
                next.left.lease_deletions -= 1;
                next.leases[lease] = LeaseRecord::Absent;
                steps.fault(next, format_args!("the operator deletes the record of lease {lease}"));
            }
        }
    }

    /// The store sees a request that was under way, or never does.
    pub(super) fn store_answers(&self, state: &State, id: HolderId, steps: &mut Steps<'_, State>) {
        let Some(request) = state.holder(id).request else { return };
        if request.answer != Answer::Pending {
            return;
        }
        let kind = request.kind;
        let answered = |mut next: State, answer| {
            if let Some(request) = &mut next.holder_mut(id).request {
                request.answer = answer;
            }
            next
        };
        let lost = |mut next: State| {
            next.left.lost_replies -= 1;
            next
        };

        let mut after = *state;
        let granted = match kind {
            RequestKind::Acquire { claim } => self.apply_acquire(&mut after, id, claim),
            RequestKind::Renew => self.apply_renewal(&mut after, id),
        };
        let (answer, word) = match granted {
            Some(term) => (Answer::Applied { term }, "applied"),
            None => (Answer::Refused, "refused"),
        };
        steps.step(answered(after, answer), format_args!("the {id}'s {kind} is {word}"));

        if state.left.lost_replies > 0 {
            let unheard = Answer::Unheard { applied: granted.is_some() };
            steps.fault(
                answered(lost(after), unheard),
                format_args!("the {id}'s {kind} is {word}, the reply is lost"),
            );
            steps.fault(
                answered(lost(*state), Answer::Unheard { applied: false }),
                format_args!("the {id}'s {kind} is lost"),
            );
        }
    }

    /// Gives the session to a claim if it is free, with a new term.
    fn apply_acquire(&self, next: &mut State, id: HolderId, claim: u8) -> Option<u8> {
        if next.session.is_held() || self.session_terms_used_up(next) {
            return None;
        }
        let term = next.raise_session_term(&self.rules);
        next.write_session(SessionRecord::Held { claim, term, renewal: 0, writer: id });
        Some(term)
    }

    /// Renews the session if claim and term, and the renewal number, are the ones on record.
    fn apply_renewal(&self, next: &mut State, id: HolderId) -> Option<u8> {
        let tenure = next.holder(id).tenure?;
        let SessionRecord::Held { claim, term, renewal, .. } = next.session else { return None };
        let number_fits = !self.rules.renewals_are_numbered || renewal == tenure.renewal;
        if (claim, term) != (tenure.claim, tenure.term) || !number_fits {
            return None;
        }
        let renewal = renewal + self.renewal_step();
        next.write_session(SessionRecord::Held { claim, term, renewal, writer: id });
        Some(term)
    }
}

fn count(ticks: &mut u8, max: u8) {
    *ticks = (*ticks + 1).min(max);
}
