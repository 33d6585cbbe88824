//! Proves before it is needed that a lease can be had.

use std::time::Duration;

use crate::backend::{
    Acquire, Acquired, Backend, Release, Released, Renew, Renewed, StoreError, StoreErrorKind,
};
use crate::clock::Moment;
use crate::driver::wait_until;
use crate::keeper::Random;
use crate::record::{Nonce, Owner, Record, Token, Version};
use crate::{LeaseError, LeaseName};

pub(crate) async fn preflight(backend: &dyn Backend, name: &LeaseName) -> Result<(), LeaseError> {
    if let Some(dry_run) = backend.dry_run(name) {
        return Ok(dry_run.await?);
    }
    // Reading the real record shows that we may, and that we understand it.
    backend.read(vec![name.clone()]).await?;
    Ok(by_canary(backend).await?)
}

/// Goes through acquire, renew and release on a lease of its own, and checks that the store refuses
/// what it must refuse: there are stores that accept a condition and ignore it.
async fn by_canary(backend: &dyn Backend) -> Result<(), StoreError> {
    let info = backend.info();
    // A constant that is a name.
    let name = LeaseName::new("tenure-preflight").expect("the canary's name is one");
    let ttl = info.ttl_min.max(Duration::from_secs(1)).min(info.ttl_max);
    let request = |claim, takeover| Acquire {
        name: name.clone(),
        claim,
        owner: Owner::this_process(),
        ttl,
        session: None,
        note: None,
        create: true,
        takeover,
        expected: None,
        above: 0,
        unattended: false,
    };
    let Some((claim, token, sent)) = canary(backend, request).await? else { return Ok(()) };
    let renew = |known, nonce| Renew {
        name: name.clone(),
        claim,
        token,
        known: vec![known],
        nonce,
        ttl,
        note: None,
        fresh_connection: false,
    };
    let refused = backend.acquire(request(Nonce::random(), None)).await?;
    let foreign = backend.renew(renew(Nonce::random(), Nonce::random())).await?;
    let nonce = Nonce::random();
    let renewed = backend.renew(renew(claim, nonce)).await?;
    let release = Release { name: name.clone(), claim, known: vec![nonce] };
    let released = backend.release(release).await?;
    let defect = if matches!(refused, Acquired::Won { .. }) {
        "it gave one lease to two claims"
    } else if foreign == Renewed::Yes {
        "it renewed a lease for a nonce that was never written"
    } else if renewed != Renewed::Yes || released != Released::Yes {
        "it did not renew or release a lease that was held"
    } else {
        return Ok(());
    };
    if Moment::now().since(sent) >= ttl {
        // It may have been somebody else's by then, and rightly so.
        return Err(StoreError::unavailable(format!(
            "the store took longer than {ttl:?} for five requests, too long for a proof"
        )));
    }
    Err(wrong(defect))
}

/// Acquires the canary. Other processes have it for a moment, in their own preflights; one that died
/// there left it held, and it is taken over when it has stood still for its ttl. `None`: others had it
/// all the time, so the store can be written; that we can read it shows in the answers. Also says
/// when the winning request was sent.
async fn canary(
    backend: &dyn Backend,
    request: impl Fn(Nonce, Option<Version>) -> Acquire,
) -> Result<Option<(Nonce, Token, Moment)>, StoreError> {
    let begun = Moment::now();
    let mut random = Random::new(Nonce::random().bits() as u64);
    // Since when it has stood still.
    let mut seen: Option<(Record, Moment)> = None;
    let mut refusals = 0;
    for attempt in 1.. {
        let still = seen.as_ref().filter(|(record, at)| Moment::now().since(*at) >= record.ttl);
        let takeover = still.map(|(record, _)| record.version.clone());
        let (claim, sent) = (Nonce::random(), Moment::now());
        let record = match backend.acquire(request(claim, takeover)).await? {
            Acquired::Won { token, .. } => return Ok(Some((claim, token, sent))),
            // Two processes that create the canary at once may see it half made; not again and again.
            Acquired::Lost(None) if refusals < REFUSALS_MAX => {
                refusals += 1;
                wait_until(Moment::now() + random.backoff(refusals, REFUSAL_PAUSE)).await;
                continue;
            }
            Acquired::Lost(None) => return Err(wrong("it refused a lease that nobody holds")),
            Acquired::Lost(Some(record)) => record,
        };
        let now = Moment::now();
        if now.since(begun) >= CANARY_PATIENCE {
            break;
        }
        let pause = random.backoff(attempt, record.ttl / 10);
        if seen.as_ref().is_none_or(|(known, _)| known.version != record.version) {
            seen = Some((record, now));
        }
        wait_until(now + pause).await;
    }
    tracing::warn!("others held the lease tenure-preflight all the time: writing is not proved");
    Ok(None)
}

fn wrong(what: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Unsuitable,
        format!("the store does not keep leases safely: {what}; do not use it for leases"),
    )
}

const REFUSALS_MAX: u32 = 8;
const REFUSAL_PAUSE: Duration = Duration::from_millis(200);
/// Longer than the shortest ttl of any store, and within what a preflight may take.
const CANARY_PATIENCE: Duration = Duration::from_secs(18);

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::backend::{Answer, Boxed, Promise, Request, StoreInfo};
    use crate::memory::MemoryRecords;

    /// A store that expires nothing, and that may forget to compare nonces.
    struct Observed {
        records: Mutex<MemoryRecords>,
        compares: bool,
    }

    impl Observed {
        fn new(compares: bool) -> Self {
            Self { records: Mutex::new(MemoryRecords::observed()), compares }
        }

        fn apply(&self, request: Request) -> Answer {
            self.records.lock().unwrap().apply(Moment::now(), request)
        }
    }

    impl Backend for Observed {
        fn info(&self) -> StoreInfo {
            StoreInfo {
                kind: "observed",
                promise: Promise::Safe,
                ttl_min: Duration::from_millis(10),
                ttl_max: Duration::from_secs(3600),
                ttl_step: Duration::ZERO,
                frees_after_ttls: 1,
                pushes: false,
                pushes_renewals: false,
                reads_everything: false,
            }
        }

        fn acquire(&self, request: Acquire) -> Boxed<'_, Result<Acquired, StoreError>> {
            let Answer::Acquire(answer) = self.apply(Request::Acquire(request)) else { panic!() };
            Box::pin(async { answer })
        }

        fn renew(&self, request: Renew) -> Boxed<'_, Result<Renewed, StoreError>> {
            if !self.compares {
                return Box::pin(async { Ok(Renewed::Yes) });
            }
            let Answer::Renew(answer) = self.apply(Request::Renew(request)) else { panic!() };
            Box::pin(async { answer })
        }

        fn release(&self, request: Release) -> Boxed<'_, Result<Released, StoreError>> {
            let Answer::Release(answer) = self.apply(Request::Release(request)) else { panic!() };
            Box::pin(async { answer })
        }

        fn read(
            &self,
            names: Vec<LeaseName>,
        ) -> Boxed<'_, Result<Vec<Option<Record>>, StoreError>> {
            let Answer::Read(answer) = self.apply(Request::Read(names)) else { panic!() };
            Box::pin(async { answer })
        }
    }

    /// As a preflight leaves it that dies half way.
    async fn leave_the_canary_held(store: &Observed) {
        let request = Acquire {
            name: LeaseName::new("tenure-preflight").unwrap(),
            claim: Nonce::random(),
            owner: Owner::named("dead"),
            ttl: Duration::from_millis(100),
            session: None,
            note: None,
            create: true,
            takeover: None,
            expected: None,
            above: 0,
            unattended: false,
        };
        assert!(matches!(store.acquire(request).await, Ok(Acquired::Won { .. })));
    }

    #[tokio::test]
    async fn a_preflight_that_died_half_way_does_not_weaken_the_next() {
        let name = LeaseName::new("job").unwrap();
        let sound = Observed::new(true);
        leave_the_canary_held(&sound).await;
        preflight(&sound, &name).await.unwrap();
        let canary = sound.read(vec![LeaseName::new("tenure-preflight").unwrap()]).await.unwrap();
        assert_eq!(canary[0].as_ref().unwrap().holder, None, "it went all the way");

        let defective = Observed::new(false);
        leave_the_canary_held(&defective).await;
        let error = preflight(&defective, &name).await.unwrap_err();
        assert!(error.to_string().contains("never written"), "{error}");
    }
}
