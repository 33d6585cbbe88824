//! The recipes of docs/upgrading.md for changes of an application's own types: each is run here between
//! two real nodes, of which one has the version `before`, the other the version `after`.
#![cfg(all(feature = "singleton", feature = "sharding"))]
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

use std::fmt::Debug;
use std::net::TcpListener;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::cluster::messaging::{
    Ask, AskError, DeadLetter, Expects, Lost, Message, NotDone, Positional, Received, Unknown,
};
use tenure::cluster::{Address, Cluster, Settings, Status};
use tenure::sharding::{Entity, Hosted as Sharded, Shardings as _};
use tenure::singleton::{Actor, BoxError, Hosted, Singletons as _};
use tenure::{MemoryStore, Store};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

const LONG: Duration = Duration::from_secs(30);

/// A node of the version before, the older one, and a node of the version after.
struct Mixed {
    before: Cluster,
    after: Cluster,
}

impl Mixed {
    async fn new() -> Self {
        let store = Store::new(MemoryStore::default());
        let before = join(&store, 1).await;
        let after = join(&store, 2).await;
        Self { before, after }
    }

    /// From the node before to the one after.
    async fn forth<R: Message>(&self, message: impl Message) -> Result<R, String> {
        exchange(&self.before, &self.after, message).await
    }

    /// And the other way.
    async fn back<R: Message>(&self, message: impl Message) -> Result<R, String> {
        exchange(&self.after, &self.before, message).await
    }
}

async fn join(store: &Store, count: usize) -> Cluster {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap().to_string();
    drop(socket);
    let mut settings = Settings::new("shop")
        .name("node")
        .address(Address::new(&address).unwrap())
        .formation(store.lease("shop.formation").ttl(Duration::from_secs(3)));
    settings.plaintext_without_any_protection = true;
    let cluster = soon(Cluster::join(settings)).await.unwrap();
    let up = || cluster.view().members().filter(|it| it.1.status == Status::Up).count();
    soon(async {
        while up() < count {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    cluster
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(LONG, future).await.expect("within half a minute")
}

/// What a receiver on the other node reads, or what the sender is told.
async fn exchange<S: Message, R: Message>(
    from: &Cluster,
    to: &Cluster,
    message: S,
) -> Result<R, String> {
    let mut receiver = to.receiver::<R>("x").unwrap();
    let sender = from.to::<S>(&to.me(), "x");
    tokio::select! {
        sent = sender.send_expecting(message, Expects::Receipt, LONG) => match sent.unwrap_err() {
            AskError::NotDone(NotDone::Unreadable { receiver, detail }) => {
                assert_eq!(&*receiver, "x");
                let place = format!(" (on {})", to.me());
                Err(detail.strip_suffix(&place).expect("where it was").to_owned())
            }
            other => panic!("{other}"),
        },
        received = receiver.recv() => {
            let mut received = received.unwrap();
            received.reply.take_receipt().unwrap().handled();
            Ok(received.message)
        }
    }
}

fn read<T: Debug + PartialEq>(read: Result<T, String>, expected: T) {
    assert_eq!(read, Ok(expected));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn add_an_optional_field() {
    mod before {
        #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        pub(super) struct Cart {
            pub(super) sku: u64,
            pub(super) count: u32,
        }
    }
    mod after {
        #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        pub(super) struct Cart {
            pub(super) note: Option<String>,
            #[serde(default)]
            pub(super) gift: bool,
            // Their order does not matter.
            pub(super) count: u32,
            pub(super) sku: u64,
        }
    }
    let nodes = Mixed::new().await;
    let after = |note| after::Cart { sku: 7, count: 2, note, gift: false };
    read(nodes.forth(before::Cart { sku: 7, count: 2 }).await, after(None));
    read(nodes.back(after(Some("soon".into()))).await, before::Cart { sku: 7, count: 2 });
    // Inside of something else, too.
    read(nodes.forth(vec![Some(before::Cart { sku: 7, count: 2 })]).await, vec![Some(after(None))]);

    // A field that old senders do not know and that has no default is refused, not guessed.
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(rename = "Cart")]
    struct Strict {
        sku: u64,
        count: u32,
        price: u64,
    }
    let error = nodes.forth::<Strict>(before::Cart { sku: 7, count: 2 }).await.unwrap_err();
    assert_eq!(error, "missing field `price`");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn add_a_variant() {
    mod before {
        #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        pub(super) enum Order {
            Add { sku: u64 },
            Clear,
        }
    }
    mod after {
        #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        pub(super) enum Order {
            Remove { sku: u64 },
            // Has got a field.
            Clear { why: Option<String> },
            Add { sku: u64 },
        }
    }
    let nodes = Mixed::new().await;
    read(nodes.forth(before::Order::Add { sku: 7 }).await, after::Order::Add { sku: 7 });
    read(nodes.forth(before::Order::Clear).await, after::Order::Clear { why: None });
    read(nodes.back(after::Order::Add { sku: 7 }).await, before::Order::Add { sku: 7 });
    let clear = after::Order::Clear { why: Some("late".into()) };
    read(nodes.back(clear).await, before::Order::Clear);
    // So it is sent only after all nodes know it.
    let error = nodes.back::<before::Order>(after::Order::Remove { sku: 7 }).await.unwrap_err();
    assert_eq!(error, "unknown variant `Remove`, expected `Add` or `Clear`");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remove_a_field() {
    mod before {
        #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        pub(super) struct Cart {
            pub(super) sku: u64,
            // In one roll it got a default; in the next, it goes.
            #[serde(default)]
            pub(super) color: String,
        }
    }
    mod after {
        #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        pub(super) struct Cart {
            pub(super) sku: u64,
        }
    }
    let nodes = Mixed::new().await;
    let (red, none) = ("red".to_owned(), String::new());
    read(nodes.forth(before::Cart { sku: 7, color: red }).await, after::Cart { sku: 7 });
    read(nodes.back(after::Cart { sku: 7 }).await, before::Cart { sku: 7, color: none });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rename_a_field_or_a_type() {
    mod before {
        #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        pub(super) struct Cart {
            pub(super) price: u64,
        }
    }
    mod after {
        #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(rename = "Cart")]
        pub(super) struct Basket {
            #[serde(rename = "price")]
            pub(super) price_cents: u64,
        }
    }
    let nodes = Mixed::new().await;
    read(nodes.forth(before::Cart { price: 5 }).await, after::Basket { price_cents: 5 });
    read(nodes.back(after::Basket { price_cents: 5 }).await, before::Cart { price: 5 });

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Basket {
        price: u64,
    }
    let error = nodes.forth::<Basket>(before::Cart { price: 5 }).await.unwrap_err();
    assert_eq!(error, "sent Cart@1, expected Basket@1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_a_meaning() {
    mod before {
        #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        pub(super) struct Cart {
            pub(super) price: u64,
        }
        #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        pub(super) enum Order {
            Pay { euros: u64 },
        }
    }
    mod after {
        #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(rename = "Cart@2")]
        pub(super) struct Cart {
            pub(super) price: u64,
        }
        #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        pub(super) enum Order {
            Pay { euros: u64 },
            PayCents { cents: u64 },
        }
    }
    let nodes = Mixed::new().await;
    // In one roll: while versions are mixed, the messages between them are not done.
    let error = nodes.forth::<after::Cart>(before::Cart { price: 5 }).await.unwrap_err();
    assert_eq!(error, "sent Cart@1, expected Cart@2");
    let error = nodes.back::<before::Cart>(after::Cart { price: 500 }).await.unwrap_err();
    assert_eq!(error, "sent Cart@2, expected Cart@1");
    // What was told is a dead letter that says the same.
    let mut letters = nodes.after.dead_letters();
    let mut receiver = nodes.before.receiver::<before::Cart>("carts").unwrap();
    let to = nodes.before.me();
    nodes.after.to(&to, "carts").tell(after::Cart { price: 500 }).await.unwrap();
    nodes.before.to(&to, "carts").tell(before::Cart { price: 5 }).await.unwrap();
    let letter = tokio::select! {
        letter = soon(letters.next()) => letter.unwrap(),
        _ = async { while receiver.recv().await.is_some() {} } => unreachable!(),
    };
    let text = format!(
        "1 messages for carts on {to}: the receiver cannot read them: sent Cart@2, expected Cart@1"
    );
    assert_eq!(letter.to_string(), text);
    let detail = Some("sent Cart@2, expected Cart@1".into());
    let (receiver, why) = (Some("carts".into()), Lost::Unreadable);
    assert_eq!(letter, DeadLetter { to, receiver, id: None, count: 1, why, detail });

    // In two rolls, nothing is refused: a new variant, first read everywhere, then sent.
    let pay = || before::Order::Pay { euros: 5 };
    read(nodes.forth(pay()).await, after::Order::Pay { euros: 5 });
    read(nodes.back(after::Order::Pay { euros: 5 }).await, pay());
    let cents = || after::Order::PayCents { cents: 500 };
    read(exchange(&nodes.after, &nodes.after, cents()).await, cents());
}

/// A type of which serde does not say the name gets one, and with it a version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn give_a_version_to_a_type_without_a_name() {
    mod before {
        #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(untagged)]
        pub(super) enum Id {
            Number(u64),
            Text(String),
        }
    }
    mod after {
        #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(rename = "Id@2")]
        pub(super) struct Id(pub(super) Inner);
        #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(untagged)]
        pub(super) enum Inner {
            Number(u64),
            Text(String),
        }
    }
    let nodes = Mixed::new().await;
    let number = || before::Id::Number(7);
    read(nodes.forth(number()).await, number());
    let error = nodes.forth::<after::Id>(number()).await.unwrap_err();
    assert_eq!(error, "sent a type without a name, expected Id@2");
    let sent = after::Id(after::Inner::Number(7));
    let error = nodes.back::<before::Id>(sent).await.unwrap_err();
    assert_eq!(error, "sent Id@2, expected a type without a name");
    read(nodes.back(before::Id::Text("a".into())).await, before::Id::Text("a".into()));
    let text = || after::Id(after::Inner::Text("a".into()));
    read(exchange(&nodes.after, &nodes.after, text()).await, text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn use_the_positional_form() {
    mod before {
        #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        pub(super) struct Tick {
            pub(super) number: u64,
            pub(super) price: u64,
        }
    }
    mod after {
        #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(rename = "Tick@2")] // Another order.
        pub(super) struct Tick {
            pub(super) price: u64,
            pub(super) number: u64,
        }
    }
    let nodes = Mixed::new().await;
    let (old, new) = (
        || Positional(before::Tick { number: 1, price: 2 }),
        || Positional(after::Tick { number: 1, price: 2 }),
    );
    read(exchange(&nodes.before, &nodes.after, old()).await, old());
    read(exchange(&nodes.after, &nodes.before, new()).await, new());
    let error = nodes.forth::<Positional<after::Tick>>(old()).await.unwrap_err();
    assert_eq!(error, "sent Tick@1 in positional form, expected Tick@2 in positional form");
    let error = nodes.back::<Positional<before::Tick>>(new()).await.unwrap_err();
    assert_eq!(error, "sent Tick@2 in positional form, expected Tick@1 in positional form");
    // From one form to the other is a change like any other.
    let error = nodes.forth::<before::Tick>(old()).await.unwrap_err();
    assert_eq!(error, "sent Tick@1 in positional form, expected Tick@1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_a_reply() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Order {
        Total,
        TotalOf { currency: String },
    }
    mod before {
        #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        pub(super) struct Total {
            pub(super) euros: u64,
        }
    }
    mod after {
        #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        pub(super) struct Total {
            pub(super) euros: u64,
            pub(super) until: Option<u64>,
        }
        #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(rename = "Total@2")]
        pub(super) struct Total2 {
            pub(super) amount: u64,
        }
    }
    macro_rules! ask {
        ($question:ident, $reply:ty, $order:expr) => {
            struct $question;
            impl Ask for $question {
                type Reply = $reply;
            }
            impl From<$question> for Order {
                fn from(_: $question) -> Self {
                    $order
                }
            }
        };
    }
    ask!(Before, before::Total, Order::Total);
    ask!(After, after::Total, Order::Total);
    ask!(Replaced, after::Total2, Order::Total);
    ask!(Of, after::Total2, Order::TotalOf { currency: "EUR".into() });
    let nodes = Mixed::new().await;
    let mut old = nodes.before.receiver::<Order>("till").unwrap();
    tokio::spawn(async move {
        while let Some(received) = old.recv().await {
            let total = before::Total { euros: 5 };
            received.reply.answer::<Before>(total).await.unwrap();
        }
    });
    let mut new = nodes.after.receiver::<Order>("till").unwrap();
    tokio::spawn(async move {
        while let Some(Received { message, reply, .. }) = new.recv().await {
            let (total, of) =
                (after::Total { euros: 5, until: Some(9) }, after::Total2 { amount: 500 });
            match message {
                Order::Total => reply.answer::<After>(total).await.unwrap(),
                Order::TotalOf { .. } => reply.answer::<Of>(of).await.unwrap(),
            }
        }
    });
    let to_old = nodes.after.to::<Order>(&nodes.before.me(), "till");
    let to_new = nodes.before.to::<Order>(&nodes.after.me(), "till");
    // An optional field: in one roll.
    assert_eq!(to_new.ask(Before).within(LONG).await, Ok(before::Total { euros: 5 }));
    let total = after::Total { euros: 5, until: None };
    assert_eq!(to_old.ask(After).within(LONG).await, Ok(total));
    // Another meaning is another question with a reply of its own, as a new variant: in two rolls.
    assert_eq!(to_new.ask(Of).within(LONG).await, Ok(after::Total2 { amount: 500 }));
    // Another version of the same reply: the question was handled, and nobody can read what came of it.
    let error = to_old.ask(Replaced).within(LONG).await.unwrap_err();
    let AskError::Unknown(Unknown::Unreadable(why)) = error else { panic!("{error}") };
    assert_eq!(why.to_string(), "sent Total@1, expected Total@2");
}

/// A numbered message that its receiver cannot read waits for one that can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_a_numbered_message() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(rename = "Pay")]
    struct PayBefore {
        euros: u64,
    }
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(rename = "Pay@2")]
    struct PayAfter {
        cents: u64,
    }
    let nodes = Mixed::new().await;
    let (target, targets) = watch::channel(Some(nodes.before.me()));
    let payments = nodes.after.reliable::<PayAfter>("checkout", "payments", targets).unwrap();
    let mut old = nodes.before.reliable_receiver::<PayBefore>("payments").unwrap();
    let mut new = nodes.after.reliable_receiver::<PayAfter>("payments").unwrap();
    let number = payments.send(PayAfter { cents: 500 }).await.unwrap();
    let wrong = timeout(Duration::from_secs(1), old.recv()).await;
    assert!(wrong.is_err(), "the old version reads {wrong:?}");
    // The receiver's place is on the new node from now on.
    target.send_replace(Some(nodes.after.me()));
    let delivery = soon(new.recv()).await.unwrap();
    assert_eq!(delivery.message(), &PayAfter { cents: 500 });
    delivery.done();
    soon(payments.done(number)).await.unwrap();
}

/// What two versions of a service handle: a count, and from the second version on a clearing.
mod service {
    pub(super) mod before {
        #[derive(serde::Serialize, serde::Deserialize)]
        pub(crate) enum Order {
            Add { count: u64 },
            Count,
        }
    }
    pub(super) mod after {
        #[derive(serde::Serialize, serde::Deserialize)]
        pub(crate) enum Order {
            Add {
                count: u64,
                #[serde(default)]
                gift: bool,
            },
            Count,
            Clear,
        }
    }

    /// Answers with the number of the version that handled it, and the count.
    pub(super) struct Count;
    impl super::Ask for Count {
        type Reply = (u8, u64);
    }
    impl From<Count> for before::Order {
        fn from(_: Count) -> Self {
            Self::Count
        }
    }
    impl From<Count> for after::Order {
        fn from(_: Count) -> Self {
            Self::Count
        }
    }
    pub(super) struct Clear;
    impl super::Ask for Clear {
        type Reply = ();
    }
    impl From<Clear> for after::Order {
        fn from(_: Clear) -> Self {
            Self::Clear
        }
    }

    #[derive(Default)]
    pub(super) struct Before(u64);
    #[derive(Default)]
    pub(super) struct After(u64);

    impl Before {
        pub(super) async fn handle(
            &mut self,
            received: super::Received<before::Order>,
        ) -> Result<(), super::BoxError> {
            match received.message {
                before::Order::Add { count } => self.0 += count,
                before::Order::Count => received.reply.answer::<Count>((1, self.0)).await?,
            }
            Ok(())
        }
    }
    impl After {
        pub(super) async fn handle(
            &mut self,
            received: super::Received<after::Order>,
        ) -> Result<(), super::BoxError> {
            match received.message {
                after::Order::Add { count, gift: false } => self.0 += count,
                after::Order::Add { gift: true, .. } => {}
                after::Order::Count => received.reply.answer::<Count>((2, self.0)).await?,
                after::Order::Clear => {
                    self.0 = 0;
                    received.reply.answer::<Clear>(()).await?;
                }
            }
            Ok(())
        }
    }
}
use service::{After, Before, Clear, Count, after, before};

macro_rules! hosted {
    ($trait:ident, $hosted:ty) => {
        impl $trait for Before {
            type Message = before::Order;
            async fn receive(
                &mut self,
                received: Received<before::Order>,
                _: &$hosted,
            ) -> Result<(), BoxError> {
                self.handle(received).await
            }
        }
        impl $trait for After {
            type Message = after::Order;
            async fn receive(
                &mut self,
                received: Received<after::Order>,
                _: &$hosted,
            ) -> Result<(), BoxError> {
                self.handle(received).await
            }
        }
    };
}
hosted!(Actor, Hosted);
hosted!(Entity, Sharded);

fn is_unknown_variant(error: &AskError) -> bool {
    let AskError::NotDone(NotDone::Unreadable { detail, .. }) = error else { return false };
    detail.starts_with("unknown variant `Clear`, expected `Add` or `Count` (on ")
}

/// The oldest node hosts it, so the old version does until the last node is replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_a_singleton() {
    let nodes = Mixed::new().await;
    let old = nodes.before.singleton("orders").start(Before::default).unwrap();
    let new = nodes.after.singleton("orders").start(After::default).unwrap();
    new.tell(after::Order::Add { count: 2, gift: false }).await.unwrap();
    assert_eq!(new.ask(Count).within(LONG).await, Ok((1, 2)));
    old.tell(before::Order::Add { count: 1 }).await.unwrap();
    assert_eq!(old.ask(Count).within(LONG).await, Ok((1, 2 + 1)));
    let error = new.ask(Clear).within(LONG).await.unwrap_err();
    assert!(is_unknown_variant(&error), "{error}");
    soon(nodes.before.leave()).await;
    assert_eq!(new.ask(Clear).within(LONG).await, Ok(()));
    assert_eq!(new.ask(Count).within(LONG).await, Ok((2, 0)));
}

/// While versions are mixed no shard moves for balance: an entity that the old version hosts stays there
/// until its node is replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_an_entity() {
    let nodes = Mixed::new().await;
    let orders = |cluster: &Cluster, version: &str| {
        cluster.sharding("orders").shards(4).version(version.parse().unwrap())
    };
    let old = orders(&nodes.before, "1").start(|_| Before::default()).unwrap();
    old.entity("a").tell(before::Order::Add { count: 1 }).await.unwrap();
    assert_eq!(old.entity("a").ask(Count).within(LONG).await, Ok((1, 1)));
    let new = orders(&nodes.after, "2").start(|_| After::default()).unwrap();
    new.entity("a").tell(after::Order::Add { count: 2, gift: false }).await.unwrap();
    assert_eq!(new.entity("a").ask(Count).within(LONG).await, Ok((1, 3)));
    let error = new.entity("a").ask(Clear).within(LONG).await.unwrap_err();
    assert!(is_unknown_variant(&error), "{error}");
    soon(nodes.before.leave()).await;
    assert_eq!(new.entity("a").ask(Clear).within(LONG).await, Ok(()));
    assert_eq!(new.entity("a").ask(Count).within(LONG).await, Ok((2, 0)));
}
