//! Both ends of the handshake, over a real connection.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::lookup_host;
use tokio::time::{Instant, timeout};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use super::Shared;
use super::carrier::Carrier;
use super::claims::Admission;
use super::clients::{Client, Place};
use super::outdated::Shown;
use super::socket::{self, Socket, Stream};
use crate::Address;
use crate::transport::frame;
use crate::transport::handshake::{
    Accepted, GREETING_MAX, Hello, Message, Names, Version, judge_answer, judge_client, judge_hello,
};
use crate::transport::refusal::Refusal;
use crate::transport::{Lane, Local, Peer, Security, verify};

/// A connection whose ends have greeted each other.
pub(super) struct Greeted {
    pub(super) stream: Stream,
    pub(super) peer: Arc<Peer>,
    pub(super) shown: Shown,
}

/// Who has dialed us.
pub(super) enum Answered {
    Node(Greeted, Lane, Admission),
    Client(Client),
}

/// Opens a link to `address`.
pub(super) async fn dial(
    shared: &Shared,
    address: &Address,
    lane: Lane,
) -> Result<Greeted, Refusal> {
    let settings = &shared.settings;
    let tcp = timeout(settings.connect_timeout, connect(shared, address))
        .await
        .map_err(|_| Refusal::Slow(settings.connect_timeout))??;
    timeout(settings.handshake_timeout, greet(shared, tcp, address, lane))
        .await
        .map_err(|_| Refusal::Slow(settings.handshake_timeout))?
}

/// Puts a connection within the switch's reach. Who is on the other side of a cut is not told anything
/// from here on, not even that it is welcome.
#[cfg(feature = "switch")]
async fn within_reach(
    shared: &Shared,
    stream: &mut Stream,
    address: &Address,
) -> Result<(), Refusal> {
    if let Some(switch) = &shared.settings.switch {
        stream.cut_by(switch, address).map_err(|error| socket::refusal(&error))?;
        switch.open(address).await;
    }
    Ok(())
}

async fn connect(shared: &Shared, address: &Address) -> Result<Carrier, Refusal> {
    #[cfg(feature = "switch")]
    if let Some(switch) = &shared.settings.switch {
        switch.open(address).await;
    }
    let until = Instant::now() + shared.settings.connect_timeout;
    let resolved: Vec<SocketAddr> =
        lookup_host((address.host(), address.port())).await.map_err(cut)?.collect();
    if resolved.is_empty() {
        return Err(Refusal::Cut(format!("{} has no IP address", address.host())));
    }
    let allowed: Vec<SocketAddr> =
        resolved.into_iter().filter(|resolved| shared.may_talk_with(resolved.ip())).collect();
    connect_any(&allowed, until).await
}

/// Connects to the first that answers. Each has its share of the time that is left, so that one
/// that does not answer, an IPv6 address without a route for instance, does not hide the others.
pub(super) async fn connect_any(
    addresses: &[SocketAddr],
    until: Instant,
) -> Result<Carrier, Refusal> {
    let mut last = Refusal::BeyondLoopback;
    for (index, address) in addresses.iter().enumerate() {
        let left = until.saturating_duration_since(Instant::now());
        let share = (left / (addresses.len() - index) as u32).max(SHARE_MIN);
        match timeout(share, Carrier::connect(address)).await {
            Ok(Ok(tcp)) => return Ok(tcp),
            Ok(Err(error)) => last = cut(error),
            Err(_) => last = Refusal::Slow(share),
        }
    }
    Err(last)
}

pub(super) fn cut(error: io::Error) -> Refusal {
    Refusal::Cut(error.to_string())
}

async fn greet(
    shared: &Shared,
    tcp: Carrier,
    address: &Address,
    lane: Lane,
) -> Result<Greeted, Refusal> {
    let refusal = |error: io::Error| socket::refusal(&error);
    let socket = Socket::new(tcp, shared.settings.silence_max).map_err(refusal)?;
    let local = &shared.local;
    let mut shown = Shown { as_of: *shared.renewals.borrow(), ..Shown::default() };
    let (mut stream, names) = match &shared.security {
        Security::PlaintextWithoutAnyProtection => (Stream::Plain(socket), Names::Any),
        Security::Tls(identity) => {
            // The name is of no use (see `verify`), but the interface wants one.
            let name = ServerName::try_from("tenure.invalid")
                .map_err(|error| Refusal::Tls(error.to_string()))?;
            let connector = TlsConnector::from(identity.tls().client.clone());
            let tls = connector.connect(name, socket).await.map_err(refusal)?;
            shown.chain = chain(tls.get_ref().1.peer_certificates());
            let names = names(&shown.chain, &local.cluster)?;
            (Stream::Tls(Box::new(TlsStream::Client(tls))), names)
        }
    };
    let hello = Hello {
        cluster: local.cluster.clone(),
        name: local.name.clone(),
        node: local.node.clone(),
        lane,
    };
    say(&mut stream, &Message::Hello(Version::announced(), hello)).await.map_err(refusal)?;
    let (version, Accepted { name, node, .. }) =
        judge_answer(listen(&mut stream).await?, local, &names)?;
    #[cfg(feature = "switch")]
    within_reach(shared, &mut stream, address).await?;
    if node.address == *address {
        shared.prove(address, &name);
    }
    Ok(Greeted { stream, peer: Arc::new(Peer { node, name, version }), shown })
}

/// Answers somebody who dialed us. The caller limits the time.
pub(super) async fn answer(
    shared: &Arc<Shared>,
    tcp: Carrier,
    from: SocketAddr,
) -> Result<Answered, Refusal> {
    let refusal = |error: io::Error| socket::refusal(&error);
    if !shared.may_talk_with(from.ip()) {
        return Err(Refusal::BeyondLoopback);
    }
    let socket = Socket::new(tcp, shared.settings.silence_max).map_err(refusal)?;
    let local = &shared.local;
    let mut shown = Shown { as_of: *shared.renewals.borrow(), ..Shown::default() };
    let (mut stream, names) = match &shared.security {
        Security::PlaintextWithoutAnyProtection => (Stream::Plain(socket), Names::Any),
        Security::Tls(identity) => {
            let acceptor = TlsAcceptor::from(identity.tls().server.clone());
            let tls = acceptor.accept(socket).await.map_err(refusal)?;
            shown.chain = chain(tls.get_ref().1.peer_certificates());
            let names = names(&shown.chain, &local.cluster)?;
            (Stream::Tls(Box::new(TlsStream::Server(tls))), names)
        }
    };
    let judged = match listen(&mut stream).await {
        Ok(Message::Client(theirs, hello)) => {
            let certified = matches!(shared.security, Security::Tls(_)).then_some(&names);
            match judge_client(theirs, hello, local, certified)
                .and_then(|it| Place::take(shared, it.name))
            {
                Ok(place) => {
                    say(&mut stream, &accepted(shared)).await.map_err(refusal)?;
                    return Ok(Answered::Client(Client { stream, shown, place }));
                }
                Err(refusal) => Err(refusal),
            }
        }
        Ok(message) => judge_hello(message, local, &names).and_then(|(version, hello)| {
            let admission = Admission::new(shared, &hello.node.address, &hello.name, &names)?;
            Ok((version, hello, admission))
        }),
        Err(refusal) => Err(refusal),
    };
    match judged {
        Ok((version, Hello { name, node, lane, .. }, admission)) => {
            #[cfg(feature = "switch")]
            within_reach(shared, &mut stream, &node.address).await?;
            say(&mut stream, &accepted(shared)).await.map_err(refusal)?;
            let peer = Arc::new(Peer { node, name, version });
            Ok(Answered::Node(Greeted { stream, peer, shown }, lane, admission))
        }
        Err(refused) => {
            if let Refusal::OtherName { address, .. } = &refused {
                shared.ask_for_proof(address);
            }
            // Its log is where somebody will look. If it does not listen, ours still has it.
            let why = Message::Refused(Version::announced(), refused.to_string());
            if say(&mut stream, &why).await.is_ok() {
                let _ = stream.shutdown().await;
            }
            Err(refused)
        }
    }
}

fn accepted(shared: &Shared) -> Message {
    let Local { cluster, name, node } = shared.local.clone();
    Message::Accepted(Version::announced(), Accepted { cluster, name, node })
}

pub(super) async fn say(stream: &mut Stream, message: &Message) -> io::Result<()> {
    let mut bytes = Vec::new();
    frame::append(&mut bytes, GREETING_MAX, |out| out.extend_from_slice(&message.encode()))
        .map_err(io::Error::other)?;
    stream.write_all(&bytes).await?;
    stream.flush().await
}

pub(super) async fn listen(stream: &mut Stream) -> Result<Message, Refusal> {
    let mut read = BytesMut::with_capacity(512);
    loop {
        let count = stream.read_buf(&mut read).await.map_err(|error| socket::refusal(&error))?;
        if count == 0 {
            return Err(Refusal::Cut("it was closed before the greeting".into()));
        }
        let mut frames = frame::take(&mut read, GREETING_MAX).map_err(|error| {
            // Whoever does not know the protocol sends something that reads as a length, too.
            match read.get(frame::HEADER..).is_some_and(|body| body.starts_with(b"tenure")) {
                true => Refusal::Frame(error),
                false => Refusal::NotTenure,
            }
        })?;
        if let Some(body) = frames.next() {
            // Neither side speaks again before it was answered.
            if !frames.is_empty() || !read.is_empty() {
                return Err(Refusal::Malformed("it sent more than a greeting".into()));
            }
            return Message::decode(&body);
        }
    }
}

pub(super) fn chain(certificates: Option<&[CertificateDer<'_>]>) -> Vec<CertificateDer<'static>> {
    let own = |certificate: &CertificateDer<'_>| certificate.clone().into_owned();
    certificates.unwrap_or_default().iter().map(own).collect()
}

pub(super) fn names(chain: &[CertificateDer<'_>], cluster: &str) -> Result<Names, Refusal> {
    match chain.first() {
        Some(leaf) => verify::names(leaf, cluster),
        // Not reached: the verifiers demand one.
        None => Err(Refusal::Tls("it showed no certificate".into())),
    }
}

/// An address is given at least this long, however many there are.
const SHARE_MIN: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use socket2::{Domain, Socket as RawSocket, Type};

    use super::*;

    /// Listens with no room for connections, so that the kernel answers nobody.
    fn black_hole() -> (RawSocket, SocketAddr, Vec<std::net::TcpStream>) {
        let socket = RawSocket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        socket.bind(&any.into()).unwrap();
        socket.listen(0).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        let patience = Duration::from_millis(100);
        let connect = || std::net::TcpStream::connect_timeout(&address, patience);
        let taken = std::iter::from_fn(|| connect().ok()).collect();
        (socket, address, taken)
    }

    #[tokio::test]
    async fn an_address_that_does_not_answer_does_not_hide_the_next() {
        let (_socket, hole, _taken) = black_hole();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let good = listener.local_addr().unwrap();
        let within = Duration::from_secs(2);
        let addresses = [hole, good];
        let connected = connect_any(&addresses, Instant::now() + within);
        let tcp = timeout(within, connected).await.expect("in time").unwrap();
        assert_eq!(tcp.peer_addr().unwrap(), good);
        let alone = connect_any(&[hole], Instant::now() + SHARE_MIN).await;
        assert!(matches!(alone, Err(Refusal::Slow(_))), "{alone:?}");
    }
}
