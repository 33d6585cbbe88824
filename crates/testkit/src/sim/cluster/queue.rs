//! What is to happen, and when.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use tenure_cluster::wire::Control;
use tenure_cluster::{Incarnation, Node};
use tenure_lease::Moment;

use super::arbitration::{Reply, Request};
use super::singleton;

/// What is to happen, in the order of time; at one time, in the order in which it was asked for.
#[derive(Default)]
pub(super) struct Queue {
    heap: BinaryHeap<Step>,
    steps: u64,
}

pub(super) struct Step {
    pub(super) at: Moment,
    number: u64,
    pub(super) what: What,
}

pub(super) enum What {
    Deliver {
        place: usize,
        to: Option<Incarnation>,
        from: Node,
        message: Control,
    },
    Wake {
        place: usize,
        process: u64,
        at: Moment,
    },
    /// A request reaches the store.
    Apply {
        place: usize,
        process: u64,
        flight: u64,
        request: Request,
    },
    /// Its answer reaches the process, or the process gives up.
    Answer {
        place: usize,
        process: u64,
        flight: u64,
        reply: Reply,
    },
    Singleton(singleton::Step),
    /// A process starts in the place of another.
    Start {
        place: usize,
    },
}

impl Queue {
    pub(super) fn push(&mut self, at: Moment, what: What) {
        self.steps += 1;
        self.heap.push(Step { at, number: self.steps, what });
    }

    /// The next step, if it is due by then.
    pub(super) fn pop_until(&mut self, end: Moment) -> Option<Step> {
        if self.heap.peek()?.at > end {
            return None;
        }
        self.heap.pop()
    }

    /// When the next step is.
    pub(super) fn next_at(&self) -> Option<Moment> {
        self.heap.peek().map(|step| step.at)
    }

    /// How many there have been.
    pub(super) fn steps(&self) -> u64 {
        self.steps
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
