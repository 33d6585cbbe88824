//! Pools of connections, one after the other.
//!
//! When a network path dies without a word, all connections of a pool hang, and nothing tells them
//! from healthy ones until a request on one of them has timed out. If each of them had to be found
//! out in this way, a burst that left twenty idle connections would cost twenty time-outs. Therefore
//! connections belong to a generation. A request that was dropped unanswered, or that failed, ends
//! its generation: later requests use the next one, which has no connection yet, and idle
//! connections of the old one are closed.
//!
//! A request that asks for a fresh connection starts a generation without ending the current one.
//! The first answer on the new generation makes it the current one.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use tokio::sync::{Semaphore, SemaphorePermit};

use tenure_lease::Moment;

use super::Connector;
use crate::connections;

/// The pools of one client.
pub(super) struct Generations {
    connector: Connector,
    state: Mutex<GenerationsState>,
}

struct GenerationsState {
    /// What requests use.
    current: Generation,
    /// What requests for a fresh connection have started since; or the current one.
    newest: Generation,
}

/// One pool.
#[derive(Clone)]
struct Generation {
    number: u64,
    begun: Moment,
    client: Client<Connector, Full<Bytes>>,
}

/// A request on its way. Dropped without [`InFlight::answered`], it ends its generation.
pub(super) struct InFlight<'a> {
    generations: &'a Generations,
    generation: Generation,
    answered: bool,
    _fresh: Option<SemaphorePermit<'static>>,
}

impl Generations {
    pub(super) fn new(connector: Connector) -> Self {
        let first = Generation::new(0, &connector);
        let state = GenerationsState { current: first.clone(), newest: first };
        Self { connector, state: Mutex::new(state) }
    }

    /// For a request that any connection will do for.
    pub(super) fn current(&self) -> InFlight<'_> {
        let generation = self.state().current.clone();
        InFlight { generations: self, generation, answered: false, _fresh: None }
    }

    /// For a request that must not meet a connection which existed when its predecessor was sent.
    /// Requests that come within a [`MOMENT`] share a generation. So do those that come while the
    /// process has [`FRESH_MAX`] of them under way: they use the newest generation that there is.
    pub(super) fn fresh(&self) -> InFlight<'_> {
        let permit = FRESH.try_acquire().ok();
        let mut state = self.state();
        if permit.is_some() && Moment::now().since(state.newest.begun) >= MOMENT {
            state.newest = Generation::new(state.newest.number + 1, &self.connector);
        }
        let generation = state.newest.clone();
        InFlight { generations: self, generation, answered: false, _fresh: permit }
    }

    /// A connection of this generation works: older ones may hang.
    fn confirm(&self, generation: &Generation) {
        let mut state = self.state();
        if generation.number > state.current.number {
            state.current = generation.clone();
        }
    }

    /// A connection of this generation may hang, so all of them may.
    fn end(&self, number: u64) {
        let mut state = self.state();
        if number < state.current.number {
            return;
        }
        if number == state.newest.number {
            state.newest = Generation::new(number + 1, &self.connector);
        }
        state.current = state.newest.clone();
    }

    fn state(&self) -> MutexGuard<'_, GenerationsState> {
        // Generations are put in whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Generation {
    fn new(number: u64, connector: &Connector) -> Self {
        let client = connections::pool().build(connector.clone());
        Self { number, begun: Moment::now(), client }
    }
}

impl InFlight<'_> {
    pub(super) fn client(&self) -> &Client<Connector, Full<Bytes>> {
        &self.generation.client
    }

    pub(super) fn answered(&mut self) {
        self.answered = true;
        self.generations.confirm(&self.generation);
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.generations.end(self.generation.number);
        }
    }
}

/// Shorter than the keeper waits before it sends a renewal again, so that a generation which is so
/// young began after the earlier renewal was sent.
const MOMENT: Duration = Duration::from_millis(50);
/// How many requests of this process have a fresh connection at once.
const FRESH_MAX: usize = 16;
static FRESH: Semaphore = Semaphore::const_new(FRESH_MAX);
