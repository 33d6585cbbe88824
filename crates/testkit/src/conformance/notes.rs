//! The note lives in the record and outlives the tenure: three protocols stand on it.

use tenure_lease::backend::{Acquire, StoreErrorKind};
use tenure_lease::record::NOTE_MAX;

use super::context::{Checked, Client, Context, answered, failed};

checks![
    note_is_written_with_the_acquisition,
    note_outlives_release,
    note_outlives_expiry,
    note_outlives_takeover,
    note_is_replaced_by_a_renewal,
    note_outlives_a_renewal_without_one,
    an_empty_note_replaces,
    note_keeps_every_byte,
    a_longer_note_is_refused,
];

/// The note stands as soon as the lease is won; without one there is an empty one.
async fn note_is_written_with_the_acquisition(cx: Context) -> Checked {
    let (client, name) = (cx.client().await, cx.name("note"));
    client.win(cx.request(&name, "a")).await?;
    is(&client, &name, b"").await?;
    client.steal(&with_note(&cx, &name, "b", b"mine")).await?;
    is(&cx.client().await, &name, b"mine").await
}

/// A release keeps it, and so does who acquires next without one.
async fn note_outlives_release(cx: Context) -> Checked {
    let (client, name) = (cx.client().await, cx.name("note-release"));
    let held = client.win(with_note(&cx, &name, "a", b"kept")).await?;
    client.give_back(&held).await?;
    is(&client, &name, b"kept").await?;
    client.win(cx.request(&name, "b")).await?;
    is(&client, &name, b"kept").await
}

/// The holder's death keeps it, and so does who acquires next without one.
async fn note_outlives_expiry(cx: Context) -> Checked {
    let (client, name) = (cx.client().await, cx.name("note-expiry"));
    client.win(with_note(&cx, &name, "a", b"kept")).await?;
    let next = client.overtake(&cx, &cx.request(&name, "b")).await?;
    is(&client, &name, b"kept").await?;
    match next.former()? {
        Some(former) if former.note == b"kept" => Ok(()),
        former => Err(failed(format!("the former record is {former:?}"))),
    }
}

/// A takeover keeps it.
async fn note_outlives_takeover(cx: Context) -> Checked {
    let (client, name) = (cx.client().await, cx.name("note-takeover"));
    client.win(with_note(&cx, &name, "a", b"kept")).await?;
    client.steal(&cx.request(&name, "b")).await?;
    is(&client, &name, b"kept").await
}

/// A renewal may replace it, under the same token.
async fn note_is_replaced_by_a_renewal(cx: Context) -> Checked {
    let (client, name) = (cx.client().await, cx.name("note-renew"));
    let mut held = client.win(with_note(&cx, &name, "a", b"first")).await?;
    client.prolong_with(&mut held, Some(b"second".to_vec())).await?;
    is(&client, &name, b"second").await?;
    let record = client.record(&name).await?;
    ensure!(record.token == held.token, "the token became {}", record.token);
    Ok(())
}

/// A renewal without one keeps it.
async fn note_outlives_a_renewal_without_one(cx: Context) -> Checked {
    let (client, name) = (cx.client().await, cx.name("note-renewed"));
    let mut held = client.win(with_note(&cx, &name, "a", b"kept")).await?;
    client.prolong(&mut held).await?;
    is(&client, &name, b"kept").await
}

/// An empty note is a note: it replaces what was there.
async fn an_empty_note_replaces(cx: Context) -> Checked {
    let (client, name) = (cx.client().await, cx.name("note-empty"));
    let mut held = client.win(with_note(&cx, &name, "a", b"first")).await?;
    client.prolong_with(&mut held, Some(Vec::new())).await?;
    is(&client, &name, b"").await?;
    client.prolong_with(&mut held, Some(b"second".to_vec())).await?;
    client.give_back(&held).await?;
    client.win(with_note(&cx, &name, "b", b"")).await?;
    is(&client, &name, b"").await
}

/// 64 KiB of every byte there is come back as they were, through acquisition, renewal and release.
async fn note_keeps_every_byte(cx: Context) -> Checked {
    let (client, name) = (cx.client().await, cx.name("note-bytes"));
    // No period divides another's power of two, so that no block looks like the next.
    let note = |seed: usize| (0..NOTE_MAX).map(|i| ((i + i / 251 + seed) % 256) as u8).collect();
    let (first, second): (Vec<u8>, Vec<u8>) = (note(0), note(128));
    let mut held = client.win(with_note(&cx, &name, "a", &first)).await?;
    is(&client, &name, &first).await?;
    client.prolong_with(&mut held, Some(second.clone())).await?;
    is(&client, &name, &second).await?;
    client.give_back(&held).await?;
    is(&cx.client().await, &name, &second).await
}

/// A longer note is an error that says so, and changes nothing.
async fn a_longer_note_is_refused(cx: Context) -> Checked {
    let (client, name) = (cx.client().await, cx.name("note-long"));
    let long = vec![b'x'; NOTE_MAX + 1];
    let unsuitable = |error: Option<tenure_lease::backend::StoreError>| match error {
        Some(error) if error.kind() == StoreErrorKind::Unsuitable => Ok(()),
        Some(error) => Err(failed(format!("{:?} is not Unsuitable: {error}", error.kind()))),
        None => Err(failed(format!("a note of {} bytes was taken", NOTE_MAX + 1))),
    };
    let request = with_note(&cx, &name, "a", &long);
    unsuitable(answered(|| client.backend.acquire(request.clone())).await.err())?;
    ensure!(client.read(&name).await?.is_none(), "the refused attempt left a record");
    let mut held = client.win(with_note(&cx, &name, "a", b"short")).await?;
    let renewal = tenure_lease::backend::Renew { note: Some(long), ..held.renewal() };
    unsuitable(answered(|| client.backend.renew(renewal.clone())).await.err())?;
    is(&client, &name, b"short").await?;
    client.prolong(&mut held).await
}

fn with_note(cx: &Context, name: &tenure_lease::LeaseName, owner: &str, note: &[u8]) -> Acquire {
    Acquire { note: Some(note.to_vec()), ..cx.request(name, owner) }
}

async fn is(client: &Client, name: &tenure_lease::LeaseName, note: &[u8]) -> Checked {
    let found = client.record(name).await?.note;
    let differs = found.iter().zip(note).position(|(found, expected)| found != expected);
    ensure!(
        found == note,
        "the note has {} bytes, should have {}, and differs first at {differs:?}",
        found.len(),
        note.len()
    );
    Ok(())
}
