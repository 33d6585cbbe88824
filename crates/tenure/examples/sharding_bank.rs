//! A bank: an account for each key, each in one place, with its balance in SQLite behind a fence.
//!
//! Two nodes in one process. An account is used, its node leaves, and the account goes on at the other.
//! What the first one had in its hands, a *zombie*, tries to write once more: it is refused.
//!
//! ```sh
//! cargo run -p tenure --features sharding,sqlite --example sharding_bank
//! ```
#![allow(clippy::disallowed_methods)] // an example is its own driver

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};
use tenure::cluster::messaging::{Ask, Received};
use tenure::cluster::{Address, Cluster, Settings};
use tenure::fence::SqliteFence;
use tenure::sharding::{BoxError, Entity, Hosted, Sharding, Shardings as _};
use tenure::{KeptSession, MemoryStore, Store, Token};

#[derive(Serialize, Deserialize)]
enum Order {
    Deposit(i64),
    Balance,
}

struct Balance;

impl Ask for Balance {
    type Reply = (i64, Token);
}

impl From<Balance> for Order {
    fn from(_: Balance) -> Self {
        Self::Balance
    }
}

struct Account {
    path: PathBuf,
    open: Option<Open>,
    /// Where this example keeps the last way to the database that an account had.
    last: Arc<Mutex<Option<SqliteFence>>>,
}

struct Open {
    database: Connection,
    fence: SqliteFence,
    balance: i64,
}

impl Entity for Account {
    type Message = Order;

    /// Raises the account's fence before it reads: whoever had it before can write no more.
    async fn started(&mut self, hosted: &Hosted) -> Result<(), BoxError> {
        let mut database = database(&self.path)?;
        let resource = format!("account/{}", hosted.id());
        let fence = SqliteFence::raise_token(hosted.token(), &mut database, &resource)?;
        let select = "SELECT coalesce(sum(amount), 0) FROM lines WHERE account = ?1";
        let balance = database.query_row(select, [hosted.id()], |row| row.get(0))?;
        *self.last.lock().unwrap_or_else(|it| it.into_inner()) = Some(fence.clone());
        self.open = Some(Open { database, fence, balance });
        Ok(())
    }

    async fn receive(&mut self, order: Received<Order>, hosted: &Hosted) -> Result<(), BoxError> {
        let Open { database, fence, balance } = self.open.as_mut().ok_or("it is open")?;
        match order.message {
            Order::Deposit(amount) => {
                deposit(fence, database, hosted.id(), amount)?;
                *balance += amount;
            }
            Order::Balance => {
                order.reply.answer::<Balance>((*balance, hosted.token())).await?;
            }
        }
        Ok(())
    }
}

fn deposit(
    fence: &SqliteFence,
    database: &mut Connection,
    account: &str,
    amount: i64,
) -> Result<(), BoxError> {
    let transaction = fence.begin(database)?; // Refused once a newer host has raised it.
    transaction.execute("INSERT INTO lines VALUES (?1, ?2)", params![account, amount])?;
    Ok(transaction.commit()?)
}

fn database(path: &Path) -> Result<Connection, BoxError> {
    let database = Connection::open(path)?;
    database.busy_timeout(Duration::from_secs(5))?;
    database.execute_batch("CREATE TABLE IF NOT EXISTS lines (account TEXT, amount INTEGER)")?;
    Ok(database)
}

/// A node that hosts accounts.
async fn node(
    store: &Store,
    name: &str,
    accounts: impl Fn() -> Account + Send + Sync + 'static,
) -> Result<(Cluster, Sharding<Order>, KeptSession), BoxError> {
    let free = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let mut settings = Settings::new("bank")
        .name(name)
        .address(Address::new(&free.to_string())?)
        .formation(store.lease("bank.formation"));
    settings.plaintext_without_any_protection = true; // On loopback, to try it out.
    let cluster = Cluster::join(settings).await?;
    let session = store.lease(&format!("bank-{name}")).kept_session()?;
    let kind = cluster.sharding("account").shards(20);
    let kind = kind.lease(store.lease("bank.accounts")).session(&session);
    let accounts = kind.start(move |_| accounts())?;
    Ok((cluster, accounts, session))
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let path = std::env::temp_dir().join(format!("bank-{}.db", std::process::id()));
    let store = Store::new(MemoryStore::new());
    let last = Arc::<Mutex<Option<SqliteFence>>>::default();
    let (made_path, made_last) = (path.clone(), last.clone());
    let make = move || Account { path: made_path.clone(), open: None, last: made_last.clone() };
    let (first, accounts, _session) = node(&store, "first", make.clone()).await?;
    let anna = accounts.entity("anna");
    anna.tell(Order::Deposit(100)).await?;
    let (balance, token) = anna.ask(Balance).within(PATIENCE).await?;
    println!("anna has {balance} at {}, under token {token}", first.me());
    let zombie = last.lock().unwrap_or_else(|it| it.into_inner()).clone().ok_or("it was opened")?;

    let (second, accounts, _session) = node(&store, "second", make).await?;
    first.leave().await;
    let anna = accounts.entity("anna");
    anna.tell(Order::Deposit(20)).await?;
    let (balance, token) = anna.ask(Balance).within(PATIENCE).await?;
    println!("anna has {balance} at {}, under token {token}", second.me());

    let late = deposit(&zombie, &mut database(&path)?, "anna", 1_000_000);
    match &late {
        Err(why) => println!("the first node tries to write once more, and is {why}"),
        Ok(()) => println!("what the first node wrote was taken: this must not happen"),
    }
    second.leave().await;
    std::fs::remove_file(&path)?;
    if balance == 120 && late.is_err() { Ok(()) } else { Err("the books are wrong".into()) }
}

const PATIENCE: Duration = Duration::from_secs(30);
