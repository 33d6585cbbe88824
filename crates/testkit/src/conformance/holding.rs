//! A keeper over the store: it holds, renews, writes notes and gives back.

use tenure_lease::backend::Expected;
use tenure_lease::{LeaseError, Moment};

use super::context::{Checked, Context, failed, within};
use crate::faults::Operation;

checks![
    a_keeper_holds_by_renewing,
    a_keeper_replaces_its_note,
    a_keeper_obeys_what_was_expected,
    preflight_passes_and_changes_nothing,
];

/// A keeper holds one tenure, under one token, for as long as it renews; then the next has it.
async fn a_keeper_holds_by_renewing(cx: Context) -> Checked {
    let (faults, name) = (cx.faults().await, cx.name("holds"));
    let tenure = cx.lease(&faults.store(), &name, "a").acquire().await?;
    let renewed = faults.counts().reached(Operation::Renew, 4);
    tokio::select! {
        renewed = within(cx.ttl() * 2 + cx.slack(), "four renewals", renewed) => renewed?,
        loss = tenure.lost() => return Err(failed(format!("lost while it renews: {loss}"))),
    }
    ensure!(tenure.is_held(), "not held after four renewals");
    let deadline = tenure.deadline();
    ensure!(deadline > Moment::now(), "the deadline {deadline:?} has passed");
    let client = cx.client().await;
    let record = client.record(&name).await?;
    ensure!(record.is_of(tenure.claim()) && record.token == tenure.token(), "it is {record:?}");
    let (token, nonce) = (tenure.token(), record.holder.and_then(|holder| holder.nonce));
    ensure!(nonce != Some(tenure.claim()), "no renewal has written its nonce");
    within(cx.slack(), "given back", tenure.release()).await?;
    let next = client.win(cx.request(&name, "b")).await?;
    ensure!(next.token > token, "token {} after {token}", next.token);
    Ok(())
}

/// A keeper replaces its note by a renewal; the next tenure finds it.
async fn a_keeper_replaces_its_note(cx: Context) -> Checked {
    let (store, name) = (cx.factory.open().await, cx.name("keeps-note"));
    let lease = cx.lease(&store, &name, "a");
    let tenure = lease.clone().note(b"first".to_vec()).acquire().await?;
    ensure!(tenure.note() == b"first", "it begins with {:?}", tenure.note());
    within(cx.slack(), "the note", tenure.write_note(b"second".to_vec())).await??;
    let record = cx.client().await.record(&name).await?;
    ensure!(record.note == b"second", "the note is {:?}", record.note);
    within(cx.slack(), "given back", tenure.release()).await?;
    let next = lease.acquire().await?;
    ensure!(next.note() == b"second", "the next tenure finds {:?}", next.note());
    Ok(())
}

/// A wish for a record that is not there any more ends with that record, and wins nothing.
async fn a_keeper_obeys_what_was_expected(cx: Context) -> Checked {
    let (store, name) = (cx.factory.open().await, cx.name("expects"));
    let lease = cx.lease(&store, &name, "a");
    let first = lease.clone().expect(Expected::Absent).acquire().await?;
    let read = first.token();
    within(cx.slack(), "given back", first.release()).await?;
    for wrong in [Expected::Absent, Expected::Term(read.term - 1)] {
        let wish = lease.clone().expect(wrong);
        match within(cx.slack(), "an answer", wish.acquire()).await? {
            Err(LeaseError::Unexpected(Some(record))) if record.token == read => {}
            Ok(tenure) => {
                return Err(failed(format!("{wrong:?} won {} over {read}", tenure.token())));
            }
            other => return Err(failed(format!("{wrong:?} ended with {other:?}"))),
        }
    }
    let wish = lease.expect(Expected::Term(read.term));
    let next = within(cx.slack(), "the expected record", wish.acquire()).await??;
    ensure!(next.token() > read, "token {} after {read}", next.token());
    Ok(())
}

/// A preflight says that all is well, and leaves the real record as it was, held or absent.
async fn preflight_passes_and_changes_nothing(cx: Context) -> Checked {
    let (store, client) = (cx.factory.open().await, cx.client().await);
    let absent = cx.name("preflight-absent");
    store.preflight(absent.as_str()).await?;
    ensure!(client.read(&absent).await?.is_none(), "a preflight left a record");
    let name = cx.name("preflight");
    let mut held = client.win(cx.request(&name, "a")).await?;
    let before = client.record(&name).await?;
    store.preflight(name.as_str()).await?;
    let after = client.record(&name).await?;
    ensure!(before.version == after.version, "a preflight changed {before:?} to {after:?}");
    client.prolong(&mut held).await
}
