//! Steps of the session's process and of its clone: the keeper.

use super::Sessions;
use super::state::{
    Answer, CLAIM_END, DEADLINE, Holder, HolderId, LeaseRecord, Process, RENEWAL_MAX, Request,
    RequestKind, SessionRecord, State, TTL, Tenure,
};
use crate::engine::Steps;

impl Sessions {
    /// Everything that the process `id` may do or suffer.
    pub(super) fn holder_steps(&self, state: &State, id: HolderId, steps: &mut Steps<'_, State>) {
        match state.holder(id).process {
            Process::Off => {}
            Process::Running => {
                self.store_answers(state, id, steps);
                self.pauses_or_dies(state, id, steps);
                self.effects(state, id, steps);
                self.hears_answer(state, id, steps);
                self.releases_abandoned_claim(state, id, steps);
                self.keeps(state, id, steps);
                self.waits_out_own_session(state, id, steps);
                self.attaches_leases(state, id, steps);
            }
            Process::Stopped | Process::Frozen => {
                self.store_answers(state, id, steps);
                self.resumes(state, id, steps);
            }
        }
    }

    /// The process is paused, with its clock or without it, or dies and starts afresh.
    fn pauses_or_dies(&self, state: &State, id: HolderId, steps: &mut Steps<'_, State>) {
        if state.left.pauses > 0 {
            let mut next = *state;
            next.left.pauses -= 1;
            next.holder_mut(id).process = Process::Frozen;
            steps.fault(next, format_args!("the {id} is frozen, its clock with it"));
            next.holder_mut(id).process = Process::Stopped;
            steps.fault(next, format_args!("the {id} is stopped"));
        }
        if state.left.crashes > 0 {
            let mut next = *state;
            next.left.crashes -= 1;
            *next.holder_mut(id) = Holder::started();
            steps.fault(next, format_args!("the {id} crashes and starts afresh"));
        }
    }

    /// A paused process goes on, or two copies of it do.
    fn resumes(&self, state: &State, id: HolderId, steps: &mut Steps<'_, State>) {
        let mut next = *state;
        next.holder_mut(id).process = Process::Running;
        steps.step(next, format_args!("the {id} resumes"));
        let is_quiet = state.holder(id).request.is_none();
        if state.left.clones > 0 && id == HolderId::Original && is_quiet {
            next.left.clones -= 1;
            *next.holder_mut(HolderId::Clone) = *next.holder(HolderId::Original);
            steps.fault(next, format_args!("the {id} resumes twice: now it has a clone"));
        }
    }

    /// The process reads and writes what its leases guard.
    fn effects(&self, state: &State, id: HolderId, steps: &mut Steps<'_, State>) {
        let Some(tenure) = state.holder(id).live_tenure() else { return };
        for lease in self.leases() {
            self.effects_of_term(state, lease, tenure.lease_terms[lease], &id, steps);
        }
    }

    /// The process hears what became of its request, or reads it back because it never will.
    fn hears_answer(&self, state: &State, id: HolderId, steps: &mut Steps<'_, State>) {
        let Some(request) = state.holder(id).request else { return };
        match request.kind {
            RequestKind::Acquire { claim } => {
                self.hears_of_acquire(state, id, request, claim, steps);
            }
            RequestKind::Renew => self.hears_of_renewal(state, id, request, steps),
        }
    }

    fn hears_of_acquire(
        &self,
        state: &State,
        id: HolderId,
        request: Request,
        claim: u8,
        steps: &mut Steps<'_, State>,
    ) {
        let mut next = *state;
        next.holder_mut(id).request = None;
        let won = |term, renewal| Tenure {
            renewal,
            age: self.age_when_heard(request),
            frozen: request.frozen,
            ..Tenure::new(term, claim)
        };
        match request.answer {
            Answer::Pending => {}
            Answer::Applied { term } => {
                next.begin_tenure(id, won(term, 0));
                steps.step(next, format_args!("the {id} hears that it won term {term}"));
            }
            Answer::Refused => {
                steps.step(next, format_args!("the {id} hears that its session is not free"));
            }
            Answer::Unheard { .. } => {
                let mut abandons = next;
                abandons.holder_mut(id).abandoned_claim = Some(claim);
                steps.step(abandons, format_args!("the {id} abandons its claim"));
                match state.session {
                    SessionRecord::Held { claim: recorded, term, renewal, .. }
                        if recorded == claim || !self.rules.claims_have_ids =>
                    {
                        next.begin_tenure(id, won(term, renewal));
                        steps.step(next, format_args!("the {id} reads back: won term {term}"));
                    }
                    _ => steps.step(next, format_args!("the {id} reads back: not its claim")),
                }
            }
        }
    }

    fn hears_of_renewal(
        &self,
        state: &State,
        id: HolderId,
        request: Request,
        steps: &mut Steps<'_, State>,
    ) {
        let mut next = *state;
        next.holder_mut(id).request = None;
        let outcome = match request.answer {
            Answer::Pending => return,
            Answer::Applied { .. } => Renewal::Applied,
            Answer::Refused => Renewal::Lost,
            Answer::Unheard { applied } => self.reads_back_renewal(state, id, applied),
        };
        match outcome {
            Renewal::Applied => {
                self.confirm_renewal(&mut next, id, request);
                steps.step(next, format_args!("the {id} learns that it renewed"));
            }
            Renewal::NotApplied => {
                steps.step(next, format_args!("the {id} reads back: not renewed, to be repeated"));
            }
            Renewal::Lost => {
                next.end_tenure(id);
                steps.step(next, format_args!("the {id} learns that its session is lost"));
            }
        }
    }

    /// What the record says about a renewal whose reply was lost.
    fn reads_back_renewal(&self, state: &State, id: HolderId, applied: bool) -> Renewal {
        let Some(tenure) = state.holder(id).tenure else { return Renewal::Lost };
        let SessionRecord::Held { claim, term, renewal, writer } = state.session else {
            return Renewal::Lost;
        };
        if (claim, term) != (tenure.claim, tenure.term) {
            return Renewal::Lost;
        }
        if !self.rules.renewals_are_numbered {
            return Renewal::NotApplied;
        }
        // Without clones renewals are not counted: nobody else can have written the number.
        let is_mine = if self.renewal_step() == 0 {
            applied
        } else {
            let number_fits = renewal == tenure.renewal + 1;
            number_fits && (writer == id || !self.rules.renewals_have_nonces)
        };
        match (is_mine, renewal == tenure.renewal) {
            (true, _) => Renewal::Applied,
            (false, true) => Renewal::NotApplied,
            (false, false) => Renewal::Lost,
        }
    }

    /// Counts the deadline anew from the send, and drops the leases that are no longer attached.
    fn confirm_renewal(&self, next: &mut State, id: HolderId, request: Request) {
        let leases = next.leases;
        let has_clone = next.holder(HolderId::Clone).process != Process::Off;
        let Some(tenure) = &mut next.holder_mut(id).tenure else { return };
        tenure.age = self.age_when_heard(request);
        tenure.frozen = request.frozen;
        tenure.renewal += self.renewal_step();
        tenure.renewed_beside_clone = has_clone;
        if !self.rules.renewals_prove_attached {
            return;
        }
        for lease in self.leases() {
            let term = tenure.lease_terms[lease];
            if leases[lease] != (LeaseRecord::OfSession { session_term: tenure.term, term }) {
                tenure.lease_terms[lease] = 0;
            }
        }
    }

    /// How much of the time until the deadline is gone when the answer to `request` is heard.
    fn age_when_heard(&self, request: Request) -> u8 {
        if self.rules.clock_is_read_before_send { request.age } else { 0 }
    }

    fn releases_abandoned_claim(&self, state: &State, id: HolderId, steps: &mut Steps<'_, State>) {
        let Some(abandoned) = state.holder(id).abandoned_claim else { return };
        let mut next = *state;
        next.holder_mut(id).abandoned_claim = None;
        if let SessionRecord::Held { claim, term, .. } = state.session
            && claim == abandoned
        {
            next.write_session(SessionRecord::Released { term });
        }
        steps.step(next, format_args!("the {id} releases its abandoned claim"));
    }

    /// The keeper's own steps: it renews, gives up at the deadline, and asks for its session again.
    fn keeps(&self, state: &State, id: HolderId, steps: &mut Steps<'_, State>) {
        let holder = state.holder(id);
        let mut next = *state;
        match holder.tenure {
            Some(tenure) if tenure.age >= DEADLINE => {
                next.end_tenure(id);
                next.holder_mut(id).request = None;
                steps.step(next, format_args!("the {id} meets its deadline: session lost"));
            }
            Some(tenure) => {
                let due = tenure.age > 0 && tenure.renewal < RENEWAL_MAX;
                if due && holder.request.is_none() {
                    next.holder_mut(id).request = Some(Request::new(RequestKind::Renew));
                    steps.step(next, format_args!("the {id} sends a renewal"));
                }
            }
            None => {
                // Asking for a held session is refused, and teaches something only to a process
                // that would take another claim for its own.
                let worth_it = !state.session.is_held() || !self.rules.claims_have_ids;
                if worth_it && holder.request.is_none() && state.claim_next < CLAIM_END {
                    let kind = RequestKind::Acquire { claim: state.claim_next };
                    next.claim_next += 1;
                    next.holder_mut(id).request = Some(Request::new(kind));
                    steps.step(next, format_args!("the {id} asks for its session"));
                }
            }
        }
    }

    /// A process without a tenure waits out, like anybody else, whoever holds its session.
    fn waits_out_own_session(&self, state: &State, id: HolderId, steps: &mut Steps<'_, State>) {
        let holder = state.holder(id);
        if holder.tenure.is_some() || holder.request.is_some() || !state.session.is_held() {
            return;
        }
        let mut next = *state;
        match holder.session_unchanged {
            None => {
                next.holder_mut(id).session_unchanged = Some(0);
                steps.step(next, format_args!("the {id} looks at its session's record"));
            }
            Some(TTL) if !self.session_terms_used_up(state) => {
                let term = next.raise_session_term(&self.rules);
                next.write_session(SessionRecord::Released { term });
                steps.step(next, format_args!("the {id} has waited its former tenure out"));
            }
            Some(_) => {}
        }
    }

    /// The process looks at its leases' records, and attaches free ones to its session.
    fn attaches_leases(&self, state: &State, id: HolderId, steps: &mut Steps<'_, State>) {
        let holder = state.holder(id);
        for lease in self.leases() {
            let mut next = *state;
            next.holder_mut(id).vanished[lease] = state.absence(lease, holder.vanished[lease]);
            steps.step(next, format_args!("the {id} looks whether lease {lease} exists"));
            let Some(tenure) = holder.live_tenure() else { continue };
            let wants = tenure.lease_terms[lease] == 0 && !self.lease_terms_used_up(state, lease);
            if wants && self.lease_is_free(state, lease, holder.vanished[lease], None) {
                let session_term = tenure.term;
                let mut next = *state;
                let term = next.raise_lease_term(lease, &self.rules);
                next.leases[lease] = LeaseRecord::OfSession { session_term, term };
                let holder = next.holder_mut(id);
                holder.vanished[lease] = None;
                if let Some(tenure) = &mut holder.tenure {
                    tenure.lease_terms[lease] = term;
                }
                steps.step(next, format_args!("the {id} takes lease {lease}, term {term}"));
            }
        }
    }
}

/// What a process knows of a renewal.
enum Renewal {
    Applied,
    NotApplied,
    Lost,
}

impl State {
    fn begin_tenure(&mut self, id: HolderId, tenure: Tenure) {
        let holder = self.holder_mut(id);
        holder.tenure = Some(tenure);
        holder.session_unchanged = None;
    }

    fn end_tenure(&mut self, id: HolderId) {
        let holder = self.holder_mut(id);
        holder.tenure = None;
        holder.session_unchanged = None;
    }
}
