//! The PostgreSQL store against a real server, directly and behind PgBouncer.
//!
//! `scripts/servers run --only postgres,pgbouncer -- cargo test -p tenure-stores --features
//! postgres` starts both; without them the tests say so and pass.
#![cfg(feature = "postgres")]
#![allow(clippy::disallowed_methods)] // Real time, real servers.

#[path = "postgres/clock.rs"]
mod clock;
#[path = "postgres/connections.rs"]
mod connections;
#[path = "postgres/failover.rs"]
mod failover;
#[path = "postgres/faults.rs"]
mod faults;
#[path = "postgres/fence.rs"]
mod fence;
#[path = "postgres/fence_sql.rs"]
mod fence_sql;
#[path = "postgres/operator.rs"]
mod operator;
#[path = "postgres/own.rs"]
mod own;
mod port;
#[path = "postgres/races.rs"]
mod races;
#[path = "postgres/restore.rs"]
mod restore;
mod server;
mod stalling;
#[path = "postgres/support.rs"]
mod support;
#[path = "postgres/tls.rs"]
mod tls;

use std::net::TcpListener;
use std::time::Duration;

use tenure_lease::backend::Boxed;
use tenure_lease::{LeaseName, Store};
use tenure_testkit::conformance::{self, Factory};

use support::{Server, block_on, server_alone, variable};

#[test]
fn conforms() {
    let Some((_turn, server)) = server_alone() else { return };
    conformance::test(Conforming::new(server.url("connections=2"), server));
}

#[test]
fn conforms_behind_a_pooler_with_a_direct_listener() {
    let Some(pooled) = variable("PGBOUNCER") else { return };
    let Some((_turn, server)) = server_alone() else { return };
    let direct = server.place();
    let url = server.url_at(&pooled, &format!("connections=2&listen={direct}"));
    conformance::test(Conforming::new(url, server));
}

#[test]
fn conforms_behind_a_pooler_without_wake_ups() {
    let Some(pooled) = variable("PGBOUNCER") else { return };
    let Some((_turn, server)) = server_alone() else { return };
    let url = server.url_at(&pooled, "connections=2&listen=off");
    conformance::test(Conforming::new(url, server));
}

struct Conforming {
    url: String,
    server: Server,
    /// Accepts connections, and never says a word.
    mute: TcpListener,
}

impl Conforming {
    fn new(url: String, server: Server) -> Self {
        block_on(server.create_tables());
        let mute = TcpListener::bind("127.0.0.1:0").unwrap();
        Self { url, server, mute }
    }

    fn operate<'a>(&'a self, statement: String) -> Option<Boxed<'a, ()>> {
        Some(Box::pin(async move { self.server.execute(&statement).await }))
    }
}

impl Factory for Conforming {
    fn open(&self) -> Boxed<'_, Store> {
        Box::pin(async { tenure_stores::open(&self.url).await.unwrap() })
    }

    /// Long enough for the dozens of steps that some checks take within it on a busy machine.
    fn skips(&self) -> &'static [&'static str] {
        if self.url.contains("listen=off") { conformance::POLLED } else { &[] }
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(6)
    }

    fn delete<'a>(&'a self, name: &'a LeaseName) -> Option<Boxed<'a, ()>> {
        self.operate(format!("DELETE FROM tenure_leases WHERE name = '{name}'"))
    }

    fn seize<'a>(&'a self, name: &'a LeaseName, identity: &'a str) -> Option<Boxed<'a, ()>> {
        let change = format!("SET owner = '{identity}', term = term + 1");
        self.operate(format!("UPDATE tenure_leases {change} WHERE name = '{name}'"))
    }

    fn write_newer<'a>(&'a self, name: &'a LeaseName) -> Option<Boxed<'a, ()>> {
        self.operate(format!(
            "INSERT INTO tenure_leases (name, format, term, ttl_ms) VALUES ('{name}', 99, 7, 1000)"
        ))
    }

    fn open_unreachable(&self) -> Option<Boxed<'_, Store>> {
        let url = format!("postgres://nobody@{}/none", self.mute.local_addr().unwrap());
        Some(Box::pin(async move { tenure_stores::open(&url).await.unwrap() }))
    }

    fn restart(&self) -> Option<Boxed<'_, ()>> {
        self.server
            .can_be_controlled()
            .then(|| -> Boxed<'_, ()> { Box::pin(async { self.server.control("restart").await }) })
    }
}
