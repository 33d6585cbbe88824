//! Unknown is not no, and not yes: a keeper whose store did not answer neither deposes itself nor
//! leaves an orphan, and believes no longer than it may.

use std::time::Duration;

use tenure_lease::backend::Acquire;
use tenure_lease::{Loss, Moment, Settings, Tenure};

use super::context::{Checked, Context, Stop, failed, sleep_until, within};
use crate::faults::{Answered, Fault, Operation, Outage};

checks![
    a_lost_reply_to_acquire_is_adopted,
    an_abandoned_acquire_leaves_no_orphan,
    a_lost_reply_to_renew_deposes_nobody,
    a_lost_reply_to_release_frees,
    a_read_back_goes_by_the_claim,
    a_repeated_request_counts_once,
    a_late_request_harms_nobody,
    a_late_reply_prolongs_from_the_send,
];

/// An acquisition whose answer never came is found in the record by its claim, and held until the
/// deadline of the original send; nobody waits for an orphan to expire.
async fn a_lost_reply_to_acquire_is_adopted(cx: Context) -> Checked {
    for fault in [Fault::ReplyLost, Fault::ReplyNever] {
        let (faults, name) = (cx.faults().await, cx.name("adopts"));
        faults.next(Operation::Acquire, fault.clone());
        let lease = cx.lease(&faults.store(), &name, "a").note(b"mine".to_vec());
        let begun = Moment::now();
        let (tenure, sent) =
            tokio::join!(within(cx.frees_within(), "held", lease.acquire()), async {
                faults.counts().reached_sent(Operation::Acquire, 1).await;
                faults.counts().sent_at(Operation::Acquire)
            });
        let tenure = tenure??;
        let latest = sent.ok_or_else(|| failed("nothing was sent"))? + cx.held_for(&cx.settings());
        if faults.counts().applied(Operation::Renew) == 0 {
            let deadline = tenure.deadline();
            ensure!(
                deadline <= latest,
                "{fault:?}: held until {deadline:?}, counted from the first send {latest:?}"
            );
        }
        twice(&cx, &fault, begun, faults.counts().sent(Operation::Acquire))?;
        let record = cx.client().await.record(&name).await?;
        ensure!(
            record.is_of(tenure.claim()) && record.token == tenure.token(),
            "{fault:?}: the record is {record:?}"
        );
        ensure!(tenure.note() == b"mine", "{fault:?}: the note is {:?}", tenure.note());
        // And it is a tenure like any other.
        let renewed = faults.counts().reached(Operation::Renew, 2);
        holds(&tenure, within(cx.ttl() + cx.slack(), "two renewals", renewed)).await??;
    }
    Ok(())
}

/// It took one more request than the one that met the fault; or more, if so much time has passed
/// that the store may have been too slow for one.
fn twice(cx: &Context, fault: &Fault, begun: Moment, sent: u64) -> Checked {
    let took = Moment::now().since(begun);
    let timeouts = if matches!(fault, Fault::ReplyNever) { 2 } else { 1 };
    let slow = took >= cx.settings().operation_timeout * timeouts;
    ensure!(sent == 2 || sent > 2 && slow, "{fault:?}: {sent} requests instead of 2, in {took:?}");
    Ok(())
}

/// Whoever stops waiting while the answer is still out leaves a lease that is given back.
async fn an_abandoned_acquire_leaves_no_orphan(cx: Context) -> Checked {
    for fault in [Fault::ReplyNever, Fault::ReplyLate(cx.ttl() / 8)] {
        let (faults, name) = (cx.faults().await, cx.name("abandons"));
        faults.next(Operation::Acquire, fault);
        let settings = Settings { ttl: cx.long_ttl(), ..cx.settings() };
        let store = faults.store();
        let lease = cx.lease(&store, &name, "a").settings(settings);
        tokio::select! {
            tenure = lease.acquire() => {
                return Err(failed(format!("answered too early: {tenure:?}")));
            }
            () = faults.counts().reached(Operation::Acquire, 1) => {}
        }
        // It was applied: there is a record. It may be given back already.
        let client = cx.client().await;
        client.record(&name).await?;
        client.released(&cx, &name).await?;
    }
    Ok(())
}

/// A renewal whose answer was lost, or that never arrived, in any order, is repeated; the holder is
/// the holder still.
async fn a_lost_reply_to_renew_deposes_nobody(cx: Context) -> Checked {
    let scripts: [&[Fault]; 3] = [
        &[Fault::ReplyLost],
        &[Fault::Unsent, Fault::ReplyLost],
        &[Fault::ReplyLost, Fault::Unsent],
    ];
    let brisk = brisk(&cx);
    for script in scripts {
        let (faults, name) = (cx.faults().await, cx.name("unanswered"));
        for fault in script {
            faults.next(Operation::Renew, fault.clone());
        }
        let lease = cx.lease(&faults.store(), &name, "a").settings(brisk.clone());
        let tenure = lease.acquire().await?;
        let at_first = tenure.deadline();
        let sent = faults.counts().reached_sent(Operation::Renew, script.len() as u64 + 2);
        holds(&tenure, within(cx.ttl() + cx.slack(), "renewals", sent)).await??;
        let confirmed = async {
            while tenure.deadline() <= at_first {
                sleep_until(Moment::now() + Duration::from_millis(10)).await;
            }
        };
        holds(&tenure, confirmed).await?;
        let record = cx.client().await.record(&name).await?;
        ensure!(record.is_of(tenure.claim()) && record.token == tenure.token(), "it is {record:?}");
    }
    Ok(())
}

/// A release whose answer was lost is repeated until there is one; then the lease is free.
async fn a_lost_reply_to_release_frees(cx: Context) -> Checked {
    for fault in [Fault::ReplyLost, Fault::Unsent, Fault::ReplyNever] {
        let (faults, name) = (cx.faults().await, cx.name("unanswered"));
        faults.next(Operation::Release, fault.clone());
        let tenure = cx.lease(&faults.store(), &name, "a").acquire().await?;
        let begun = Moment::now();
        // Not only because the lease has run out.
        let limit = tenure.time_to_stop() * 3 / 4;
        within(limit, &format!("{fault:?}: given back"), tenure.release()).await?;
        twice(&cx, &fault, begun, faults.counts().sent(Operation::Release))?;
        cx.client().await.win(cx.request(&name, "b")).await?;
    }
    Ok(())
}

/// A claim whose answer never came is not taken for another one of the same owner.
async fn a_read_back_goes_by_the_claim(cx: Context) -> Checked {
    let (faults, client, name) = (cx.faults().await, cx.client().await, cx.name("same-owner"));
    let mut held = client.win(Acquire { ttl: cx.long_ttl(), ..cx.request(&name, "a") }).await?;
    faults.next(Operation::Acquire, Fault::Unsent);
    let lease = cx.lease(&faults.store(), &name, "a");
    let (freed, won) = tokio::join!(
        async {
            within(cx.slack(), "looked", faults.counts().reached(Operation::Acquire, 1)).await?;
            // A keeper that took it for its own would have said so by now.
            sleep_until(Moment::now() + cx.ttl() / 4).await;
            client.prolong(&mut held).await?;
            let freed = Moment::now();
            client.give_back(&held).await.map(|()| freed)
        },
        async { (lease.acquire().await, Moment::now()) }
    );
    let ((tenure, won_at), freed) = (won, freed?);
    let tenure = tenure?;
    ensure!(won_at >= freed, "it took another claim of its owner for its own");
    ensure!(tenure.claim() != held.claim && tenure.token() > held.token, "it is {tenure:?}");
    Ok(())
}

/// A request that the network delivered twice is one request, whichever answer comes back.
async fn a_repeated_request_counts_once(cx: Context) -> Checked {
    let brisk = brisk(&cx);
    for answered in [Answered::First, Answered::Second] {
        let (faults, name) = (cx.faults().await, cx.name("repeated"));
        for operation in [Operation::Acquire, Operation::Renew, Operation::Release] {
            faults.next(operation, Fault::Twice(answered));
        }
        let lease = cx.lease(&faults.store(), &name, "a").settings(brisk.clone());
        let begun = Moment::now();
        let tenure = within(cx.frees_within(), "held", lease.acquire()).await??;
        let took = Moment::now().since(begun);
        ensure!(
            faults.counts().sent(Operation::Acquire) <= 2,
            "{answered:?}: {} attempts, {took:?}",
            faults.counts().sent(Operation::Acquire)
        );
        ensure!(took < cx.ttl(), "{answered:?}: it waited {took:?} for its own claim to expire");
        let renewed = faults.counts().reached_sent(Operation::Renew, 3);
        let renewed = within(cx.ttl() + cx.slack(), "three renewals", renewed);
        holds(&tenure, renewed).await.map_err(|stop| annotate(answered, stop))??;
        within(cx.slack(), "given back", tenure.release()).await?;
        cx.client().await.win(cx.request(&name, "b")).await?;
    }
    Ok(())
}

/// What arrives after its sender has given up on it changes nothing.
async fn a_late_request_harms_nobody(cx: Context) -> Checked {
    let (faults, client, name) = (cx.faults().await, cx.client().await, cx.name("overtaken"));
    let counts = faults.counts();
    faults.next(Operation::Acquire, Fault::Late(cx.ttl() * 3 / 10));
    let lease = cx.lease(&faults.store(), &name, "a").settings(brisk(&cx));
    let tenure = within(cx.frees_within(), "held", lease.acquire()).await??;
    let both = within(cx.slack(), "the late attempt", counts.reached(Operation::Acquire, 2));
    holds(&tenure, both).await??;
    faults.next(Operation::Renew, Fault::Late(cx.ttl() * 4 / 10));
    let renewed = counts.reached(Operation::Renew, counts.applied(Operation::Renew) + 6);
    holds(&tenure, within(cx.ttl() * 2 + cx.slack(), "renewals", renewed)).await??;
    let record = client.record(&name).await?;
    ensure!(record.is_of(tenure.claim()) && record.token == tenure.token(), "it is {record:?}");
    drop(tenure);

    let (faults, name) = (cx.faults().await, cx.name("overtaken"));
    faults.next(Operation::Release, Fault::Late(cx.ttl() * 6 / 10));
    let tenure = cx.lease(&faults.store(), &name, "a").acquire().await?;
    within(cx.slack(), "given back", tenure.release()).await?;
    let request = Acquire { ttl: cx.long_ttl(), ..cx.request(&name, "b") };
    let mut successor = client.win(request).await?;
    let late = faults.counts().reached(Operation::Release, 2);
    within(cx.slack(), "the late release", late).await?;
    client.prolong(&mut successor).await
}

/// A yes that took long counts from when it was asked for: when nothing follows it, the belief ends
/// a margin and a stop budget before the store, or a watcher, can give the lease away.
async fn a_late_reply_prolongs_from_the_send(cx: Context) -> Checked {
    let ttl = cx.ttl();
    let settings = Settings {
        renew_interval: ttl / 10,
        operation_timeout: ttl * 65 / 100,
        stop_budget: ttl / 20,
        ..cx.settings()
    };
    settings.check().map_err(|error| failed(error.to_string()))?;
    let (faults, name) = (cx.faults().await, cx.name("late"));
    faults.next(Operation::Renew, Fault::ReplyLate(ttl * 4 / 10));
    let lease = cx.lease(&faults.store(), &name, "a").settings(settings.clone());
    let tenure = lease.acquire().await?;
    let acquired = tenure.deadline();
    faults.counts().reached(Operation::Renew, 1).await;
    let sent = faults.counts().sent_at(Operation::Renew);
    let latest = sent.ok_or_else(|| failed("nothing was sent"))? + cx.held_for(&settings);
    // From here on nothing is answered any more but that renewal.
    faults.outage(Some(Outage::Hangs));
    let (rival, other) = (cx.client().await, cx.request(&name, "b"));
    let (lost, next) = tokio::join!(lost(&cx, &tenure), rival.overtake(&cx, &other));
    let (_, lost_at, deadline) = lost?;
    ensure!(deadline > acquired, "the late renewal did not count at all");
    ensure!(deadline <= latest, "held until {deadline:?}, the send allows {latest:?}");
    let next = next?;
    ensure!(
        next.sent >= deadline && next.sent >= lost_at,
        "the next won at {:?}, and the belief ended at {lost_at:?}, deadline {deadline:?}",
        next.sent
    );
    Ok(())
}

/// Waits for the loss: why, when it came, and the last deadline before it.
pub(super) async fn lost(cx: &Context, tenure: &Tenure) -> Checked<(Loss, Moment, Moment)> {
    let mut deadline = tenure.deadline();
    let lost = async {
        let loss = tenure.lost();
        tokio::pin!(loss);
        loop {
            tokio::select! {
                loss = &mut loss => return (loss, Moment::now()),
                () = sleep_until(Moment::now() + cx.pause()) => {
                    // It is zero as soon as the tenure is over.
                    deadline = deadline.max(tenure.deadline());
                }
            }
        }
    };
    let (loss, lost_at) = within(cx.ttl() + cx.slack(), "lost", lost).await?;
    ensure!(!tenure.is_held(), "lost, and still held");
    Ok((loss, lost_at, deadline))
}

/// Renews often, so that some renewals may fail.
pub(super) fn brisk(cx: &Context) -> Settings {
    let ttl = cx.ttl();
    Settings {
        renew_interval: ttl / 10,
        operation_timeout: ttl / 4,
        stop_budget: ttl / 10,
        margin: ttl / 10,
        ..cx.settings()
    }
}

/// Waits for something, during which the tenure must not be lost.
pub(super) async fn holds<T>(tenure: &Tenure, until: impl Future<Output = T>) -> Checked<T> {
    tokio::select! {
        value = until => {
            ensure!(tenure.is_held(), "not held any more: {:?}", tenure.loss());
            Ok(value)
        }
        loss = tenure.lost() => Err(failed(format!("lost: {loss}"))),
    }
}

fn annotate(answered: Answered, stop: Stop) -> Stop {
    match stop {
        Stop::Failed(why) => failed(format!("{answered:?} answer: {why}")),
        other => other,
    }
}
