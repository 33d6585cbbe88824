//! A process that is told to end hands over first. Signals are the whole process's, so this is one test.
#![cfg(unix)]
#![allow(unsafe_code, clippy::disallowed_methods, reason = "a real signal, in real time")]

use std::time::Duration;

use tenure_lease::signals::terminated;
use tenure_lease::{LeaseError, MemoryStore, Store};
use tokio::time::{sleep, timeout};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn told_to_end_it_gives_the_lease_back() {
    let store = Store::new(MemoryStore::new());
    let lease = store.lease("job").ttl(Duration::from_secs(60));
    let early = tokio::spawn(terminated());
    let holder = tokio::spawn({
        let lease = lease.clone();
        async move {
            let work = async |_: &tenure_lease::Tenure| {
                sleep(Duration::from_secs(600)).await;
                Ok::<_, LeaseError>(())
            };
            lease.run_until(terminated(), work).await
        }
    });
    while store.inspect("job").await.unwrap().is_none() {
        sleep(Duration::from_millis(5)).await;
    }
    let next = tokio::spawn(async move { lease.acquire().await.map(|tenure| tenure.token()) });
    sleep(Duration::from_millis(50)).await;
    assert!(!early.is_finished() && !holder.is_finished() && !next.is_finished());
    // SAFETY: takes two numbers; the process is this one, which catches the signal.
    unsafe { libc::kill(libc::getpid(), libc::SIGTERM) };
    let soon = Duration::from_secs(20);
    assert!(timeout(soon, holder).await.unwrap().unwrap().unwrap().is_none(), "it was stopped");
    timeout(soon, next).await.expect("long before the ttl is over").unwrap().unwrap();
    timeout(soon, early).await.unwrap().unwrap();
    timeout(soon, terminated()).await.expect("a signal that has come stays come");
}
