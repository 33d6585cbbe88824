//! How views spread, who joins and leaves, and what the leader does for joiners.

use super::LeaseMajority;
use super::state::{Life, NODES_MAX, Node, State, Status};
use crate::engine::Steps;
use crate::node_set::NodeSet;

impl LeaseMajority {
    /// A process starts and joins through a member.
    pub(super) fn join_steps(&self, state: &State, node: usize, steps: &mut Steps<'_, State>) {
        for contact in self.contacts(state, node).iter() {
            let mut next = *state;
            next.joiners_left -= 1;
            next.nodes[contact].statuses[node] = Status::Joining;
            next.nodes[node] = Node { life: Life::Alive, request: None, ..next.nodes[contact] };
            steps.fault(next, format_args!("{node} joins through {contact}"));
        }
    }

    /// Its contact may have gone before it told anybody: it starts over.
    pub(super) fn rejoin_steps(&self, state: &State, node: usize, steps: &mut Steps<'_, State>) {
        for contact in self.contacts(state, node).iter() {
            if state.nodes[contact].statuses[node] != Status::Absent {
                continue;
            }
            let mut next = *state;
            next.nodes[contact].statuses[node] = Status::Joining;
            let known = &state.nodes[contact];
            let joiner = &mut next.nodes[node];
            joiner.merge_statuses(known);
            joiner.merge_generation(known);
            steps.step(next, format_args!("joiner {node} tries again through {contact}"));
        }
    }

    /// The members through whom `node` can join.
    fn contacts(&self, state: &State, node: usize) -> NodeSet {
        let is_up = |contact: &usize| state.nodes[*contact].statuses[*contact] == Status::Up;
        let reachable = state.cut.reachable_from(node) & state.alive();
        reachable.iter().filter(|contact| *contact != node).filter(is_up).collect()
    }

    /// `node` tells everybody whom it reaches what it knows.
    pub(super) fn gossip_steps(&self, state: &State, node: usize, steps: &mut Steps<'_, State>) {
        let view = &state.nodes[node];
        let reachable = state.cut.reachable_from(node) & state.alive();
        for peer in reachable.iter().filter(|peer| *peer != node) {
            let believed = state.nodes[peer].statuses[node];
            let is_known = believed != Status::Absent || view.statuses[node] == Status::Up;
            let is_heard = view.statuses[peer] != Status::Absent && is_known;
            if is_heard && believed != Status::Down {
                let mut next = *state;
                self.merge_view(&mut next.nodes[peer], peer, view);
                let fate = if next.is_alive(peer) { "" } else { ": it is Down, and ends" };
                steps.step(next, format_args!("{node} gossips to {peer}{fate}"));
            }
            let is_leaving = view.statuses[node] == Status::Leaving;
            if is_leaving && !matches!(believed, Status::Absent | Status::Down) {
                let mut next = *state;
                next.nodes[peer].statuses[node] = Status::Down;
                if self.rules.leavers_tell_their_view {
                    self.merge_view(&mut next.nodes[peer], peer, view);
                }
                next.nodes[node].die();
                steps.step(next, format_args!("leaver {node} tells {peer} that it ends"));
            }
        }
    }

    /// `node`, with view `mine`, hears of view `theirs`.
    fn merge_view(&self, mine: &mut Node, node: usize, theirs: &Node) {
        let before = *mine;
        mine.merge_statuses(theirs);
        mine.asked = mine.asked.max(theirs.asked);
        mine.merge_generation(theirs);
        if theirs.generation > before.generation && self.rules.verdict_counts_as_convergence {
            mine.converged = theirs.survivors;
        }
        if self.rules.verdict_travels_whole && theirs.generation != before.generation {
            let newer = if theirs.generation > before.generation { theirs } else { &before };
            for other in 0..NODES_MAX {
                let unknown_to_newer = newer.statuses[other] == Status::Absent;
                let known = mine.statuses[other] != Status::Absent;
                if unknown_to_newer && known && !newer.survivors.contains(other) {
                    mine.statuses[other] = Status::Down;
                }
            }
        }
        if mine.statuses[node] == Status::Down {
            mine.die();
        }
    }

    /// `node` sees that everybody agrees with it.
    pub(super) fn converge_step(&self, state: &State, node: usize, steps: &mut Steps<'_, State>) {
        let view = &state.nodes[node];
        let (counted, members) = (view.counted(), view.members());
        let reached = members.is_subset_of(state.cut.reachable_from(node));
        let whole = reached && state.cut.leave_whole(members);
        if whole && state.all_see_view_of(node, members) {
            let mut next = *state;
            next.nodes[node].converged = counted;
            steps.step(next, format_args!("{node} sees convergence on {counted}"));
        }
    }

    /// `node` crashes, or wants to leave.
    pub(super) fn end_steps(&self, state: &State, node: usize, steps: &mut Steps<'_, State>) {
        if state.crashes_left > 0 {
            let mut next = *state;
            next.crashes_left -= 1;
            next.nodes[node].die();
            steps.fault(next, format_args!("{node} crashes"));
        }
        if state.leavers_left > 0 && state.nodes[node].statuses[node] == Status::Up {
            let mut next = *state;
            next.leavers_left -= 1;
            next.nodes[node].statuses[node] = Status::Leaving;
            steps.fault(next, format_args!("{node} starts to leave"));
        }
    }

    /// `node`, if it leads those whom it reaches, moves joiners on.
    pub(super) fn leader_steps(&self, state: &State, node: usize, steps: &mut Steps<'_, State>) {
        let view = &state.nodes[node];
        let seen = state.cut.reachable_from(node) & state.alive();
        if (view.counted() & seen).lowest() != Some(node) {
            return;
        }
        let joiners = view.joining() & seen;
        let members = view.members();
        let all_reached = members.is_subset_of(seen) || !self.rules.leader_waits_while_unreachable;
        let all_agree =
            !self.rules.leader_waits_for_convergence || state.all_see_view_of(node, members);
        if !joiners.is_empty() && all_reached && all_agree {
            let mut next = *state;
            next.nodes[node].set_status(joiners, Status::Up);
            steps.step(next, format_args!("leader {node} makes {joiners} Up"));
        }
        let lost = view.joining() - seen;
        if self.rules.lost_joiners_are_downed && !lost.is_empty() {
            let mut next = *state;
            next.nodes[node].set_status(lost, Status::Down);
            steps.step(next, format_args!("leader {node} downs the lost joiners {lost}"));
        }
    }
}

impl Node {
    fn merge_statuses(&mut self, other: &Self) {
        for (mine, theirs) in self.statuses.iter_mut().zip(other.statuses) {
            *mine = (*mine).max(theirs);
        }
    }

    /// Takes over the other's verdict if it is the newer one.
    fn merge_generation(&mut self, other: &Self) {
        if other.generation > self.generation {
            self.generation = other.generation;
            self.survivors = other.survivors;
        }
    }
}
