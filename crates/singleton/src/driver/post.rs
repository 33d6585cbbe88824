//! What the nodes say to each other about their singletons: one receiver for all of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::broadcast;

use tenure_cluster::messaging::{BOARD, ReceiverError};
use tenure_cluster::{Cluster, Node};

use crate::Word;
use crate::word::Letter;

/// One for each cluster that this process is in.
#[derive(Default)]
pub(super) struct Post {
    slots: Mutex<HashMap<Arc<str>, Slot>>,
}

/// Of one singleton.
struct Slot {
    words: broadcast::Sender<(Node, Word)>,
    /// There is a manager of it here, and this is why it does not host it.
    managed: Option<String>,
}

impl Post {
    /// Opens it, when it is first asked for.
    pub(super) fn of(cluster: &Cluster) -> Result<Arc<Self>, ReceiverError> {
        let mut opened = Ok(());
        let post = cluster.local(|| {
            let post = Arc::new(Self::default());
            opened = post.clone().listen(cluster);
            post
        });
        opened?;
        Ok(Arc::clone(&post))
    }

    fn listen(self: Arc<Self>, cluster: &Cluster) -> Result<(), ReceiverError> {
        let mut letters = cluster.receiver::<Letter>(&board())?;
        tokio::spawn(async move {
            while let Some(received) = letters.recv().await {
                let Letter { singleton, word } = received.message;
                self.deliver(&singleton, received.from, word);
            }
            lock(&self.slots).clear(); // Nothing more will come.
        });
        Ok(())
    }

    /// What is said about a singleton from now on.
    pub(super) fn words(&self, singleton: &Arc<str>) -> broadcast::Receiver<(Node, Word)> {
        lock(&self.slots).entry(singleton.clone()).or_default().words.subscribe()
    }

    /// Notes that this node has a manager of the singleton; whether it is the first.
    pub(super) fn manage(&self, singleton: &Arc<str>) -> bool {
        let mut slots = lock(&self.slots);
        let managed = &mut slots.entry(singleton.clone()).or_default().managed;
        managed.replace(String::new()).is_none()
    }

    /// The manager has ended.
    pub(super) fn unmanage(&self, singleton: &Arc<str>) {
        if let Some(entry) = lock(&self.slots).get_mut(singleton) {
            entry.managed = None;
        }
    }

    /// Why this node does not host it.
    pub(super) fn say_why_not(&self, singleton: &Arc<str>, why: String) {
        if let Some(entry) = lock(&self.slots).get_mut(singleton) {
            entry.managed = Some(why);
        }
    }

    /// The same, if it could.
    pub(super) fn why_not(&self, singleton: &Arc<str>) -> Option<String> {
        lock(&self.slots).get(singleton)?.managed.clone()
    }

    /// To whoever listens on this node.
    pub(super) fn deliver(&self, singleton: &str, from: Node, word: Word) {
        if let Some(entry) = lock(&self.slots).get(singleton) {
            let _ = entry.words.send((from, word)); // Nobody need listen.
        }
    }

    /// To a node. A word may be lost: what matters is said again.
    pub(super) fn tell(&self, cluster: &Cluster, singleton: &str, to: &Node, word: Word) {
        if *to == cluster.me() {
            return self.deliver(singleton, to.clone(), word);
        }
        let letter = Letter { singleton: singleton.into(), word };
        let _ = cluster.to::<Letter>(to, &board()).try_tell(letter);
    }
}

impl Default for Slot {
    fn default() -> Self {
        Self { words: broadcast::channel(WORDS).0, managed: None }
    }
}

fn board() -> String {
    format!("{BOARD}singletons")
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Maps of who listens: sound after any panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whoever falls further behind misses some; they are said again.
const WORDS: usize = 256;
