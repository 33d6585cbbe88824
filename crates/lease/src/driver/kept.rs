//! Holds the session of a process again and again.
#![allow(clippy::disallowed_methods)]

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};

use super::runtime;
use crate::{KeptSession, Lease};

/// On the runtime that the caller is on, whose life the session then stands for.
pub(crate) fn keep_sessions(lease: Lease) -> KeptSession {
    let (sessions, receiver) = watch::channel(None);
    let (give_up, mut wanted) = mpsc::channel::<u64>(16);
    let task = async move {
        loop {
            let session = tokio::select! {
                session = lease.session() => session,
                () = unwanted(&mut wanted, None) => return,
            };
            match session {
                Ok(session) => {
                    let session = Arc::new(session);
                    sessions.send_replace(Some(Arc::clone(&session)));
                    let term = session.tenure().token().term;
                    tokio::select! {
                        _ = session.tenure().lost() => {}
                        () = unwanted(&mut wanted, Some(term)) => {}
                    }
                    sessions.send_replace(None);
                    // It is given back when the last of those who attached something has dropped it.
                    drop(session);
                    if wanted.is_closed() {
                        return;
                    }
                }
                Err(error) => {
                    tracing::error!("the session cannot be had: {error}");
                    tokio::select! {
                        () = tokio::time::sleep(PAUSE) => {}
                        () = unwanted(&mut wanted, None) => return,
                    }
                }
            }
        }
    };
    match Handle::try_current() {
        Ok(handle) => drop(handle.spawn(task)),
        Err(_) => drop(runtime().spawn(task)),
    }
    KeptSession::new(receiver, give_up)
}

/// Waits until nobody wants a session any more, or nobody wants the one of this term.
async fn unwanted(wanted: &mut mpsc::Receiver<u64>, term: Option<u64>) {
    while let Some(given_up) = wanted.recv().await {
        if term == Some(given_up) {
            return;
        }
    }
}

/// Before trying again what cannot become right by itself.
const PAUSE: Duration = Duration::from_secs(5);
