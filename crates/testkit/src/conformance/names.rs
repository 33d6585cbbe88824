//! Names of leases and owners come through as they are, and never into each other's way.

use tenure_lease::LeaseName;

use super::context::{Checked, Context, failed};

checks![names_do_not_collide, owners_come_back_whole];

/// Names that look alike are different leases; the longest name works.
async fn names_do_not_collide(cx: Context) -> Checked {
    let client = cx.client().await;
    let stem = cx.name("alike").to_string();
    let longest = format!("{stem}.{}", "x".repeat(252 - stem.len()));
    let alike = [
        stem.clone(),
        format!("{stem}.a"),
        format!("{stem}-a"),
        format!("{stem}a"),
        format!("{stem}.a.b"),
        format!("{stem}.a-b"),
        format!("{}y", &longest[..252]),
        longest,
    ];
    let mut held = Vec::new();
    for name in &alike {
        let name = LeaseName::new(name).map_err(|error| failed(error.to_string()))?;
        held.push(client.win(cx.request(&name, "a")).await?);
    }
    for held in &held {
        let record = client.record(&held.name).await?;
        ensure!(record.is_of(held.claim), "{} is {record:?}", held.name);
    }
    Ok(())
}

/// Whatever an owner is called, people read the same name again.
async fn owners_come_back_whole(cx: Context) -> Checked {
    let client = cx.client().await;
    let long = "o".repeat(200);
    let odd =
        ["pod-1", "pod#1#2", "pod/1 of \"2\"", "it's; -- 100%", "Bäckerei 🥐", "a\\b{c}", &long];
    for owner in odd {
        let name = cx.name("owner");
        let request = cx.request(&name, owner);
        let expected = request.owner.clone();
        client.win(request).await?;
        let record = client.record(&name).await?;
        ensure!(record.owner() == Some(&expected), "{expected:?} became {:?}", record.owner());
    }
    Ok(())
}
