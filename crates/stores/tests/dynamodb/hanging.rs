//! A network that loses connections without a word.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use tenure_lease::backend::{Renew, Renewed};
use tenure_lease::{Moment, Nonce};
use tenure_testkit::conformance;

use super::server::{self, fresh, request};
use super::{Dynamo, TABLE, TTL};

/// Passes everything on. When it is told to, the connections that there are hang for ever, and new
/// ones work.
struct HangingProxy {
    address: String,
    opened: Arc<AtomicUsize>,
    hung: watch::Sender<usize>,
}

impl HangingProxy {
    async fn start(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let (opened, server) = (Arc::<AtomicUsize>::default(), server.to_owned());
        let (hung, hear) = watch::channel(0);
        let count = Arc::clone(&opened);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&server).await.expect("it listens");
                let (mut hear, own) = (hear.clone(), count.fetch_add(1, Ordering::SeqCst));
                tokio::spawn(async move {
                    let hangs = async { drop(hear.wait_for(|hung| own < *hung).await) };
                    // Stays, and so do its sockets, when nothing passes any more.
                    let mut passing = std::pin::pin!(pass(client, server));
                    tokio::select! {
                        () = &mut passing => {}
                        () = hangs => std::future::pending().await,
                    }
                });
            }
        });
        Self { address, opened, hung }
    }

    fn opened(&self) -> usize {
        self.opened.load(Ordering::SeqCst)
    }

    fn hang(&self) {
        self.hung.send_replace(self.opened());
    }
}

/// After a burst there are many idle connections, and then all of them hang. One time-out is enough
/// for all who come later, and a renewal on a fresh connection does without any.
#[test]
fn connections_that_hang_cost_one_time_out() {
    let Some((dynamo, _turn)) = Dynamo::find_alone() else { return };
    conformance::block_on(async {
        let (_, server) = dynamo.0.address.split_once("://").expect("an endpoint");
        let proxy = HangingProxy::start(server).await;
        let store = Dynamo::at(&format!("http://{}", proxy.address), TABLE, "");
        let (backend, name) = (store.backend(), fresh("hanging"));
        let burst = async || {
            let reading = (0..40).map(|_| {
                let (store, name) = (store.clone(), name.clone());
                async move { store.backend().read(vec![name]).await.expect("read") }
            });
            reading.collect::<JoinSet<_>>().join_all().await;
        };
        let limited =
            async |renewal: Renew| tokio::time::timeout(TIME_OUT, backend.renew(renewal)).await;
        let (claim, token) = server::win(&**backend, request(&name, "a", TTL * 10)).await;
        let mut last = claim;
        let mut renewal = |fresh_connection: bool| {
            let known = vec![std::mem::replace(&mut last, Nonce::random())];
            let (name, nonce, ttl) = (name.clone(), last, TTL * 10);
            Renew { name, claim, token, known, nonce, ttl, note: None, fresh_connection }
        };

        burst().await;
        assert!(proxy.opened() >= 20, "{} connections", proxy.opened());
        proxy.hang();
        let begun = Moment::now();
        let lost = renewal(false);
        limited(lost.clone()).await.expect_err("the first one meets a dead connection");
        for index in 0..20 {
            let mut renewal = renewal(false);
            renewal.known.extend(&lost.known);
            let renewed = limited(renewal).await;
            let renewed = renewed.unwrap_or_else(|_| panic!("renewal {index} after it: no answer"));
            assert_eq!(renewed, Ok(Renewed::Yes));
        }
        let took = Moment::now().since(begun);
        println!("20 renewals, {took:?} after the connections hung");

        burst().await;
        proxy.hang();
        // A fresh connection is newer than whatever was opened when the one before was sent.
        tokio::time::sleep(Duration::from_millis(60)).await;
        assert_eq!(limited(renewal(true)).await.expect("in time"), Ok(Renewed::Yes));
        assert_eq!(limited(renewal(false)).await.expect("in time"), Ok(Renewed::Yes));
    });
}

/// Passes everything on, except that the server would close idle connections early: DynamoDB says no
/// such thing, and the emulator does, so that its connections would never be kept.
async fn pass(client: TcpStream, server: TcpStream) {
    let ((mut from, mut to), (mut answers, mut asked)) = (client.into_split(), server.into_split());
    let answering = async {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(length @ 1..) = answers.read(&mut buffer).await {
            let text = String::from_utf8_lossy(&buffer[..length]);
            let text = text.replace("Keep-Alive: timeout", "X-Alive: timeout");
            if to.write_all(text.as_bytes()).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        _ = tokio::io::copy(&mut from, &mut asked) => {}
        () = answering => {}
    }
}

const TIME_OUT: Duration = Duration::from_secs(2);
