//! Reading many Leases at once.
//!
//! A `list` would need a permission that nothing else here needs. A *watch* that begins with what
//! there is (a streaming list) needs none: the server tells every Lease of the namespace as it is
//! at the time of the request, then says that this was all, and is left. Few names are read one by
//! one instead, and so are all of them where the server cannot do it (before 1.32) or our role is
//! limited to single names.
#![allow(clippy::disallowed_methods)] // It does not wait for ever for a server that cannot list.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{WatchEvent, WatchParams};

use tenure_lease::backend::{LIST_MAX, StoreError};
use tenure_lease::{LeaseName, Record};

use super::client::Server;
use super::object::LeaseObject;
use crate::generations::Lane;

pub(super) struct Reader {
    server: Arc<Server>,
    /// A streaming list was refused once: it will be again.
    one_by_one: AtomicBool,
    /// A streaming list came to its end once: one that is silent is slow.
    ends_lists: AtomicBool,
}

impl Reader {
    pub(super) fn new(server: Arc<Server>) -> Self {
        Self { server, one_by_one: AtomicBool::new(false), ends_lists: AtomicBool::new(false) }
    }

    pub(super) async fn read(
        &self,
        names: &[LeaseName],
    ) -> Result<Vec<Option<Record>>, StoreError> {
        let mut missing: BTreeSet<LeaseName> = names.iter().cloned().collect();
        let mut found = BTreeMap::new();
        if missing.len() > FEW {
            for object in self.list().await?.into_iter().flatten() {
                // What is not a name of ours is nobody's that we asked for.
                let Ok(name) = LeaseName::new(object.name()) else { continue };
                if missing.remove(&name) {
                    found.insert(name, object.record()?);
                }
            }
        }
        // Absence is worth a second look: a holder that reads it stops.
        let reading = missing.into_iter().map(|name| async move {
            let object = self.server.get(Lane::Other, &name).await?;
            let record = object.as_ref().map_or(Ok(None), LeaseObject::record)?;
            Ok::<_, StoreError>((name, record))
        });
        let reading = stream::iter(reading).buffer_unordered(AT_ONCE);
        found.extend(reading.try_collect::<Vec<_>>().await?);
        Ok(names.iter().map(|name| found.get(name).cloned().flatten()).collect())
    }

    /// The names of the Leases that Tenure has written. A server that does not tell them by a watch
    /// may list them.
    pub(super) async fn names(&self) -> Result<Vec<LeaseName>, StoreError> {
        let name = |object: &LeaseObject| {
            let name = LeaseName::new(object.name()).ok();
            name.filter(|_| object.is_ours())
        };
        let mut names = BTreeSet::new();
        if let Some(objects) = self.list().await? {
            names.extend(objects.iter().filter_map(name));
        } else {
            let mut begin = None;
            loop {
                let (objects, next) = self.server.page(begin.as_deref()).await?;
                names.extend(objects.iter().filter_map(name));
                // Pages come in the order of names.
                if next.is_none() || names.len() >= LIST_MAX {
                    break;
                }
                begin = next;
            }
        }
        Ok(names.into_iter().take(LIST_MAX).collect())
    }

    /// All Leases of the namespace; `None` if the server does not list this way.
    async fn list(&self) -> Result<Option<Vec<LeaseObject>>, StoreError> {
        if self.one_by_one.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let mut events = match self.server.watch(&WatchParams::streaming_lists(), None).await {
            Ok(events) => events,
            Err(refusal) if matches!(refusal.code, 400 | 403 | 404 | 405 | 422) => {
                self.one_by_one.store(true, Ordering::Relaxed);
                return Ok(None);
            }
            Err(refusal) => return Err(refusal.error),
        };
        let mut objects = Vec::new();
        loop {
            let event = match self.ends_lists.load(Ordering::Relaxed) {
                // However slow it is: to read ten thousand one by one would be slower.
                true => Ok(events.next().await),
                false => tokio::time::timeout(SILENCE, events.next()).await,
            };
            let Ok(event) = event else {
                // A server of before 1.27 watches on and never says that this was all. One that has
                // told nothing may only be slow.
                self.one_by_one.store(!objects.is_empty(), Ordering::Relaxed);
                return Ok(None);
            };
            match event {
                Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                    objects.push(object);
                }
                Some(Ok(WatchEvent::Bookmark(bookmark))) => {
                    if bookmark.metadata.annotations.contains_key(END) {
                        self.ends_lists.store(true, Ordering::Relaxed);
                        return Ok(Some(objects));
                    }
                }
                // Only after the end of the list; what was listed before is still as it was then.
                Some(Ok(WatchEvent::Deleted(_))) => {}
                Some(Ok(WatchEvent::Error(_)) | Err(_)) | None => {
                    return Err(StoreError::unavailable("the API server broke off a list"));
                }
            }
        }
    }
}

/// Up to so many names are read one by one.
const FEW: usize = 32;
/// How many are asked for at once.
const AT_ONCE: usize = 16;
/// Between two events of a list.
const SILENCE: Duration = Duration::from_millis(1500);
/// Marks the bookmark that ends a streaming list.
const END: &str = "k8s.io/initial-events-end";
