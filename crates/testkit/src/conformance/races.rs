//! One of many: however many claims meet, exactly one of them wins.
//!
//! Dozens of names are raced for side by side, each by claims of several clients that start at
//! once. A claim that was not answered may have won, so it is the record that decides then.

use std::sync::Arc;

use tokio::sync::Barrier;
use tokio::task::JoinSet;

use tenure_lease::LeaseName;
use tenure_lease::backend::{Acquire, Acquired};
use tenure_lease::record::Expiry;

use super::context::{Checked, Client, Context, sleep_until};

checks![race_on_absent, race_on_released, race_on_expired, race_by_takeover];

/// Of many claims on an absent record exactly one wins.
async fn race_on_absent(cx: Context) -> Checked {
    let races = (0..RACES).map(|_| (cx.name("race-absent"), None)).collect();
    race(&cx, races).await
}

/// Of many claims on a released record exactly one wins.
async fn race_on_released(cx: Context) -> Checked {
    let client = cx.client().await;
    let mut races = Vec::new();
    for _ in 0..RACES {
        let name = cx.name("race-released");
        let held = client.win(cx.request(&name, "first")).await?;
        client.give_back(&held).await?;
        races.push((name, None));
    }
    race(&cx, races).await
}

/// Of many claims on a record whose time is over exactly one wins.
async fn race_on_expired(cx: Context) -> Checked {
    let client = cx.client().await;
    let mut races = Vec::new();
    let mut free_at = None;
    for _ in 0..RACES {
        let name = cx.name("race-expired");
        let held = client.win(cx.request(&name, "first")).await?;
        free_at = Some(held.sent + cx.ttl() * cx.info.frees_after_ttls);
        let record = client.record(&name).await?;
        let observed = record.expiry == Expiry::ByObservation;
        races.push((name, observed.then_some(record.version)));
    }
    if let Some(free_at) = free_at {
        // A store may be somewhat late; one that never frees fails another check.
        sleep_until(free_at + cx.slack() / 2).await;
    }
    race(&cx, races).await
}

/// Of many claims that name the current version exactly one takes the record over.
async fn race_by_takeover(cx: Context) -> Checked {
    let client = cx.client().await;
    let mut races = Vec::new();
    for _ in 0..RACES {
        let name = cx.name("race-takeover");
        let request = Acquire { ttl: cx.long_ttl(), ..cx.request(&name, "first") };
        client.win(request).await?;
        races.push((name.clone(), Some(client.record(&name).await?.version)));
    }
    race(&cx, races).await
}

type Race = (LeaseName, Option<tenure_lease::record::Version>);

async fn race(cx: &Context, races: Vec<Race>) -> Checked {
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(cx.client().await);
    }
    let mut unanswered = 0;
    for (name, takeover) in races {
        let request = Acquire { takeover, ttl: cx.long_ttl(), ..cx.request(&name, "racer") };
        unanswered += race_once(cx, &clients, &request).await?;
    }
    cx.remark(format!("{RACES} races of {CLAIMS}"));
    if unanswered > 0 {
        cx.remark(format!("{unanswered} claims were not answered"));
    }
    Ok(())
}

/// One race; how many claims were not answered.
async fn race_once(cx: &Context, clients: &[Client], request: &Acquire) -> Checked<usize> {
    let start = Arc::new(Barrier::new(CLAIMS));
    let mut racing = JoinSet::new();
    for index in 0..CLAIMS {
        let (client, start) = (clients[index % clients.len()].clone(), Arc::clone(&start));
        let claim = cx.request(&request.name, "racer").claim;
        let request = Acquire { claim, ..request.clone() };
        racing.spawn(async move {
            start.wait().await;
            (claim, client.backend.acquire(request).await)
        });
    }
    let (mut won, mut unanswered) = (Vec::new(), Vec::new());
    for (claim, answer) in racing.join_all().await {
        match answer {
            Ok(Acquired::Won { token, .. }) => won.push((claim, token)),
            Ok(Acquired::Lost(_)) => {}
            Err(_) => unanswered.push(claim),
        }
    }
    let name = &request.name;
    ensure!(won.len() <= 1, "{} claims won {name} at once: {won:?}", won.len());
    let record = clients[0].record(name).await?;
    match won.first() {
        Some((claim, token)) => ensure!(
            record.is_of(*claim) && record.token == *token,
            "{token} won {name}, and the record is {record:?}"
        ),
        None => ensure!(
            unanswered.iter().any(|claim| record.is_of(*claim)),
            "nobody won {name}: {record:?}"
        ),
    }
    Ok(unanswered.len())
}

const RACES: usize = 32;
const CLAIMS: usize = 8;
const CLIENTS: usize = 4;
