//! Programs that are no members, and who is let in as one.
#![allow(clippy::disallowed_methods, reason = "these tests run in real time, over real sockets")]

mod nodes;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use bytes::Bytes;
use nodes::{addresses, join_all, plain, soon};
use tenure_cluster::certs::Authority;
use tenure_cluster::client::{Client, ClientError, ClientSettings};
use tenure_cluster::clients::{Gate, Gateway, Passing};
use tenure_cluster::messaging::{Ask, AskError, Expects, NotDone, Unknown};
use tenure_cluster::{Address, Cluster, Settings};
use tenure_lease::{MemoryStore, Store};
use tokio::sync::Semaphore;

/// Says back what it hears, as often as it may; counts.
struct Echo {
    heard: AtomicU64,
    may: Semaphore,
}

impl Echo {
    fn open(cluster: &Cluster, may: usize) -> Arc<Self> {
        let echo = Arc::new(Self { heard: AtomicU64::new(0), may: Semaphore::new(may) });
        let gate: Arc<dyn Gate> = echo.clone();
        cluster.open_gate(Gateway::Entities, "echo", &gate);
        echo
    }
}

impl Gate for Echo {
    fn pass(self: Arc<Self>, id: &str, body: Bytes, expects: Expects, _: Duration) -> Passing {
        let id = id.to_owned();
        Box::pin(async move {
            self.heard.fetch_add(1, SeqCst);
            self.may.acquire().await.unwrap().forget();
            match (id.as_str(), expects) {
                ("full", _) => Err(NotDone::Full.into()),
                ("dropped", _) => Err(Unknown::Unanswered.into()),
                (_, Expects::Receipt) => Ok(Vec::new()),
                (_, Expects::Answer) => Ok(body.to_vec()),
            }
        })
    }
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Line(String);

impl Ask for Line {
    type Reply = Self;
}

fn client(contacts: &[Address]) -> ClientSettings {
    let mut settings = ClientSettings::new("shop", "web");
    settings.plaintext_without_any_protection = true;
    settings.contacts = contacts.to_vec();
    settings.tell_within = Duration::from_secs(5);
    settings
}

async fn say(client: &Client, id: &str, text: &str) -> Result<String, AskError> {
    let echo = client.entity::<Line>("echo", id);
    let answer = echo.ask(Line(text.into())).within(Duration::from_secs(5)).await;
    answer.map(|Line(text)| text)
}

#[tokio::test]
async fn a_client_is_told_what_came_of_it() {
    let clusters = nodes::nodes(1).await;
    let echo = Echo::open(&clusters[0], 10);
    let address = clusters[0].me().address;
    let client = Client::connect(client(&[address])).await.unwrap();
    assert_eq!(say(&client, "one", "hello").await.unwrap(), "hello");
    client.entity::<Line>("echo", "one").tell(Line("hello".into())).await.unwrap();
    assert_eq!(say(&client, "full", "").await, Err(NotDone::Full.into()));
    assert_eq!(say(&client, "dropped", "").await, Err(Unknown::Unanswered.into()));
    let nobody = client.singleton::<Line>("echo").tell(Line(String::new())).await;
    assert_eq!(nobody, Err(NotDone::NoSuchReceiver("echo".into()).into()));
    let long = say(&client, "one", &"x".repeat(2 << 20)).await;
    assert!(matches!(long, Err(AskError::NotDone(NotDone::TooLong { .. }))), "{long:?}");
    assert_eq!(echo.heard.load(SeqCst), 4);
    assert_eq!(clusters[0].view().members().len(), 1, "it is no member");
    drop(echo);
    let gone = say(&client, "one", "").await;
    assert_eq!(gone, Err(NotDone::NoSuchReceiver("echo".into()).into()));
    soon(clusters[0].leave()).await;
}

/// What is on its way when the connection is cut is unknown, once; what comes next goes through another
/// member. A member that leaves says so first: then nothing is unknown.
#[tokio::test]
async fn another_contact_point_is_used_when_one_is_gone() {
    let clusters = nodes::nodes(2).await;
    let echoes: Vec<_> = clusters.iter().map(|cluster| Echo::open(cluster, 100)).collect();
    let through = nodes::Proxy::start(clusters[0].me().address.as_str().parse().unwrap()).await;
    let only = Client::connect(client(std::slice::from_ref(&through.address))).await.unwrap();
    assert_eq!(say(&only, "one", "a").await.unwrap(), "a");
    echoes[0].may.acquire_many(99).await.unwrap().forget();
    let waits = tokio::spawn(async move { (say(&only, "one", "b").await, only) });
    nodes::eventually(|| echoes[0].heard.load(SeqCst) == 2).await;
    through.cut();
    let (cut, only) = soon(waits).await.unwrap();
    assert_eq!(cut, Err(Unknown::Cut.into()));
    echoes[0].may.add_permits(100);
    assert_eq!(say(&only, "one", "c").await.unwrap(), "c");
    assert_eq!(echoes[0].heard.load(SeqCst), 3, "nothing that is unknown is sent again");

    let contacts: Vec<_> = clusters.iter().map(|cluster| cluster.me().address).collect();
    let both = Client::connect(client(&contacts)).await.unwrap();
    let saying = tokio::spawn(async move {
        for number in 0..2000 {
            let text = number.to_string();
            assert_eq!(say(&both, "one", &text).await.unwrap(), text);
        }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    echoes.iter().for_each(|echo| echo.may.add_permits(5000));
    soon(clusters[0].leave()).await;
    soon(saying).await.unwrap();
    soon(clusters[1].leave()).await;
}

#[tokio::test]
async fn there_are_so_many_clients_and_no_more() {
    let store = Store::new(MemoryStore::default());
    let mut settings = plain(&addresses(1)[0], &store);
    settings.transport.clients_max = 1;
    let cluster = join_all(vec![settings]).await.remove(0);
    let echo = Echo::open(&cluster, 5000);
    let contact = [cluster.me().address];
    let first = Client::connect(client(&contact)).await.unwrap();
    let error = Client::connect(client(&contact)).await.unwrap_err();
    assert!(error.to_string().contains("clients_max"), "{error}");
    // It has so much under way, and no more; the rest waits for its turn.
    let many: Vec<_> = (0..3000)
        .map(|_| {
            let first = first.clone();
            tokio::spawn(async move { say(&first, "one", "x").await.unwrap() })
        })
        .collect();
    for one in many {
        soon(one).await.unwrap();
    }
    assert_eq!(echo.heard.load(SeqCst), 3000);
    drop(first);
    soon(cluster.leave()).await;
}

/// A certificate says whether it is for a node or for a client, and neither passes for the other.
#[tokio::test]
async fn a_certificate_is_for_a_node_or_for_a_client() {
    let authority = Authority::new("shop").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name.replace('*', "all"));
    for name in ["node", "client/web", "*"] {
        authority.issue(name, &[]).unwrap().save(place(name)).unwrap();
    }
    let other = Authority::new("shop").unwrap();
    other.issue("client/web", &[]).unwrap().save(place("stranger")).unwrap();
    let store = Store::new(MemoryStore::default());
    let address = addresses(1).remove(0);
    let node = |identity: &Path, name: &str| {
        let mut settings = plain(&address, &store).name(name);
        settings.plaintext_without_any_protection = false;
        settings.identity = Some(identity.into());
        settings
    };
    // Not as a node.
    let refused = Cluster::join(node(&place("client/web"), "web")).await.unwrap_err();
    assert!(refused.to_string().contains("client/web"), "{refused}");

    let cluster = join_all(vec![node(&place("node"), "node")]).await.remove(0);
    let echo = Echo::open(&cluster, 10);
    let with = |identity: &str, name: &str| {
        let settings = ClientSettings::new("shop", name).identity(place(identity));
        settings.contact(address.clone())
    };
    let client = Client::connect(with("client/web", "web")).await.unwrap();
    assert_eq!(say(&client, "one", "hello").await.unwrap(), "hello");
    for (identity, name) in [("node", "node"), ("client/web", "other"), ("*", "web")] {
        let error = Client::connect(with(identity, name)).await.unwrap_err().to_string();
        assert!(error.contains("client"), "{identity}: {error}");
    }
    let error = Client::connect(with("stranger", "web")).await.unwrap_err();
    assert!(matches!(error, ClientError::NoContact(_)), "{error}");
    let mut bare = self::client(std::slice::from_ref(&address));
    bare.tell_within = Duration::from_millis(500);
    Client::connect(bare).await.unwrap_err();
    let none = Client::connect(ClientSettings::new("shop", "web").contact(address.clone())).await;
    assert!(none.unwrap_err().to_string().contains("tenure certs new --client"));
    assert_eq!(echo.heard.load(SeqCst), 1);
    soon(cluster.leave()).await;
}

/// Nothing but requests is heard of a client: it cannot greet as a node, whatever it sends then.
#[tokio::test]
async fn what_is_no_request_ends_the_connection() {
    use tenure_cluster::transport::handshake::{ClientHello, Message, Version};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let clusters = nodes::nodes(1).await;
    let echo = Echo::open(&clusters[0], 10);
    let frame = |body: &[u8]| [&(body.len() as u32).to_le_bytes()[..], body].concat();
    let hello = ClientHello { cluster: "shop".into(), name: "web".into() };
    let hello = Message::Client(Version::OURS, hello).encode();
    let mut tcp = tokio::net::TcpStream::connect(clusters[0].me().address.as_str()).await.unwrap();
    tcp.write_all(&frame(&hello)).await.unwrap();
    let mut head = [0; 4];
    tcp.read_exact(&mut head).await.unwrap();
    let mut accepted = vec![0; u32::from_le_bytes(head) as usize];
    tcp.read_exact(&mut accepted).await.unwrap();
    assert!(matches!(Message::decode(&accepted), Ok(Message::Accepted(..))));
    tcp.write_all(&frame(&[255; 100])).await.unwrap();
    let mut rest = Vec::new();
    soon(tcp.read_to_end(&mut rest)).await.unwrap();
    assert_eq!(echo.heard.load(SeqCst), 0);
    let settings: &Settings = clusters[0].settings();
    assert_eq!(settings.transport.clients_max, 1024);
    soon(clusters[0].leave()).await;
}
