//! What needs a clock or a task of its own: watching, and clearing up behind an answer.
#![allow(clippy::disallowed_methods)] // It waits, and starts tasks.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use tenure_lease::backend::{Boxed, Watch};
use tenure_lease::{LeaseName, Nonce};

use super::api::Api;
use super::content::{Content, Entry, Seen};

/// Destroys a session that nothing depends on any more, without keeping anybody waiting. If it
/// fails, the session ends by its ttl.
pub(super) fn destroy(api: &Arc<Api>, session: String) {
    let api = Arc::clone(api);
    tokio::spawn(async move {
        // Nobody is left to tell.
        let _ = tokio::time::timeout(DESTROY_TIMEOUT, api.destroy_session(&session)).await;
    });
}

/// A blocking query, asked again and again.
pub(super) struct ConsulWatch {
    pub(super) api: Arc<Api>,
    pub(super) name: LeaseName,
    /// Consul takes 200 connections from one address; each watch needs one of them.
    pub(super) places: Arc<Semaphore>,
    pub(super) place: Option<OwnedSemaphorePermit>,
    pub(super) index: u64,
    /// Who held it when the watch last woke; `None`: it is not established.
    pub(super) seen: Option<Held>,
    pub(super) failures: u32,
}

/// What a waiter wants to be woken for: renewals keep it as it is.
#[derive(PartialEq)]
pub(super) enum Held {
    Not,
    /// By this claim, whose Consul session has ended or not.
    By(Nonce, bool),
    /// By what another tool wrote, at this index.
    Foreign(u64),
}

impl Watch for ConsulWatch {
    fn changed(&mut self) -> Boxed<'_, ()> {
        Box::pin(async {
            if self.place.is_none() {
                let place = Arc::clone(&self.places).acquire_owned().await;
                // It is never closed.
                self.place = Some(place.expect("the semaphore is open"));
            }
            loop {
                let asked = self.api.await_change(&self.name, self.index, WAIT);
                match tokio::time::timeout(WAIT_TIMEOUT, asked).await {
                    Ok(Ok((index, entry))) => {
                        self.failures = 0;
                        // An index that went back is no place to go on from.
                        self.index = if index < self.index { 0 } else { index };
                        let held = held(&self.name, entry);
                        let absent = held == Held::Not;
                        if self.seen.as_ref() != Some(&held) {
                            self.seen = Some(held);
                            return;
                        }
                        if absent || self.index == 0 {
                            // On a key that is not there, Consul wakes for its neighbours, too.
                            tokio::time::sleep(PAUSE).await;
                        }
                    }
                    Ok(Err(_)) | Err(_) => {
                        self.seen = None;
                        self.index = 0;
                        self.failures = (self.failures + 1).min(6);
                        let pause = (PAUSE * 2_u32.pow(self.failures)).min(PAUSE_MAX);
                        tokio::time::sleep(jittered(pause)).await;
                    }
                }
            }
        })
    }
}

fn held(name: &LeaseName, entry: Entry) -> Held {
    let index = entry.modify_index;
    let Ok(Seen { entry, content }) = Seen::new(name, entry) else { return Held::Foreign(index) };
    match content {
        Content::Absent => Held::Not,
        Content::Foreign { .. } => Held::Foreign(index),
        Content::Ours(body) => match body.line.holder {
            None => Held::Not,
            Some(holder) => {
                let ended = holder.lock.is_some_and(|lock| lock != entry.session);
                Held::By(holder.claim, ended)
            }
        },
    }
}

/// Between a half and the whole of it.
fn jittered(pause: Duration) -> Duration {
    let part = (Nonce::random().bits() % 1024) as u32;
    pause / 2 + pause / 2 * part / 1024
}

/// How many watches one client keeps; more than that are polled.
pub(super) const WATCHES_MAX: usize = 64;
const WAIT: Duration = Duration::from_secs(30);
/// Consul adds up to a sixteenth to a wait; after that the connection is dead.
const WAIT_TIMEOUT: Duration = Duration::from_secs(40);
const DESTROY_TIMEOUT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(3);
