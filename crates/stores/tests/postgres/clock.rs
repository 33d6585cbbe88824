//! The server's own clock is stepped by a minute, back and forth: nobody loses a lease to it,
//! nobody waits for it, and terms rise.

use std::path::PathBuf;
use std::time::Duration;

use tenure_lease::backend::{Acquire, Acquired};
use tenure_lease::{Moment, Nonce, Owner};

use super::own::OwnServer;
use super::support::{block_on, connect, name, server, settings, within};

#[test]
fn the_servers_clock_does_not_matter() {
    let Some((_turn, _server)) = server() else { return };
    let Some(server) = Stepped::start() else { return };
    block_on(async {
        let store = tenure_stores::open(&server.url).await.unwrap();
        let rival = tenure_stores::open(&server.url).await.unwrap();
        let (held, dead) = (name("held"), name("dead"));
        let lease = |store: &tenure_lease::Store, name: &tenure_lease::LeaseName| {
            store.lease(name.as_str()).settings(settings(TTL))
        };
        let tenure = lease(&store, &held).acquire().await.unwrap();
        let waiting = lease(&rival, &held);
        let waiting = waiting.acquire();
        tokio::pin!(waiting);
        let mut last = tenure.token().term;
        for (step, later) in [(60, -60), (0, 60), (-60, 0)] {
            server.step(step);
            let offset = server.offset().await;
            assert!((offset - f64::from(step)).abs() < 1.0, "{offset} s instead of {step} s");

            // A live holder is not robbed.
            let quiet = async {
                tokio::time::sleep(TTL * 2).await;
                assert!(tenure.is_held(), "lost: {:?}", tenure.loss());
            };
            tokio::select! {
                won = &mut waiting => panic!("stolen: {won:?}"),
                () = quiet => {}
            }

            // A dead one is not waited for longer than its ttl, wherever the clock goes meanwhile.
            let claim = Nonce::random();
            let request = request(&dead, claim);
            let begun = Moment::now();
            let won = store.backend().acquire(request).await.unwrap();
            let Acquired::Won { token, .. } = won else { panic!("{won:?}") };
            assert!(token.term > last, "term {} after {last}", token.term);
            server.step(later);
            let limit = TTL + Duration::from_secs(2);
            let next = within(limit, "taken over", lease(&rival, &dead).acquire()).await.unwrap();
            assert!(Moment::now() >= begun + TTL, "too early");
            last = next.token().term;
            next.release().await;

            // A deleted row comes back above its former term, also when the clock went back.
            let delete = format!("DELETE FROM tenure_leases WHERE name = '{dead}'");
            connect(&server.url).await.batch_execute(&delete).await.unwrap();
        }
        tenure.release().await;
        drop(within(TTL, "handed over", waiting).await.unwrap());
    });
}

fn request(name: &tenure_lease::LeaseName, claim: Nonce) -> Acquire {
    Acquire {
        name: name.clone(),
        claim,
        owner: Owner::named("dead"),
        ttl: TTL,
        session: None,
        note: None,
        create: true,
        takeover: None,
        expected: None,
        above: 0,
        unattended: false,
    }
}

/// A server of its own, whose clock reads an offset from a file.
struct Stepped {
    server: OwnServer,
    url: String,
}

impl Stepped {
    fn start() -> Option<Self> {
        let Some(library) = faketime() else {
            eprintln!("skipped: no libfaketime; apt-get install faketime");
            return None;
        };
        let server = OwnServer::new("clock", &["-A", "trust"]);
        let mut stepped = Self { url: server.url("postgres"), server };
        stepped.step(0);
        let offset = stepped.server.folder.join("offset");
        let environment = [
            format!("LD_PRELOAD={}", library.display()),
            format!("FAKETIME_TIMESTAMP_FILE={}", offset.display()),
            "FAKETIME_NO_CACHE=1".to_owned(),
            "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned(),
        ];
        stepped.server.start(&environment, &[]);
        Some(stepped)
    }

    fn step(&self, seconds: i32) {
        let new = self.server.folder.join("offset.new");
        std::fs::write(&new, format!("{seconds:+}")).unwrap();
        std::fs::rename(new, self.server.folder.join("offset")).unwrap();
    }

    /// The server's clock against ours, in seconds.
    async fn offset(&self) -> f64 {
        let client = connect(&self.url).await;
        let clock = "SELECT extract(epoch FROM clock_timestamp())::float8";
        let server: f64 = client.query_one(clock, &[]).await.unwrap().get(0);
        let ours = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        server - ours.as_secs_f64()
    }
}

fn faketime() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?;
    let mut found = folders.filter_map(|folder| {
        let library = folder.ok()?.path().join("faketime/libfaketime.so.1");
        library.exists().then_some(library)
    });
    found.next()
}

const TTL: Duration = Duration::from_secs(2);
