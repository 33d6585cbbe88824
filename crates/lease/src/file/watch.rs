//! Wakes waiters when a lease changes hands or its holder dies, by inotify.
//!
//! One queue serves a whole store. What happened can be told from names alone: a renewal renames the
//! head to one with the same claim, and a contender that fails touches no head; neither wakes
//! anybody. When a holder dies, the kernel closes its alive file, which is an event too, even for
//! a process that was killed.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::driver;
use super::head::{Head, alive_claim};
use super::sys::{Event, Inotify, Lock, try_lock};
use crate::LeaseName;
use crate::backend::{Boxed, Watch};
use crate::record::Nonce;

/// A hub that starts when the first watch is wanted.
pub(super) struct LazyHub {
    root: PathBuf,
    /// `None` inside: it could not be started.
    hub: OnceLock<Option<Arc<Hub>>>,
}

impl LazyHub {
    pub(super) fn new(root: PathBuf) -> Self {
        Self { root, hub: OnceLock::new() }
    }

    /// `None` also while there is no directory to watch.
    pub(super) fn watch(&self, name: &LeaseName) -> Option<Box<dyn Watch>> {
        if self.hub.get().is_none() && !self.root.exists() {
            return None;
        }
        let hub = self.hub.get_or_init(|| match Hub::start(self.root.clone()) {
            Ok(hub) => Some(Arc::new(hub)),
            Err(error) => {
                warn(&self.root, &error);
                None
            }
        });
        hub.as_ref().map(|hub| Box::new(FileWatch::new(hub, name)) as Box<dyn Watch>)
    }
}

/// The task that reads the queue. Dropped, it ends.
struct Hub {
    shared: Arc<Shared>,
    task: AbortHandle,
}

impl Hub {
    fn start(root: PathBuf) -> io::Result<Self> {
        let inotify = Arc::new(Inotify::new()?);
        let shared =
            Arc::new(Shared { root, inotify, table: Mutex::default(), warned: false.into() });
        let task = crate::driver::runtime().spawn(attend(Arc::clone(&shared))).abort_handle();
        Ok(Self { shared, task })
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Shared {
    root: PathBuf,
    inotify: Arc<Inotify>,
    table: Mutex<Table>,
    warned: AtomicBool,
}

#[derive(Default)]
struct Table {
    /// The watch on the directory of leases itself: for those that come and go.
    root: Option<i32>,
    names: BTreeMap<i32, LeaseName>,
    leases: BTreeMap<LeaseName, Watched>,
}

struct Watched {
    changes: watch::Sender<u64>,
    watchers: usize,
    id: Option<i32>,
    /// The claim that held it when its head was last seen, `None` inside: it was free.
    seen: Option<Option<Nonce>>,
}

impl Watched {
    fn wake(&self) {
        self.changes.send_modify(|count| *count += 1);
    }
}

/// What an event asks for.
enum Task {
    Establish(LeaseName),
    /// Wake the waiters as soon as the lock on this file is free.
    AwaitDeath(LeaseName, PathBuf),
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        // Each event changes one entry, so a panic elsewhere leaves the table sound.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the kernel for the events of a lease. May block.
    fn establish(&self, name: &LeaseName) {
        let root = self.inotify.add(&self.root, ROOT_MASK);
        let path = self.root.join(name.as_str());
        let own = self.inotify.add(&path, LEASE_MASK);
        let mut table = self.table();
        let Table { root: root_id, names, leases } = &mut *table;
        let Some(watched) = leases.get_mut(name) else {
            // Nobody waits any more.
            own.into_iter().for_each(|id| self.inotify.remove(id));
            return;
        };
        match root {
            Ok(id) => *root_id = Some(id),
            Err(error) => return self.warn_once(&error),
        }
        match own {
            Ok(id) => {
                names.insert(id, name.clone());
                watched.id = Some(id);
            }
            // The root's events will say when it comes.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return self.warn_once(&error),
        }
        watched.wake();
    }

    fn warn_once(&self, error: &io::Error) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            warn(&self.root, error);
        }
    }

    fn take(&self, event: &Event) -> Option<Task> {
        let mut table = self.table();
        let Table { root, names, leases } = &mut *table;
        if event.mask & libc::IN_Q_OVERFLOW != 0 {
            leases.values().for_each(Watched::wake);
            return None;
        }
        if Some(event.watch) == *root {
            if event.mask & libc::IN_IGNORED != 0 {
                *root = None;
            }
            let name = LeaseName::new(&event.name).ok()?;
            return leases.contains_key(&name).then_some(Task::Establish(name));
        }
        let name = names.get(&event.watch)?.clone();
        if event.mask & libc::IN_IGNORED != 0 {
            names.remove(&event.watch);
        }
        let watched = leases.get_mut(&name)?;
        if event.mask & (libc::IN_IGNORED | libc::IN_MOVE_SELF | libc::IN_DELETE_SELF) != 0 {
            watched.id.take_if(|id| *id == event.watch);
            watched.seen = None;
            return Some(Task::Establish(name));
        }
        if let Ok(head) = Head::parse(&event.name) {
            let now =
                (event.mask & libc::IN_MOVED_TO != 0).then(|| head.held.then_some(head.claim));
            if watched.seen != now || now.is_none() {
                watched.seen = now;
                watched.wake();
            }
        } else if event.mask & libc::IN_CLOSE_WRITE != 0
            && let Some(claim) = alive_claim(&event.name)
            && watched.seen.is_none_or(|seen| seen == Some(claim))
        {
            let path = self.root.join(name.as_str()).join(&event.name);
            return Some(Task::AwaitDeath(name, path));
        }
        None
    }

    /// The kernel tells of the closing a moment before it frees the lock. May block.
    fn await_death(&self, name: &LeaseName, path: &Path) {
        for pause in PAUSES {
            let Ok(file) = std::fs::File::open(path) else { return };
            if !matches!(try_lock(&file, Lock::Shared), Ok(false)) {
                break;
            }
            driver::pause(pause);
        }
        if let Some(watched) = self.table().leases.get(name) {
            watched.wake();
        }
    }
}

async fn attend(shared: Arc<Shared>) {
    // What it is deprecated for does not happen here: the descriptor stays open and the same. What
    // replaces it needs the newest tokio.
    #[allow(deprecated)]
    let queue = match AsyncFd::with_interest(Arc::clone(&shared.inotify), Interest::READABLE) {
        Ok(queue) => queue,
        Err(error) => return warn(&shared.root, &error),
    };
    loop {
        let Ok(events) = queue.async_io(Interest::READABLE, |inotify| inotify.read()).await else {
            return;
        };
        for task in events.iter().filter_map(|event| shared.take(event)) {
            let shared = Arc::clone(&shared);
            driver::aside(move || match task {
                Task::Establish(name) => shared.establish(&name),
                Task::AwaitDeath(name, path) => shared.await_death(&name, &path),
            });
        }
    }
}

struct FileWatch {
    hub: Arc<Hub>,
    name: LeaseName,
    changes: watch::Receiver<u64>,
}

impl FileWatch {
    fn new(hub: &Arc<Hub>, name: &LeaseName) -> Self {
        let changes = {
            let mut table = hub.shared.table();
            let watched = table.leases.entry(name.clone()).or_insert_with(|| Watched {
                changes: watch::Sender::new(0),
                watchers: 0,
                id: None,
                seen: None,
            });
            watched.watchers += 1;
            watched.changes.subscribe()
        };
        let (shared, establish) = (Arc::clone(&hub.shared), name.clone());
        driver::aside(move || shared.establish(&establish));
        Self { hub: Arc::clone(hub), name: name.clone(), changes }
    }
}

impl Watch for FileWatch {
    fn changed(&mut self) -> Boxed<'_, ()> {
        Box::pin(async {
            // The table keeps the sender as long as there is a watcher.
            self.changes.changed().await.expect("the sender outlives its watches");
        })
    }
}

impl Drop for FileWatch {
    fn drop(&mut self) {
        let mut table = self.hub.shared.table();
        let Table { names, leases, .. } = &mut *table;
        let Some(watched) = leases.get_mut(&self.name) else { return };
        watched.watchers -= 1;
        if watched.watchers == 0 {
            if let Some(id) = watched.id {
                names.remove(&id);
                self.hub.shared.inotify.remove(id);
            }
            leases.remove(&self.name);
        }
    }
}

fn warn(root: &Path, error: &io::Error) {
    tracing::warn!(
        directory = %root.display(), %error,
        "no inotify (see fs.inotify.max_user_instances and max_user_watches): changes of leases \
         are noticed by polling only"
    );
}

const ROOT_MASK: u32 =
    libc::IN_CREATE | libc::IN_DELETE | libc::IN_MOVED_FROM | libc::IN_MOVED_TO | libc::IN_ONLYDIR;
const LEASE_MASK: u32 = libc::IN_MOVED_TO
    | libc::IN_DELETE
    | libc::IN_CLOSE_WRITE
    | libc::IN_DELETE_SELF
    | libc::IN_MOVE_SELF
    | libc::IN_ONLYDIR;
const PAUSES: [Duration; 6] = [
    Duration::from_micros(100),
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_millis(2),
    Duration::from_millis(5),
    Duration::from_millis(20),
];
