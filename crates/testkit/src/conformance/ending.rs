//! However a tenure ends, the lease is given back; and never before what it guarded has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Notify, oneshot};

use tenure_lease::{Lease, LeaseError, LeaseName, Moment, Settings, Tenure};

use super::context::{Checked, Context, Stop, failed, sleep_until, within};
use crate::faults::{Faults, Operation};

checks![
    a_dropped_tenure_is_given_back,
    a_panicking_task_gives_back,
    a_runtime_that_ends_gives_back,
    work_stops_before_the_release,
    work_that_overruns_is_dropped,
];

/// Dropping a tenure gives the lease back.
async fn a_dropped_tenure_is_given_back(cx: Context) -> Checked {
    let (lease, name, _) = lease(&cx, "dropped").await;
    let tenure = lease.acquire().await?;
    drop(tenure);
    freed(&cx, &name).await
}

/// A panic that unwinds through a tenure gives the lease back.
async fn a_panicking_task_gives_back(cx: Context) -> Checked {
    let (lease, name, _) = lease(&cx, "panics").await;
    let task = tokio::spawn(async move {
        let _tenure = lease.acquire().await?;
        // Without the hook, which would print it: this one is meant.
        std::panic::resume_unwind(Box::new("meant"));
        #[allow(unreachable_code)]
        Ok::<(), LeaseError>(())
    });
    match task.await {
        Err(error) if error.is_panic() => {}
        Err(error) => return Err(failed(error.to_string())),
        Ok(ended) => return Err(failed(format!("it did not panic: {ended:?}"))),
    }
    freed(&cx, &name).await
}

/// A runtime that drops its tasks gives the lease back.
async fn a_runtime_that_ends_gives_back(cx: Context) -> Checked {
    let (lease, name, _) = lease(&cx, "runtime").await;
    let (sender, ended) = oneshot::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("the operating system has room for one more runtime");
        let tenure = runtime.block_on(lease.acquire());
        let held = tenure.is_ok();
        runtime.spawn(async move {
            let _tenure = tenure;
            std::future::pending::<()>().await;
        });
        drop(runtime);
        // Who waits for it may have failed.
        let _ = sender.send(held);
    });
    let held = within(cx.slack(), "the runtime ends", ended).await?;
    ensure!(held == Ok(true), "the lease was not acquired");
    freed(&cx, &name).await
}

/// `run` releases only when its work has ended.
async fn work_stops_before_the_release(cx: Context) -> Checked {
    let (lease, name, faults) = lease(&cx, "stops").await;
    let seen = faults.clone();
    let work = lease.run(async move |_: &Tenure| {
        let counts = seen.counts();
        // Long enough for anything that would release too early.
        counts.reached(Operation::Renew, 2).await;
        Ok::<_, LeaseError>((counts.sent(Operation::Release), Moment::now()))
    });
    let (early, ended_at) = within(cx.long_ttl() + cx.slack(), "the work", work).await??;
    ensure!(early == 0, "released {early} times while the work went on");
    let sent_at = faults.counts().sent_at(Operation::Release);
    ensure!(sent_at.is_some_and(|at| at >= ended_at), "released {sent_at:?}, ended {ended_at:?}");
    freed(&cx, &name).await
}

/// Work that does not end when its lease is lost is dropped within its budget; then `run` contends
/// again.
async fn work_that_overruns_is_dropped(cx: Context) -> Checked {
    let (faults, name) = (cx.faults().await, cx.name("overruns"));
    let lease = cx.lease(&faults.store(), &name, "a");
    let thief = cx.client().await;
    let dropped = Arc::new(AtomicU64::new(0));
    let began = Arc::new(Notify::new());
    let work = {
        let (dropped, began) = (Arc::clone(&dropped), Arc::clone(&began));
        let mut rounds = 0;
        lease.run(async move |tenure: &Tenure| {
            rounds += 1;
            if rounds == 2 {
                return Ok::<_, LeaseError>(tenure.token());
            }
            let _dropped = Dropped(Arc::clone(&dropped));
            began.notify_one();
            std::future::pending().await
        })
    };
    let theft = async {
        began.notified().await;
        let held = thief.steal(&cx.request(&name, "thief")).await?;
        let at = Moment::now();
        sleep_until(at + cx.ttl() / 2).await;
        thief.give_back(&held).await?;
        Ok::<_, Stop>((held.token, at))
    };
    let both = async { tokio::join!(work, theft) };
    let (token, theft) = within(cx.frees_within() * 2, "a second tenure", both).await?;
    let ((stolen, stolen_at), token) = (theft?, token?);
    ensure!(token > stolen, "token {token} after {stolen}");
    let dropped_at = Moment::from_nanos(dropped.load(Ordering::Relaxed));
    ensure!(dropped_at != Moment::ZERO, "the work was never dropped");
    // What was confirmed last was confirmed before the theft.
    let latest = stolen_at + cx.settings().kill_after() + cx.slack() / 4;
    ensure!(dropped_at <= latest, "dropped {:?} after the theft", dropped_at.since(stolen_at));
    Ok(())
}

/// Says when it was dropped.
struct Dropped(Arc<AtomicU64>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(Moment::now().as_nanos(), Ordering::Relaxed);
    }
}

/// A lease that does not end by time within the check, so that only a release frees it.
async fn lease(cx: &Context, stem: &str) -> (Lease, LeaseName, Faults) {
    let (faults, name) = (cx.faults().await, cx.name(stem));
    let settings = Settings { ttl: cx.long_ttl(), ..cx.settings() };
    (cx.lease(&faults.store(), &name, "a").settings(settings), name, faults)
}

/// Nobody holds it, and the next one has it at once.
async fn freed(cx: &Context, name: &LeaseName) -> Checked {
    let client = cx.client().await;
    client.released(cx, name).await?;
    client.win(cx.request(name, "next")).await?;
    Ok(())
}
