//! Waiting for a lease: woken when it can be, polling when it cannot, patient with what vanished.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::task::JoinSet;

use tenure_lease::backend::Acquire;
use tenure_lease::{Moment, Settings};

use super::context::{Checked, Context, Stop, failed, skipped, sleep_until, within};
use crate::faults::{Operation, Outage};
use crate::history::{Event, History};

checks![
    a_waiter_is_woken,
    a_waiter_polls_when_the_watch_is_dead,
    a_waiter_asks_seldom,
    a_vanished_record_is_waited_out,
    beliefs_never_overlap,
];

/// Where the store pushes, a waiter has a released lease long before it would have polled.
async fn a_waiter_is_woken(cx: Context) -> Checked {
    if !cx.info.pushes {
        return Err(skipped("the store cannot push; it is polled"));
    }
    let (client, faults, name) = (cx.client().await, cx.faults().await, cx.name("woken"));
    let request = Acquire { ttl: cx.long_ttl(), ..cx.request(&name, "a") };
    let held = client.win(request).await?;
    let settings = Settings::new(cx.long_ttl());
    let poll = settings.renew_interval.mul_f64(0.8);
    let lease = cx.lease(&faults.store(), &name, "b").settings(settings);
    let (freed, won) = tokio::join!(
        async {
            within(cx.slack(), "the watch stands", faults.counts().reached_wakes(1)).await?;
            // The wake-up makes it look once more; the next poll is counted from there.
            let looked = faults.counts().reached(Operation::Read, 1);
            within(cx.slack(), "looked again", looked).await?;
            let freed = Moment::now();
            client.give_back(&held).await?;
            Ok::<_, Stop>(freed)
        },
        async { (lease.acquire().await, Moment::now()) }
    );
    let (tenure, won_at) = won;
    let took = won_at.since(freed?);
    drop(tenure?);
    ensure!(took < poll / 2, "woken after {took:?}, polls every {poll:?}");
    cx.remark(format!("{:.1} ms from release to the next tenure", took.as_secs_f64() * 1e3));
    Ok(())
}

/// A watch that died without a word costs a poll, not the lease.
async fn a_waiter_polls_when_the_watch_is_dead(cx: Context) -> Checked {
    let (client, faults, name) = (cx.client().await, cx.faults().await, cx.name("unwoken"));
    faults.silence_watches(true);
    let request = Acquire { ttl: cx.long_ttl(), ..cx.request(&name, "a") };
    let held = client.win(request).await?;
    let lease = cx.lease(&faults.store(), &name, "b");
    let (freed, won) = tokio::join!(
        async {
            faults.counts().reached(Operation::Acquire, 1).await;
            let freed = Moment::now();
            client.give_back(&held).await.map(|()| freed)
        },
        async { (lease.acquire().await, Moment::now()) }
    );
    let (tenure, won_at) = won;
    let (took, poll) = (won_at.since(freed?), cx.settings().renew_interval.mul_f64(1.2));
    drop(tenure?);
    let limit = poll + cx.slack().min(cx.long_ttl() / 2);
    ensure!(took <= limit, "noticed after {took:?}, polls every {poll:?}");
    ensure!(faults.counts().wakes() == 0, "the watch was not silent");
    cx.remark(format!("{:.0} ms from release to the next tenure", took.as_secs_f64() * 1e3));
    Ok(())
}

/// A waiter costs a few requests per ttl, whatever the holder and the watch do.
async fn a_waiter_asks_seldom(cx: Context) -> Checked {
    let (store, faults, name) = (cx.factory.open().await, cx.faults().await, cx.name("seldom"));
    let tenure = cx.lease(&store, &name, "a").acquire().await?;
    let lease = cx.lease(&faults.store(), &name, "b");
    let waiting = async {
        let begun = Moment::now();
        sleep_until(begun + cx.ttl() * 2).await;
        (faults.counts().sent_in_all(), Moment::now().since(begun))
    };
    let (asked, time) = tokio::select! {
        asked = waiting => asked,
        next = lease.acquire() => return Err(failed(format!("won what is held: {next:?}"))),
        loss = tenure.lost() => return Err(failed(format!("the holder lost it: {loss}"))),
    };
    let ttls = time.as_secs_f64() / cx.ttl().as_secs_f64();
    let per_ttl = asked as f64 / ttls;
    // A waiter that is not woken at renewals looks at an interval of its own.
    let settings = cx.settings();
    let looks = settings.ttl.as_secs_f64() / settings.look_interval().as_secs_f64();
    let most = if cx.info.pushes_renewals { ASKS_PER_TTL } else { looks * 1.25 + 4.0 };
    let often = per_ttl > most;
    ensure!(!often, "{per_ttl:.1} requests per ttl");
    ensure!(asked > 0, "the waiter never asked");
    cx.remark(format!("{per_ttl:.1} requests per ttl"));
    Ok(())
}

/// A record that a waiter knew and that vanished says nothing about its holder, who may not have
/// noticed: it is waited out.
async fn a_vanished_record_is_waited_out(cx: Context) -> Checked {
    let (client, faults, name) = (cx.client().await, cx.faults().await, cx.name("vanished"));
    if cx.factory.delete(&name).is_none() {
        return Err(skipped("nobody can delete a record here"));
    }
    let held = client.win(cx.request(&name, "a")).await?;
    let lease = cx.lease(&faults.store(), &name, "b");
    let (deleted, won) = tokio::join!(
        async {
            faults.counts().reached(Operation::Acquire, 1).await;
            let deleted = Moment::now();
            cx.delete(&name).await.map(|()| deleted)
        },
        async { (lease.acquire().await, Moment::now()) }
    );
    let ((tenure, won_at), deleted) = (won, deleted?);
    let tenure = tenure?;
    let waited = won_at.since(deleted);
    ensure!(waited >= cx.ttl(), "taken {waited:?} after it vanished, with a ttl of {:?}", cx.ttl());
    let limit = cx.ttl() * 2 + cx.slack();
    ensure!(waited <= limit, "taken only {waited:?} after it vanished");
    ensure!(tenure.token() > held.token, "token {} after {}", tenure.token(), held.token);
    Ok(())
}

/// Several keepers that win, lose to outages, stop and release, for a few ttls: no two of them
/// believe at once, and tokens rise.
async fn beliefs_never_overlap(cx: Context) -> Checked {
    let name = cx.name("beliefs");
    let history = Arc::new(Mutex::new(History::default()));
    let end = Moment::now() + cx.ttl() * 3;
    let mut keepers = JoinSet::new();
    for process in 0..KEEPERS {
        let (cx, name, history) = (cx.clone(), name.clone(), Arc::clone(&history));
        keepers.spawn(async move {
            let note = |event| {
                let mut history = history.lock().unwrap_or_else(PoisonError::into_inner);
                history.push(Moment::now(), event);
            };
            let faults = cx.faults().await;
            let lease = cx.lease(&faults.store(), &name, &format!("keeper-{process}"));
            let mut round = process;
            while Moment::now() < end {
                let rest = end.since(Moment::now());
                let Ok(tenure) = tokio::time::timeout(rest, lease.acquire()).await else { break };
                let tenure = tenure?;
                let (lease, token) = (name.clone(), tenure.token());
                note(Event::Started { lease: lease.clone(), token, process });
                round += 1;
                if round % 4 == 0 {
                    faults.outage(Some(Outage::Hangs));
                    tenure.lost().await;
                } else {
                    sleep_until(Moment::now() + cx.pause()).await;
                }
                note(Event::Ended { lease, token, process });
                faults.outage(None);
                if round % 3 == 0 {
                    drop(tenure);
                } else {
                    within(cx.slack(), "given back", tenure.release()).await?;
                }
            }
            Ok::<(), Stop>(())
        });
    }
    for ended in keepers.join_all().await {
        ended?;
    }
    let history = std::mem::take(&mut *history.lock().unwrap_or_else(PoisonError::into_inner));
    let violations = history.violations();
    ensure!(violations.is_empty(), "{} violations, first: {}", violations.len(), violations[0]);
    ensure!(history.tenures() >= 3, "only {} tenures", history.tenures());
    cx.remark(format!("{} tenures of {KEEPERS} keepers", history.tenures()));
    Ok(())
}

const KEEPERS: u32 = 4;
/// Six wake-ups by renewals, looks in between, and something for jitter and the first look.
const ASKS_PER_TTL: f64 = 16.0;
