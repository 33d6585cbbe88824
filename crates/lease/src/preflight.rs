//! Proves before it is needed that a lease can be had.

use std::time::Duration;

use crate::backend::{
    Acquire, Acquired, Backend, Release, Released, Renew, Renewed, StoreError, StoreErrorKind,
};
use crate::record::{Nonce, Owner};
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
    let request = |claim| Acquire {
        name: name.clone(),
        claim,
        owner: Owner::this_process(),
        ttl,
        session: None,
        note: None,
        create: true,
        takeover: None,
        expected: None,
        above: 0,
        unattended: false,
    };
    let claim = Nonce::random();
    let token = match backend.acquire(request(claim)).await? {
        Acquired::Won { token, .. } => token,
        // Another process is in its own preflight, so somebody can write; that we can read shows
        // in the answer. It is as much as can be shown without waiting.
        Acquired::Lost(Some(_)) => return Ok(()),
        Acquired::Lost(None) => {
            return Err(wrong("it refused a lease that nobody holds"));
        }
    };
    let renew = |known, nonce| Renew {
        name: name.clone(),
        claim,
        token,
        known: vec![known],
        nonce,
        ttl,
        note: None,
    };
    let refused = backend.acquire(request(Nonce::random())).await?;
    let foreign = backend.renew(renew(Nonce::random(), Nonce::random())).await?;
    let nonce = Nonce::random();
    let renewed = backend.renew(renew(claim, nonce)).await?;
    let release = Release { name: name.clone(), claim, known: vec![nonce] };
    let released = backend.release(release).await?;
    if matches!(refused, Acquired::Won { .. }) {
        return Err(wrong("it gave one lease to two claims"));
    }
    if foreign == Renewed::Yes {
        return Err(wrong("it renewed a lease for a nonce that was never written"));
    }
    if renewed != Renewed::Yes || released != Released::Yes {
        return Err(wrong("it did not renew or release a lease that was held"));
    }
    Ok(())
}

fn wrong(what: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Unsuitable,
        format!("the store does not keep leases safely: {what}; do not use it for leases"),
    )
}
