//! A TCP proxy that an outage is made with: it can refuse, drop packets, or let the connections that
//! exist hang while new ones work.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// Passes connections on to a server until it is told otherwise.
pub(crate) struct Gate {
    pub(crate) address: SocketAddr,
    server: String,
    /// Raised to make all present connections hang for ever.
    hung: Arc<watch::Sender<u64>>,
    accepting: Option<JoinHandle<()>>,
    firewall: Option<Firewall>,
}

impl Gate {
    pub(crate) async fn open(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let hung = Arc::new(watch::channel(0).0);
        let server = server.to_owned();
        let accepting = Some(accept(listener, server.clone(), Arc::clone(&hung)));
        Self { address, server, hung, accepting, firewall: None }
    }

    /// Every connection is closed, and a new one is refused.
    pub(crate) fn refuse(&mut self) {
        if let Some(accepting) = self.accepting.take() {
            accepting.abort();
        }
    }

    /// The connections of this moment never transport another byte; new ones work.
    pub(crate) fn hang_connections(&self) {
        self.hung.send_modify(|generation| *generation += 1);
    }

    /// The kernel drops every packet from and to this port. `false`: this user may not do that.
    pub(crate) fn drop_packets(&mut self) -> bool {
        self.firewall = Firewall::raise(self.address.port());
        self.firewall.is_some()
    }

    /// Passes everything on again.
    pub(crate) async fn reopen(&mut self) {
        self.firewall = None;
        if self.accepting.is_none() {
            let socket = TcpSocket::new_v4().expect("a socket");
            socket.set_reuseaddr(true).expect("an option of every socket");
            socket.bind(self.address).expect("the port was ours");
            let listener = socket.listen(1024).expect("the port was ours");
            self.accepting = Some(accept(listener, self.server.clone(), Arc::clone(&self.hung)));
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.refuse();
    }
}

/// The connections end with the task that accepts them.
fn accept(listener: TcpListener, server: String, hung: Arc<watch::Sender<u64>>) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    let Ok((client, _)) = accepted else { continue };
                    connections.spawn(pass(client, server.clone(), hung.subscribe()));
                }
                Some(_) = connections.join_next() => {}
            }
        }
    })
}

async fn pass(mut client: TcpStream, server: String, mut hung: watch::Receiver<u64>) {
    // A server that is down closes the connection, as it would without a gate.
    let Ok(mut server) = TcpStream::connect(&server).await else { return };
    // Otherwise the other side's delayed acknowledgement would be measured as the store's latency.
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    tokio::select! {
        _ = copy_bidirectional(&mut client, &mut server) => {}
        _ = hung.changed() => std::future::pending().await,
    }
}

/// Rules of the kernel's packet filter that drop the packets of one port of this machine.
struct Firewall {
    table: String,
}

impl Firewall {
    fn raise(port: u16) -> Option<Self> {
        let table = format!("tenure_blink_{}_{port}", std::process::id());
        let firewall = Self { table };
        let rules = format!(
            "table inet {0} {{ chain input {{ type filter hook input priority 0; \
             iif lo tcp dport {port} drop; iif lo tcp sport {port} drop; }}; }}",
            firewall.table
        );
        let output = Command::new("nft").arg(rules).output();
        match output {
            Ok(output) if output.status.success() => Some(firewall),
            Ok(output) => {
                eprintln!("nft: {}", String::from_utf8_lossy(&output.stderr).trim());
                None
            }
            Err(error) => {
                eprintln!("nft: {error}");
                None
            }
        }
    }
}

impl Drop for Firewall {
    fn drop(&mut self) {
        let _ = Command::new("nft").args(["delete", "table", "inet", &self.table]).output();
    }
}
