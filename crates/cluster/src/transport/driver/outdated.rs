//! Links that work and must go nevertheless: a certificate has changed, or they are old.
//!
//! A connection proves its certificates once, when it is opened. So whoever dialed a link opens it
//! again when it reaches its greatest age, or when this node's own certificate has changed; and both
//! ends check what the other has shown again when their own files have changed. Whoever was accepted
//! by an authority that is gone, or is revoked now, is closed.

use std::future::pending;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use tokio::time::{Instant, sleep_until};

use super::{Established, random};
use crate::transport::{Direction, Down, Security};

/// How often the files of the identity have changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Renewal {
    /// Any of them.
    pub(super) files: u64,
    /// This node's certificate.
    pub(super) own: u64,
}

/// What the other end of a link has shown when it was opened.
#[derive(Clone, Debug, Default)]
pub(super) struct Shown {
    pub(super) chain: Vec<CertificateDer<'static>>,
    /// From before the handshake: what has changed since was not part of it.
    pub(super) as_of: Renewal,
}

impl Established<'_> {
    /// Waits until the link has to go: [`Down::Outdated`] if it is to be opened again, which only
    /// the end that dialed can do; [`Down::NotAccepted`] if the peer is no longer accepted.
    pub(super) async fn outdated(&self) -> Down {
        let Security::Tls(identity) = &self.shared.security else {
            return pending().await;
        };
        let (peer, direction) = (&self.link.peer, self.link.direction);
        let age_max = self.shared.settings.link_age_max;
        let dialed = direction == Direction::Outgoing;
        let mut renewals = self.shared.renewals.subscribe();
        let mut seen = self.shown.as_of;
        let mut due = Instant::now() + if dialed { part_of(age_max) } else { age_max };
        loop {
            let renewal = *renewals.borrow_and_update();
            let is_due = Instant::now() >= due;
            if is_due && dialed {
                return Down::Outdated;
            }
            if renewal != seen || is_due {
                if let Err(why) = identity.check_peer(&self.shown.chain, &peer.name, direction) {
                    return Down::NotAccepted(why);
                }
                if dialed && renewal.own != seen.own {
                    due = due.min(Instant::now() + part_of(SPREAD));
                }
                if is_due {
                    due = Instant::now() + age_max;
                }
                seen = renewal;
            }
            tokio::select! {
                // Its sender is in `shared`, so it cannot be gone.
                _ = renewals.changed() => {}
                () = sleep_until(due) => {}
            }
        }
    }
}

/// Between three quarters of it and all of it: not all links of a node at once.
fn part_of(time: Duration) -> Duration {
    time.mul_f64(0.75 + 0.25 * (random() as f64 / u64::MAX as f64))
}

/// Within this time a node shows a new certificate to those that it has links to.
const SPREAD: Duration = Duration::from_secs(4);
