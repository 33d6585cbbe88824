//! Steps of the store that keeps the arbitration lease, and of those who hear from it.

use super::state::{Answer, Request, State, Status};
use super::{Acquisition, LeaseMajority};
use crate::engine::Steps;
use crate::node_set::NodeSet;

impl LeaseMajority {
    /// What may become of `node`'s request, also after its sender died.
    pub(super) fn request_steps(&self, state: &State, node: usize, steps: &mut Steps<'_, State>) {
        let Some(request) = state.nodes[node].request else { return };
        match request.answer {
            Answer::Pending => self.store_decides(state, node, request, steps),
            Answer::Won | Answer::WonOverNewer => self.hears_won(state, node, request, steps),
        }
    }

    fn store_decides(
        &self,
        state: &State,
        node: usize,
        request: Request,
        steps: &mut Steps<'_, State>,
    ) {
        let record = state.record;
        let Request { generation, survivors, .. } = request;
        let free = record.holder.is_none_or(|holder| usize::from(holder) == node);
        let as_read = record.generation + 1 == generation;
        let mut next = *state;
        if free && (as_read || self.rules.acquisition != Acquisition::IfUnchanged) {
            next.record.generation = generation;
            next.record.survivors = survivors;
            next.record.holder = Some(node as u8);
            let looks = self.rules.acquisition == Acquisition::CheckedAfterwards;
            let answer = match looks && record.generation >= generation {
                true => Answer::WonOverNewer,
                false => Answer::Won,
            };
            let heard = state.is_alive(node).then_some(Request { answer, ..request });
            next.nodes[node].request = heard;
            steps.step(
                next,
                format_args!("the store gives {node} the lease: verdict {generation} {survivors}"),
            );
        } else {
            next.nodes[node].request = None;
            if !self.rules.lost_means_wait && state.is_alive(node) {
                next.nodes[node].die();
            }
            steps.step(next, format_args!("the store refuses {node} the lease"));
        }
        let mut next = *state;
        next.nodes[node].request = None;
        steps.fault(next, format_args!("{node}'s request never arrives"));
    }

    fn hears_won(
        &self,
        state: &State,
        node: usize,
        request: Request,
        steps: &mut Steps<'_, State>,
    ) {
        let Request { generation, survivors, .. } = request;
        let mut next = *state;
        next.nodes[node].request = None;
        steps.fault(next, format_args!("the answer to {node} is lost"));
        if request.answer == Answer::WonOverNewer {
            next.nodes[node].die();
        } else if generation > state.nodes[node].generation {
            self.merge_verdict(&mut next, node, generation, survivors);
        }
        let fate = if next.is_alive(node) { "lives on" } else { "downs itself" };
        steps.step(next, format_args!("{node} hears Won {generation} {survivors} and {fate}"));
    }

    /// The lease runs out, at any time; or its holder has removed the losers and releases it.
    pub(super) fn lease_ends(&self, state: &State, steps: &mut Steps<'_, State>) {
        let Some(holder) = state.record.holder.map(usize::from) else { return };
        let mut next = *state;
        next.record.holder = None;
        if !self.rules.note_is_kept {
            next.record.generation = 0;
            next.record.survivors = NodeSet::EMPTY;
        }
        let view = &state.nodes[holder];
        if !view.is_alive() {
            steps.step(next, format_args!("the lease of the dead {holder} expires"));
            return;
        }
        steps.fault(next, format_args!("{holder}'s lease expires"));
        let knows = view.generation == state.record.generation;
        if knows && view.members().is_subset_of(state.record.survivors) {
            steps.step(next, format_args!("{holder} releases the lease"));
        }
    }

    /// `node` follows a verdict: whoever is not among its survivors is Down, itself perhaps too.
    pub(super) fn merge_verdict(
        &self,
        next: &mut State,
        node: usize,
        generation: u8,
        survivors: NodeSet,
    ) {
        let view = &mut next.nodes[node];
        if !survivors.contains(node) {
            return view.die();
        }
        let losers = view.members() - survivors;
        view.set_status(losers, Status::Down);
        view.generation = generation;
        view.survivors = survivors;
        view.asked = view.asked.max(generation);
        if self.rules.verdict_counts_as_convergence {
            view.converged = survivors;
        }
    }
}
