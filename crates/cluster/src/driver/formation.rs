//! The formation lease, as the core asks for it.

use std::time::Duration;

use tenure_lease::{Lease, Tenure};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval};

use crate::formation::{FormationNote, FormationSight, ReadNote};
use crate::telemetry;

/// What the core wants.
#[derive(Debug)]
pub(super) enum LeaseOrder {
    Contend,
    Withdraw,
    Look,
    WriteNote(FormationNote),
}

/// What became of it.
#[derive(Debug)]
pub(super) enum LeaseNews {
    Won { term: u64, note: ReadNote },
    Saw(FormationSight),
    Wrote(FormationNote),
    Lost,
}

/// To be answered by the node's loop, as a sign of life.
pub(super) type SignOfLife = oneshot::Sender<()>;

/// The lease, renewed only while whoever takes the questions answers them: a node whose thread hangs
/// in its loop does nothing for the cluster, and must not keep others from forming one.
pub(super) fn tied_to_loop(lease: Lease, questions: mpsc::Sender<SignOfLife>) -> Lease {
    lease.liveness(move || {
        let questions = questions.clone();
        async move {
            let (answer, answered) = oneshot::channel();
            questions.send(answer).await.is_ok() && answered.await.is_ok()
        }
    })
}

/// Does what is ordered until there are no more orders; then gives the lease back.
pub(super) async fn tend(
    lease: Lease,
    mut orders: mpsc::Receiver<LeaseOrder>,
    news: mpsc::Sender<LeaseNews>,
) {
    while let Some(order) = orders.recv().await {
        match order {
            LeaseOrder::Contend => {}
            LeaseOrder::Look => {
                look(&lease, &news).await;
                continue;
            }
            LeaseOrder::Withdraw | LeaseOrder::WriteNote(_) => continue,
        }
        let Some(tenure) = contend(&lease, &mut orders, &news).await else { continue };
        let won =
            LeaseNews::Won { term: tenure.token().term, note: FormationNote::parse(tenure.note()) };
        if news.send(won).await.is_err() || !hold(tenure, &mut orders, &news).await {
            continue;
        }
        let _ = news.send(LeaseNews::Lost).await;
    }
}

/// `None` if the core thought better of it.
async fn contend(
    lease: &Lease,
    orders: &mut mpsc::Receiver<LeaseOrder>,
    news: &mpsc::Sender<LeaseNews>,
) -> Option<Tenure> {
    let name = lease.name().ok()?.as_str().to_owned();
    let mut tick = interval(LOOK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut acquire = std::pin::pin!(lease.acquire());
    loop {
        tokio::select! {
            biased;
            order = orders.recv() => match order {
                None | Some(LeaseOrder::Withdraw) => return None,
                Some(LeaseOrder::Contend | LeaseOrder::Look | LeaseOrder::WriteNote(_)) => {}
            },
            acquired = &mut acquire => match acquired {
                Ok(tenure) => return Some(tenure),
                Err(error) => {
                    tracing::error!(lease = name, "the formation lease cannot be had: {error}");
                    let _ = news.send(LeaseNews::Lost).await;
                    tokio::time::sleep(AFTER_ERROR).await;
                    return None;
                }
            },
            _ = tick.tick() => look(lease, news).await,
        }
    }
}

/// Reads what the record says.
async fn look(lease: &Lease, news: &mpsc::Sender<LeaseNews>) {
    let Ok(name) = lease.name() else { return };
    match lease.store().inspect(name.as_str()).await {
        Ok(Some(record)) => {
            let sight = FormationSight::new(&record);
            if sight.note.is_err() {
                telemetry::note_unreadable();
            }
            let _ = news.send(LeaseNews::Saw(sight)).await;
        }
        Ok(None) => {}
        Err(error) => tracing::debug!(lease = name.as_str(), "cannot be read: {error}"),
    }
}

/// Whether it was lost, rather than given back.
async fn hold(
    tenure: Tenure,
    orders: &mut mpsc::Receiver<LeaseOrder>,
    news: &mpsc::Sender<LeaseNews>,
) -> bool {
    loop {
        tokio::select! {
            biased;
            loss = tenure.lost() => {
                tracing::warn!("the formation lease was lost: {loss}");
                return true;
            }
            order = orders.recv() => match order {
                None | Some(LeaseOrder::Withdraw) => {
                    tenure.release().await;
                    return false;
                }
                Some(LeaseOrder::WriteNote(note)) => {
                    match tenure.write_note(note.to_bytes()).await {
                        Ok(()) => {
                            let _ = news.send(LeaseNews::Wrote(note)).await;
                        }
                        Err(error) => {
                            tracing::warn!("the formation lease's note was not written: {error}");
                        }
                    }
                }
                Some(LeaseOrder::Contend | LeaseOrder::Look) => {}
            },
            () = news.closed() => {
                tenure.release().await;
                return false;
            }
        }
    }
}

/// How often to look for a cluster that somebody else has formed.
const LOOK: Duration = Duration::from_millis(500);
const AFTER_ERROR: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use tenure_lease::{Loss, MemoryStore, Store};

    use super::*;

    /// The runtime runs on; only the loop that should answer hangs.
    #[tokio::test]
    async fn a_loop_that_hangs_loses_the_lease() {
        let (questions, mut signs_of_life) = mpsc::channel::<SignOfLife>(1);
        let ttl = Duration::from_secs(2);
        let lease = Store::new(MemoryStore::default()).lease("shop.formation").ttl(ttl);
        let tenure = tied_to_loop(lease, questions).acquire().await.unwrap();
        let answers = async {
            while let Some(sign) = signs_of_life.recv().await {
                let _ = sign.send(());
            }
        };
        tokio::select! {
            () = answers => {}
            loss = tenure.lost() => panic!("{loss}"),
            () = tokio::time::sleep(ttl * 2) => {}
        }
        let loss = tokio::time::timeout(ttl * 2, tenure.lost()).await.expect("it is lost");
        assert_eq!(loss, Loss::Unresponsive);
    }
}
