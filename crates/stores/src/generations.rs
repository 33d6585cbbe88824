//! Generations of connections, for stores whose requests share a pool.
//!
//! A connection can go silent without a word, and then its siblings in the pool probably have, too.
//! So a pool is never repaired: it is one *generation*, and a request that times out or fails
//! retires it. The next request begins another generation, with no connection that is older than the
//! trouble. Requests that are under way in a retired generation are left alone.
//!
//! A renewal whose predecessor has had no answer yet asks for a fresh connection. It begins a new
//! generation (or joins one that a moment ago another renewal began) as a *candidate*, which becomes
//! the current generation with its first answer.
//!
//! Each generation has places of its own for two kinds of requests, so that renewals and releases
//! never wait for anything else, and none of its places is taken by a request that hangs in an older
//! generation.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use tenure_lease::Moment;

/// What a request is for, which decides about its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// A renewal whose predecessor may hang: on a connection that is younger than the predecessor.
    FreshRenewal,
    /// A renewal or a release: waits for nothing but its like.
    Renewal,
    /// Everything else.
    Other,
}

impl Lane {
    /// Of a renewal.
    pub(crate) fn of_renewal(fresh_connection: bool) -> Self {
        if fresh_connection { Self::FreshRenewal } else { Self::Renewal }
    }

    /// Of the further requests of an operation, once the first one has an answer: they find its
    /// connection, because a fresh one that works is in the current generation by then.
    pub(crate) fn go_on(self) -> Self {
        if self == Self::FreshRenewal { Self::Renewal } else { self }
    }
}

/// How many requests may be under way at once.
#[derive(Clone, Copy)]
pub(crate) struct Places {
    /// On fresh connections, in all generations. Further renewals that want one use the newest
    /// generation that there is.
    pub(crate) fresh: usize,
    /// Renewals and releases, in each generation.
    pub(crate) renewals: usize,
    /// Others, in each generation.
    pub(crate) others: usize,
}

/// The generations of one store; `P` is a pool of connections.
pub(crate) struct Generations<P> {
    places: Places,
    fresh: Arc<Semaphore>,
    /// How many there have been.
    begun: AtomicU64,
    known: Mutex<Known<P>>,
}

struct Known<P> {
    current: Option<Arc<Generation<P>>>,
    /// Younger than the current one, and without an answer yet.
    candidate: Option<Arc<Generation<P>>>,
}

/// A pool of connections, none of which is older than it.
struct Generation<P> {
    pool: P,
    number: u64,
    begun_at: Moment,
    /// An answer has come through it, so that connections may lie idle in its pool.
    proven: AtomicBool,
    renewals: Arc<Semaphore>,
    others: Arc<Semaphore>,
}

/// A request under way. Dropped without an answer, it retires its generation.
pub(crate) struct Passage<'a, P> {
    generations: &'a Generations<P>,
    generation: Arc<Generation<P>>,
    place: Option<OwnedSemaphorePermit>,
    begun_at: Moment,
    answered: bool,
}

impl<P> Generations<P> {
    pub(crate) fn new(places: Places) -> Self {
        let known = Mutex::new(Known { current: None, candidate: None });
        let fresh = Arc::new(Semaphore::new(places.fresh));
        Self { places, fresh, begun: AtomicU64::new(0), known }
    }

    /// Finds a generation and a place in it; `make` makes the pool of a new one.
    pub(crate) async fn enter(&self, lane: Lane, make: impl Fn() -> P) -> Passage<'_, P> {
        if lane == Lane::FreshRenewal
            && let Ok(place) = Arc::clone(&self.fresh).try_acquire_owned()
        {
            let generation = self.fresh(Moment::now(), make);
            return self.passage(generation, place);
        }
        loop {
            let generation = match lane {
                Lane::FreshRenewal => self.newest(&make),
                Lane::Renewal | Lane::Other => self.current(&make),
            };
            let places =
                if lane == Lane::Other { &generation.others } else { &generation.renewals };
            // Fails if the generation was retired meanwhile.
            if let Ok(place) = Arc::clone(places).acquire_owned().await {
                return self.passage(generation, place);
            }
        }
    }

    fn current(&self, make: impl FnOnce() -> P) -> Arc<Generation<P>> {
        let mut known = self.known();
        if known.current.is_none() {
            known.current = known.candidate.take();
        }
        Arc::clone(known.current.get_or_insert_with(|| self.begin(Moment::now(), make())))
    }

    fn newest(&self, make: impl FnOnce() -> P) -> Arc<Generation<P>> {
        let candidate = self.known().candidate.clone();
        candidate.unwrap_or_else(|| self.current(make))
    }

    /// A generation that began a moment ago, or begins now.
    fn fresh(&self, now: Moment, make: impl FnOnce() -> P) -> Arc<Generation<P>> {
        let mut known = self.known();
        let newest = known.candidate.as_ref().or(known.current.as_ref());
        if let Some(newest) = newest.filter(|it| now.since(it.begun_at) < FRESH_FOR) {
            return Arc::clone(newest);
        }
        let generation = self.begin(now, make());
        known.candidate = Some(Arc::clone(&generation));
        generation
    }

    fn begin(&self, now: Moment, pool: P) -> Arc<Generation<P>> {
        Arc::new(Generation {
            pool,
            number: self.begun.fetch_add(1, Ordering::Relaxed),
            begun_at: now,
            proven: AtomicBool::new(false),
            renewals: Arc::new(Semaphore::new(self.places.renewals)),
            others: Arc::new(Semaphore::new(self.places.others)),
        })
    }

    fn passage(
        &self,
        generation: Arc<Generation<P>>,
        place: OwnedSemaphorePermit,
    ) -> Passage<'_, P> {
        let begun_at = Moment::now();
        Passage { generations: self, generation, place: Some(place), begun_at, answered: false }
    }

    /// An answer has come: a younger generation takes over from the current one.
    fn prove(&self, generation: &Arc<Generation<P>>) {
        if generation.proven.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut known = self.known();
        let Known { current, candidate } = &mut *known;
        if candidate.as_ref().is_some_and(|it| it.number <= generation.number) {
            *candidate = None;
        }
        let is_younger = current.as_ref().is_none_or(|it| it.number < generation.number);
        if is_younger && !generation.is_retired() {
            let replaced = current.replace(Arc::clone(generation));
            replaced.iter().for_each(|it| it.retire());
        }
    }

    /// No answer has come. A generation that never had one has no idle connections either, and
    /// another one would be no better.
    fn suspect(&self, generation: &Arc<Generation<P>>) {
        if !generation.proven.load(Ordering::Relaxed) {
            return;
        }
        let mut known = self.known();
        if known.current.as_ref().is_some_and(|it| it.number == generation.number) {
            known.current = None;
            generation.retire();
        }
    }

    fn known(&self) -> MutexGuard<'_, Known<P>> {
        // Generations are put in and taken out whole, so it is sound after any panic.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P> Generation<P> {
    /// Sends those who wait for a place to the generation that follows.
    fn retire(&self) {
        self.renewals.close();
        self.others.close();
    }

    fn is_retired(&self) -> bool {
        self.others.is_closed()
    }
}

impl<P> Passage<'_, P> {
    pub(crate) fn pool(&self) -> &P {
        &self.generation.pool
    }

    /// The place, for whoever uses the connection longer than somebody waits for the answer.
    pub(crate) fn take_place(&mut self) -> Option<OwnedSemaphorePermit> {
        self.place.take()
    }

    /// Says that the server has answered.
    pub(crate) fn answered(mut self) {
        self.answered = true;
        self.generations.prove(&self.generation);
    }

    /// Says that the request has failed without an answer.
    pub(crate) fn failed(self) {
        self.generations.suspect(&self.generation);
    }
}

impl<P> Drop for Passage<'_, P> {
    fn drop(&mut self) {
        drop(self.place.take());
        // Whoever stops waiting at once has lost interest, which tells nothing about the connection.
        let waited = Moment::now().since(self.begun_at);
        if !self.answered && waited >= SUSPECT_AFTER {
            self.generations.suspect(&self.generation);
        }
    }
}

/// Shorter than any renewal waits before it sends another one, so that a generation of this age is
/// younger than the request that may hang.
const FRESH_FOR: Duration = Duration::from_millis(50);
/// Shorter than any time-out, longer than an answer takes as a rule.
const SUSPECT_AFTER: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests;
