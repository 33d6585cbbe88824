//! What a store says when it does not understand, is not understood, or does not answer.

use std::time::Duration;

use tenure_lease::backend::{Acquire, Release, Released, Renew, StoreError, StoreErrorKind};
use tenure_lease::record::{Expiry, Version};
use tenure_lease::{Nonce, Token};

use super::context::{Checked, Context, answered, failed, skipped, within};

checks![a_newer_format_is_left_alone, a_foreign_holder_is_respected, silence_is_unknown];

/// A record that a newer release wrote is an error of that kind to every request, and stays.
async fn a_newer_format_is_left_alone(cx: Context) -> Checked {
    let (client, name) = (cx.client().await, cx.name("newer"));
    match cx.factory.write_newer(&name) {
        Some(written) => written.await,
        None => return Err(skipped("no record of a newer format can be written here")),
    }
    let newer = |what: &str, error: Option<StoreError>| match error {
        Some(error) if error.kind() == StoreErrorKind::NewerFormat => Ok(()),
        Some(error) => Err(failed(format!("{what} is {:?}: {error}", error.kind()))),
        None => Err(failed(format!("{what} was answered"))),
    };
    let claim = Nonce::random();
    let renewal = Renew {
        name: name.clone(),
        claim,
        token: Token::new(1, 0),
        known: vec![claim],
        nonce: Nonce::random(),
        ttl: cx.ttl(),
        note: None,
        fresh_connection: false,
    };
    let release = Release { name: name.clone(), claim, known: vec![claim] };
    let backend = &client.backend;
    // Twice: what was overwritten the first time is understood the second time.
    for _ in 0..2 {
        let request = cx.request(&name, "a");
        newer("acquire", answered(|| backend.acquire(request.clone())).await.err())?;
        let request = Acquire { takeover: Some(Version(String::new())), ..request };
        newer("takeover", answered(|| backend.acquire(request.clone())).await.err())?;
        newer("renew", answered(|| backend.renew(renewal.clone())).await.err())?;
        newer("release", answered(|| backend.release(release.clone())).await.err())?;
        newer("read", answered(|| backend.read(vec![name.clone()])).await.err())?;
    }
    Ok(())
}

/// An elector of another make holds the lease like any holder: it deposes ours, is shown without a
/// claim, is watched until it stands still, and terms go on rising after it.
async fn a_foreign_holder_is_respected(cx: Context) -> Checked {
    let (client, name) = (cx.client().await, cx.name("foreign"));
    let ours = client.win(cx.request(&name, "a")).await?;
    match cx.factory.seize(&name, "some-elector_6f1c") {
        Some(seized) => seized.await,
        None => return Err(skipped("no foreign elector writes its records")),
    }
    let record = client.renew_refused(ours.renewal()).await?;
    let holder = record.and_then(|record| record.holder);
    match &holder {
        Some(holder) if holder.owner.name == "some-elector_6f1c" && holder.claim.is_none() => {}
        holder => return Err(failed(format!("the foreign holder is shown as {holder:?}"))),
    }
    let released = client.release(ours.release()).await?;
    ensure!(released == Released::Refused, "the deposed holder released a foreign one");
    let record = client.lose(cx.request(&name, "b")).await?;
    let record = record.ok_or_else(|| failed("lost to no record"))?;
    ensure!(record.expiry == Expiry::ByObservation, "the store judges a foreign clock");
    let next = client.overtake(&cx, &cx.request(&name, "b")).await?;
    ensure!(next.token > ours.token, "token {} after {}", next.token, ours.token);
    Ok(())
}

/// A server that cannot be reached has said neither yes nor no.
async fn silence_is_unknown(cx: Context) -> Checked {
    let Some(store) = cx.factory.open_unreachable() else {
        return Err(skipped("its server cannot be out of reach"));
    };
    let store = store.await;
    let (backend, name) = (store.backend(), cx.name("silence"));
    let claim = Nonce::random();
    let renewal = Renew {
        name: name.clone(),
        claim,
        token: Token::new(1, 0),
        known: vec![claim],
        nonce: Nonce::random(),
        ttl: cx.ttl(),
        note: None,
        fresh_connection: false,
    };
    let release = Release { name: name.clone(), claim, known: vec![claim] };
    // No answer at all is as good as an error: the keeper's time-out makes one of it.
    let limit = Duration::from_secs(5);
    let unknown = |what: &str, answered: Checked<bool>| match answered {
        Ok(true) => Err(failed(format!("{what} was answered by nobody"))),
        Ok(false) | Err(_) => Ok(()),
    };
    let acquired = within(limit, "", backend.acquire(cx.request(&name, "a"))).await;
    unknown("acquire", acquired.map(|answer| answer.is_ok()))?;
    unknown("renew", within(limit, "", backend.renew(renewal)).await.map(|a| a.is_ok()))?;
    unknown("release", within(limit, "", backend.release(release)).await.map(|a| a.is_ok()))?;
    unknown("read", within(limit, "", backend.read(vec![name])).await.map(|a| a.is_ok()))
}
