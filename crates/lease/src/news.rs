//! What becomes of the leases of this process, for whoever shows or logs it.

use std::fmt;
use std::sync::OnceLock;

use tokio::sync::broadcast;

use crate::{LeaseName, Loss, Owner, Token};

/// Something became of a lease, or of a session, of this process. Of attached leases nothing is told:
/// there may be tens of thousands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseNews {
    /// Which lease.
    pub lease: LeaseName,
    /// What.
    pub what: LeaseEvent,
}

/// What became of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseEvent {
    /// This process won it.
    Won {
        /// Under this token.
        token: Token,
        /// Whose tenure before it had run out, without being given back.
        expired: Option<Owner>,
    },
    /// This process lost it, or gave it back.
    Lost(Loss),
}

impl fmt::Display for LeaseNews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lease, what } = self;
        match what {
            LeaseEvent::Won { token, expired: None } => {
                write!(f, "{lease} is held here, with token {token}")
            }
            LeaseEvent::Won { token, expired: Some(owner) } => {
                write!(f, "{lease} is held here, with token {token}: {owner}'s tenure had expired")
            }
            LeaseEvent::Lost(Loss::Released) => write!(f, "{lease} was given back"),
            LeaseEvent::Lost(loss) => write!(f, "{lease} was lost: {loss}"),
        }
    }
}

/// What becomes of the leases of this process, from now on.
pub fn news() -> News {
    News(sender().subscribe())
}

/// What becomes of leases, one after the other.
#[derive(Debug)]
pub struct News(broadcast::Receiver<LeaseNews>);

impl News {
    /// The next; whoever falls more than a thousand behind misses some.
    pub async fn next(&mut self) -> LeaseNews {
        loop {
            match self.0.recv().await {
                Ok(news) => return news,
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                // The sender lives as long as the process.
                Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}

pub(crate) fn tell(lease: &LeaseName, what: impl FnOnce() -> LeaseEvent) {
    let sender = sender();
    if sender.receiver_count() > 0 {
        let _ = sender.send(LeaseNews { lease: lease.clone(), what: what() }); // Just gone is fine.
    }
}

fn sender() -> &'static broadcast::Sender<LeaseNews> {
    static SENDER: OnceLock<broadcast::Sender<LeaseNews>> = OnceLock::new();
    SENDER.get_or_init(|| broadcast::channel(BEHIND).0)
}

const BEHIND: usize = 1024;
