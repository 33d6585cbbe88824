//! The server, what operators do to it, and what becomes of it.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use tenure_lease::{LeaseName, Moment, Nonce, Settings, Store};
use tokio_postgres::{Client, NoTls};

pub(crate) use tenure_testkit::conformance::block_on;

use super::server::Turn;

/// A schema of its own on the server.
pub(crate) struct Server {
    base: String,
    pub(crate) schema: String,
}

/// The server that the environment names, to be used beside others; else says why the test is
/// skipped. The turn comes first, so that it ends last: the schema has to be dropped.
pub(crate) fn server() -> Option<(Turn, Server)> {
    found(Turn::beside)
}

/// The same, and the right to stop it.
pub(crate) fn server_alone() -> Option<(Turn, Server)> {
    found(Turn::alone)
}

fn found(turn: fn() -> Turn) -> Option<(Turn, Server)> {
    let (base, turn) = (variable("POSTGRES")?, turn());
    let schema = format!("test_{:016x}", Nonce::random().bits() as u64);
    let server = Server { base, schema };
    block_on(async {
        let client = connect(&server.base).await;
        client.batch_execute(&format!("CREATE SCHEMA {}", server.schema)).await.unwrap();
    });
    Some((turn, server))
}

/// Another address.
pub(crate) fn variable(name: &str) -> Option<String> {
    let name = format!("TENURE_TEST_{name}");
    let value = std::env::var(&name).ok();
    if value.is_none() {
        eprintln!(
            "skipped: {name} is not set. Run the tests by: scripts/servers run --only \
             postgres,pgbouncer -- cargo test -p tenure-stores --features postgres"
        );
    }
    value
}

impl Server {
    /// The store's URL, with further options.
    pub(crate) fn url(&self, options: &str) -> String {
        self.url_at(&self.base, options)
    }

    pub(crate) fn url_at(&self, base: &str, options: &str) -> String {
        format!("{base}?schema={}&{options}", self.schema)
    }

    /// The server's URL, without a schema.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    /// HOST:PORT.
    pub(crate) fn place(&self) -> String {
        let place = self.base.split('@').next_back().unwrap();
        place.split('/').next().unwrap().to_owned()
    }

    pub(crate) async fn store(&self) -> Store {
        tenure_stores::open(&self.url("")).await.unwrap()
    }

    /// The same store at another HOST:PORT.
    pub(crate) async fn store_at(&self, address: String, options: &str) -> Store {
        let base = self.base.replace(&self.place(), &address);
        tenure_stores::open(&self.url_at(&base, options)).await.unwrap()
    }

    pub(crate) async fn create_tables(&self) {
        let lease = self.store().await.lease("creates-tables");
        lease.acquire().await.unwrap().release().await;
    }

    /// A connection whose search path is our schema.
    pub(crate) async fn client(&self) -> Client {
        let client = connect(&self.base).await;
        client.batch_execute(&format!("SET search_path TO {}", self.schema)).await.unwrap();
        client
    }

    pub(crate) async fn execute(&self, statement: &str) {
        self.client().await.batch_execute(statement).await.unwrap();
    }

    /// What an operator types into psql.
    pub(crate) fn psql(&self, statement: &str) {
        let statement = format!("SET search_path TO {}; {statement}", self.schema);
        let output = run(program("psql")
            .args(["-XqAt", "-v", "ON_ERROR_STOP=1", "-c"])
            .args([&statement, &self.base]));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    pub(crate) fn can_be_controlled(&self) -> bool {
        std::env::var("TENURE_TEST_SERVERS_SCRIPT").is_ok()
    }

    /// Says why a test is skipped that needs to stop the server.
    pub(crate) fn must_be_controlled(&self) -> bool {
        let can = self.can_be_controlled();
        if !can {
            eprintln!("skipped: only a server that scripts/servers started can be stopped");
        }
        can
    }

    /// pause, resume, kill or restart.
    pub(crate) async fn control(&self, what: &str) {
        tokio::task::block_in_place(|| self.control_now(what));
    }

    pub(crate) fn control_now(&self, what: &str) {
        let script = std::env::var("TENURE_TEST_SERVERS_SCRIPT").unwrap();
        let output = run(Command::new(script).args([what, "postgres"]));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let drop = format!("DROP SCHEMA {} CASCADE", self.schema);
        let _ = run(program("psql").args(["-Xq", "-c", &drop, &self.base]));
    }
}

pub(crate) async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// A program of the server's package.
pub(crate) fn program(name: &str) -> Command {
    let mut newest: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .map(|versions| versions.filter_map(|v| Some(v.ok()?.path().join("bin"))).collect())
        .unwrap_or_default();
    newest.sort();
    match newest.pop().map(|folder| folder.join(name)) {
        Some(path) if path.exists() => Command::new(path),
        _ => Command::new(name),
    }
}

pub(crate) fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

pub(crate) fn name(stem: &str) -> LeaseName {
    let name = format!("{stem}-{:016x}", Nonce::random().bits() as u64);
    LeaseName::new(&name).unwrap()
}

pub(crate) fn settings(ttl: Duration) -> Settings {
    Settings::new(ttl)
}

/// Fails if the future takes longer; how long it took.
pub(crate) async fn within<T>(limit: Duration, what: &str, future: impl Future<Output = T>) -> T {
    let begun = Moment::now();
    match tokio::time::timeout(limit, future).await {
        Ok(value) => {
            eprintln!("{what}: {:.3} s", Moment::now().since(begun).as_secs_f64());
            value
        }
        Err(_) => panic!("{what}: not within {limit:?}"),
    }
}
