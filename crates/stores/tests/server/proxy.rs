//! A proxy between a store and its server: it counts requests, and can cut a connection after the
//! server has done what it was asked and before its answer is back.

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use tenure_lease::{Settings, Store};

use super::fresh;

/// Passes everything on, until it is told to cut one connection.
#[derive(Clone)]
pub(crate) struct Proxy {
    pub(crate) address: String,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    cut: Option<Cut>,
    cuts: usize,
    requests: u64,
    /// Connections that the server has not closed yet: now, and at most.
    open: usize,
    open_max: usize,
    /// Connections so far.
    accepted: u64,
    /// Connections up to this one pass nothing on any more, and are not closed either.
    silent_up_to: u64,
}

/// Which request is to go through without an answer.
pub(crate) enum Cut {
    /// The next one that contains this text.
    Text(&'static str),
    /// The one before which so many others go unharmed. Works through TLS: on one connection a
    /// request is what comes after an answer.
    After(usize),
}

impl Proxy {
    pub(crate) async fn new(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let proxy = Self { address, state: Arc::default() };
        let (server, shared) = (server.to_owned(), proxy.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&server).await.expect("it listens");
                let proxy = shared.clone();
                tokio::spawn(async move {
                    let connection = proxy.opened();
                    let mut server = proxy.pass(connection, client, server).await;
                    // A server may go on with what it was asked by one who has hung up.
                    if server.shutdown().await.is_ok() {
                        let _ = tokio::io::copy(&mut server, &mut tokio::io::sink()).await;
                    }
                    proxy.state().open -= 1;
                });
            }
        });
        proxy
    }

    pub(crate) fn cut(&self, cut: Cut) {
        self.state().cut = Some(cut);
    }

    /// Whether it has cut what it was told to.
    pub(crate) fn is_done(&self) -> bool {
        self.state().cut.is_none()
    }

    /// Cuts nothing after all.
    pub(crate) fn spare(&self) {
        self.state().cut = None;
    }

    /// How many answers were cut off.
    pub(crate) fn cuts(&self) -> usize {
        self.state().cuts
    }

    /// How many requests came by; a TLS handshake counts for one or two.
    pub(crate) fn requests(&self) -> u64 {
        self.state().requests
    }

    /// How many connections the server had at most.
    pub(crate) fn open_max(&self) -> usize {
        self.state().open_max
    }

    /// Lets all connections that there are fall silent for ever, as when a network drops them
    /// without a word. New ones work.
    pub(crate) fn silence(&self) {
        let mut state = self.state();
        state.silent_up_to = state.accepted;
    }

    /// How many connections there have been.
    pub(crate) fn accepted(&self) -> u64 {
        self.state().accepted
    }

    /// The number of the new connection.
    fn opened(&self) -> u64 {
        let mut state = self.state();
        state.open += 1;
        state.open_max = state.open_max.max(state.open);
        state.accepted += 1;
        state.accepted
    }

    async fn stay_silent_if_told(&self, connection: u64) {
        if connection <= self.state().silent_up_to {
            std::future::pending::<()>().await;
        }
    }

    /// Passes on until one side ends it; the server's side.
    async fn pass(
        &self,
        connection: u64,
        mut client: TcpStream,
        mut server: TcpStream,
    ) -> TcpStream {
        // What waits for the other side's acknowledgement would be measured as the store's time.
        client.set_nodelay(true).expect("a socket");
        server.set_nodelay(true).expect("a socket");
        let (mut request, mut answer) = (vec![0; 1 << 16], vec![0; 1 << 16]);
        let (mut cuts, mut asked) = (false, false);
        loop {
            tokio::select! {
                read = client.read(&mut request) => {
                    self.stay_silent_if_told(connection).await;
                    let Ok(length @ 1..) = read else { return server };
                    let is_new = !std::mem::replace(&mut asked, true);
                    cuts |= self.came(is_new, &request[..length]);
                    if server.write_all(&request[..length]).await.is_err() {
                        return server;
                    }
                }
                read = server.read(&mut answer) => {
                    self.stay_silent_if_told(connection).await;
                    let Ok(length @ 1..) = read else { return server };
                    if cuts {
                        self.state().cuts += 1;
                        return server;
                    }
                    asked = false;
                    if client.write_all(&answer[..length]).await.is_err() {
                        return server;
                    }
                }
            }
        }
    }

    /// Whether the answer to what has come is to be cut off.
    fn came(&self, is_new: bool, bytes: &[u8]) -> bool {
        let mut state = self.state();
        state.requests += u64::from(is_new);
        let now = match &mut state.cut {
            Some(Cut::Text(text)) => String::from_utf8_lossy(bytes).contains(*text),
            Some(Cut::After(0)) => is_new,
            Some(Cut::After(others)) => {
                *others -= usize::from(is_new);
                false
            }
            None => false,
        };
        if now {
            state.cut = None;
        }
        now
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics with it")
    }
}

/// Every answer in turn is cut off, on acquisition, renewal and release: the tenure is adopted and
/// stays, and is given back. `requests`: how many each of the three makes at least, of a lease that
/// was held before. `through` opens the store at another address.
pub(crate) async fn cut_replies<O>(
    server: &str,
    direct: &Store,
    settings: &Settings,
    requests: [usize; 3],
    through: impl Fn(String) -> O,
) where
    O: Future<Output = Store>,
{
    let mut running = JoinSet::new();
    for others in 0..requests.into_iter().max().expect("three") {
        let proxy = Proxy::new(server).await;
        let cutting = Cutting {
            store: through(proxy.address.clone()).await,
            direct: direct.clone(),
            settings: settings.clone(),
            proxy,
            others,
            must: requests.map(|requests| others < requests),
        };
        running.spawn(cutting.run());
    }
    running.join_all().await;
}

struct Cutting {
    store: Store,
    direct: Store,
    settings: Settings,
    proxy: Proxy,
    others: usize,
    /// Whether there is an answer to cut off, of each kind.
    must: [bool; 3],
}

impl Cutting {
    async fn run(self) {
        let Self { store, direct, settings, proxy, others, must } = self;
        let (name, ttl) = (fresh("cut"), settings.ttl);
        let lease = store.lease(name.as_str()).settings(settings.clone());
        // A connection stands, and the record is there.
        lease.acquire().await.expect("acquired").release().await;
        let mut cuts = proxy.cuts();
        let mut was_cut = |must: bool, what: &str| {
            proxy.spare();
            let done = proxy.cuts() > std::mem::replace(&mut cuts, proxy.cuts());
            assert!(done || !must, "{what}: the answer after {others} others was not cut off");
        };

        proxy.cut(Cut::After(others));
        let tenure = tokio::time::timeout(ttl, lease.acquire()).await.expect("in time");
        let tenure = tenure.expect("acquired");
        was_cut(must[0], "acquire");
        let record = direct.inspect(name.as_str()).await.expect("read").expect("it is there");
        assert!(record.is_of(tenure.claim()) && record.token == tenure.token(), "{record:?}");

        proxy.cut(Cut::After(others));
        tokio::select! {
            loss = tenure.lost() => panic!("renewal, after {others} others: {loss}"),
            () = tokio::time::sleep(ttl) => {}
        }
        was_cut(must[1], "renew");
        assert!(tenure.is_held());
        let record = direct.inspect(name.as_str()).await.expect("read").expect("it is there");
        assert!(record.is_of(tenure.claim()) && record.token == tenure.token(), "{record:?}");

        proxy.cut(Cut::After(others));
        tokio::time::timeout(ttl, tenure.release()).await.expect("in time");
        was_cut(must[2], "release");
        let record = direct.inspect(name.as_str()).await.expect("read").expect("it is there");
        assert_eq!(record.holder, None, "release, after {others} others");
        println!("after {others} others: {} answers cut off", proxy.cuts());
    }
}
