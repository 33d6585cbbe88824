//! Steps of the coordinators.

use super::state::{Coordinator, Place, SHARDS_MAX, Session, Sessions, State, Token};
use super::{Sharding, ShardingSteps};

impl Sharding {
    /// The second coordinator wins the lease. The first one may not know for any time.
    pub(super) fn lease_changes_hands(&self, state: &State, steps: &mut ShardingSteps<'_>) {
        if state.coordinators[1] != Coordinator::Waiting {
            return;
        }
        let mut next = *state;
        next.term = 2;
        if !self.rules.roster_outlives_coordinator {
            next.roster = Sessions::NONE;
        }
        next.coordinators[1] = Coordinator::Active {
            places: [Place::Unknown; SHARDS_MAX],
            allocations: 0,
            answered: Sessions::NONE,
            roster: next.roster,
        };
        let roster = next.roster;
        steps.step(next, format_args!("coordinator 2 wins the lease and reads roster {roster:?}"));
    }

    /// Everything that the coordinator of `term` may do.
    pub(super) fn coordinator_steps(&self, state: &State, term: u8, steps: &mut ShardingSteps<'_>) {
        let index = usize::from(term - 1);
        let Coordinator::Active { places, allocations, answered, roster } =
            state.coordinators[index]
        else {
            return;
        };
        let all_answered = roster.is_covered_by(answered, state.over);
        let known = Known { term, index, places, allocations, answered, roster, all_answered };
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
                for shard in 0..self.shards() {
                    self.allocate(state, known, session, shard, steps);
                }
            }
            self.hear_report(state, known, session, steps);
        }
        for shard in 0..self.shards() {
            self.hand_off(state, known, shard, steps);
            self.hear_stopped(state, known, shard, steps);
            self.free_by_end_of_host(state, known, shard, steps);
            self.end_recovery(state, known, shard, steps);
        }
    }

    fn greet(&self, state: &State, known: Known, region: usize, steps: &mut ShardingSteps<'_>) {
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
        steps: &mut ShardingSteps<'_>,
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

    /// Gives a shard, which is free, to a session.
    fn allocate(
        &self,
        state: &State,
        known: Known,
        session: Session,
        shard: usize,
        steps: &mut ShardingSteps<'_>,
    ) {
        let Known { term, index, allocations, answered, roster, .. } = known;
        let on_roster = roster.contains(session)
            || !self.rules.unreported_is_taken
            || !self.rules.on_roster_before_first_directive;
        let may_direct = self.may_direct(known) && answered.contains(session) && on_roster;
        let is_free = known.places[shard] == Place::Free;
        if !is_free || !may_direct || allocations >= self.scenario.allocations_max {
            return;
        }
        let token = Token::new(term, allocations + 1);
        let mut next = *state;
        next.messages.allocate.send(session, shard, token);
        let known = Known { allocations: allocations + 1, ..known };
        next.coordinators[index] = known.with(shard, Place::At { session, token });
        steps.step(
            next,
            format_args!("coordinator {term} sends Allocate {shard} {token:?} to {session:?}"),
        );
    }

    fn hand_off(&self, state: &State, known: Known, shard: usize, steps: &mut ShardingSteps<'_>) {
        let Place::At { session, token } = known.places[shard] else { return };
        if !self.may_direct(known) || !state.regions[session.region()].is_member {
            return;
        }
        let mut next = *state;
        next.messages.hand_off.send(session, shard, token);
        next.coordinators[known.index] = known.with(shard, Place::HandingOff { session, token });
        let term = known.term;
        steps.step(
            next,
            format_args!("coordinator {term} sends HandOff {shard} {token:?} to {session:?}"),
        );
    }

    /// A region says what it hosts. Only the second coordinator needs to know. Of a region that
    /// said it more than once, it may hear of each shard what was said at another time.
    fn hear_report(
        &self,
        state: &State,
        known: Known,
        session: Session,
        steps: &mut ShardingSteps<'_>,
    ) {
        let Known { term, index, mut answered, .. } = known;
        if term == 1 || answered.contains(session) {
            return;
        }
        answered.insert(session);
        let reported = |shard: usize| {
            let reports = state.messages.reports;
            Token::with_none().filter(move |token| reports.has(session, shard, *token))
        };
        let believes = |known: Known, shard: usize, token: Token| {
            let place = known.places[shard];
            let is_news = match place {
                Place::Unknown => true,
                Place::At { token: known_token, .. } => {
                    self.rules.whole_roster_answers_first && token > known_token
                }
                Place::Free | Place::HandingOff { .. } => false,
            };
            if token != Token::NONE && is_news { Place::At { session, token } } else { place }
        };
        let known = Known { answered, ..known };
        let has_second = self.shards() > 1;
        for first in reported(0) {
            // Of a shard that is not there nobody says anything.
            for second in reported(1).chain((!has_second).then_some(Token::NONE)) {
                let mut places = known.places;
                places[0] = believes(known, 0, first);
                places[1] = believes(known, 1, second);
                let mut next = *state;
                next.coordinators[index] = Known { places, ..known }.into();
                steps.step(
                    next,
                    format_args!(
                        "coordinator {term} hears that {session:?} hosts {first:?}, {second:?}"
                    ),
                );
            }
        }
    }

    fn hear_stopped(
        &self,
        state: &State,
        known: Known,
        shard: usize,
        steps: &mut ShardingSteps<'_>,
    ) {
        let Place::HandingOff { session, token: handed_off } = known.places[shard] else { return };
        let stopped = state.messages.stopped;
        for token in Token::all().filter(|token| stopped.has(session, shard, *token)) {
            if self.rules.answers_name_the_allocation && token != handed_off {
                continue;
            }
            let mut next = *state;
            next.coordinators[known.index] = known.with(shard, Place::Free);
            let term = known.term;
            steps.step(
                next,
                format_args!(
                    "coordinator {term} hears that {session:?} stopped {shard} {token:?}: free"
                ),
            );
        }
    }

    /// A shard is free once the session of its host is over.
    fn free_by_end_of_host(
        &self,
        state: &State,
        known: Known,
        shard: usize,
        steps: &mut ShardingSteps<'_>,
    ) {
        let (Place::At { session, .. } | Place::HandingOff { session, .. }) = known.places[shard]
        else {
            return;
        };
        let is_over = match self.rules.only_sessions_free_shards {
            true => state.over.contains(session),
            false => !state.regions[session.region()].is_member,
        };
        if is_over && self.may_direct(known) {
            let mut next = *state;
            next.coordinators[known.index] = known.with(shard, Place::Free);
            let term = known.term;
            steps.step(
                next,
                format_args!("coordinator {term}: {session:?} is over, shard {shard} free"),
            );
        }
    }

    /// Nobody has said that it has the shard, and nobody is left who could.
    fn end_recovery(
        &self,
        state: &State,
        known: Known,
        shard: usize,
        steps: &mut ShardingSteps<'_>,
    ) {
        let has_answered = |region: usize| {
            let region = &state.regions[region];
            !region.is_member || known.answered.contains(region.session)
        };
        let is_done = match self.rules.unreported_is_taken {
            true => known.all_answered,
            false => (0..self.regions()).all(has_answered),
        };
        if known.places[shard] == Place::Unknown && is_done {
            let mut next = *state;
            next.coordinators[known.index] = known.with(shard, Place::Free);
            steps.step(next, format_args!("coordinator {}: nobody has shard {shard}", known.term));
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
    places: [Place; SHARDS_MAX],
    allocations: u8,
    answered: Sessions,
    roster: Sessions,
    /// Each session on the roster has answered, or is over.
    all_answered: bool,
}

impl Known {
    /// The coordinator, with this as the place of a shard.
    fn with(mut self, shard: usize, place: Place) -> Coordinator {
        self.places[shard] = place;
        self.into()
    }
}

impl From<Known> for Coordinator {
    fn from(known: Known) -> Self {
        let Known { places, allocations, answered, roster, .. } = known;
        Self::Active { places, allocations, answered, roster }
    }
}
