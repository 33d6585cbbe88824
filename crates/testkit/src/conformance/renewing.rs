//! A renewal proves the record: it succeeds only for the claim, the token and a nonce that its
//! sender may have written, and only while the record itself says so.

use tenure_lease::backend::{Acquire, Renew};
use tenure_lease::record::Token;
use tenure_lease::{Moment, Nonce, Record};

use super::context::{Checked, Client, Context, Held, failed, skipped, sleep_until};

checks![
    renew_needs_the_claim,
    renew_needs_the_token,
    renew_needs_a_known_nonce,
    renew_refuses_an_old_nonce,
    renew_accepts_either_known_nonce,
    renew_after_takeover_is_refused,
    renew_of_a_released_record_is_refused,
    renew_of_a_deleted_record_is_refused,
    renew_prolongs,
    renew_writes_its_nonce,
];

/// Another claim's renewal is refused, even with the right token and nonce.
async fn renew_needs_the_claim(cx: Context) -> Checked {
    let (client, held) = held(&cx, "renew-claim").await?;
    let request = Renew { claim: Nonce::random(), ..held.renewal() };
    let record = client.renew_refused(request).await?;
    still(&held, record)
}

/// A renewal under another token is refused.
async fn renew_needs_the_token(cx: Context) -> Checked {
    let (client, held) = held(&cx, "renew-token").await?;
    let Token { term, step } = held.token;
    for token in [Token::new(term - 1, step), Token::new(term + 1, step), Token::new(term, 1)] {
        let record = client.renew_refused(Renew { token, ..held.renewal() }).await?;
        still(&held, record)?;
    }
    Ok(())
}

/// A nonce that the sender did not write means a clone or a thief: refused.
async fn renew_needs_a_known_nonce(cx: Context) -> Checked {
    let (client, mut held) = held(&cx, "renew-nonce").await?;
    // A clone of the holder, made before its next renewal.
    let clone = held.clone();
    client.prolong(&mut held).await?;
    let record = client.renew_refused(clone.renewal()).await?;
    still(&held, record)?;
    for known in [vec![], vec![Nonce::random()], vec![Nonce::random(), Nonce::random()]] {
        let record = client.renew_refused(Renew { known, ..held.renewal() }).await?;
        still(&held, record)?;
    }
    client.prolong(&mut held).await
}

/// A nonce that was overwritten is as good as none, the claim's own id included.
async fn renew_refuses_an_old_nonce(cx: Context) -> Checked {
    let (client, mut held) = held(&cx, "renew-old").await?;
    let mut old = Vec::new();
    for _ in 0..3 {
        old.push(held.nonce);
        client.prolong(&mut held).await?;
    }
    let record = client.renew_refused(Renew { known: old, ..held.renewal() }).await?;
    still(&held, record)
}

/// After an unanswered renewal the sender knows two nonces; the record may carry either.
async fn renew_accepts_either_known_nonce(cx: Context) -> Checked {
    let (client, mut held) = held(&cx, "renew-either").await?;
    for first in [true, false, true, false] {
        let other = Nonce::random();
        let known = if first { vec![held.nonce, other] } else { vec![other, held.nonce] };
        let request = Renew { known, ..held.renewal() };
        let nonce = request.nonce;
        if client.renew(request).await? != tenure_lease::backend::Renewed::Yes {
            let place = if first { "first" } else { "second" };
            return Err(failed(format!("the {place} of two known nonces was refused")));
        }
        held.nonce = nonce;
    }
    Ok(())
}

/// The deposed holder's renewal is refused, shows its successor, and does not touch it.
async fn renew_after_takeover_is_refused(cx: Context) -> Checked {
    let (client, deposed) = held(&cx, "renew-deposed").await?;
    let other = cx.client().await;
    let request = Acquire { ttl: cx.long_ttl(), ..cx.request(&deposed.name, "b") };
    let mut successor = other.steal(&request).await?;
    let before = other.record(&deposed.name).await?;
    let record = client.renew_refused(deposed.renewal()).await?;
    still(&successor, record)?;
    let after = other.record(&deposed.name).await?;
    ensure!(before.version == after.version, "a refused renewal has changed the version");
    other.prolong(&mut successor).await
}

/// A released tenure cannot be revived.
async fn renew_of_a_released_record_is_refused(cx: Context) -> Checked {
    let (client, held) = held(&cx, "renew-released").await?;
    client.give_back(&held).await?;
    let record = client.renew_refused(held.renewal()).await?;
    match record {
        Some(record) if record.holder.is_none() && record.token == held.token => {}
        record => return Err(failed(format!("the refusal shows {record:?}"))),
    }
    let record = client.record(&held.name).await?;
    ensure!(record.holder.is_none(), "the renewal revived it: {record:?}");
    Ok(())
}

/// A deleted record is not renewed, however alive the native session is, nor written anew.
async fn renew_of_a_deleted_record_is_refused(cx: Context) -> Checked {
    let (client, held) = held(&cx, "renew-deleted").await?;
    cx.delete(&held.name).await?;
    let record = client.renew_refused(held.renewal()).await?;
    ensure!(record.is_none(), "the refusal shows {record:?}");
    ensure!(client.read(&held.name).await?.is_none(), "the renewal wrote the record anew");
    Ok(())
}

/// A renewed lease lasts for a whole ttl more.
async fn renew_prolongs(cx: Context) -> Checked {
    let (client, other, name) = (cx.client().await, cx.client().await, cx.name("renew-prolongs"));
    let mut held = client.win(cx.request(&name, "a")).await?;
    for _ in 0..3 {
        sleep_until(held.sent + cx.ttl().mul_f64(0.6)).await;
        // The store began to count after the request was sent; what it says later says nothing.
        let over = held.sent + cx.ttl();
        let told = |answer: Checked| match Moment::now() < over {
            true => answer,
            false => Err(skipped("no answer came before the ttl was over")),
        };
        told(other.lose(cx.request(&name, "b")).await.map(drop))?;
        told(client.prolong(&mut held).await)?;
    }
    Ok(())
}

/// A renewal writes its nonce, and nothing else.
async fn renew_writes_its_nonce(cx: Context) -> Checked {
    let (client, name) = (cx.client().await, cx.name("renew-writes"));
    let request = Acquire { note: Some(b"note".to_vec()), ..cx.request(&name, "a") };
    let mut held = client.win(request).await?;
    let before = client.record(&name).await?;
    client.prolong(&mut held).await?;
    let after = client.record(&name).await?;
    let nonce = after.holder.as_ref().and_then(|holder| holder.nonce);
    ensure!(nonce == Some(held.nonce), "the record carries {nonce:?}, not {:?}", held.nonce);
    ensure!(after.is_of(held.claim) && after.token == held.token, "it became {after:?}");
    ensure!(after.owner() == before.owner(), "the owner became {:?}", after.owner());
    ensure!(after.note == before.note && after.ttl == before.ttl, "it became {after:?}");
    Ok(())
}

async fn held(cx: &Context, stem: &str) -> Checked<(Client, Held)> {
    let client = cx.client().await;
    let request = Acquire { ttl: cx.long_ttl(), ..cx.request(&cx.name(stem), "a") };
    let held = client.win(request).await?;
    Ok((client, held))
}

/// The record that a refusal shows is that tenure's, as it was.
fn still(held: &Held, record: Option<Record>) -> Checked {
    let record = record.ok_or_else(|| failed("the refusal shows no record"))?;
    let nonce = record.holder.as_ref().and_then(|holder| holder.nonce);
    ensure!(
        record.is_of(held.claim) && record.token == held.token && nonce == Some(held.nonce),
        "the refusal shows {record:?}, and the record should be that of {held:?}"
    );
    Ok(())
}
