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
    let (alive, mut wanted) = mpsc::channel::<()>(1);
    let task = async move {
        loop {
            let session = tokio::select! {
                session = lease.session() => session,
                _ = wanted.recv() => return,
            };
            match session {
                Ok(session) => {
                    let session = Arc::new(session);
                    sessions.send_replace(Some(Arc::clone(&session)));
                    let lost = tokio::select! {
                        _ = session.tenure().lost() => true,
                        _ = wanted.recv() => false,
                    };
                    sessions.send_replace(None);
                    // It is given back when the last of those who attached something has dropped it.
                    drop(session);
                    if !lost {
                        return;
                    }
                }
                Err(error) => {
                    tracing::error!("the session cannot be had: {error}");
                    tokio::select! {
                        () = tokio::time::sleep(PAUSE) => {}
                        _ = wanted.recv() => return,
                    }
                }
            }
        }
    };
    match Handle::try_current() {
        Ok(handle) => drop(handle.spawn(task)),
        Err(_) => drop(runtime().spawn(task)),
    }
    KeptSession::new(receiver, alive)
}

/// Before trying again what cannot become right by itself.
const PAUSE: Duration = Duration::from_secs(5);
