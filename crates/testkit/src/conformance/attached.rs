//! An attached record names the tenure of a session, is never renewed, and never ends by itself.

use tenure_lease::backend::Acquire;
use tenure_lease::record::{Expiry, SessionRef};

use super::context::{Checked, Context, sleep_until};

checks![
    attached_records_name_their_session,
    attached_records_do_not_expire,
    attached_records_are_taken_by_version,
];

/// The session's name and term come back as they were written; a release takes them away.
async fn attached_records_name_their_session(cx: Context) -> Checked {
    let (client, name) = (cx.client().await, cx.name("attached"));
    let session = client.win(cx.request(&cx.name("session"), "a")).await?;
    let held = client.win(cx.attached_request(&name, "a", &session)).await?;
    let record = client.record(&name).await?;
    let expected = SessionRef { name: session.name.clone(), term: session.token.term };
    ensure!(record.session() == Some(&expected), "the session is {:?}", record.session());
    ensure!(record.is_of(held.claim) && record.token == held.token, "it is {record:?}");
    client.give_back(&held).await?;
    let record = client.record(&name).await?;
    ensure!(record.holder.is_none(), "released, and {record:?}");
    let plain = client.win(cx.request(&name, "b")).await?;
    let record = client.record(&name).await?;
    ensure!(record.session().is_none(), "a plain tenure inherited {:?}", record.session());
    client.give_back(&plain).await
}

/// However long nobody renews it, it stays its holder's: only the session's record says when it
/// ends.
async fn attached_records_do_not_expire(cx: Context) -> Checked {
    let (client, name) = (cx.client().await, cx.name("attached-stays"));
    let session = client.win(cx.request(&cx.name("session"), "a")).await?;
    let held = client.win(cx.attached_request(&name, "a", &session)).await?;
    let record = client.record(&name).await?;
    ensure!(
        record.expiry == Expiry::ByObservation,
        "an attached record is said to end by {:?}",
        record.expiry
    );
    // Beyond the end of any plain lease of this ttl.
    sleep_until(held.sent + cx.ttl() * cx.info.frees_after_ttls + cx.slack() / 2).await;
    let other = cx.client().await;
    other.lose(cx.request(&name, "b")).await?;
    let after = other.record(&name).await?;
    ensure!(after.is_of(held.claim), "it became {after:?}");
    ensure!(after.version == record.version, "its version changed by itself");
    Ok(())
}

/// It is taken by its very version only, by plain and by attached claims.
async fn attached_records_are_taken_by_version(cx: Context) -> Checked {
    let (client, name) = (cx.client().await, cx.name("attached-taken"));
    let session = client.win(cx.request(&cx.name("session"), "a")).await?;
    let successor = client.win(cx.request(&cx.name("session"), "b")).await?;
    let first = client.win(cx.attached_request(&name, "a", &session)).await?;
    let old = client.record(&name).await?.version;
    client.lose(cx.request(&name, "b")).await?;
    let request = cx.attached_request(&name, "b", &successor);
    client.lose(request.clone()).await?;
    let second = client.win(Acquire { takeover: Some(old.clone()), ..request.clone() }).await?;
    ensure!(second.token > first.token, "token {} after {}", second.token, first.token);
    client.lose(Acquire { takeover: Some(old), ..request }).await?;
    let record = client.record(&name).await?;
    let term = record.session().map(|session| session.term);
    ensure!(term == Some(successor.token.term), "it is attached to {:?}", record.session());
    Ok(())
}
