//! What the leader of a side decides while others are unreachable.

use std::cmp::Ordering;

use super::state::{Answer, Request, State, Status};
use super::{Counts, LeaseMajority, Mode, Network};
use crate::engine::Steps;
use crate::node_set::NodeSet;

impl LeaseMajority {
    /// Everything that `node` may decide as the leader of a side.
    pub(super) fn decisions(&self, state: &State, node: usize, steps: &mut Steps<'_, State>) {
        let counted = state.nodes[node].counted();
        if self.scenario.network != Network::Arbitrary {
            let side = self.side_of(state, node);
            if side != counted && side.lowest() == Some(node) {
                Decision { model: self, state, node, side, mistaken: false }.steps(steps);
            }
            return;
        }
        for side in counted.subsets() {
            if side != counted && side.lowest() == Some(node) {
                let mistaken = side != counted & state.alive();
                Decision { model: self, state, node, side, mistaken }.steps(steps);
            }
        }
    }
}

/// A decision that the leader of a side is about to take.
struct Decision<'a> {
    model: &'a LeaseMajority,
    state: &'a State,
    /// The leader.
    node: usize,
    side: NodeSet,
    /// It takes somebody who lives for unreachable, or reaches the dead: only a fault does that.
    mistaken: bool,
}

impl Decision<'_> {
    /// First it reads the record. That may fail, at any time.
    fn steps(&self, steps: &mut Steps<'_, State>) {
        let Self { node, side, .. } = *self;
        let record = self.state.record;
        let newer = record.generation > self.state.nodes[node].generation;
        if newer && self.model.rules.record_is_read_first {
            let mut next = *self.state;
            self.model.merge_verdict(&mut next, node, record.generation, record.survivors);
            let fate = if next.is_alive(node) { "merges it" } else { "downs itself" };
            let (generation, survivors) = (record.generation, record.survivors);
            self.emit(
                steps,
                Reading::Done,
                next,
                format_args!("{node} of {side} reads verdict {generation} {survivors}, {fate}"),
            );
        } else {
            self.act(Reading::Done, steps);
        }
        self.act(Reading::Failed, steps);
    }

    /// The record is not newer, or could not be read: the side's size decides.
    fn act(&self, reading: Reading, steps: &mut Steps<'_, State>) {
        let Self { model, state, node, side, .. } = *self;
        let rules = &model.rules;
        if rules.side_has_seen_view && !state.all_see_view_of(node, side) {
            return;
        }
        let failed = reading == Reading::Failed;
        let unread = if failed { ", record unread" } else { "" };
        let counted = state.nodes[node].counted();
        let is_majority = size_in(side, counted) == Ordering::Greater;
        let survives_on_unknown =
            failed && model.scenario.mode == Mode::Always && !rules.unknown_means_wait;
        match self.size() {
            _ if survives_on_unknown && is_majority => self.survive(reading, steps),
            Size::Majority => self.survive(reading, steps),
            Size::Minority => {
                let waits_for_record = failed && rules.minority_waits_for_record;
                let asks = state.nodes[node].request.is_some();
                if waits_for_record || asks && rules.minority_waits_for_its_ask {
                    return;
                }
                let mut next = *state;
                next.nodes[node].die();
                let label = format_args!("{node}, minority {side} of {counted}, ends{unread}");
                self.emit(steps, reading, next, label);
            }
            Size::Equal if !failed => self.ask(steps),
            Size::Equal | Size::Disputed => {}
        }
    }

    /// Downs everybody else, without the lease.
    fn survive(&self, reading: Reading, steps: &mut Steps<'_, State>) {
        let Self { state, node, side, .. } = *self;
        let counted = state.nodes[node].counted();
        let mut next = *state;
        next.nodes[node].set_status(counted - side, Status::Down);
        let unread = if reading == Reading::Failed { ", record unread" } else { "" };
        let label = format_args!("{node}, majority {side} of {counted}, downs the others{unread}");
        self.emit(steps, reading, next, label);
    }

    /// Asks the lease for the next verdict; in `ties` it announces it to its side first.
    fn ask(&self, steps: &mut Steps<'_, State>) {
        let Self { model, state, node, side, .. } = *self;
        let view = &state.nodes[node];
        let generation = view.generation + 1;
        if view.request.is_some() || generation > model.scenario.generation_max {
            return;
        }
        let mut next = *state;
        if model.rules.asks_are_announced && model.scenario.mode == Mode::Ties {
            if view.asked < generation {
                next.nodes[node].asked = generation;
                let label = format_args!("{node} announces that {side} will ask for {generation}");
                self.emit(steps, Reading::Done, next, label);
                return;
            }
            let has_heard =
                |member| state.is_alive(member) && state.nodes[member].asked >= generation;
            if !side.iter().all(has_heard) {
                return;
            }
        }
        let request = Request { generation, survivors: side, answer: Answer::Pending };
        next.nodes[node].request = Some(request);
        let label = format_args!("{node} asks for verdict {generation} {side}");
        self.emit(steps, Reading::Done, next, label);
    }

    /// How large the side is, as far as that decides anything.
    fn size(&self) -> Size {
        let Self { model, state, node, side, .. } = *self;
        let view = &state.nodes[node];
        let present = size_in(side, view.counted());
        let converged = size_in(side, view.converged);
        let unchanged = view.counted() == view.converged;
        let size = if unchanged || model.rules.counts == Counts::PresentOnly {
            present.into()
        } else {
            let majority = present == Ordering::Greater && converged == Ordering::Greater;
            let minority = [present, converged].map(|size| size == Ordering::Less);
            match (model.rules.counts, minority) {
                _ if majority => Size::Majority,
                (Counts::DoubtIsEqual, _) | (_, [false, false]) => Size::Equal,
                (Counts::DoubtIsMinority, _) | (_, [true, true]) => Size::Minority,
                _ => Size::Disputed,
            }
        };
        let asked = model.rules.asks_are_announced && view.asked > view.generation;
        match size {
            _ if model.scenario.mode == Mode::Always => Size::Equal,
            Size::Majority if asked => Size::Equal,
            size => size,
        }
    }

    fn emit(
        &self,
        steps: &mut Steps<'_, State>,
        reading: Reading,
        next: State,
        label: std::fmt::Arguments<'_>,
    ) {
        if self.mistaken || reading == Reading::Failed {
            steps.fault(next, label);
        } else {
            steps.step(next, label);
        }
    }
}

/// Whether the record could be read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    Done,
    Failed,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Size {
    Majority,
    /// Half of the members, or a side that has to ask whatever its size.
    Equal,
    Minority,
    /// The counts disagree: wait.
    Disputed,
}

impl From<Ordering> for Size {
    fn from(ordering: Ordering) -> Self {
        match ordering {
            Ordering::Greater => Self::Majority,
            Ordering::Equal => Self::Equal,
            Ordering::Less => Self::Minority,
        }
    }
}

/// How `side` compares to half of `members`.
fn size_in(side: NodeSet, members: NodeSet) -> Ordering {
    (2 * (side & members).len()).cmp(&members.len())
}
