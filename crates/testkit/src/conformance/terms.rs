//! Terms only rise: whatever happened to a record, whoever wins next has a higher term than all who
//! won before. A fence is worth as much as this rule.

use tenure_lease::backend::Acquire;
use tenure_lease::record::Token;

use super::Check;
use super::context::{Checked, Context, check, failed, skipped};

pub(super) fn checks() -> Vec<Check> {
    let mut checks = plain::checks();
    checks.push(Check {
        alone: true,
        ..check("terms_rise_over_a_restart", |cx| Box::pin(terms_rise_over_a_restart(cx)))
    });
    checks
}

mod plain {
    use super::*;

    checks![
        first_term_is_not_one,
        terms_rise_over_release,
        terms_rise_over_expiry,
        terms_rise_over_takeover,
        terms_rise_over_deletion,
        terms_rise_for_the_same_owner,
        terms_rise_over_a_new_client,
        terms_rise_above_what_was_asked,
    ];
}

/// The first term of an absent record is the store's revision or clock, never 1: otherwise a lost
/// record starts again below what fences have seen.
async fn first_term_is_not_one(cx: Context) -> Checked {
    let client = cx.client().await;
    for _ in 0..2 {
        let held = client.win(cx.request(&cx.name("first-term"), "a")).await?;
        ensure!(held.token.term > 1, "the first term is {}", held.token.term);
        ensure!(held.token.step == 0, "a plain lease has step {}", held.token.step);
        let former = held.former()?;
        ensure!(former.is_none(), "nothing was there before, but {former:?}");
    }
    Ok(())
}

/// After a release the next term is higher.
async fn terms_rise_over_release(cx: Context) -> Checked {
    let (client, name) = (cx.client().await, cx.name("term-release"));
    let mut last = Token::default();
    for owner in ["a", "b", "c", "b"] {
        let held = client.win(cx.request(&name, owner)).await?;
        rises(&mut last, held.token)?;
        client.give_back(&held).await?;
    }
    Ok(())
}

/// After an expiry the next term is higher.
async fn terms_rise_over_expiry(cx: Context) -> Checked {
    let (client, name) = (cx.client().await, cx.name("term-expiry"));
    let first = client.win(cx.request(&name, "a")).await?;
    let second = client.overtake(&cx, &cx.request(&name, "b")).await?;
    rises(&mut { first.token }, second.token)
}

/// After a takeover the next term is higher.
async fn terms_rise_over_takeover(cx: Context) -> Checked {
    let (client, name) = (cx.client().await, cx.name("term-takeover"));
    let mut last = client.win(cx.request(&name, "a")).await?.token;
    for owner in ["b", "c"] {
        rises(&mut last, client.steal(&cx.request(&name, owner)).await?.token)?;
    }
    Ok(())
}

/// After the record was deleted, however often, the next term is higher.
async fn terms_rise_over_deletion(cx: Context) -> Checked {
    let (client, name) = (cx.client().await, cx.name("term-deletion"));
    let mut last = Token::default();
    for round in 0..3 {
        // Terms that ran ahead of the store's revision or clock must not be forgotten either.
        for _ in 0..round * 4 {
            let held = client.win(cx.request(&name, "a")).await?;
            rises(&mut last, held.token)?;
            client.give_back(&held).await?;
        }
        rises(&mut last, client.win(cx.request(&name, "a")).await?.token)?;
        cx.delete(&name).await?;
        ensure!(client.read(&name).await?.is_none(), "deleted, and still there");
    }
    rises(&mut last, client.win(cx.request(&name, "a")).await?.token)
}

/// The same owner, too, gets a higher term each time, also when it takes itself over.
async fn terms_rise_for_the_same_owner(cx: Context) -> Checked {
    let (client, name) = (cx.client().await, cx.name("term-owner"));
    let first = client.win(cx.request(&name, "a")).await?;
    let mut last = first.token;
    let second = client.steal(&cx.request(&name, "a")).await?;
    rises(&mut last, second.token)?;
    client.give_back(&second).await?;
    rises(&mut last, client.win(cx.request(&name, "a")).await?.token)
}

/// A client that was just opened does not start anew.
async fn terms_rise_over_a_new_client(cx: Context) -> Checked {
    let name = cx.name("term-client");
    let mut last = Token::default();
    for _ in 0..3 {
        let client = cx.client().await;
        for _ in 0..2 {
            let held = client.win(cx.request(&name, "a")).await?;
            rises(&mut last, held.token)?;
            client.give_back(&held).await?;
        }
    }
    Ok(())
}

/// A term above a given number can be asked for, as a repair, and stays the floor; a number below
/// the next term changes nothing.
async fn terms_rise_above_what_was_asked(cx: Context) -> Checked {
    let (client, name) = (cx.client().await, cx.name("term-above"));
    let first = client.win(cx.request(&name, "a")).await?;
    client.give_back(&first).await?;
    let above = first.token.term + (1 << 40);
    let raised = client.win(Acquire { above, ..cx.request(&name, "a") }).await?;
    ensure!(raised.token.term > above, "asked for a term above {above}, got {}", raised.token);
    client.give_back(&raised).await?;
    let mut last = raised.token;
    let above = first.token.term;
    rises(&mut last, client.win(Acquire { above, ..cx.request(&name, "a") }).await?.token)?;

    let absent = cx.name("term-above-absent");
    let above = raised.token.term + (1 << 20);
    let held = client.win(Acquire { above, ..cx.request(&absent, "a") }).await?;
    ensure!(held.token.term > above, "asked for a term above {above}, got {}", held.token);
    Ok(())
}

/// A restarted server has forgotten neither token, note nor holder.
async fn terms_rise_over_a_restart(cx: Context) -> Checked {
    let (client, name) = (cx.client().await, cx.name("term-restart"));
    let freed = cx.name("term-restart-freed");
    let request = |name| Acquire { note: Some(b"kept".to_vec()), ..cx.request(name, "a") };
    let held = client.win(Acquire { ttl: cx.long_ttl(), ..request(&name) }).await?;
    let released = client.win(request(&freed)).await?;
    client.give_back(&released).await?;
    match cx.factory.restart() {
        Some(restarted) => restarted.await,
        None => return Err(skipped("the store cannot be restarted here")),
    }
    let client = cx.client().await;
    let record = client.record(&name).await?;
    ensure!(
        record.is_of(held.claim) && record.token == held.token && record.note == b"kept",
        "after the restart the record is {record:?}"
    );
    let next = client.win(cx.request(&freed, "b")).await?;
    rises(&mut { released.token }, next.token)?;
    match next.former()? {
        Some(former) if former.note == b"kept" => Ok(()),
        former => Err(failed(format!("after the restart the released record is {former:?}"))),
    }
}

fn rises(last: &mut Token, next: Token) -> Checked {
    ensure!(next > *last, "token {next} after {last}");
    *last = next;
    Ok(())
}
