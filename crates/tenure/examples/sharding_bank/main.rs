//! A bank: an account for each key, each in one place, with its balance in a database behind a fence.
//!
//! Two nodes in one process. An account is used, its node leaves, and the account goes on at the other.
//! What the first one had in its hands, a *zombie*, tries to write once more: it is refused.
//!
//! ```sh
//! cargo run -p tenure --features sharding,sqlite,postgres --example sharding_bank
//! cargo run -p tenure --features sharding,sqlite,postgres --example sharding_bank -- --postgres postgres://app@db/app
//! ```
#![allow(clippy::disallowed_methods)] // an example is its own driver

pub(crate) mod books;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::cluster::messaging::{Ask, Received};
use tenure::cluster::{Address, Cluster, Settings};
use tenure::sharding::{BoxError, Entity, Hosted, Sharding, Shardings as _};
use tenure::{KeptSession, MemoryStore, Store, Token};

use books::{Books, Line};

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

#[derive(Clone)]
struct Account {
    books: Books,
    open: Option<(Line, i64)>,
    /// Where this example keeps the last way to the database that an account had.
    last: Arc<Mutex<Option<Line>>>,
}

impl Entity for Account {
    type Message = Order;

    async fn started(&mut self, hosted: &Hosted) -> Result<(), BoxError> {
        let line = self.books.open(hosted.id(), hosted.token()).await?;
        *self.last.lock().unwrap_or_else(|it| it.into_inner()) = Some(line.clone());
        let balance = line.balance().await?;
        self.open = Some((line, balance));
        Ok(())
    }

    async fn receive(&mut self, order: Received<Order>, hosted: &Hosted) -> Result<(), BoxError> {
        let (line, balance) = self.open.as_mut().ok_or("it is open")?;
        match order.message {
            Order::Deposit(amount) => {
                line.deposit(amount).await?;
                *balance += amount;
            }
            Order::Balance => {
                order.reply.answer::<Balance>((*balance, hosted.token())).await?;
            }
        }
        Ok(())
    }
}

/// A node that hosts accounts.
async fn node(
    store: &Store,
    name: &str,
    account: Account,
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
    let accounts = kind.start(move |_| account.clone())?;
    Ok((cluster, accounts, session))
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    run(match arguments[..] {
        [] => Books::sqlite()?,
        ["--postgres", url] => Books::postgres(url).await?,
        _ => return Err("usage: sharding_bank [--postgres URL]".into()),
    })
    .await
}

pub(crate) async fn run(books: Books) -> Result<(), BoxError> {
    let store = Store::new(MemoryStore::new());
    let account = Account { books: books.clone(), open: None, last: Arc::default() };
    let (first, accounts, _session) = node(&store, "first", account.clone()).await?;
    let anna = accounts.entity("anna");
    anna.tell(Order::Deposit(100)).await?;
    let (balance, token) = anna.ask(Balance).within(PATIENCE).await?;
    println!("anna has {balance} at {}, under token {token}", first.me());
    let zombie = account.last.lock().unwrap_or_else(|it| it.into_inner()).clone();
    let zombie = zombie.ok_or("it was opened")?;

    let (second, accounts, _session) = node(&store, "second", account).await?;
    first.leave().await;
    let anna = accounts.entity("anna");
    anna.tell(Order::Deposit(20)).await?;
    let (balance, token) = anna.ask(Balance).within(PATIENCE).await?;
    println!("anna has {balance} at {}, under token {token}", second.me());

    let late = zombie.deposit(1_000_000).await;
    match &late {
        Err(why) => println!("the first node tries to write once more, and is {why}"),
        Ok(()) => println!("what the first node wrote was taken: this must not happen"),
    }
    let stands = zombie.balance().await?;
    second.leave().await;
    books.remove().await?;
    let refused = late.is_err_and(|why| why.to_string().starts_with("refused"));
    if balance == 120 && stands == 120 && refused {
        Ok(())
    } else {
        Err("the books are wrong".into())
    }
}

const PATIENCE: Duration = Duration::from_secs(30);
