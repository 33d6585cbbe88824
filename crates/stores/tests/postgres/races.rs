//! Eight clients, fifty names: exactly one winner each.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Barrier;
use tokio::task::JoinSet;

use tenure_lease::backend::{Acquire, Acquired, Backend, Release, Released};
use tenure_lease::record::Version;
use tenure_lease::{LeaseName, Moment, Nonce, Owner};

use super::support::{Server, block_on, name, server_alone};

#[test]
fn one_winner_of_eight_on_absent_released_and_stale_records() {
    let Some((_turn, server)) = server_alone() else { return };
    block_on(async {
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(client(&server).await);
        }
        // The first of these also races for the creation of the tables.
        let absent: Vec<_> = (0..NAMES).map(|_| (name("absent"), None)).collect();
        race(&clients, absent).await;

        let mut released = Vec::new();
        for _ in 0..NAMES {
            let request = request(&name("released"), None);
            let (name, claim) = (request.name.clone(), request.claim);
            assert!(matches!(clients[0].acquire(request).await, Ok(Acquired::Won { .. })));
            let release = Release { name: name.clone(), claim, known: vec![claim] };
            assert_eq!(clients[0].release(release).await, Ok(Released::Yes));
            released.push((name, None));
        }
        race(&clients, released).await;

        let mut stale = Vec::new();
        for _ in 0..NAMES {
            let name = name("stale");
            let won = clients[0].acquire(request(&name, None)).await;
            assert!(matches!(won, Ok(Acquired::Won { .. })));
            let record = clients[0].read(vec![name.clone()]).await.unwrap().remove(0).unwrap();
            stale.push((name, Some(record.version)));
        }
        race(&clients, stale).await;
    });
}

/// A thousand records are one round trip.
#[test]
fn a_thousand_records_in_one_read() {
    let Some((_turn, server)) = server_alone() else { return };
    block_on(async {
        let client = client(&server).await;
        let names: Vec<_> = (0..1000).map(|_| name("many")).collect();
        for name in names.iter().step_by(2) {
            client.acquire(request(name, None)).await.unwrap();
        }
        let begun = Moment::now();
        let records = client.read(names).await.unwrap();
        eprintln!("1000 records in {:?}", Moment::now().since(begun));
        assert_eq!(records.len(), 1000);
        assert!(records.iter().enumerate().all(|(i, record)| record.is_some() == (i % 2 == 0)));
    });
}

async fn race(clients: &[Arc<dyn Backend>], names: Vec<(LeaseName, Option<Version>)>) {
    let start = Arc::new(Barrier::new(names.len() * clients.len()));
    let mut racing = JoinSet::new();
    for (index, (name, takeover)) in names.iter().enumerate() {
        for client in clients {
            let request = request(name, takeover.clone());
            let (client, start) = (Arc::clone(client), Arc::clone(&start));
            racing.spawn(async move {
                start.wait().await;
                (index, request.claim, client.acquire(request).await.unwrap())
            });
        }
    }
    let mut winners = vec![Vec::new(); names.len()];
    let mut losers = Vec::new();
    for (index, claim, answer) in racing.join_all().await {
        match answer {
            Acquired::Won { token, .. } => winners[index].push((claim, token)),
            Acquired::Lost(record) => losers.push((index, record)),
        }
    }
    for ((name, _), winners) in names.iter().zip(&winners) {
        assert_eq!(winners.len(), 1, "{name}: {winners:?}");
    }
    for (index, record) in losers {
        let record = record.expect("the record in the way is shown");
        assert!(record.is_of(winners[index][0].0), "a loser was shown {record:?}");
    }
}

async fn client(server: &Server) -> Arc<dyn Backend> {
    Arc::clone(server.store().await.backend())
}

fn request(name: &LeaseName, takeover: Option<Version>) -> Acquire {
    Acquire {
        name: name.clone(),
        claim: Nonce::random(),
        owner: Owner::named("racer"),
        ttl: Duration::from_secs(60),
        session: None,
        note: None,
        create: true,
        takeover,
        expected: None,
        above: 0,
        unattended: false,
    }
}

const CLIENTS: usize = 8;
const NAMES: usize = 50;
