//! The arbitration lease, as the resolver asks for it.

use std::time::Duration;

use tenure_lease::backend::Expected;
use tenure_lease::{Lease, LeaseError, Tenure};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::resolver::{Asked, Sighting};
use crate::view::Verdict;

/// What the resolver wants.
#[derive(Debug)]
pub(super) enum ArbiterOrder {
    Read,
    Ask { expected: Option<Expected>, verdict: Verdict },
    Release,
}

/// What became of it.
#[derive(Debug)]
pub(super) enum ArbiterNews {
    Read(Option<Sighting>),
    Answered(Asked),
    Lost,
}

/// Does what is ordered until there are no more orders; then gives the lease back.
pub(super) async fn arbitrate(
    lease: Lease,
    patience: Duration,
    mut orders: mpsc::Receiver<ArbiterOrder>,
    news: mpsc::Sender<ArbiterNews>,
) {
    let mut held: Option<Tenure> = None;
    loop {
        let order = match &held {
            None => orders.recv().await,
            Some(tenure) => tokio::select! {
                biased;
                order = orders.recv() => order,
                loss = tenure.lost() => {
                    tracing::warn!("the arbitration lease was lost: {loss}");
                    held = None;
                    let _ = news.send(ArbiterNews::Lost).await;
                    continue;
                }
            },
        };
        let answer = match order {
            Some(ArbiterOrder::Read) => ArbiterNews::Read(read(&lease, patience).await),
            Some(ArbiterOrder::Ask { expected, verdict }) => {
                let (asked, tenure) = ask(&lease, patience, expected, &verdict).await;
                held = tenure;
                ArbiterNews::Answered(asked)
            }
            Some(ArbiterOrder::Release) | None => {
                if let Some(tenure) = held.take() {
                    tenure.release().await;
                }
                if order.is_none() {
                    return;
                }
                continue;
            }
        };
        let _ = news.send(answer).await; // Whoever asked is gone; so is the next order.
    }
}

async fn read(lease: &Lease, patience: Duration) -> Option<Sighting> {
    let name = lease.name().ok()?.as_str();
    match timeout(patience, lease.store().inspect(name)).await {
        Ok(Ok(Some(record))) => Some(Sighting::new(Some(record.token.term), &record.note)),
        Ok(Ok(None)) => Some(Sighting::new(None, &[])),
        Ok(Err(error)) => {
            tracing::warn!(lease = name, "the arbitration lease cannot be read: {error}");
            None
        }
        Err(_) => {
            tracing::warn!(lease = name, "no answer about the arbitration lease in {patience:?}");
            None
        }
    }
}

/// One attempt. An answer that comes too late is as good as none: if it was a yes, the record says
/// so to whoever reads it next.
async fn ask(
    lease: &Lease,
    patience: Duration,
    expected: Option<Expected>,
    verdict: &Verdict,
) -> (Asked, Option<Tenure>) {
    let note = serde_json::to_vec(verdict).unwrap_or_default(); // Nodes always serialise.
    let mut lease = lease.clone().note(note);
    if let Some(expected) = expected {
        lease = lease.expect(expected);
    }
    let lost = match timeout(patience, lease.try_acquire()).await {
        Ok(Ok(Some(tenure))) => return (Asked::Won, Some(tenure)),
        Ok(Ok(None) | Err(LeaseError::Unexpected { .. })) => read(&lease, patience).await,
        Ok(Err(error)) => {
            tracing::warn!("the arbitration lease cannot be had: {error}");
            None
        }
        Err(_) => {
            tracing::warn!("the arbitration lease was not answered for in {patience:?}");
            None
        }
    };
    (lost.map_or(Asked::Unknown, Asked::Lost), None)
}
