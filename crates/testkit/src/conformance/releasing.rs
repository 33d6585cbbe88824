//! A release ends its own tenure, at once, and can never touch another's.

use tenure_lease::Nonce;
use tenure_lease::backend::{Acquire, Release, Released};

use super::context::{Checked, Client, Context, Held, answered};

checks![
    release_frees_at_once,
    release_needs_the_claim,
    release_needs_a_known_nonce,
    release_after_takeover_is_refused,
    a_second_release_is_refused,
];

/// A released lease is free for anybody, at once; its record stays.
async fn release_frees_at_once(cx: Context) -> Checked {
    let (client, held) = held(&cx, "release").await?;
    client.give_back(&held).await?;
    let record = client.record(&held.name).await?;
    ensure!(record.holder.is_none(), "released, and held by {:?}", record.owner());
    ensure!(record.token == held.token, "the token became {}", record.token);
    cx.client().await.win(cx.request(&held.name, "b")).await?;
    Ok(())
}

/// Another claim's release is refused.
async fn release_needs_the_claim(cx: Context) -> Checked {
    let (client, held) = held(&cx, "release-claim").await?;
    let request = Release { claim: Nonce::random(), ..held.release() };
    refused(&client, request, &held).await
}

/// A release whose sender did not write what stands in the record comes from a clone: refused. Any
/// of the known nonces will do.
async fn release_needs_a_known_nonce(cx: Context) -> Checked {
    let (client, mut held) = held(&cx, "release-nonce").await?;
    let old = held.nonce;
    client.prolong(&mut held).await?;
    for known in [vec![], vec![Nonce::random()], vec![old]] {
        refused(&client, Release { known, ..held.release() }, &held).await?;
    }
    let known = vec![old, Nonce::random(), held.nonce];
    let released = client.release(Release { known, ..held.release() }).await?;
    ensure!(released == Released::Yes, "one of three known nonces was refused");
    Ok(())
}

/// The deposed holder's release does nothing to its successor.
async fn release_after_takeover_is_refused(cx: Context) -> Checked {
    let (client, deposed) = held(&cx, "release-deposed").await?;
    let request = Acquire { ttl: cx.long_ttl(), ..cx.request(&deposed.name, "b") };
    let mut successor = client.steal(&request).await?;
    refused(&client, deposed.release(), &successor).await?;
    client.prolong(&mut successor).await
}

/// What was released, or never was there, is refused and not an error: a release is repeated until
/// it is answered.
async fn a_second_release_is_refused(cx: Context) -> Checked {
    let (client, held) = held(&cx, "release-twice").await?;
    client.give_back(&held).await?;
    let (again, _) = answered(|| client.backend.release(held.release())).await?;
    ensure!(again == Released::Refused, "released twice");
    let absent = Release { name: cx.name("release-absent"), ..held.release() };
    let released = client.release(absent.clone()).await?;
    ensure!(released == Released::Refused, "released what is not there");
    ensure!(client.read(&absent.name).await?.is_none(), "a release created a record");
    Ok(())
}

async fn held(cx: &Context, stem: &str) -> Checked<(Client, Held)> {
    let client = cx.client().await;
    let request = Acquire { ttl: cx.long_ttl(), ..cx.request(&cx.name(stem), "a") };
    let held = client.win(request).await?;
    Ok((client, held))
}

/// The release is refused, and the record stays the tenure's.
async fn refused(client: &Client, request: Release, held: &Held) -> Checked {
    let released = client.release(request).await?;
    let record = client.record(&held.name).await?;
    ensure!(record.is_of(held.claim), "a release that must be refused left {record:?}");
    ensure!(released == Released::Refused, "a release that must be refused was granted");
    Ok(())
}
