//! A watch wakes whoever waits. It is allowed to miss things; a store that says it pushes should
//! not miss them on a quiet day.

use std::time::Duration;

use tenure_lease::backend::{Acquire, Watch};
use tenure_lease::{LeaseName, Moment};

use super::context::{Checked, Client, Context, Held, failed, skipped, within};

checks![a_watch_says_when_it_stands, a_watch_wakes_on_release, a_watch_wakes_on_deletion];

/// It wakes once when it is established, because changes may have been missed before; and a store
/// watches if and only if it says so.
async fn a_watch_says_when_it_stands(cx: Context) -> Checked {
    let client = cx.client().await;
    let watch = client.backend.watch(&cx.name("watch"));
    ensure!(
        watch.is_some() == cx.info.pushes,
        "it says pushes: {}, and has a watch: {}",
        cx.info.pushes,
        watch.is_some()
    );
    let (client, held, _watch) = watched(&cx, "watch").await?;
    client.give_back(&held).await
}

/// It wakes when the lease is released.
async fn a_watch_wakes_on_release(cx: Context) -> Checked {
    let (client, held, mut watch) = watched(&cx, "watch-release").await?;
    let begun = Moment::now();
    client.give_back(&held).await?;
    woken_until(&cx, &client, &held.name, &mut *watch).await?;
    cx.remark(format!("after {:.1} ms", Moment::now().since(begun).as_secs_f64() * 1e3));
    Ok(())
}

/// It wakes when the record is deleted.
async fn a_watch_wakes_on_deletion(cx: Context) -> Checked {
    let (client, held, mut watch) = watched(&cx, "watch-delete").await?;
    cx.delete(&held.name).await?;
    woken_until(&cx, &client, &held.name, &mut *watch).await
}

/// A held lease and a watch on it that stands.
async fn watched(cx: &Context, stem: &str) -> Checked<(Client, Held, Box<dyn Watch>)> {
    if !cx.info.pushes {
        return Err(skipped("the store cannot push; it is polled"));
    }
    let (client, other) = (cx.client().await, cx.client().await);
    let request = Acquire { ttl: cx.long_ttl(), ..cx.request(&cx.name(stem), "a") };
    let held = client.win(request).await?;
    let mut watch = other
        .backend
        .watch(&held.name)
        .ok_or_else(|| failed("it says that it pushes, and has no watch"))?;
    within(cx.slack(), "the watch stands", watch.changed()).await?;
    // It may tell the acquisition, too.
    let _ = within(Duration::from_millis(50), "", watch.changed()).await;
    Ok((client, held, watch))
}

/// Wake-ups may come for nothing; one must come after which nobody holds the record.
async fn woken_until(
    cx: &Context,
    client: &Client,
    name: &LeaseName,
    watch: &mut dyn Watch,
) -> Checked {
    let woken = async {
        loop {
            watch.changed().await;
            let record = client.read(name).await?;
            if record.is_none_or(|record| record.holder.is_none()) {
                return Ok(());
            }
        }
    };
    within(cx.slack(), "woken", woken).await?
}
