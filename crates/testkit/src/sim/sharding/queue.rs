//! What is to happen, and when.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use tenure_cluster::Node;
use tenure_lease::backend::{Answer, Request};
use tenure_lease::{Moment, Token};
use tenure_sharding::{Message, Shard};

use super::data::Op;

#[derive(Default)]
pub(super) struct Queue {
    heap: BinaryHeap<Step>,
    steps: u64,
}

struct Step {
    at: Moment,
    number: u64,
    what: What,
}

/// What happens.
#[allow(clippy::large_enum_variant)] // Most of them are messages, requests and answers.
pub(super) enum What {
    /// A message between coordinator and region arrives.
    Message { from: Node, to: Node, message: Message },
    /// Something arrives that is kept in order.
    Cargo { from: Node, to: Node, cargo: Cargo },
    /// A process has something to do.
    Wake { shell: u64, at: Moment },
    /// A request reaches the store.
    Apply { shell: u64, keeper: u64, flight: u64, request: Request, answered: bool },
    /// Its answer reaches the process, or the process gives up.
    Answer { shell: u64, keeper: u64, flight: u64, answer: Answer },
    /// A shard has stopped.
    Stopped { shell: u64, shard: Shard, token: Token },
    /// A shard writes by itself.
    Work { shell: u64, shard: Shard, token: Token },
    /// Something reaches the database.
    Op { shell: u64, op: Op },
    /// Its answer.
    OpDone { shell: u64, op: Op, result: Option<(u64, u64)> },
}

/// What regions send each other.
#[derive(Clone, Debug)]
pub(super) enum Cargo {
    Forward(Shard, u64),
    Return(Shard, u64),
    Mark(Shard),
    Marked(Shard),
}

impl Queue {
    pub(super) fn push(&mut self, at: Moment, what: What) {
        self.steps += 1;
        self.heap.push(Step { at, number: self.steps, what });
    }

    pub(super) fn next_at(&self) -> Option<Moment> {
        self.heap.peek().map(|step| step.at)
    }

    pub(super) fn pop(&mut self) -> Option<(Moment, What)> {
        self.heap.pop().map(|step| (step.at, step.what))
    }
}

impl PartialEq for Step {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Step {}

impl PartialOrd for Step {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Step {
    /// The earliest is the greatest, since a heap gives the greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}
