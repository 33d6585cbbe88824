//! Connections of clients: both ends. Frames go both ways; there is no lane, and nothing that a client
//! says reaches the membership.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bytes::BytesMut;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::net::lookup_host;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_rustls::{TlsConnector, TlsStream};

use super::outdated::Shown;
use super::socket::{self, Socket, Stream};
use super::{Shared, greet, random};
use crate::clients::ClientLink;
use crate::transport::handshake::{
    ClientHello, Message, Names, Version, client_name, judge_answer,
};
use crate::transport::{
    Direction, Event, Frames, Local, Refusal, Security, TransportSettings, frame,
};
use crate::{Address, Incarnation, Node};

/// A client that was let in.
pub(super) struct Client {
    pub(super) stream: Stream,
    pub(super) shown: Shown,
    pub(super) place: Place,
}

/// One of the places that there are for clients; free again when dropped.
pub(super) struct Place {
    shared: Arc<Shared>,
    name: Arc<str>,
}

impl Place {
    pub(super) fn take(shared: &Arc<Shared>, name: String) -> Result<Self, Refusal> {
        let place = Self { shared: shared.clone(), name: name.into() };
        match shared.clients.fetch_add(1, Relaxed) < shared.settings.clients_max {
            true => Ok(place),
            false => Err(Refusal::TooMany("clients (clients_max)")),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.clients.fetch_sub(1, Relaxed);
    }
}

/// Takes a client's requests, on the runtime of users.
pub(super) fn begin(shared: &Arc<Shared>, mut client: Client, from: IpAddr) {
    let data = &shared.handles.data;
    match client.stream.carry_data_on(data) {
        Ok(()) => drop(shared.spawn(data, run(shared.clone(), client))),
        Err(error) => shared.refuse(from, Refusal::Cut(error.to_string())),
    }
}

async fn run(shared: Arc<Shared>, client: Client) {
    let Client { stream, shown, place } = client;
    let (requests_in, requests) = mpsc::channel(BATCHES);
    let (answers, answers_out) = mpsc::channel(BATCHES);
    tracing::debug!(client = %place.name, "a client is connected");
    shared.tell(Event::Client(ClientLink { name: place.name.clone(), requests, answers })).await;
    let max = shared.settings.data_frame_max;
    let (read, write) = tokio::io::split(stream);
    let why = tokio::select! {
        why = read_frames(read, max, &requests_in) => why,
        why = write_frames(write, max, answers_out) => why,
        why = refused(&shared, &shown, &place.name) => why,
        () = shared.ending.raised() => "this node closes it".into(),
    };
    tracing::debug!(client = %place.name, "a client is disconnected: {why}");
}

/// Waits until its certificate is not accepted any more.
async fn refused(shared: &Shared, shown: &Shown, name: &str) -> String {
    let Security::Tls(identity) = &shared.security else {
        return std::future::pending().await;
    };
    let mut renewals = shared.renewals.subscribe();
    loop {
        let _ = timeout(shared.settings.link_age_max, renewals.changed()).await;
        let checked = identity.check_peer(&shown.chain, &client_name(name), Direction::Incoming);
        if let Err(why) = checked {
            return format!("its certificate is no longer accepted: {why}");
        }
    }
}

/// Reads until the end, or until nobody takes it; says why.
pub(crate) async fn read_frames(
    mut read: ReadHalf<Stream>,
    max: usize,
    into: &mpsc::Sender<Frames>,
) -> String {
    let mut bytes = BytesMut::new();
    loop {
        loop {
            match frame::take(&mut bytes, max) {
                Ok(frames) if frames.is_empty() => break,
                Ok(frames) => {
                    if into.send(frames).await.is_err() {
                        return "nobody wants what it says".into();
                    }
                }
                Err(error) => return error.to_string(),
            }
        }
        bytes.reserve(READ);
        match read.read_buf(&mut bytes).await {
            Ok(0) => return "it was closed".into(),
            Ok(_) => {}
            Err(error) => return socket::cut(&error).to_string(),
        }
    }
}

/// Writes until there is nothing more to write; says why.
pub(crate) async fn write_frames(
    mut write: WriteHalf<Stream>,
    max: usize,
    mut from: mpsc::Receiver<Outgoing>,
) -> String {
    let mut bytes = Vec::new();
    while let Some(first) = from.recv().await {
        bytes.clear();
        let mut next = Some(first);
        while let Some(Outgoing { body, taken }) = next {
            taken.iter().for_each(|taken| taken.store(true, Relaxed));
            // One that is too long was refused before, or is an answer that is: nobody hears of it,
            // and who waits for it finds that out by itself.
            if frame::append(&mut bytes, max, |out| out.extend_from_slice(&body)).is_err() {
                tracing::warn!(bytes = body.len(), "an answer is longer than data_frame_max");
            }
            next = if bytes.len() < WRITE { from.try_recv().ok() } else { None };
        }
        let written = async {
            write.write_all(&bytes).await?;
            write.flush().await
        };
        if let Err(error) = written.await {
            return socket::cut(&error).to_string();
        }
    }
    let _ = timeout(super::GOODBYE, write.shutdown()).await;
    "nothing more is said".into()
}

/// Opens a connection to a member, as the client `name` of `cluster`. It ends when `requests` does.
pub(crate) async fn dial_as_client(
    settings: &TransportSettings,
    security: &Security,
    cluster: &str,
    name: &str,
    address: &Address,
) -> Result<Dialed, Refusal> {
    let dialing = async {
        let until = Instant::now() + settings.connect_timeout;
        let looked_up = lookup_host((address.host(), address.port()));
        let mut resolved: Vec<SocketAddr> = looked_up.await.map_err(greet::cut)?.collect();
        let allowed = |ip: IpAddr| {
            matches!(security, Security::Tls(_))
                || settings.allow_plaintext_beyond_loopback
                || socket::is_this_machine(ip)
        };
        if resolved.is_empty() {
            return Err(Refusal::Cut(format!("{} has no IP address", address.host())));
        }
        resolved.retain(|resolved| allowed(resolved.ip()));
        // A name may stand for all members: not every client should go to the first.
        if !resolved.is_empty() {
            let first = random() as usize % resolved.len();
            resolved.rotate_left(first);
        }
        greet::connect_any(&resolved, until).await
    };
    let within = settings.connect_timeout;
    let tcp = timeout(within, dialing).await.map_err(|_| Refusal::Slow(within))??;
    let greeting = async {
        let refusal = |error: std::io::Error| socket::refusal(&error);
        let socket = Socket::new(tcp, settings.silence_max).map_err(refusal)?;
        let (mut stream, names) = match security {
            Security::PlaintextWithoutAnyProtection => (Stream::Plain(socket), Names::Any),
            Security::Tls(identity) => {
                // The name is of no use (see `verify`), but the interface wants one.
                let server = ServerName::try_from("tenure.invalid")
                    .map_err(|error| Refusal::Tls(error.to_string()))?;
                let connector = TlsConnector::from(identity.tls().client.clone());
                let tls = connector.connect(server, socket).await.map_err(refusal)?;
                let chain = greet::chain(tls.get_ref().1.peer_certificates());
                let names = greet::names(&chain, cluster)?;
                (Stream::Tls(Box::new(TlsStream::Client(tls))), names)
            }
        };
        let hello = ClientHello { cluster: cluster.into(), name: name.into() };
        let hello = Message::Client(Version::OURS, hello);
        greet::say(&mut stream, &hello).await.map_err(refusal)?;
        // It is judged as a node would: a client is not taken for a member.
        let node = Node { address: address.clone(), incarnation: Incarnation(0) };
        let local = Local { cluster: cluster.into(), name: name.into(), node };
        judge_answer(greet::listen(&mut stream).await?, &local, &names)?;
        Ok::<Stream, Refusal>(stream)
    };
    let within = settings.handshake_timeout;
    let stream = timeout(within, greeting).await.map_err(|_| Refusal::Slow(within))??;
    let (read, write) = tokio::io::split(stream);
    Ok(Dialed { read, write })
}

/// A frame to be written.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) body: Vec<u8>,
    /// Set when it may have left this process.
    pub(crate) taken: Option<Arc<AtomicBool>>,
}

/// A client's end of a connection.
pub(crate) struct Dialed {
    read: ReadHalf<Stream>,
    write: WriteHalf<Stream>,
}

impl Dialed {
    /// Carries frames to and fro until either end is over, or it is too old; says why.
    pub(crate) async fn carry(
        self,
        settings: &TransportSettings,
        requests: mpsc::Receiver<Outgoing>,
        answers: mpsc::Sender<Frames>,
    ) -> String {
        let max = settings.data_frame_max;
        tokio::select! {
            why = read_frames(self.read, max, &answers) => why,
            why = write_frames(self.write, max, requests) => why,
        }
    }
}

/// How many reads' worth of requests, and how many answers, wait.
const BATCHES: usize = 64;
const READ: usize = 16 << 10;
const WRITE: usize = 64 << 10;
