//! A read shows the records as they are now, all of them, in the order of the names.

use tenure_lease::LeaseName;
use tenure_lease::backend::Acquire;

use super::context::{Checked, Context};

checks![reads_are_in_order, reads_of_many_are_whole, reads_change_nothing, reads_are_fresh];

/// Records come in the order of the names, absent ones as none, repeated ones repeatedly.
async fn reads_are_in_order(cx: Context) -> Checked {
    let client = cx.client().await;
    let (a, b, c, absent) =
        (cx.name("read-a"), cx.name("read-b"), cx.name("read-c"), cx.name("read-0"));
    let mut claims = Vec::new();
    for name in [&b, &a, &c] {
        claims.push((name.clone(), client.win(cx.request(name, "a")).await?.claim));
    }
    let names = [&c, &absent, &a, &c, &b, &absent].map(Clone::clone).to_vec();
    let records = client.read_all(&names).await?;
    ensure!(records.len() == names.len(), "{} records, asked for {}", records.len(), names.len());
    for (name, record) in names.iter().zip(records) {
        let claim = claims.iter().find(|(other, _)| other == name).map(|(_, claim)| *claim);
        let found = record.and_then(|record| record.holder?.claim);
        ensure!(found == claim, "{name} has claim {found:?}, should have {claim:?}");
    }
    let none = client.read_all(&[]).await?;
    ensure!(none.is_empty(), "asked for nothing, got {} records", none.len());
    Ok(())
}

/// Hundreds of names are one request.
async fn reads_of_many_are_whole(cx: Context) -> Checked {
    let client = cx.client().await;
    let names: Vec<LeaseName> = (0..MANY).map(|_| cx.name("read-many")).collect();
    let mut held = Vec::new();
    for name in names.iter().step_by(5) {
        let request = Acquire { ttl: cx.long_ttl(), ..cx.request(name, "a") };
        held.push(client.win(request).await?);
    }
    let records = client.read_all(&names).await?;
    ensure!(records.len() == MANY, "asked for {MANY}, got {}", records.len());
    for (index, record) in records.iter().enumerate() {
        match (index % 5, record) {
            (0, Some(record)) => {
                ensure!(record.is_of(held[index / 5].claim), "record {index} is {record:?}");
            }
            (0, None) => ensure!(false, "record {index} is missing"),
            (_, record) => ensure!(record.is_none(), "record {index} is not there: {record:?}"),
        }
    }
    for held in held {
        client.give_back(&held).await?;
    }
    Ok(())
}

/// Reading does not change the version, and so disturbs no one who watches.
async fn reads_change_nothing(cx: Context) -> Checked {
    let (client, name) = (cx.client().await, cx.name("read-only"));
    ensure!(client.read(&name).await?.is_none(), "a fresh name has a record");
    ensure!(client.read(&name).await?.is_none(), "a read created a record");
    client.win(cx.request(&name, "a")).await?;
    let first = client.record(&name).await?;
    let second = cx.client().await.record(&name).await?;
    ensure!(first.version == second.version, "a read changed the version");
    Ok(())
}

/// What one client was told is done, every other client reads.
async fn reads_are_fresh(cx: Context) -> Checked {
    let (writer, reader, name) = (cx.client().await, cx.client().await, cx.name("read-fresh"));
    ensure!(reader.read(&name).await?.is_none(), "a fresh name has a record");
    for _ in 0..10 {
        let mut held = writer.win(cx.request(&name, "a")).await?;
        let record = reader.read(&name).await?;
        ensure!(
            record.as_ref().is_some_and(|record| record.is_of(held.claim)),
            "won, and another client reads {record:?}"
        );
        writer.prolong(&mut held).await?;
        let nonce = reader.record(&name).await?.holder.and_then(|holder| holder.nonce);
        ensure!(nonce == Some(held.nonce), "renewed, and another client reads {nonce:?}");
        writer.give_back(&held).await?;
        let record = reader.record(&name).await?;
        ensure!(record.holder.is_none(), "released, and another client reads {record:?}");
    }
    Ok(())
}

const MANY: usize = 200;
