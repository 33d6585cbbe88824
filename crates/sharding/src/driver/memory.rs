//! Remembers the entities of a shard: one load when it begins, and then one write at a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{AbortHandle, JoinSet};

use tenure_lease::Token;

use super::caught;
use crate::Shard;
use crate::remember::{Place, Remember, RememberError};

/// What a shard knows of what is remembered.
pub(super) struct Memory {
    remember: Arc<dyn Remember>,
    pub(super) state: State,
    /// What to write next: who is there, and who is no more.
    news: BTreeMap<String, bool>,
    /// What is being written.
    writing: Option<Writing>,
    /// The load, or the write; it goes no further than the shard.
    chore: Option<AbortHandle>,
}

struct Writing {
    removes: bool,
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(chore) = &self.chore {
            chore.abort();
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Loading,
    Ready,
    /// The shard is elsewhere by now, it seems; it is given back.
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
                Some(Err(error)) if error.is_cancelled() => {} // Its shard has ended.
                Some(Err(error)) => tracing::error!("what is remembered is not known: {error}"),
                None => return None,
            }
        }
    }

    /// Ends all, and waits until they have ended.
    pub(super) async fn end(&mut self) {
        self.0.shutdown().await;
    }
}

impl Memory {
    pub(super) fn new(remember: Arc<dyn Remember>) -> Self {
        let (state, news) = (State::Loading, BTreeMap::new());
        Self { remember, state, news, writing: None, chore: None }
    }

    pub(super) fn load(
        &mut self,
        kind: &Arc<str>,
        (shard, token): (Shard, Token),
        chores: &mut Chores,
    ) {
        let (remember, kind) = (self.remember.clone(), kind.clone());
        self.chore = Some(chores.0.spawn(async move {
            let place = Place { kind: &kind, shard, token };
            let loaded = again(place, || remember.load(place)).await;
            Chore { shard, token, done: loaded.map_or_else(Done::Refused, Done::Loaded) }
        }));
    }

    /// The fence has refused us: nothing is written any more.
    pub(super) fn refused(&mut self) {
        self.state = State::Refused;
        self.news.clear();
        self.writing = None;
    }

    /// The shard stops. Who was to be made goes where it goes, and is written down there.
    pub(super) fn stop(&mut self) {
        self.news.retain(|_, is_there| !*is_there);
    }

    /// Whether somebody is no more, and that is not written yet.
    pub(super) fn removes(&self) -> bool {
        let writing = self.writing.as_ref().is_some_and(|writing| writing.removes);
        writing || self.news.values().any(|is_there| !is_there)
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
        if self.state == State::Refused {
            return;
        }
        self.news.insert(id.to_owned(), is_there);
        self.write(kind, place, chores);
    }

    pub(super) fn written(&mut self, kind: &Arc<str>, place: (Shard, Token), chores: &mut Chores) {
        self.writing = None;
        self.write(kind, place, chores);
    }

    fn write(&mut self, kind: &Arc<str>, (shard, token): (Shard, Token), chores: &mut Chores) {
        if self.writing.is_some() || self.news.is_empty() {
            return;
        }
        let (mut added, mut removed) = (Vec::new(), Vec::new());
        for (id, is_there) in std::mem::take(&mut self.news) {
            if is_there { added.push(id) } else { removed.push(id) }
        }
        self.writing = Some(Writing { removes: !removed.is_empty() });
        let (remember, kind) = (self.remember.clone(), kind.clone());
        self.chore = Some(chores.0.spawn(async move {
            let place = Place { kind: &kind, shard, token };
            let write = || remember.change(place, added.clone(), removed.clone());
            let done = match again(place, write).await {
                Ok(()) => Done::Written(added.clone()),
                Err(error) => Done::Refused(error),
            };
            Chore { shard, token, done }
        }));
    }
}

/// Until it is done, or refused.
async fn again<'a, T>(
    place: Place<'_>,
    work: impl Fn() -> crate::remember::Remembering<'a, T>,
) -> Result<T, RememberError> {
    let mut pause = PAUSE;
    loop {
        let panicked = |_| Err(RememberError::Failed("it panicked".into()));
        match caught(async { work().await }).await.unwrap_or_else(panicked) {
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

const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
