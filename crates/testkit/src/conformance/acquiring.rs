//! What an acquisition may do, what it must not, and what its answer tells.

use tenure_lease::backend::{Acquire, Acquired, Expected};
use tenure_lease::record::Version;

use super::context::{Checked, Client, Context, Held, answered, failed};

checks![
    a_claim_wins_once,
    two_claims_of_one_process_are_two,
    a_held_lease_is_not_given,
    lost_shows_the_record,
    won_shows_the_former_record,
    an_absent_record_is_not_created_unasked,
    expected_absent_is_obeyed,
    expected_term_is_obeyed,
    takeover_needs_the_current_version,
    takeover_is_refused_after_a_renewal,
];

/// A claim that is sent twice, as by a repeating network, wins once; the second answer shows that
/// the record is its own.
async fn a_claim_wins_once(cx: Context) -> Checked {
    let (client, name) = (cx.client().await, cx.name("claim-twice"));
    let request = cx.request(&name, "a");
    let held = client.win(request.clone()).await?;
    is_shown_its_own(&client, request, &held).await?;
    // The same by takeover: the version that was taken over is gone.
    let version = client.record(&name).await?.version;
    let request = Acquire { takeover: Some(version), ..cx.request(&name, "b") };
    let held = client.win(request.clone()).await?;
    is_shown_its_own(&client, request, &held).await
}

/// The claim that holds the lease wins nothing more, and is told that it has it.
async fn is_shown_its_own(client: &Client, request: Acquire, held: &Held) -> Checked {
    match answered(|| client.backend.acquire(request.clone())).await?.0 {
        Acquired::Lost(Some(record)) if record.is_of(held.claim) && record.token == held.token => {
            Ok(())
        }
        answer => Err(failed(format!("a claim that had won was told {answer:?}"))),
    }
}

/// Two claims of one owner, in one process, are two: the second waits like anybody else.
async fn two_claims_of_one_process_are_two(cx: Context) -> Checked {
    let (client, name) = (cx.client().await, cx.name("two-claims"));
    let held = client.win(cx.request(&name, "a")).await?;
    let record = client.lose(cx.request(&name, "a")).await?;
    ensure!(
        record.as_ref().is_some_and(|record| record.is_of(held.claim)),
        "the second claim was shown {record:?}"
    );
    Ok(())
}

/// A held lease is given to nobody who does not name its version, not even to one who asks often.
async fn a_held_lease_is_not_given(cx: Context) -> Checked {
    let (client, other, name) = (cx.client().await, cx.client().await, cx.name("held"));
    let request = Acquire { ttl: cx.long_ttl(), ..cx.request(&name, "a") };
    let held = client.win(request).await?;
    let before = client.record(&name).await?;
    for _ in 0..10 {
        other.lose(cx.request(&name, "b")).await?;
        other
            .lose(Acquire { create: false, above: u64::MAX / 2, ..cx.request(&name, "b") })
            .await?;
    }
    let after = client.record(&name).await?;
    ensure!(after.is_of(held.claim), "the record is now {after:?}");
    ensure!(after.version == before.version, "refused attempts have changed the version");
    Ok(())
}

/// Lost shows the record that stood in the way, whole.
async fn lost_shows_the_record(cx: Context) -> Checked {
    let (client, other, name) = (cx.client().await, cx.client().await, cx.name("lost-shows"));
    let request = Acquire { note: Some(b"a note".to_vec()), ..cx.request(&name, "a") };
    let (owner, ttl) = (request.owner.clone(), request.ttl);
    let held = client.win(request).await?;
    let Some(record) = other.lose(cx.request(&name, "b")).await? else {
        return Err(failed("lost to no record, although there is one"));
    };
    let holder = record.holder.clone().ok_or_else(|| failed("lost to a record without holder"))?;
    ensure!(holder.owner == owner, "the owner is {}, not {owner}", holder.owner);
    ensure!(holder.claim == Some(held.claim), "the claim is {:?}", holder.claim);
    ensure!(holder.nonce == Some(held.claim), "the first nonce is {:?}", holder.nonce);
    ensure!(holder.session.is_none(), "a plain lease names a session");
    ensure!(record.token == held.token, "the token is {}, not {}", record.token, held.token);
    ensure!(record.ttl == ttl, "the ttl is {:?}, not {ttl:?}", record.ttl);
    ensure!(record.note == b"a note", "the note is {:?}", record.note);
    let read = client.record(&name).await?;
    ensure!(read.version == record.version, "lost shows another version than a read");
    Ok(())
}

/// Won shows what the record said before.
async fn won_shows_the_former_record(cx: Context) -> Checked {
    let (client, name) = (cx.client().await, cx.name("won-shows"));
    let request = Acquire { note: Some(b"first".to_vec()), ..cx.request(&name, "a") };
    let first = client.win(request).await?;
    let request = Acquire { note: Some(b"second".to_vec()), ..cx.request(&name, "b") };
    let second = client.steal(&request).await?;
    match second.former()? {
        Some(former) if former.is_of(first.claim) && former.note == b"first" => {}
        former => return Err(failed(format!("taken over was {former:?}"))),
    }
    client.give_back(&second).await?;
    let third = client.win(cx.request(&name, "c")).await?;
    match third.former()? {
        Some(former)
            if former.holder.is_none()
                && former.token == second.token
                && former.note == b"second" => {}
        former => return Err(failed(format!("released was {former:?}"))),
    }
    Ok(())
}

/// Without `create` an absent record stays absent.
async fn an_absent_record_is_not_created_unasked(cx: Context) -> Checked {
    let (client, name) = (cx.client().await, cx.name("uncreated"));
    let record = client.lose(Acquire { create: false, ..cx.request(&name, "a") }).await?;
    ensure!(record.is_none(), "a record that is absent was shown: {record:?}");
    ensure!(client.read(&name).await?.is_none(), "the record was created nevertheless");
    let held = client.win(cx.request(&name, "a")).await?;
    client.give_back(&held).await?;
    client.win(Acquire { create: false, ..cx.request(&name, "a") }).await?;
    Ok(())
}

/// Whoever read that there was no record wins only if there still is none.
async fn expected_absent_is_obeyed(cx: Context) -> Checked {
    let (client, name) = (cx.client().await, cx.name("expected-absent"));
    let expected = Some(Expected::Absent);
    let held = client.win(Acquire { expected, ..cx.request(&name, "a") }).await?;
    client.give_back(&held).await?;
    let record = client.lose(Acquire { expected, ..cx.request(&name, "b") }).await?;
    ensure!(
        record.as_ref().is_some_and(|record| record.token == held.token),
        "the record in the way is {record:?}"
    );
    Ok(())
}

/// Whoever read a term wins only if the record still has it, be it released, held or absent.
async fn expected_term_is_obeyed(cx: Context) -> Checked {
    let (client, name) = (cx.client().await, cx.name("expected-term"));
    let term = |term| Some(Expected::Term(term));
    let record = client.lose(Acquire { expected: term(7), ..cx.request(&name, "a") }).await?;
    ensure!(record.is_none(), "nothing was there, but {record:?} was shown");
    let first = client.win(cx.request(&name, "a")).await?;
    client.give_back(&first).await?;
    let read = first.token.term;
    for wrong in [read - 1, read + 1] {
        client.lose(Acquire { expected: term(wrong), ..cx.request(&name, "b") }).await?;
    }
    let second = client.win(Acquire { expected: term(read), ..cx.request(&name, "b") }).await?;
    // Also when the version is right: both conditions must hold.
    let takeover = Some(client.record(&name).await?.version);
    let request = Acquire { expected: term(read), takeover, ..cx.request(&name, "c") };
    client.lose(request.clone()).await?;
    client.win(Acquire { expected: term(second.token.term), ..request }).await?;
    Ok(())
}

/// A held lease is taken over by its very version only.
async fn takeover_needs_the_current_version(cx: Context) -> Checked {
    let (client, name) = (cx.client().await, cx.name("takeover"));
    let first = client.win(cx.request(&name, "a")).await?;
    let old = client.record(&name).await?.version;
    client.give_back(&first).await?;
    let request = Acquire { ttl: cx.long_ttl(), ..cx.request(&name, "b") };
    let held = client.win(request).await?;
    let current = client.record(&name).await?.version;
    for wrong in [old, Version(String::new()), Version("0".to_owned())] {
        let takeover = Some(wrong);
        let record = client.lose(Acquire { takeover, ..cx.request(&name, "c") }).await?;
        ensure!(
            record.as_ref().is_some_and(|record| record.is_of(held.claim)),
            "the record in the way is {record:?}"
        );
    }
    client.win(Acquire { takeover: Some(current), ..cx.request(&name, "c") }).await?;
    Ok(())
}

/// A renewal in between saves the holder: the version that was watched is no longer there.
async fn takeover_is_refused_after_a_renewal(cx: Context) -> Checked {
    let (client, name) = (cx.client().await, cx.name("takeover-renewed"));
    let request = Acquire { ttl: cx.long_ttl(), ..cx.request(&name, "a") };
    let mut held = client.win(request).await?;
    let watched = client.record(&name).await?.version;
    client.prolong(&mut held).await?;
    let renewed = client.record(&name).await?.version;
    ensure!(renewed != watched, "a renewal left the version as it was");
    client.lose(Acquire { takeover: Some(watched), ..cx.request(&name, "b") }).await?;
    client.prolong(&mut held).await
}
