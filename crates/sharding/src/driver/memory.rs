//! Remembers the entities of a shard: one load when it begins, and then one write at a time.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::task::JoinSet;

use tenure_lease::Token;

use crate::Shard;
use crate::remember::{Place, Remember, RememberError};

/// What a shard knows of what is remembered.
pub(super) struct Memory {
    remember: Arc<dyn Remember>,
    pub(super) state: State,
    /// What to write next: who is there, and who is no more.
    news: BTreeMap<String, bool>,
    writing: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Loading,
    Ready,
    /// The shard is elsewhere by now; it waits to be told to stop.
    Refused,
}

/// What was done.
pub(super) struct Chore {
    pub(super) shard: Shard,
    pub(super) token: Token,
    pub(super) done: Done,
}

pub(super) enum Done {
    Loaded(Vec<String>),
    /// These stand there now.
    Written(Vec<String>),
    Refused(RememberError),
}

/// What is being done for the shards of a crew.
#[derive(Default)]
pub(super) struct Chores(JoinSet<Chore>);

impl Chores {
    /// The next one that is done; waits for ever if there is none.
    pub(super) async fn next(&mut self) -> Option<Chore> {
        loop {
            match self.0.join_next().await {
                Some(Ok(chore)) => return Some(chore),
                Some(Err(error)) => tracing::error!("what is remembered is not known: {error}"),
                None => return None,
            }
        }
    }
}

impl Memory {
    pub(super) fn new(remember: Arc<dyn Remember>) -> Self {
        Self { remember, state: State::Loading, news: BTreeMap::new(), writing: false }
    }

    pub(super) fn load(&self, kind: &Arc<str>, shard: Shard, token: Token, chores: &mut Chores) {
        let (remember, kind) = (self.remember.clone(), kind.clone());
        chores.0.spawn(async move {
            let place = Place { kind: &kind, shard, token };
            let loaded = again(place, || remember.load(place)).await;
            Chore { shard, token, done: loaded.map_or_else(Done::Refused, Done::Loaded) }
        });
    }

    /// An entity is there, or is no more: to be written.
    pub(super) fn note(
        &mut self,
        id: &str,
        is_there: bool,
        kind: &Arc<str>,
        place: (Shard, Token),
        chores: &mut Chores,
    ) {
        self.news.insert(id.to_owned(), is_there);
        self.write(kind, place, chores);
    }

    pub(super) fn written(&mut self, kind: &Arc<str>, place: (Shard, Token), chores: &mut Chores) {
        self.writing = false;
        self.write(kind, place, chores);
    }

    fn write(&mut self, kind: &Arc<str>, (shard, token): (Shard, Token), chores: &mut Chores) {
        if self.writing || self.news.is_empty() {
            return;
        }
        self.writing = true;
        let (mut added, mut removed) = (Vec::new(), Vec::new());
        for (id, is_there) in std::mem::take(&mut self.news) {
            if is_there { added.push(id) } else { removed.push(id) }
        }
        let (remember, kind) = (self.remember.clone(), kind.clone());
        chores.0.spawn(async move {
            let place = Place { kind: &kind, shard, token };
            let write = || remember.change(place, added.clone(), removed.clone());
            let done = match again(place, write).await {
                Ok(()) => Done::Written(added.clone()),
                Err(error) => Done::Refused(error),
            };
            Chore { shard, token, done }
        });
    }
}

/// Until it is done, or refused.
async fn again<'a, T>(
    place: Place<'_>,
    work: impl Fn() -> crate::remember::Remembering<'a, T>,
) -> Result<T, RememberError> {
    let mut pause = PAUSE;
    loop {
        match caught(async { work().await }).await {
            Err(RememberError::Failed(error)) => {
                let Place { kind, shard, .. } = place;
                tracing::error!(%kind, %shard, "entities are not remembered, tried again in {pause:?}: {error}");
            }
            done => return done,
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// A panic is a failure as any other.
async fn caught<T>(
    work: impl Future<Output = Result<T, RememberError>>,
) -> Result<T, RememberError> {
    let mut work = pin!(work);
    poll_fn(|context| {
        catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)))
            .unwrap_or_else(|_| Poll::Ready(Err(RememberError::Failed("it panicked".into()))))
    })
    .await
}

const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
