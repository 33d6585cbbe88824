//! Waits for the end of another's session.

use std::time::Duration;

use tokio::sync::{mpsc, watch};

use tenure_lease::backend::Expected;
use tenure_lease::record::{Record, SessionRef};
use tenure_lease::{Lease, LeaseError};

use super::guard::{Guarded, KEPT_POLL, seen};
use super::observer::Watch;

/// Observes the session of another until its tenure of this term is over: until whatever was hosted
/// under it has surely stopped. If that is allowed, it is taken over when its time is.
///
/// | the record | what may have happened | when it is over |
/// |---|---|---|
/// | has this term, is held | nothing | once it was taken over |
/// | has this term, is released | its holder has stopped; or an operator has said so | now |
/// | has a higher term, is released | somebody who had waited has it no more; or an operator said *now* | now |
/// | has a higher term, is held | somebody who had waited has it; or it was broken or stolen, and its holder has not noticed | after its ttl |
/// | is gone, or has a lower term | it was deleted, or the store has lost history: its holder will be refused | after a ttl, if the record can be taken then |
pub(super) async fn watch_session(
    lease: Lease,
    mut watch: Watch,
    session: SessionRef,
    mut allowed: watch::Receiver<bool>,
    events: mpsc::UnboundedSender<Guarded>,
) {
    let mut expected = Expected::Term(session.term);
    let mut ttl = lease.timing().ttl;
    // Until it may be taken over, looking will do.
    while !*allowed.borrow_and_update() {
        tokio::select! {
            sight = watch.next() => match sight.and_then(|sight| sight.record) {
                Some(record) if is_released(&record, &session) => {
                    let _ = events.send(Guarded::SessionOver(session));
                    return;
                }
                Some(record) if record.token.term > session.term => break,
                _ => {}
            },
            changed = allowed.changed() => if changed.is_err() { return },
        }
    }
    loop {
        let lease = seen(lease.clone().expect(expected), watch.sight());
        match take_over(&lease, &mut watch, &session, &mut ttl, &mut allowed).await {
            None => return,
            Some(Ok(())) => break,
            Some(Err(LeaseError::Unexpected(Some(found)))) if found.token.term > session.term => {
                released_within(ttl.max(found.ttl), &lease, &session).await;
                break;
            }
            Some(Err(LeaseError::Unexpected(found))) => {
                expected = found.map_or(Expected::Absent, |it| Expected::Term(it.token.term));
                if expected != Expected::Term(session.term) {
                    tokio::time::sleep(ttl).await;
                }
            }
            Some(Err(error)) => {
                return tracing::error!(%session.name, "it cannot be observed: {error}");
            }
        }
    }
    let _ = events.send(Guarded::SessionOver(session));
}

/// Waits until the record that is expected was taken over, or is released. `None`: nobody wants to know
/// any more.
async fn take_over(
    lease: &Lease,
    watch: &mut Watch,
    session: &SessionRef,
    ttl: &mut Duration,
    allowed: &mut watch::Receiver<bool>,
) -> Option<Result<(), LeaseError>> {
    let standby = match lease.standby() {
        Ok(standby) => standby,
        Err(error) => return Some(Err(error)),
    };
    loop {
        standby.allow(*allowed.borrow_and_update());
        tokio::select! {
            tenure = standby.acquired() => match tenure {
                Ok(tenure) => {
                    tracing::info!(session = %session.name, term = session.term, "session taken over");
                    tenure.release().await;
                    return Some(Ok(()));
                }
                Err(error) => return Some(Err(error)),
            },
            changed = allowed.changed() => if changed.is_err() { return None },
            sight = watch.next() => if let Some(record) = sight.and_then(|sight| sight.record) {
                if is_released(&record, session) {
                    return Some(Ok(()));
                }
                *ttl = record.ttl.max(*ttl);
            },
        }
    }
}

/// Waits until the session is released, but no longer than this.
async fn released_within(time: Duration, lease: &Lease, session: &SessionRef) {
    let released = async {
        let mut pause = KEPT_POLL;
        while !read(lease, session).await.is_some_and(|record| is_released(&record, session)) {
            tokio::time::sleep(pause).await;
            pause = lease.timing().operation_timeout.min(pause * 2);
        }
    };
    let _ = tokio::time::timeout(time, released).await; // Either will do.
}

async fn read(lease: &Lease, session: &SessionRef) -> Option<Record> {
    let (store, timeout) = (lease.store(), lease.timing().operation_timeout);
    let read = tokio::time::timeout(timeout, store.inspect(session.name.as_str())).await;
    read.ok()?.ok()?
}

fn is_released(record: &Record, session: &SessionRef) -> bool {
    record.token.term >= session.term && record.holder.is_none()
}
