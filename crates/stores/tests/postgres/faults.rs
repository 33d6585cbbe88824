//! What becomes of tenures when the server goes away, for a short or a long time, or when an answer
//! gets lost on its way.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use tenure_lease::{Loss, Moment, Token};

use super::support::{Server, block_on, name, server, settings, within};

#[test]
fn a_restart_within_the_ttl_changes_nothing() {
    let Some(server) = server() else { return };
    if !server.must_be_controlled() {
        return;
    }
    block_on(async {
        let ttl = Duration::from_secs(8);
        let lease = server.store().await.lease("restarted").settings(settings(ttl));
        let tenure = lease.acquire().await.unwrap();
        within(ttl / 2, "restart", server.control("restart")).await;
        for _ in 0..8 {
            tokio::time::sleep(ttl / 8).await;
            assert!(tenure.is_held(), "lost: {:?}", tenure.loss());
        }
        let record = server.store().await.inspect("restarted").await.unwrap().unwrap();
        assert!(record.is_of(tenure.claim()));
    });
}

#[test]
fn an_outage_of_two_ttls_ends_the_tenure_and_begins_one() {
    let Some(server) = server() else { return };
    if !server.must_be_controlled() {
        return;
    }
    for (down, up) in [("pause", "resume"), ("kill", "restart")] {
        block_on(outage(&server, down, up));
    }
}

/// Two contend all the time; the server goes away for two ttls.
async fn outage(server: &Server, down: &str, up: &'static str) {
    let ttl = Duration::from_secs(3);
    let name = name(down);
    let tenures: Arc<Mutex<Vec<Held>>> = Arc::default();
    let mut contenders = JoinSet::new();
    for who in 0..2 {
        let lease = server.store().await.lease(name.as_str()).settings(settings(ttl));
        let tenures = Arc::clone(&tenures);
        contenders.spawn(async move {
            loop {
                let tenure = lease.acquire().await.unwrap();
                let index = {
                    let mut tenures = tenures.lock().unwrap();
                    let begun = Moment::now();
                    tenures.push(Held { who, token: tenure.token(), begun, ended: None });
                    tenures.len() - 1
                };
                let loss = tenure.lost().await;
                tenures.lock().unwrap()[index].ended = Some((Moment::now(), loss));
                tenure.release().await;
            }
        });
    }
    tokio::time::sleep(ttl / 2).await;
    let away = Away { server, up };
    server.control(down).await;
    let went = Moment::now();
    tokio::time::sleep(ttl * 2).await;
    {
        let tenures = tenures.lock().unwrap();
        assert_eq!(tenures.len(), 1, "{tenures:?}");
        let (ended, loss) = tenures[0].ended.as_ref().expect("the holder has stopped");
        assert_eq!(*loss, Loss::Expired);
        assert!(*ended < went + ttl, "stopped {:?} after the server went", ended.since(went));
        eprintln!("{down}: stopped after {:?} of {ttl:?}", ended.since(went));
    }
    drop(away);
    let back = Moment::now();
    while tenures.lock().unwrap().len() < 2 {
        assert!(Moment::now() < back + Duration::from_secs(5), "nobody holds it 5 s later");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    eprintln!("{up}: held again after {:?}", Moment::now().since(back));
    tokio::time::sleep(ttl * 2).await;
    contenders.abort_all();
    let tenures = tenures.lock().unwrap();
    assert_eq!(tenures.iter().filter(|held| held.ended.is_none()).count(), 1, "{tenures:?}");
    for pair in tenures.windows(2) {
        let (ended, _) = pair[0].ended.as_ref().expect("it ended before the next began");
        assert!(*ended <= pair[1].begun && pair[0].token < pair[1].token, "{pair:?}");
    }
}

/// Brings the server back, whatever became of the test.
struct Away<'a> {
    server: &'a Server,
    up: &'static str,
}

impl Drop for Away<'_> {
    fn drop(&mut self) {
        tokio::task::block_in_place(|| self.server.control_now(self.up));
    }
}

#[derive(Debug)]
#[allow(dead_code)] // `who` is for people.
struct Held {
    who: usize,
    token: Token,
    begun: Moment,
    ended: Option<(Moment, Loss)>,
}

/// The server does what it was asked, and the connection dies before it can say so.
#[test]
fn a_reply_that_is_cut_off_leaves_no_orphan_and_deposes_nobody() {
    let Some(server) = server() else { return };
    block_on(async {
        server.create_tables().await;
        let proxy = Proxy::start(&server).await;
        let url = server.url_at(&server.base().replace(&server.place(), &proxy.address), "");
        let store = tenure_stores::open(&format!("{url}listen=off")).await.unwrap();
        let ttl = Duration::from_secs(4);
        for _ in 0..5 {
            let name = name("cut");
            let lease = store.lease(name.as_str()).settings(settings(ttl));
            // A connection stands; the next answer on it does not arrive.
            store.inspect(name.as_str()).await.unwrap();
            proxy.cut_next();
            let tenure = within(ttl, "acquired", lease.acquire()).await.unwrap();
            let direct = server.store().await;
            let record = direct.inspect(name.as_str()).await.unwrap().unwrap();
            assert!(record.is_of(tenure.claim()) && record.token == tenure.token());
            proxy.cut_next();
            let cuts = proxy.cuts();
            while proxy.cuts() == cuts {
                tokio::time::sleep(Duration::from_millis(10)).await;
                assert!(tenure.is_held(), "lost: {:?}", tenure.loss());
            }
            tokio::time::sleep(ttl / 2).await;
            assert!(tenure.is_held(), "lost: {:?}", tenure.loss());
            proxy.cut_next();
            within(ttl, "released", tenure.release()).await;
            let record = direct.inspect(name.as_str()).await.unwrap().unwrap();
            assert_eq!(record.holder, None);
        }
        assert!(proxy.cuts() >= 15, "only {} answers were cut off", proxy.cuts());
    });
}

/// Forwards, and cuts a connection when the server answers, if told to.
struct Proxy {
    address: String,
    state: Arc<ProxyState>,
}

#[derive(Default)]
struct ProxyState {
    cut: AtomicBool,
    cuts: AtomicU64,
}

impl Proxy {
    async fn start(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = Arc::new(ProxyState::default());
        let (to, shared) = (server.place(), Arc::clone(&state));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&to).await.unwrap();
                tokio::spawn(forward(client, server, Arc::clone(&shared)));
            }
        });
        Self { address, state }
    }

    fn cut_next(&self) {
        self.state.cut.store(true, Ordering::SeqCst);
    }

    fn cuts(&self) -> u64 {
        self.state.cuts.load(Ordering::SeqCst)
    }
}

async fn forward(mut client: TcpStream, mut server: TcpStream, state: Arc<ProxyState>) {
    let (mut asked, mut answered) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        tokio::select! {
            read = client.read(&mut asked) => match read {
                Ok(count @ 1..) => server.write_all(&asked[..count]).await.unwrap(),
                _ => return,
            },
            read = server.read(&mut answered) => match read {
                Ok(count @ 1..) => {
                    if state.cut.swap(false, Ordering::SeqCst) {
                        state.cuts.fetch_add(1, Ordering::SeqCst);
                        return;
                    }
                    if client.write_all(&answered[..count]).await.is_err() {
                        return;
                    }
                }
                _ => return,
            },
        }
    }
}
