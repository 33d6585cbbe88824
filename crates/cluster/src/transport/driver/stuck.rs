//! Lanes on which nothing gets through although there is something to send.
//!
//! Reachability is what nodes that watch each other observe on their control lanes. A cut between
//! two nodes of a large cluster that do not watch each other, or one that lets control pass and no
//! data, is nobody's observation. It is noticed here, by whoever has something to send.

use std::sync::Mutex;
use std::time::Duration;

use tenure_lease::Moment;

use super::lock;
use crate::Address;
use crate::transport::{Lane, Refusal};

/// A lane on which nothing gets through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StuckLane {
    /// The address of the node at the other end.
    pub address: Address,
    /// Which of the two lanes.
    pub lane: Lane,
    /// For how long.
    pub waiting: Duration,
    /// What is known about it.
    pub why: String,
}

/// Whether what one lane has to send gets through.
#[derive(Debug, Default)]
pub(super) struct Progress(Mutex<Option<Waiting>>);

#[derive(Debug)]
struct Waiting {
    /// Since when there is something to send, or since it last got through.
    since: Moment,
    /// Why the link could not be opened, if it could not.
    refusal: Option<Refusal>,
}

impl Progress {
    /// There is something to send.
    pub(super) fn begin(&self) {
        lock(&self.0).get_or_insert_with(|| Waiting { since: Moment::now(), refusal: None });
    }

    /// There is nothing to send, or all of it got through.
    pub(super) fn end(&self) {
        *lock(&self.0) = None;
    }

    /// Some of it got through.
    pub(super) fn go_on(&self) {
        *lock(&self.0) = Some(Waiting { since: Moment::now(), refusal: None });
    }

    /// The link could not be opened, or was.
    pub(super) fn opened(&self, refusal: Option<Refusal>) {
        if let Some(waiting) = &mut *lock(&self.0) {
            waiting.refusal = refusal;
        }
    }

    /// Whether nothing has got through for this long.
    pub(super) fn stuck(
        &self,
        after: Duration,
        address: &Address,
        lane: Lane,
    ) -> Option<StuckLane> {
        let guard = lock(&self.0);
        let Waiting { since, refusal } = guard.as_ref()?;
        let waiting = Moment::now().since(*since);
        let why = match refusal {
            Some(refusal) => format!("the link cannot be opened: {refusal}"),
            None => "the link is open, and nothing is acknowledged".into(),
        };
        let address = address.clone();
        (waiting >= after).then_some(StuckLane { address, lane, waiting, why })
    }
}
