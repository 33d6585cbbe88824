//! Time: a lease that is not renewed is nobody else's before its ttl is over, and somebody's soon
//! after.

use std::time::Duration;

use tenure_lease::backend::Acquire;
use tenure_lease::record::Expiry;
use tenure_lease::{LeaseError, Moment, Settings};

use super::context::{Checked, Context, failed, sleep_until};

checks![
    a_lease_lasts_for_its_ttl,
    a_lease_ends_after_its_ttl,
    an_unattended_lease_ends_by_time,
    the_record_says_the_ttl,
    ttl_bounds_are_refused,
];

/// Without a renewal it is not given away before its ttl is over, by the store's own word.
async fn a_lease_lasts_for_its_ttl(cx: Context) -> Checked {
    let (client, other, name) = (cx.client().await, cx.client().await, cx.name("lasts"));
    let held = client.win(cx.request(&name, "a")).await?;
    for percent in [20, 40, 60, 75, 90, 97] {
        sleep_until(held.sent + cx.ttl() * percent / 100).await;
        let answer = other.lose(cx.request(&name, "b")).await;
        // The store began to count after the request was sent; what it says later says nothing.
        if Moment::now() < held.sent + cx.ttl() {
            answer.map_err(|_| failed(format!("given away after {percent} % of its ttl")))?;
        }
    }
    if other.record(&name).await?.expiry == Expiry::ByObservation {
        // Nobody's clock but the contender's: without its word it stays held.
        sleep_until(held.sent + cx.ttl() * 13 / 10).await;
        other.lose(cx.request(&name, "b")).await?;
    }
    Ok(())
}

/// Without a renewal it can be had soon after, by asking or, where the store does not judge time,
/// by having watched it.
async fn a_lease_ends_after_its_ttl(cx: Context) -> Checked {
    let (client, other, name) = (cx.client().await, cx.client().await, cx.name("ends"));
    let held = client.win(cx.request(&name, "a")).await?;
    let next = other.overtake(&cx, &cx.request(&name, "b")).await?;
    let took = Moment::now().since(held.sent);
    cx.remark(format!(
        "{:.2} of a ttl of {:?}",
        took.as_secs_f64() / cx.ttl().as_secs_f64(),
        cx.ttl()
    ));
    ensure!(next.token > held.token, "token {} after {}", next.token, held.token);
    Ok(())
}

/// A tenure that no process stands behind lasts for its ttl, even if its client goes, and ends.
async fn an_unattended_lease_ends_by_time(cx: Context) -> Checked {
    let (client, other, name) = (cx.client().await, cx.client().await, cx.name("unattended"));
    let held = client.win(Acquire { unattended: true, ..cx.request(&name, "a") }).await?;
    drop(client);
    let middle = held.sent + cx.ttl() / 2;
    sleep_until(middle).await;
    let answer = other.lose(cx.request(&name, "b")).await;
    if Moment::now() < held.sent + cx.ttl() {
        answer.map_err(|_| failed("it ended with the client that had asked for it"))?;
    }
    other.overtake(&cx, &cx.request(&name, "b")).await?;
    Ok(())
}

/// The record says the ttl that was asked for, not a rounded one, and what the store says about the
/// rest of it is within its promise.
async fn the_record_says_the_ttl(cx: Context) -> Checked {
    let (client, name) = (cx.client().await, cx.name("says-ttl"));
    let request = Acquire { ttl: cx.long_ttl(), ..cx.request(&name, "a") };
    let mut held = client.win(request).await?;
    let rest = cx.long_ttl() * cx.info.frees_after_ttls;
    for _ in 0..2 {
        let record = client.record(&name).await?;
        ensure!(record.ttl == held.ttl, "a ttl of {:?} became {:?}", held.ttl, record.ttl);
        match record.expiry {
            Expiry::ByObservation => {}
            Expiry::ByStore(remaining) => ensure!(
                remaining > Duration::ZERO && remaining <= rest + Duration::from_secs(1),
                "{remaining:?} of a ttl of {:?} are said to remain",
                held.ttl
            ),
        }
        client.prolong(&mut held).await?;
    }
    Ok(())
}

/// A ttl that the store cannot keep is refused with its bounds, before anything is asked.
async fn ttl_bounds_are_refused(cx: Context) -> Checked {
    let info = cx.info;
    let step = info.ttl_step;
    ensure!(!info.ttl_min.is_zero(), "no ttl is too short for it");
    ensure!(info.ttl_min <= cx.ttl() && cx.ttl() <= info.ttl_max, "{info:?} excludes its own ttl");
    ensure!(info.frees_after_ttls >= 1, "it frees after {} ttls", info.frees_after_ttls);
    let store = cx.factory.open().await;
    let odd = (!step.is_zero()).then(|| info.ttl_min + step / 2);
    for ttl in [Some(info.ttl_min / 2), Some(info.ttl_max.saturating_mul(2)), odd] {
        let Some(ttl) = ttl else { continue };
        let name = cx.name("bounds");
        let lease = store.lease(name.as_str()).settings(Settings::new(ttl));
        match lease.try_acquire().await {
            Err(LeaseError::Settings(error)) => ensure!(
                error.to_string().contains(info.kind),
                "the refusal does not name the store: {error}"
            ),
            Err(error) => return Err(failed(format!("a ttl of {ttl:?} is {error}"))),
            Ok(_) => return Err(failed(format!("a ttl of {ttl:?} was taken"))),
        }
        ensure!(store.inspect(name.as_str()).await?.is_none(), "the refused ttl left a record");
    }
    Ok(())
}
