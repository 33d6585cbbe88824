//! Steps of the coordinators.

use super::state::{Coordinator, Place, Session, Sessions, State, Token};
use super::{Shard, ShardSteps};

impl Shard {
    /// The second coordinator wins the lease. The first one may not know for any time.
    pub(super) fn lease_changes_hands(&self, state: &State, steps: &mut ShardSteps<'_>) {
        if state.coordinators[1] != Coordinator::Waiting {
            return;
        }
        let mut next = *state;
        next.term = 2;
        if !self.rules.roster_outlives_coordinator {
            next.roster = Sessions::NONE;
        }
        next.coordinators[1] = Coordinator::Active {
            shard: Place::Unknown,
            allocations: 0,
            answered: Sessions::NONE,
            roster: next.roster,
        };
        let roster = next.roster;
        steps.step(next, format_args!("coordinator 2 wins the lease and reads roster {roster:?}"));
    }

    /// Everything that the coordinator of `term` may do.
    pub(super) fn coordinator_steps(&self, state: &State, term: u8, steps: &mut ShardSteps<'_>) {
        let index = usize::from(term - 1);
        let Coordinator::Active { shard, allocations, answered, roster } =
            state.coordinators[index]
        else {
            return;
        };
        let all_answered = roster.is_covered_by(answered, state.over);
        let known = Known { term, index, shard, allocations, answered, roster, all_answered };
        if state.term > term {
            let mut next = *state;
            next.coordinators[index] = Coordinator::Passive;
            steps.step(next, format_args!("coordinator {term} learns that it is deposed"));
        }
        for region in 0..self.regions() {
            let session = state.regions[region].session;
            if state.regions[region].is_member {
                self.greet(state, known, region, steps);
                self.write_roster(state, known, session, steps);
                self.allocate(state, known, session, steps);
            }
            self.hear_report(state, known, session, steps);
        }
        self.hand_off(state, known, steps);
        self.hear_stopped(state, known, steps);
        self.free_by_end_of_host(state, known, steps);
        self.end_recovery(state, known, steps);
    }

    fn greet(&self, state: &State, known: Known, region: usize, steps: &mut ShardSteps<'_>) {
        let mut next = *state;
        next.messages.greetings[known.index].insert(region);
        steps.step(next, format_args!("coordinator {} greets region {region}", known.term));
    }

    /// Puts a session on the roster; a deposed coordinator learns that it is one.
    fn write_roster(
        &self,
        state: &State,
        known: Known,
        session: Session,
        steps: &mut ShardSteps<'_>,
    ) {
        let Known { term, index, mut roster, .. } = known;
        if !self.rules.unreported_is_taken || roster.contains(session) {
            return;
        }
        let mut next = *state;
        if state.term == term {
            roster.insert(session);
            next.roster.insert(session);
            next.coordinators[index] = Known { roster, ..known }.into();
            steps.step(next, format_args!("coordinator {term} puts {session:?} on the roster"));
        } else {
            next.coordinators[index] = Coordinator::Passive;
            steps.step(next, format_args!("coordinator {term}'s roster is refused: passive"));
        }
    }

    /// Gives the shard, which is free, to a session.
    fn allocate(&self, state: &State, known: Known, session: Session, steps: &mut ShardSteps<'_>) {
        let Known { term, index, shard, allocations, answered, roster, .. } = known;
        let on_roster = roster.contains(session)
            || !self.rules.unreported_is_taken
            || !self.rules.on_roster_before_first_directive;
        let may_direct = self.may_direct(known) && answered.contains(session) && on_roster;
        if shard != Place::Free || !may_direct || allocations >= self.scenario.allocations_max {
            return;
        }
        let token = Token::new(term, allocations + 1);
        let mut next = *state;
        next.messages.allocate.send(session, token);
        let shard = Place::At { session, token };
        next.coordinators[index] = Known { shard, allocations: allocations + 1, ..known }.into();
        steps
            .step(next, format_args!("coordinator {term} sends Allocate {token:?} to {session:?}"));
    }

    fn hand_off(&self, state: &State, known: Known, steps: &mut ShardSteps<'_>) {
        let Place::At { session, token } = known.shard else { return };
        if !self.may_direct(known) || !state.regions[session.region()].is_member {
            return;
        }
        let mut next = *state;
        next.messages.hand_off.send(session, token);
        let shard = Place::HandingOff { session, token };
        next.coordinators[known.index] = Known { shard, ..known }.into();
        let term = known.term;
        steps.step(next, format_args!("coordinator {term} sends HandOff {token:?} to {session:?}"));
    }

    /// A region says what it hosts. Only the second coordinator needs to know.
    fn hear_report(
        &self,
        state: &State,
        known: Known,
        session: Session,
        steps: &mut ShardSteps<'_>,
    ) {
        let Known { term, index, shard, mut answered, .. } = known;
        if term == 1 || answered.contains(session) {
            return;
        }
        answered.insert(session);
        for token in Token::with_none().filter(|token| state.messages.reports.has(session, *token))
        {
            let is_news = match shard {
                Place::Unknown => true,
                Place::At { token: known_token, .. } => {
                    self.rules.whole_roster_answers_first && token > known_token
                }
                Place::Free | Place::HandingOff { .. } => false,
            };
            let believes = token != Token::NONE && is_news;
            let shard = if believes { Place::At { session, token } } else { shard };
            let mut next = *state;
            next.coordinators[index] = Known { shard, answered, ..known }.into();
            steps.step(
                next,
                format_args!("coordinator {term} hears that {session:?} hosts {token:?}"),
            );
        }
    }

    fn hear_stopped(&self, state: &State, known: Known, steps: &mut ShardSteps<'_>) {
        let Place::HandingOff { session, token: handed_off } = known.shard else { return };
        for token in Token::all().filter(|token| state.messages.stopped.has(session, *token)) {
            if self.rules.answers_name_the_allocation && token != handed_off {
                continue;
            }
            let mut next = *state;
            next.coordinators[known.index] = Known { shard: Place::Free, ..known }.into();
            let term = known.term;
            steps.step(
                next,
                format_args!("coordinator {term} hears that {session:?} stopped {token:?}: free"),
            );
        }
    }

    /// The shard is free once the session of its host is over.
    fn free_by_end_of_host(&self, state: &State, known: Known, steps: &mut ShardSteps<'_>) {
        let (Place::At { session, .. } | Place::HandingOff { session, .. }) = known.shard else {
            return;
        };
        let is_over = match self.rules.only_sessions_free_shards {
            true => state.over.contains(session),
            false => !state.regions[session.region()].is_member,
        };
        if is_over && self.may_direct(known) {
            let mut next = *state;
            next.coordinators[known.index] = Known { shard: Place::Free, ..known }.into();
            let term = known.term;
            steps.step(next, format_args!("coordinator {term}: {session:?} is over, shard free"));
        }
    }

    /// Nobody has said that it has the shard, and nobody is left who could.
    fn end_recovery(&self, state: &State, known: Known, steps: &mut ShardSteps<'_>) {
        let has_answered = |region: usize| {
            let region = &state.regions[region];
            !region.is_member || known.answered.contains(region.session)
        };
        let is_done = match self.rules.unreported_is_taken {
            true => known.all_answered,
            false => (0..self.regions()).all(has_answered),
        };
        if known.shard == Place::Unknown && is_done {
            let mut next = *state;
            next.coordinators[known.index] = Known { shard: Place::Free, ..known }.into();
            steps.step(next, format_args!("coordinator {}: nobody has the shard", known.term));
        }
    }

    fn may_direct(&self, known: Known) -> bool {
        known.all_answered || !self.rules.whole_roster_answers_first
    }
}

/// What an active coordinator knows.
#[derive(Clone, Copy)]
struct Known {
    term: u8,
    index: usize,
    shard: Place,
    allocations: u8,
    answered: Sessions,
    roster: Sessions,
    /// Each session on the roster has answered, or is over.
    all_answered: bool,
}

impl From<Known> for Coordinator {
    fn from(known: Known) -> Self {
        let Known { shard, allocations, answered, roster, .. } = known;
        Self::Active { shard, allocations, answered, roster }
    }
}
