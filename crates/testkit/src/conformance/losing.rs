//! How a tenure is lost: at once when the store says so, and by its own deadline, before anybody
//! else can have the lease, when the store says nothing.

use std::sync::Arc;

use tenure_lease::backend::{Boxed, Renew, Renewed};
use tenure_lease::{Loss, Moment, Nonce, Owner};

use super::context::{Checked, Context, failed, skipped, sleep_until, within};
use super::replies::{brisk, holds, lost};
use crate::faults::{Fault, Operation, Outage};

checks![
    a_short_outage_keeps_the_tenure,
    a_long_outage_ends_it_before_the_next,
    a_thief_ends_it_at_once,
    a_clone_ends_it_at_once,
    a_deletion_ends_it_at_once,
];

/// An outage that is as long as the settings promise to survive changes nothing, also if it begins
/// just before a renewal.
async fn a_short_outage_keeps_the_tenure(cx: Context) -> Checked {
    let (faults, name, settings) = (cx.faults().await, cx.name("blip"), cx.settings());
    let tenure = cx.lease(&faults.store(), &name, "a").acquire().await?;
    for outage in [Outage::Fails, Outage::Hangs] {
        let before = faults.counts().applied(Operation::Renew);
        let renewed = faults.counts().reached(Operation::Renew, before + 1);
        holds(&tenure, within(cx.slack(), "a renewal", renewed)).await??;
        // Renewals come after eight tenths of the interval at the earliest.
        holds(&tenure, sleep_until(Moment::now() + settings.renew_interval * 7 / 10)).await?;
        // A request to a store on this machine is not hedged: one that hangs is timed out first.
        let unhedged = cx.info.is_local() && outage == Outage::Hangs;
        let promised = settings.outage_survived();
        let length = if unhedged { settings.operation_timeout } else { promised * 9 / 10 };
        faults.outage(Some(outage));
        let begun = Moment::now();
        holds(&tenure, sleep_until(begun + length)).await?;
        faults.outage(None);
        let away = Moment::now().since(begun);
        let applied = faults.counts().applied(Operation::Renew);
        let renewed = faults.counts().reached(Operation::Renew, applied + 2);
        let what = format!("{outage:?} for {away:.2?} of {promised:.2?}");
        holds(&tenure, within(cx.ttl() + cx.slack(), &what, renewed)).await??;
        cx.remark(format!("survived {what}"));
    }
    Ok(())
}

/// A longer one ends the tenure as expired, at its deadline, while nobody else can have it yet; and
/// the next one does get it.
async fn a_long_outage_ends_it_before_the_next(cx: Context) -> Checked {
    let settings = cx.settings();
    let (faults, name) = (cx.faults().await, cx.name("outage"));
    let tenure = cx.lease(&faults.store(), &name, "a").acquire().await?;
    faults.counts().reached(Operation::Renew, 1).await;
    let sent = faults.counts().sent_at(Operation::Renew);
    let sent = sent.ok_or_else(|| failed("nothing was sent"))?;
    faults.outage(Some(Outage::Hangs));
    let rival = cx.factory.open().await;
    let rival = cx.lease(&rival, &name, "b");
    let won = async {
        let next = rival.acquire().await;
        (next, Moment::now(), tenure.is_held())
    };
    let limit = cx.frees_within() + cx.ttl();
    let both = async { tokio::join!(lost(&cx, &tenure), won) };
    let (lost, (next, won_at, overlapped)) = within(limit, "lost and won", both).await?;
    let ((loss, lost_at, deadline), next) = (lost?, next?);
    let latest = sent + cx.held_for(&settings);
    ensure!(deadline <= latest, "held until {deadline:?}, the send allows {latest:?}");
    ensure!(!overlapped && lost_at <= won_at, "two held it: won {won_at:?}, lost {lost_at:?}");
    // A busy machine may look like a pause; a slow store never does.
    ensure!(matches!(loss, Loss::Expired | Loss::Paused), "the reason is {loss}");
    ensure!(
        lost_at <= sent + settings.ttl,
        "lost {:?} after the last renewal was sent, with a ttl of {:?}",
        lost_at.since(sent),
        settings.ttl
    );
    ensure!(
        won_at >= sent + settings.ttl.mul_f64(RATE),
        "given away {:?} after the last renewal was sent, with a ttl of {:?}",
        won_at.since(sent),
        settings.ttl
    );
    ensure!(next.token() > tenure.token(), "token {} after {}", next.token(), tenure.token());
    cx.remark(format!(
        "lost after {:.2}, won after {:.2} of the ttl",
        lost_at.since(sent).as_secs_f64() / settings.ttl.as_secs_f64(),
        won_at.since(sent).as_secs_f64() / settings.ttl.as_secs_f64()
    ));
    Ok(())
}

/// Whoever finds another's claim in the record has lost it to them, now, and leaves them alone.
async fn a_thief_ends_it_at_once(cx: Context) -> Checked {
    let (faults, thief, name) = (cx.faults().await, cx.client().await, cx.name("theft"));
    let tenure = cx.lease(&faults.store(), &name, "a").acquire().await?;
    let mut stolen = thief.steal(&cx.request(&name, "thief")).await?;
    let loss = within(cx.ttl() / 2 + cx.slack(), "lost", tenure.lost()).await?;
    let by = Some(Owner::named("thief"));
    ensure!(loss == Loss::Stolen { by }, "the reason is {loss:?}");
    ensure!(!tenure.is_held(), "lost, and still held");
    within(cx.slack(), "given back", tenure.release()).await?;
    let record = thief.record(&name).await?;
    ensure!(record.is_of(stolen.claim), "the deposed holder left {record:?}");
    thief.prolong(&mut stolen).await
}

/// A renewal that this process did not write is a clone's: the one that comes second has lost.
async fn a_clone_ends_it_at_once(cx: Context) -> Checked {
    let (faults, clone, name) = (cx.faults().await, cx.client().await, cx.name("clone"));
    let tenure = cx.lease(&faults.store(), &name, "a").settings(brisk(&cx)).acquire().await?;
    // It knows what its original knew: claim, token, and the nonce in the record.
    let mut cloned = false;
    for _ in 0..100 {
        let record = clone.record(&name).await?;
        let Some(nonce) = record.holder.and_then(|holder| holder.nonce) else { break };
        let renewal = Renew {
            name: name.clone(),
            claim: tenure.claim(),
            token: tenure.token(),
            known: vec![nonce],
            nonce: Nonce::random(),
            ttl: cx.ttl(),
            note: None,
            fresh_connection: false,
        };
        if clone.renew(renewal).await? == Renewed::Yes {
            cloned = true;
            break;
        }
    }
    ensure!(cloned, "the clone could not renew");
    let loss = within(cx.ttl() / 2 + cx.slack(), "lost", tenure.lost()).await?;
    ensure!(matches!(loss, Loss::Stolen { .. }), "the reason is {loss:?}");
    Ok(())
}

/// Whoever finds no record has lost it, now; also when it vanishes under a renewal on its way.
async fn a_deletion_ends_it_at_once(cx: Context) -> Checked {
    let (faults, name) = (cx.faults().await, cx.name("deletion"));
    if cx.factory.delete(&name).is_none() {
        return Err(skipped("nobody can delete a record here"));
    }
    let tenure = cx.lease(&faults.store(), &name, "a").acquire().await?;
    let (factory, deleted) = (Arc::clone(&cx.factory), name.clone());
    let delete = move || -> Boxed<'static, ()> {
        let (factory, name) = (Arc::clone(&factory), deleted.clone());
        Box::pin(async move {
            if let Some(deleted) = factory.delete(&name) {
                deleted.await;
            }
        })
    };
    faults.next(Operation::Renew, Fault::Before(Arc::new(delete)));
    let loss = within(cx.ttl() / 2 + cx.slack(), "lost", tenure.lost()).await?;
    ensure!(loss == Loss::Deleted, "the reason is {loss:?}");
    within(cx.slack(), "given back", tenure.release()).await?;
    ensure!(cx.client().await.read(&name).await?.is_none(), "the record came back");
    Ok(())
}

/// Two clocks may differ in rate by that much; the margin covers it.
const RATE: f64 = 0.99;
