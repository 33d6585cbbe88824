//! Connections to the members of a cluster: which one a request takes.
//!
//! There are two lanes, each with one current HTTP/2 connection that all of its requests share: one
//! for renewals and releases, which so wait for nothing else, and one for the rest. A request that
//! fails, or whose caller loses patience, retires its connection: later requests use another one, to
//! the next member. Requests that are under way on a retired connection are left alone, and it
//! closes when the last of them has ended.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::{OnceCell, watch};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;

/// The current connection of one kind of requests.
pub(super) struct Lane {
    members: usize,
    state: Mutex<LaneState>,
}

struct LaneState {
    current: Option<Arc<Link>>,
    /// The member that the next connection goes to.
    next_member: usize,
    /// The number of the newest connection.
    newest: u64,
    /// Every connection that a request may still be using.
    open: Vec<Weak<Link>>,
}

/// A connection to one member, opened and logged in by the first request that needs it.
pub(super) struct Link {
    /// Rises with each connection of a lane, from 1.
    pub(super) number: u64,
    /// An index into the list of members.
    pub(super) member: usize,
    pub(super) opened: OnceCell<OpenLink>,
    retired: watch::Sender<bool>,
}

#[derive(Clone)]
pub(super) struct OpenLink {
    pub(super) channel: Channel,
    /// What the log-in gave. When etcd forgets it, the connection is retired.
    pub(super) token: Option<MetadataValue<Ascii>>,
}

impl Lane {
    pub(super) fn new(members: usize, first: usize) -> Self {
        let state = LaneState { current: None, next_member: first, newest: 0, open: Vec::new() };
        Self { members, state: Mutex::new(state) }
    }

    /// The current connection.
    pub(super) fn link(&self) -> Arc<Link> {
        let mut state = self.state();
        match &state.current {
            Some(link) => Arc::clone(link),
            None => self.open(&mut state),
        }
    }

    /// A connection that is newer than this one; whoever asks next shares it. If too many are open,
    /// the current one.
    pub(super) fn link_newer_than(&self, number: u64) -> Arc<Link> {
        let mut state = self.state();
        state.open.retain(|link| link.strong_count() > 0);
        let full = state.open.len() >= OPEN_MAX;
        if let Some(link) = state.current.as_ref().filter(|link| full || link.number > number) {
            return Arc::clone(link);
        }
        self.retire_current(&mut state);
        self.open(&mut state)
    }

    /// Sends no further request on this connection.
    pub(super) fn retire(&self, link: &Link) {
        let mut state = self.state();
        if state.current.as_ref().is_some_and(|current| current.number == link.number) {
            self.retire_current(&mut state);
        }
    }

    fn retire_current(&self, state: &mut LaneState) {
        if let Some(link) = state.current.take() {
            link.retired.send_replace(true);
            state.next_member = (link.member + 1) % self.members;
        }
    }

    fn open(&self, state: &mut LaneState) -> Arc<Link> {
        state.newest += 1;
        let link = Arc::new(Link {
            number: state.newest,
            member: state.next_member,
            opened: OnceCell::new(),
            retired: watch::Sender::new(false),
        });
        state.open.retain(|link| link.strong_count() > 0);
        state.open.push(Arc::downgrade(&link));
        state.current = Some(Arc::clone(&link));
        link
    }

    fn state(&self) -> MutexGuard<'_, LaneState> {
        // Nothing here is half done, whoever panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link {
    /// Returns once the connection is retired.
    pub(super) async fn retired(&self) {
        // The sender is in `self`, so it outlives the receiver.
        let _ = self.retired.subscribe().wait_for(|retired| *retired).await;
    }
}

/// So many connections of a lane may be open at once before a request for a newer one gets the
/// current one.
const OPEN_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retired_link_is_not_used_again_and_the_next_goes_to_the_next_member() {
        let lane = Lane::new(3, 2);
        let first = lane.link();
        assert_eq!((first.number, first.member), (1, 2));
        assert_eq!(lane.link().number, 1);
        lane.retire(&first);
        lane.retire(&first);
        let second = lane.link();
        assert_eq!((second.number, second.member), (2, 0));
        lane.retire(&first);
        assert_eq!(lane.link().number, 2, "an old failure says nothing about it");
    }

    #[test]
    fn those_who_want_a_newer_link_share_it() {
        let lane = Lane::new(1, 0);
        let first = lane.link();
        let second = lane.link_newer_than(first.number);
        assert_eq!(second.number, 2);
        assert_eq!(lane.link_newer_than(first.number).number, 2);
        assert_eq!(lane.link().number, 2, "so does everybody else");
    }

    #[test]
    fn links_are_bounded_while_requests_use_them() {
        let lane = Lane::new(1, 0);
        let used: Vec<_> = (0..40).map(|_| lane.link_newer_than(u64::MAX)).collect();
        assert_eq!(used.last().unwrap().number, OPEN_MAX as u64);
        drop(used);
        assert_eq!(lane.link_newer_than(u64::MAX).number, OPEN_MAX as u64 + 1);
    }
}
