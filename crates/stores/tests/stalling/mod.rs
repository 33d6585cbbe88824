//! A network that goes dead without a word.
#![allow(clippy::disallowed_methods)] // Real servers, real time.
#![allow(dead_code)] // Not every store's test needs all of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A proxy whose connections can be made to stand still, without a word to either side.
pub(crate) struct Stalling {
    pub(crate) address: String,
    /// Connections up to this number stand still.
    stalled: watch::Sender<usize>,
    opened: Arc<AtomicUsize>,
    cancels: Arc<AtomicUsize>,
}

impl Stalling {
    pub(crate) async fn new(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (stalled, opened, cancels) =
            (watch::Sender::new(0), Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let stalling = Self { address, stalled, opened, cancels };
        let (server, stalled) = (server.to_owned(), stalling.stalled.clone());
        let (opened, cancels) = (Arc::clone(&stalling.opened), Arc::clone(&stalling.cancels));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let number = opened.fetch_add(1, SeqCst) + 1;
                let server = TcpStream::connect(&server).await.unwrap();
                tokio::spawn(pass(
                    client,
                    server,
                    number,
                    stalled.subscribe(),
                    Arc::clone(&cancels),
                ));
            }
        });
        stalling
    }

    /// All that there are now.
    pub(crate) fn stall(&self) {
        self.stalled.send_replace(self.opened());
    }

    pub(crate) fn opened(&self) -> usize {
        self.opened.load(SeqCst)
    }

    /// How many of PostgreSQL's requests to cancel something came by.
    pub(crate) fn cancels(&self) -> usize {
        self.cancels.load(SeqCst)
    }
}

async fn pass(
    mut client: TcpStream,
    mut server: TcpStream,
    number: usize,
    mut stalled: watch::Receiver<usize>,
    cancels: Arc<AtomicUsize>,
) {
    let (mut request, mut answer) = ([0; 1 << 14], [0; 1 << 14]);
    loop {
        tokio::select! {
            biased;
            // Kept open.
            () = stands_still(&mut stalled, number) => std::future::pending().await,
            read = client.read(&mut request) => {
                let Ok(length @ 1..) = read else { return };
                let is_cancel = request[..length].starts_with(&CANCEL);
                cancels.fetch_add(usize::from(is_cancel), SeqCst);
                if server.write_all(&request[..length]).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut answer) => {
                let Ok(length @ 1..) = read else { return };
                if client.write_all(&answer[..length]).await.is_err() {
                    return;
                }
            }
        }
    }
}

async fn stands_still(stalled: &mut watch::Receiver<usize>, number: usize) {
    stalled.wait_for(|stalled| number <= *stalled).await.expect("the proxy is there");
}

/// The length and the code of PostgreSQL's CancelRequest.
const CANCEL: [u8; 8] = [0, 0, 0, 16, 0x04, 0xd2, 0x16, 0x2e];
