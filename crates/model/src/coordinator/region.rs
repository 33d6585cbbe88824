//! Steps of the regions, and of those who look after their sessions.

use super::state::{Process, Region, Session, State, Token};
use super::{Sharding, ShardingSteps};

impl Sharding {
    /// Everything that may happen to a region, and what it does.
    pub(super) fn region_steps(&self, state: &State, region: usize, steps: &mut ShardingSteps<'_>) {
        self.faults(state, region, steps);
        self.session_ends(state, region, steps);
        let Region { process, session, was_frozen, .. } = state.regions[region];
        if process == Process::Frozen {
            let mut next = *state;
            next.regions[region].process = Process::Running;
            steps.step(next, format_args!("region {region} resumes"));
        }
        let may_come_back = session.term() == 1 && state.over.contains(session);
        if process == Process::Ended && may_come_back {
            let mut next = *state;
            next.regions[region] = Region {
                process: Process::Running,
                is_member: true,
                session: Session::new(region, 2),
                ..state.regions[region].ended()
            };
            steps.step(next, format_args!("region {region} is back as a new incarnation"));
        }
        if process != Process::Running {
            return;
        }
        if was_frozen && !state.over.contains(session) {
            let mut next = *state;
            next.regions[region].was_frozen = false;
            steps.step(next, format_args!("region {region} renews its session"));
        }
        self.register(state, region, steps);
        for shard in 0..self.shards() {
            for token in Token::all() {
                self.obey(state, region, shard, token, steps);
            }
        }
    }

    fn faults(&self, state: &State, region: usize, steps: &mut ShardingSteps<'_>) {
        let Region { process, is_member, .. } = state.regions[region];
        if process == Process::Running && state.freezes_left > 0 {
            let mut next = *state;
            next.freezes_left -= 1;
            next.regions[region].process = Process::Frozen;
            next.regions[region].was_frozen = true;
            steps.fault(next, format_args!("region {region} is frozen, its clock with it"));
        }
        if process != Process::Ended && state.crashes_left > 0 {
            let mut next = *state;
            next.crashes_left -= 1;
            next.regions[region] = state.regions[region].ended();
            steps.fault(next, format_args!("region {region} crashes"));
        }
        if is_member && state.removals_left > 0 {
            let mut next = *state;
            next.removals_left -= 1;
            next.regions[region].is_member = false;
            steps.fault(next, format_args!("region {region} is removed, its session lives"));
        }
    }

    /// A session that nobody renews is taken over; its process, if it wakes, stops everything. A
    /// region may also stop and release by itself.
    fn session_ends(&self, state: &State, region: usize, steps: &mut ShardingSteps<'_>) {
        let Region { process, is_member, was_frozen, session, .. } = state.regions[region];
        let is_over = state.over.contains(session);
        let is_running = process == Process::Running;
        if !is_running && !is_over {
            let mut next = *state;
            next.over.insert(session);
            steps.step(next, format_args!("session {session:?} is taken over"));
        }
        if is_running && is_over {
            let mut next = *state;
            next.regions[region] = state.regions[region].ended();
            steps.step(next, format_args!("region {region}'s renewal is refused: it stops"));
        }
        // A region that nobody removes or crashes would have no reason to.
        let has_reason = !is_member || state.crashes_left > 0;
        if is_running && !is_over && !was_frozen && has_reason {
            let mut next = *state;
            next.over.insert(session);
            next.regions[region] = state.regions[region].ended();
            steps.step(next, format_args!("region {region} stops and releases its session"));
        }
    }

    /// Registers with a coordinator that greeted it, unless it knows a later one.
    fn register(&self, state: &State, region: usize, steps: &mut ShardingSteps<'_>) {
        let Region { session, registered, hosts, .. } = state.regions[region];
        for term in [1, 2] {
            if !state.messages.greetings[term - 1].contains(region)
                || usize::from(registered) > term
            {
                continue;
            }
            let mut next = *state;
            next.regions[region].registered = term as u8;
            if term == 2 {
                for (shard, token) in hosts.into_iter().enumerate().take(self.shards()) {
                    next.messages.reports.send(session, shard, token);
                }
            }
            steps.step(
                next,
                format_args!("{session:?} registers with coordinator {term}, hosts {hosts:?}"),
            );
        }
    }

    /// A directive about `token` arrives, if there is one.
    fn obey(
        &self,
        state: &State,
        region: usize,
        shard: usize,
        token: Token,
        steps: &mut ShardingSteps<'_>,
    ) {
        let Region { session, registered, seen, hosts, .. } = state.regions[region];
        let (seen, hosts) = (seen[shard], hosts[shard]);
        let is_for =
            |addressee: Session| !self.rules.directives_name_the_session || addressee == session;
        let arrives = |mail: super::state::Mail| {
            session.of_same_region().filter(|to| is_for(*to)).any(|to| mail.has(to, shard, token))
        };
        let from_own =
            !self.rules.only_registered_coordinator_is_obeyed || token.term() == registered;
        let is_new = if self.rules.tokens_must_be_above { token > seen } else { token >= seen };
        if arrives(state.messages.allocate) && from_own && is_new && hosts != token {
            let mut next = *state;
            next.regions[region].hosts[shard] = token;
            next.regions[region].seen[shard] = token;
            steps.step(next, format_args!("{session:?} gets Allocate {shard} {token:?}: active"));
        }
        if arrives(state.messages.hand_off) && (from_own || hosts == token) && token >= seen {
            let mut next = *state;
            if hosts <= token {
                next.regions[region].hosts[shard] = Token::NONE;
            }
            next.regions[region].seen[shard] = token;
            next.messages.stopped.send(session, shard, token);
            steps.step(
                next,
                format_args!("{session:?} gets HandOff {shard} {token:?}: has stopped"),
            );
        }
    }
}
