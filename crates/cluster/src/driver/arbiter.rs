//! The arbitration lease, as the resolver asks for it.

use std::time::Duration;

use tenure_lease::backend::Expected;
use tenure_lease::planted::{self, GlueBug};
use tenure_lease::{Lease, LeaseError, Tenure};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::resolver::{Asked, RecordRead, Sighting};
use crate::telemetry;
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
    Read(RecordRead),
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

async fn read(lease: &Lease, patience: Duration) -> RecordRead {
    let Ok(name) = lease.name() else { return RecordRead::Unknown };
    let name = name.as_str();
    let record = match timeout(patience, lease.store().inspect(name)).await {
        Ok(Ok(record)) => record,
        _ if planted::has(GlueBug::UnknownVerdictIsNone) => None,
        Ok(Err(error)) => {
            tracing::warn!(lease = name, "the arbitration lease cannot be read: {error}");
            return RecordRead::Unknown;
        }
        Err(_) => {
            tracing::warn!(lease = name, "no answer about the arbitration lease in {patience:?}");
            return RecordRead::Unknown;
        }
    };
    let sighting = match &record {
        Some(record) => Sighting::new(Some(record.token.term), &record.note),
        None => Sighting::new(None, &[]),
    };
    match sighting {
        Ok(sighting) => RecordRead::Seen(sighting),
        Err(error) => {
            telemetry::verdict_unreadable();
            RecordRead::Unreadable(error)
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
    let mut lease = lease.clone().note(verdict.to_note());
    if let Some(expected) = expected {
        lease = lease.expect(expected);
    }
    let asked = match timeout(patience, lease.try_acquire()).await {
        Ok(Ok(Some(tenure))) => return (Asked::Won, Some(tenure)),
        Ok(Ok(None) | Err(LeaseError::Unexpected { .. })) => match read(&lease, patience).await {
            RecordRead::Seen(sighting) => Asked::Lost(sighting),
            RecordRead::Unreadable(_) | RecordRead::Unknown => Asked::Unknown,
        },
        Ok(Err(error)) => {
            tracing::warn!("the arbitration lease cannot be had: {error}");
            Asked::Unknown
        }
        Err(_) => {
            tracing::warn!("the arbitration lease was not answered for in {patience:?}");
            Asked::Unknown
        }
    };
    (asked, None)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tenure_lease::{MemoryStore, Store};

    use super::*;
    use crate::view::Survivors;
    use crate::{Incarnation, Node};

    fn node(index: u64) -> Node {
        let text = format!("shop-{index}.shop.default.svc.cluster.local:7400");
        Node { address: text.parse().unwrap(), incarnation: Incarnation(index << 40) }
    }

    #[tokio::test]
    async fn a_verdict_about_ten_thousand_members_can_be_written_and_read() {
        let lease = Store::new(MemoryStore::default()).lease("shop.arbitration");
        let survivors: Vec<Node> = (0..10_000).map(node).collect();
        let survivors = Arc::new(Survivors::new(&survivors, []));
        let verdict = Verdict { cluster: 7, generation: 3, survivors };
        let (asked, tenure) = ask(&lease, Duration::from_secs(5), None, &verdict).await;
        assert_eq!(asked, Asked::Won);
        let read = read(&lease, Duration::from_secs(5)).await;
        assert!(matches!(read, RecordRead::Seen(sighting) if sighting.verdict == verdict));
        drop(tenure);
    }

    /// What a newer version may have written.
    #[tokio::test]
    async fn a_verdict_that_cannot_be_read_is_no_empty_record() {
        let newer = br#"{"format":2,"cluster":7,"generation":9,"who":"..."}"#.to_vec();
        let store = Store::new(MemoryStore::default());
        let lease = store.lease("shop.arbitration").note(newer);
        lease.acquire().await.unwrap().release().await;
        let read = read(&lease, Duration::from_secs(5)).await;
        assert!(matches!(read, RecordRead::Unreadable(_)), "{read:?}");
    }
}
