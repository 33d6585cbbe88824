//! The worker's place: on one node at a time, while it holds the lease.
#![allow(clippy::disallowed_methods, reason = "processes of a demonstration run in real time")]

use std::sync::Arc;
use std::time::Duration;

use tenure_cluster::{Cluster, Status};
use tenure_lease::{Lease, LeaseError, Loss, Tenure, Token};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// What the worker is told.
pub(super) struct Hosted {
    tenure: Arc<Tenure>,
    cluster: Cluster,
    leaving: watch::Receiver<bool>,
}

/// Why the worker must stop.
#[derive(Debug)]
pub(super) enum Stop {
    /// The lease is lost.
    Lost(Loss),
    /// The node leaves, or is out of the cluster.
    Leaving,
}

impl std::fmt::Display for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lost(loss) => write!(f, "{loss}"),
            Self::Leaving => f.write_str("leaving"),
        }
    }
}

impl Hosted {
    pub(super) fn token(&self) -> Token {
        self.tenure.token()
    }

    pub(super) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Waits until the worker must stop.
    pub(super) async fn stopping(&self) -> Stop {
        let mut leaving = self.leaving.clone();
        tokio::select! {
            biased;
            loss = self.tenure.lost() => Stop::Lost(loss),
            _ = leaving.wait_for(|leaving| *leaving) => Stop::Leaving,
            () = not_up(&self.cluster) => Stop::Leaving,
        }
    }
}

/// Runs `work` whenever this node is the one, until it has left.
pub(super) async fn host<F>(
    cluster: &Cluster,
    lease: Lease,
    work: impl Fn(Hosted) -> F,
) -> Result<(), LeaseError>
where
    F: Future<Output = ()>,
{
    let (leave, leaving) = watch::channel(false);
    let (ended, has_ended) = watch::channel(false);
    cluster.before_leaving(move || {
        leave.send_replace(true);
        let mut has_ended = has_ended.clone();
        async move {
            let _ = has_ended.wait_for(|ended| *ended).await;
        }
    });
    let mut told = leaving.clone();
    while !*leaving.borrow() {
        if !is_up(cluster) {
            sleep(LOOK).await;
            continue;
        }
        let tenure = tokio::select! {
            tenure = lease.acquire() => Arc::new(tenure?),
            () = not_up(cluster) => continue,
            _ = told.wait_for(|leaving| *leaving) => break,
        };
        let hosted =
            Hosted { tenure: tenure.clone(), cluster: cluster.clone(), leaving: leaving.clone() };
        {
            let work = work(hosted);
            tokio::pin!(work);
            tokio::select! {
                biased;
                () = &mut work => {}
                _ = tenure.lost() => drop(timeout(tenure.time_to_stop(), &mut work).await),
            }
        }
        if let Ok(tenure) = Arc::try_unwrap(tenure) {
            tenure.release().await;
        }
    }
    ended.send_replace(true);
    Ok(())
}

fn is_up(cluster: &Cluster) -> bool {
    cluster.view().member(&cluster.me()).is_some_and(|member| member.status == Status::Up)
}

async fn not_up(cluster: &Cluster) {
    while is_up(cluster) {
        sleep(LOOK).await;
    }
}

const LOOK: Duration = Duration::from_millis(20);
