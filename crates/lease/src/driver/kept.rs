//! Holds the session of a process again and again.
#![allow(clippy::disallowed_methods)]

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};

use super::runtime;
use crate::{KeptSession, Lease, Session};

/// On the runtime that the caller is on, whose life the session then stands for.
pub(crate) fn keep_sessions(lease: Lease) -> KeptSession {
    let (sessions, receiver) = watch::channel(None);
    let (give_up, wanted) = mpsc::channel(16);
    let (waiting, waits) = watch::channel(0);
    let task = keep(lease, sessions, wanted, waits);
    match Handle::try_current() {
        Ok(handle) => drop(handle.spawn(task)),
        Err(_) => drop(runtime().spawn(task)),
    }
    KeptSession::new(receiver, give_up, Arc::new(waiting))
}

async fn keep(
    lease: Lease,
    sessions: watch::Sender<Option<Arc<Session>>>,
    mut wanted: mpsc::Receiver<Option<u64>>,
    mut waits: watch::Receiver<usize>,
) {
    loop {
        let session = tokio::select! {
            session = lease.session() => Some(session),
            // The last one was lost before it could be given up.
            unwanted = wanted.recv() => match unwanted {
                Some(_) => None,
                None => return,
            },
        };
        let is_given_up = match session {
            None => true,
            Some(Ok(session)) => {
                let session = Arc::new(session);
                sessions.send_replace(Some(Arc::clone(&session)));
                let term = session.tenure().token().term;
                let is_given_up = tokio::select! {
                    _ = session.tenure().lost() => false,
                    () = given_up(&mut wanted, term, &session, &waits) => true,
                };
                sessions.send_replace(None);
                // It is given back when the last of those who attached something has dropped it.
                drop(session);
                is_given_up
            }
            Some(Err(error)) => {
                tracing::error!("the session cannot be had: {error}");
                tokio::select! {
                    () = tokio::time::sleep(PAUSE) => false,
                    () = unwanted(&mut wanted) => return,
                }
            }
        };
        if is_given_up {
            // Whoever gives it up may be about to end, and its successor must not find it taken.
            tokio::select! {
                _ = waits.wait_for(|count| *count > 0) => {}
                () = unwanted(&mut wanted) => return,
            }
        }
        if wanted.is_closed() {
            return;
        }
    }
}

/// Waits until nobody wants a session any more, or nobody wants this one.
async fn given_up(
    wanted: &mut mpsc::Receiver<Option<u64>>,
    term: u64,
    session: &Arc<Session>,
    waits: &watch::Receiver<usize>,
) {
    while let Some(which) = wanted.recv().await {
        // One is ours, and one is for those who wait.
        let is_used = || *waits.borrow() > 0 || Arc::strong_count(session) > 2;
        if which.map_or_else(|| !is_used(), |which| which == term) {
            return;
        }
    }
}

/// Waits until nobody wants a session any more.
async fn unwanted(wanted: &mut mpsc::Receiver<Option<u64>>) {
    while wanted.recv().await.is_some() {}
}

/// Before trying again what cannot become right by itself.
const PAUSE: Duration = Duration::from_secs(5);
