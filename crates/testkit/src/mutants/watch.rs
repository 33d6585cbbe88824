//! The watch of a mutant.
#![allow(clippy::disallowed_methods)] // One defect fires by real time.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use tenure_lease::LeaseName;
use tenure_lease::backend::{Boxed, Watch};

use super::Defect;
use super::server::{Glance, Server};

pub(super) fn watch(server: &Arc<Server>, name: &LeaseName) -> Option<Box<dyn Watch>> {
    if server.has(Defect::WatchPromisedOnly) {
        return None;
    }
    let mut changes = server.subscribe();
    let mut seen = None;
    if server.has(Defect::WatchSaysNothingAtFirst) {
        seen = Some(server.glance(name));
        changes.mark_unchanged();
    } else {
        changes.mark_changed();
    }
    Some(Box::new(MutantWatch { server: Arc::clone(server), name: name.clone(), changes, seen }))
}

struct MutantWatch {
    server: Arc<Server>,
    name: LeaseName,
    changes: watch::Receiver<u64>,
    seen: Option<Glance>,
}

impl Watch for MutantWatch {
    fn changed(&mut self) -> Boxed<'_, ()> {
        Box::pin(async {
            loop {
                if self.seen.is_some() && self.server.has(Defect::WatchNeverFires) {
                    std::future::pending::<()>().await;
                }
                if self.server.has(Defect::WatchStorms) {
                    tokio::time::sleep(Duration::from_millis(3)).await;
                    return;
                }
                // The watch itself keeps the server alive, so there is always a sender.
                self.changes.changed().await.expect("the server outlives its watches");
                let now = self.server.glance(&self.name);
                let missed = now == Glance::Absent && self.server.has(Defect::WatchMissesDeletes);
                if self.seen.is_none() || !missed && self.seen != Some(now) {
                    self.seen = Some(now);
                    return;
                }
            }
        })
    }
}
