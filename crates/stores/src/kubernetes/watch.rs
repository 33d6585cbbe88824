//! Waiting for a change of what a holder has written.
//!
//! A *feed* is a watch that never ends: it follows one Lease, or all of a namespace, resumes after
//! the last version that it has heard of (bookmarks keep that fresh), begins anew when the server
//! has forgotten that version (410), and takes silence longer than the time between bookmarks for a
//! dead connection. A waiter has a feed of its own, by name, as long as there are few; since each
//! is a connection, the many share one feed of the whole namespace.
#![allow(clippy::disallowed_methods)] // It waits between attempts, and serves many from one task.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{Stream, StreamExt as _, stream};
use kube::api::{WatchEvent, WatchParams};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use tenure_lease::backend::{Boxed, Watch};
use tenure_lease::record::Version;
use tenure_lease::{LeaseName, Nonce};

use super::client::{Events, Server};
use super::object::LeaseObject;

/// The watches of a store.
pub(super) struct Watches {
    server: Arc<Server>,
    /// How many waiters have a feed of their own.
    single: AtomicUsize,
    shared: Mutex<Shared>,
    /// Leases that somebody waits for, as a feed has just told that they are free.
    freed: Mutex<BTreeMap<String, LeaseObject>>,
}

/// The waiters that share a feed, and the task that runs it while there are any.
#[derive(Default)]
struct Shared {
    waiters: BTreeMap<String, Vec<(u64, Arc<Notify>)>>,
    /// What was last heard of the Leases that somebody waits for.
    seen: BTreeMap<String, Option<Version>>,
    task: Option<AbortHandle>,
    established: bool,
    last_id: u64,
}

impl Watches {
    pub(super) fn new(server: Arc<Server>) -> Arc<Self> {
        let (single, shared, freed) = (AtomicUsize::new(0), Mutex::default(), Mutex::default());
        Arc::new(Self { server, single, shared, freed })
    }

    /// The Lease as it was when it last became free, told once. It may have changed since: good
    /// enough to be replaced on the condition that it has not, and for nothing else.
    pub(super) fn take_freed(&self, name: &LeaseName) -> Option<LeaseObject> {
        self.freed().remove(name.as_str())
    }

    /// Keeps a Lease that is free, forgets one that is not.
    fn hear(&self, name: &str, freed: Option<Box<LeaseObject>>) {
        match freed {
            Some(object) => self.freed().insert(name.to_owned(), *object),
            None => self.freed().remove(name),
        };
    }

    pub(super) fn watch(self: &Arc<Self>, name: &LeaseName) -> Box<dyn Watch> {
        let watches = Arc::clone(self);
        if self.single.fetch_add(1, Ordering::Relaxed) < SINGLE_MAX {
            let feed = feed(Arc::clone(&self.server), Some(name));
            let name = name.to_string();
            return Box::new(Single { watches, name, feed: Box::pin(feed), seen: None });
        }
        self.single.fetch_sub(1, Ordering::Relaxed);
        Box::new(Waiter { watches, name: name.to_string(), ticket: None })
    }

    /// Runs the shared feed, for as long as somebody waits.
    async fn serve(self: Arc<Self>) {
        let mut feed = Box::pin(feed(Arc::clone(&self.server), None));
        while let Some(sign) = feed.next().await {
            match sign {
                Sign::Established => self.shared().established(),
                Sign::Lease { name, held, freed } => {
                    if self.shared().waiters.contains_key(&name) {
                        self.hear(&name, freed);
                        self.shared().tell(name, held);
                    }
                }
            }
        }
    }

    fn freed(&self) -> MutexGuard<'_, BTreeMap<String, LeaseObject>> {
        // Objects are put in and taken out whole.
        self.freed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        // Maps of who waits for what: sound after any panic.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn established(&mut self) {
        self.established = true;
        for (_, waiter) in self.waiters.values().flatten() {
            waiter.notify_one();
        }
    }

    fn tell(&mut self, name: String, held: Option<Version>) {
        let Some(waiters) = self.waiters.get(&name) else { return };
        let before = self.seen.insert(name, held.clone());
        if is_news(before.as_ref(), held.as_ref()) {
            for (_, waiter) in waiters {
                waiter.notify_one();
            }
        }
    }
}

/// A waiter with a feed of its own.
struct Single {
    watches: Arc<Watches>,
    name: String,
    feed: Pin<Box<dyn Stream<Item = Sign> + Send>>,
    /// What was last heard of the Lease.
    seen: Option<Option<Version>>,
}

impl Watch for Single {
    fn changed(&mut self) -> Boxed<'_, ()> {
        Box::pin(async {
            // What the feed has begun stays begun when this future is dropped; a feed never ends.
            while let Some(sign) = self.feed.next().await {
                match sign {
                    Sign::Established => return,
                    Sign::Lease { name, held, freed } => {
                        let news = is_news(self.seen.as_ref(), held.as_ref());
                        self.watches.hear(&name, freed);
                        self.seen = Some(held);
                        if news {
                            return;
                        }
                    }
                }
            }
        })
    }
}

impl Drop for Single {
    fn drop(&mut self) {
        self.watches.single.fetch_sub(1, Ordering::Relaxed);
        self.watches.freed().remove(&self.name);
    }
}

/// A waiter at the shared feed.
struct Waiter {
    watches: Arc<Watches>,
    name: String,
    ticket: Option<(u64, Arc<Notify>)>,
}

impl Waiter {
    fn subscribe(&mut self) -> Arc<Notify> {
        if let Some((_, notify)) = &self.ticket {
            return Arc::clone(notify);
        }
        let mut shared = self.watches.shared();
        shared.last_id += 1;
        let (id, notify) = (shared.last_id, Arc::new(Notify::new()));
        shared.waiters.entry(self.name.clone()).or_default().push((id, Arc::clone(&notify)));
        if shared.task.is_none() {
            let task = tokio::spawn(Arc::clone(&self.watches).serve());
            shared.task = Some(task.abort_handle());
        } else if shared.established {
            notify.notify_one();
        }
        drop(shared);
        self.ticket = Some((id, Arc::clone(&notify)));
        notify
    }
}

impl Watch for Waiter {
    fn changed(&mut self) -> Boxed<'_, ()> {
        let notify = self.subscribe();
        Box::pin(async move { notify.notified().await })
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let Some((id, _)) = &self.ticket else { return };
        self.watches.freed().remove(&self.name);
        let mut shared = self.watches.shared();
        if let Some(waiters) = shared.waiters.get_mut(&self.name) {
            waiters.retain(|(other, _)| other != id);
            if waiters.is_empty() {
                shared.waiters.remove(&self.name);
                shared.seen.remove(&self.name);
            }
        }
        if shared.waiters.is_empty() {
            if let Some(task) = shared.task.take() {
                task.abort();
            }
            shared.established = false;
        }
    }
}

/// Whether a waiter should look: at each renewal, since it counts the ttl from the last one that it
/// has seen, but not at the first sight of a holder, nor at labels.
fn is_news(before: Option<&Option<Version>>, now: Option<&Version>) -> bool {
    match before {
        None => now.is_none(),
        Some(before) => before.as_ref() != now,
    }
}

/// What a feed tells.
enum Sign {
    /// It stands, again perhaps: something may have been missed before.
    Established,
    /// What the holder of a Lease has written; the Lease itself, if there is none and it is there.
    Lease { name: String, held: Option<Version>, freed: Option<Box<LeaseObject>> },
}

struct Feed {
    server: Arc<Server>,
    params: WatchParams,
    events: Option<Events>,
    /// Where to resume.
    version: Option<String>,
    /// Nothing has come since it was last established.
    silent: bool,
    failures: u32,
}

/// Cancel-safe: a stream keeps what it has begun.
fn feed(server: Arc<Server>, name: Option<&LeaseName>) -> impl Stream<Item = Sign> + use<> {
    let params = WatchParams::default().timeout(WATCH_SECONDS);
    let params = match name {
        Some(name) => params.fields(&format!("metadata.name={name}")),
        None => params,
    };
    let feed = Feed::new(server, params);
    stream::unfold(feed, |mut feed| async move {
        let sign = feed.next().await;
        Some((sign, feed))
    })
}

impl Feed {
    fn new(server: Arc<Server>, params: WatchParams) -> Self {
        Self { server, params, events: None, version: None, silent: true, failures: 0 }
    }

    async fn next(&mut self) -> Sign {
        loop {
            let Some(events) = &mut self.events else {
                if self.connect().await {
                    return Sign::Established;
                }
                continue;
            };
            match tokio::time::timeout(SILENCE, events.next()).await {
                Ok(Some(Ok(event))) => {
                    if let Some(sign) = self.take(event) {
                        return sign;
                    }
                }
                Ok(Some(Err(kube::Error::Api(status)))) if status.code == GONE => self.anew(),
                Ok(Some(Err(_)) | None) | Err(_) => self.interrupted(),
            }
        }
    }

    async fn connect(&mut self) -> bool {
        if self.failures > 0 {
            tokio::time::sleep(backoff(self.failures)).await;
        }
        let connecting = self.server.watch(&self.params, self.version.as_deref());
        match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
            Ok(Ok(events)) => {
                self.events = Some(events);
                self.silent = true;
                true
            }
            Ok(Err(refusal)) if refusal.code == GONE => {
                self.anew();
                false
            }
            Ok(Err(_)) | Err(_) => {
                self.interrupted();
                false
            }
        }
    }

    fn take(&mut self, event: WatchEvent<LeaseObject>) -> Option<Sign> {
        let (object, deleted) = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
            WatchEvent::Deleted(object) => (object, true),
            WatchEvent::Bookmark(bookmark) => {
                self.heard(Some(bookmark.metadata.resource_version));
                return None;
            }
            WatchEvent::Error(status) => {
                if status.code == GONE {
                    self.anew();
                } else {
                    self.interrupted();
                }
                return None;
            }
        };
        let held = if deleted { None } else { object.held_version() };
        let name = object.name().to_owned();
        self.heard(object.metadata.resource_version.clone());
        let freed = (held.is_none() && !deleted).then(|| Box::new(object));
        Some(Sign::Lease { name, held, freed })
    }

    fn heard(&mut self, version: Option<String>) {
        (self.failures, self.silent) = (0, false);
        if version.is_some() {
            self.version = version;
        }
    }

    fn interrupted(&mut self) {
        if self.events.take().is_some() && self.silent {
            // A version that is yet to come (a backup was restored) is waited for in silence.
            self.version = None;
        }
        self.failures = self.failures.saturating_add(1);
    }

    /// The server has forgotten the version: what there is now is told first.
    fn anew(&mut self) {
        self.interrupted();
        self.version = None;
    }
}

/// Between half and the whole of a time that doubles with each failure.
fn backoff(failures: u32) -> Duration {
    let whole = BACKOFF_MIN.saturating_mul(1 << failures.min(10)).min(BACKOFF_MAX);
    let share = (Nonce::random().bits() % 1000) as u32;
    whole / 2 + whole / 2 * share / 1000
}

/// More waiters than this share one watch of the namespace.
const SINGLE_MAX: usize = 16;
/// The server ends a watch after this long; it is resumed where it ended.
const WATCH_SECONDS: u32 = 290;
/// Bookmarks come about once a minute; a connection that is silent for longer is dead.
const SILENCE: Duration = Duration::from_secs(100);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(3);
/// The version is too old to resume from.
const GONE: u16 = 410;

#[cfg(test)]
mod tests {
    use super::super::credentials::Target;
    use super::*;

    /// A version that the server has forgotten is given up, and the feed goes on.
    #[tokio::test]
    async fn a_forgotten_version_is_begun_anew() {
        let Some(kubeconfig) = std::env::var_os("TENURE_TEST_KUBE_USER") else {
            println!("skipped: TENURE_TEST_KUBE_USER names no API server; see scripts/servers");
            return;
        };
        let target = Target { kubeconfig: Some(kubeconfig.into()), ..Target::default() };
        let server = Arc::new(Server::new(target));
        let name = LeaseName::new(&format!("forgotten-{}", Nonce::random())).unwrap();
        let params = WatchParams::default().fields(&format!("metadata.name={name}"));
        let mut feed = Feed::new(Arc::clone(&server), params);
        feed.version = Some("1".to_owned());
        assert!(matches!(feed.next().await, Sign::Established), "the server says it afterwards");
        // A server that has just started remembers everything; nothing makes it forget from here.
        let second = tokio::time::timeout(Duration::from_secs(5), feed.next()).await;
        let Ok(second) = second else {
            println!("skipped: the API server is too young to have forgotten a version");
            return;
        };
        assert!(matches!(second, Sign::Established), "it begins anew");
        assert_eq!(feed.version, None);
        server.create(&LeaseObject::unheld(&name), false).await.unwrap();
        let Sign::Lease { name: told, held, freed } = feed.next().await else {
            panic!("it ended once more")
        };
        assert_eq!((told, held), (name.to_string(), None));
        assert!(freed.is_some());
        assert!(feed.version.is_some());
    }

    #[test]
    fn renewals_are_news_and_the_first_sight_is_none() {
        let [first, renewed] = ["1", "2"].map(|version| Version(version.to_owned()));
        let (held, free) = (Some(first.clone()), None);
        assert!(!is_news(None, Some(&first)), "whoever asks has seen the holder already");
        assert!(is_news(None, None), "it may have been freed since");
        assert!(!is_news(Some(&held), Some(&first)));
        assert!(is_news(Some(&held), Some(&renewed)));
        assert!(is_news(Some(&held), None) && is_news(Some(&free), Some(&first)));
    }

    #[test]
    fn pauses_grow_to_a_limit() {
        for failures in [1, 5, 40] {
            assert!(backoff(failures) <= BACKOFF_MAX && backoff(failures) >= BACKOFF_MIN);
        }
    }
}
