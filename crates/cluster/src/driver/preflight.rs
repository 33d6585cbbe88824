//! Proves that this node's leases can be had, before a split needs them: a permission that is
//! missing is found on the first day.
//!
//! Many nodes that start at once take turns at the store's canary, and a store may be away for
//! a while; neither keeps a node from joining. Only a store that says no does.

use std::sync::Arc;
use std::time::Duration;

use tenure_lease::backend::StoreErrorKind;
use tenure_lease::keeper::Random;
use tenure_lease::{Lease, LeaseError};
use tokio::sync::watch;
use tokio::time::sleep;

use super::entropy;
use crate::{Settings, telemetry};

/// Whether this node's leases can be had, as far as is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// Not tried to the end yet.
    Pending,
    /// They could when it was last tried.
    Usable,
    /// They could not when it was last tried.
    Doubtful(Arc<str>),
    /// The store said no the first time: this node can not do its part.
    Refused(Arc<str>),
}

/// The leases of these settings, and what each is for.
pub(super) fn leases(settings: &Settings) -> Vec<(&'static str, Lease)> {
    let formation = settings.formation.clone().map(|lease| ("formation", lease));
    let arbitration = settings.arbitration.clone().map(|lease| ("arbitration", lease));
    formation.into_iter().chain(arbitration).collect()
}

/// Goes on until the store has refused for good, or nobody wants to know.
pub(super) async fn prove(
    leases: Vec<(&'static str, Lease)>,
    every: Duration,
    proof: watch::Sender<Proof>,
) {
    let mut random = Random::new(entropy());
    loop {
        let mut news = Proof::Usable;
        for (purpose, lease) in &leases {
            if let Err((why, definite)) = try_one(purpose, lease).await {
                let first = *proof.borrow() == Proof::Pending;
                news = match definite && first {
                    true => Proof::Refused(why),
                    false => Proof::Doubtful(why),
                };
                break;
            }
        }
        telemetry::leases_usable(news == Proof::Usable);
        match &news {
            Proof::Doubtful(why) => tracing::warn!("not ready: {why}"),
            Proof::Usable if matches!(*proof.borrow(), Proof::Doubtful(_)) => {
                tracing::info!("ready again: the leases can be had");
            }
            _ => {}
        }
        let refused = matches!(news, Proof::Refused(_));
        if proof.send(news).is_err() || refused {
            return;
        }
        sleep(random.around(every)).await;
    }
}

/// If not, why, and whether trying again is no use.
async fn try_one(purpose: &str, lease: &Lease) -> Result<(), (Arc<str>, bool)> {
    let name = match lease.name() {
        Ok(name) => name.as_str(),
        Err(error) => return Err((format!("the {purpose} lease: {error}").into(), true)),
    };
    // It has a time limit of its own.
    let (why, definite) = match lease.store().preflight(name).await {
        Ok(()) => return Ok(()),
        Err(LeaseError::Store(error)) if error.kind() == StoreErrorKind::Unavailable => {
            (error.to_string(), false)
        }
        Err(LeaseError::Store(error)) => {
            (format!("{error}; this node must be able to read and write it as the others do"), true)
        }
        Err(error) => (error.to_string(), true),
    };
    Err((format!("the {purpose} lease {name} cannot be used: {why}").into(), definite))
}

/// How often it is tried again.
pub(super) const EVERY: Duration = Duration::from_secs(60);
/// How long joining waits for the first answer, so that a node that is refused at once is never seen.
pub(super) const HEAD_START: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    use tenure_lease::backend::{
        Acquire, Acquired, Backend, Boxed, Release, Released, Renew, Renewed, StoreError, StoreInfo,
    };
    use tenure_lease::{LeaseName, MemoryStore, Record, Store};

    use super::*;

    /// A store that can be told to let nobody write.
    #[derive(Clone, Default)]
    struct Guarded {
        inner: Arc<MemoryStore>,
        denies: Arc<AtomicBool>,
    }

    impl Backend for Guarded {
        fn info(&self) -> StoreInfo {
            self.inner.info()
        }

        fn acquire(&self, request: Acquire) -> Boxed<'_, Result<Acquired, StoreError>> {
            if self.denies.load(SeqCst) {
                let error = StoreError::new(StoreErrorKind::Denied, "you may not write");
                return Box::pin(async { Err(error) });
            }
            self.inner.acquire(request)
        }

        fn renew(&self, request: Renew) -> Boxed<'_, Result<Renewed, StoreError>> {
            self.inner.renew(request)
        }

        fn release(&self, request: Release) -> Boxed<'_, Result<Released, StoreError>> {
            self.inner.release(request)
        }

        fn read(
            &self,
            names: Vec<LeaseName>,
        ) -> Boxed<'_, Result<Vec<Option<Record>>, StoreError>> {
            self.inner.read(names)
        }
    }

    fn start(store: &Guarded) -> watch::Receiver<Proof> {
        let lease = Store::new(store.clone()).lease("shop.arbitration");
        let proof = watch::Sender::new(Proof::Pending);
        let news = proof.subscribe();
        tokio::spawn(prove(vec![("arbitration", lease)], Duration::from_millis(20), proof));
        news
    }

    #[tokio::test]
    async fn what_is_refused_at_first_is_refused_for_good() {
        let store = Guarded::default();
        store.denies.store(true, SeqCst);
        let mut news = start(&store);
        let proof = news.wait_for(|proof| *proof != Proof::Pending).await.unwrap().clone();
        let Proof::Refused(why) = proof else { panic!("{proof:?}") };
        assert!(why.contains("the arbitration lease shop.arbitration"), "{why}");
        assert!(why.contains("you may not write"), "{why}");
    }

    #[tokio::test]
    async fn what_is_refused_later_comes_and_goes() {
        let store = Guarded::default();
        let mut news = start(&store);
        for denies in [false, true, false] {
            store.denies.store(denies, SeqCst);
            let is = |proof: &Proof| match proof {
                Proof::Usable => !denies,
                Proof::Doubtful(_) => denies,
                Proof::Pending => false,
                Proof::Refused(why) => panic!("{why}"),
            };
            news.wait_for(is).await.unwrap();
        }
    }
}
