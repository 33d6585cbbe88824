//! Everybody who must not get in: each is refused before anything it sent is handled, counted,
//! logged, and costs next to nothing.
#![allow(clippy::disallowed_methods, reason = "these tests run in real time, over real sockets")]

mod kit;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kit::{Kit, Started, counted, logged, quick};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme, StreamOwned,
};
use tenure_cluster::certs::{Authority, NodeFiles};
use tenure_cluster::transport::handshake::{Hello, Message};
use tenure_cluster::transport::{
    Down, Event, FrameError, Identity, Lane, Refusal, TransportSettings, Version,
};
use tenure_cluster::{Incarnation, Node};
use tokio::task::spawn_blocking;

/// Lets `stranger` try its luck with a node; checks that it is refused for `reason`, that this is
/// counted and logged, and that a good peer is served all the while.
async fn refused<T: Send + 'static>(
    kit: &mut Kit,
    reason: &'static str,
    stranger: impl FnOnce(&str) -> T + Send + 'static,
) -> (Refusal, T) {
    let label = format!("reason={reason}");
    let before = counted("tenure_transport_refused_total", &label);
    let mut node = kit.node("node");
    let good = kit.node("good");
    assert!(good.transport.control(&node.node.address, None, vec![1]));
    assert_eq!(node.control_frame().await, [1]);

    let address = node.node.address.to_string();
    let stranger = spawn_blocking(move || stranger(&address));
    let refusal = refusal(&mut node).await;
    let outcome = stranger.await.unwrap();
    assert_eq!(refusal.reason(), reason, "{refusal}");
    assert!(counted("tenure_transport_refused_total", &label) > before);
    assert!(logged(&format!("refused a connection: {refusal}")) > 0, "{refusal}");

    // The good peer's link is still up and alone.
    assert!(good.transport.control(&node.node.address, None, vec![2]));
    assert_eq!(node.control_frame().await, [2]);
    (refusal, outcome)
}

/// The next refusal; anything that was let in instead is a failure.
async fn refusal(node: &mut Started) -> Refusal {
    node.told(|event| match event {
        Event::Refused { refusal, from } => {
            assert!(from.is_loopback());
            Some(refusal)
        }
        Event::Up(link) => panic!("let in: {link:?}"),
        Event::Control { from, .. } => panic!("heard: {from:?}"),
        _ => None,
    })
    .await
}

#[tokio::test]
async fn garbage_instead_of_tls() {
    let mut kit = Kit::new();
    let (refusal, ()) = refused(&mut kit, "tls", |address| {
        let mut tcp = TcpStream::connect(address).unwrap();
        tcp.write_all(b"GET / HTTP/1.1\r\nhost: shop\r\n\r\n").unwrap();
        end_of(&mut tcp);
    })
    .await;
    assert!(refusal.to_string().contains("TLS"), "{refusal}");
}

#[tokio::test]
async fn no_certificate() {
    let mut kit = Kit::new();
    let (_, answer) = refused(&mut kit, "tls", |address| {
        greet(address, None, Message::Hello(Version::OURS, hello()))
    })
    .await;
    answer.unwrap_err();
}

#[tokio::test]
async fn a_certificate_of_another_authority() {
    let mut kit = Kit::new();
    let files = Authority::new("shop").unwrap().issue("mallory", &[]).unwrap();
    let (refusal, answer) = refused(&mut kit, "tls", |address| {
        greet(address, Some(files), Message::Hello(Version::OURS, hello()))
    })
    .await;
    assert!(refusal.to_string().contains("not signed by an authority"), "{refusal}");
    answer.unwrap_err();
}

#[tokio::test]
async fn a_certificate_that_has_expired() {
    let mut kit = Kit::new();
    let yesterday = UnixTime::now().as_secs() - 24 * 3600;
    let files = kit.authority.issue_between("late", &[], yesterday - 1000..yesterday).unwrap();
    let (refusal, answer) = refused(&mut kit, "tls", |address| {
        greet(address, Some(files), Message::Hello(Version::OURS, hello()))
    })
    .await;
    assert!(refusal.to_string().contains("expired"), "{refusal}");
    answer.unwrap_err();
}

#[tokio::test]
async fn the_right_authority_but_another_cluster() {
    let mut kit = Kit::new();
    // One authority that signs for two clusters: our files, its key, another name.
    kit.authority.save(kit.path("ca")).unwrap();
    let files = bank(&kit);
    let (refusal, answer) = refused(&mut kit, "certificate", |address| {
        greet(address, Some(files), Message::Hello(Version::OURS, hello()))
    })
    .await;
    let text = refusal.to_string();
    assert!(text.contains("\"shop\"") && text.contains("tenure://bank/teller"), "{text}");
    answer.unwrap_err();
}

#[tokio::test]
async fn a_certificate_of_this_cluster_but_a_greeting_of_another() {
    let mut kit = Kit::new();
    let files = kit.authority.issue("*", &[]).unwrap();
    let hello = Hello { cluster: "bank".into(), ..hello() };
    let (_, answer) = refused(&mut kit, "cluster", |address| {
        greet(address, Some(files), Message::Hello(Version::OURS, hello))
    })
    .await;
    // The one who dialed learns why.
    let why = why(answer);
    assert!(why.contains("\"bank\"") && why.contains("\"shop\""), "{why}");
}

#[tokio::test]
async fn a_name_that_the_certificate_does_not_carry() {
    let mut kit = Kit::new();
    let files = kit.authority.issue("mallory", &[]).unwrap();
    let (_, answer) = refused(&mut kit, "name", |address| {
        greet(address, Some(files), Message::Hello(Version::OURS, hello()))
    })
    .await;
    let why = why(answer);
    assert!(why.contains("\"alice\"") && why.contains("\"mallory\""), "{why}");
}

#[tokio::test]
async fn a_newer_major_version() {
    let mut kit = Kit::new();
    let files = kit.authority.issue("*", &[]).unwrap();
    let newer = Version { major: 9, minor: 3 };
    let (_, answer) = refused(&mut kit, "version", move |address| {
        greet(address, Some(files), Message::Hello(newer, hello()))
    })
    .await;
    let why = why(answer);
    assert!(why.contains("9.3") && why.contains(&Version::OURS.to_string()), "{why}");
}

#[tokio::test]
async fn a_greeting_of_four_gibibytes() {
    let mut kit = Kit::new();
    let files = kit.authority.issue("*", &[]).unwrap();
    refused(&mut kit, "not_tenure", |address| {
        let mut tls = tls(address, Some(files));
        tls.write_all(&[0xff; 4]).unwrap();
        end_of(&mut tls);
    })
    .await;
}

#[tokio::test]
async fn somebody_who_says_one_byte_at_a_time() {
    let mut kit = Kit::new();
    let files = kit.authority.issue("*", &[]).unwrap();
    // Within TLS, where it has shown a certificate; what comes before is no different.
    let (refusal, took) = refused(&mut kit, "slow", |address| {
        let start = Instant::now();
        let mut tls = tls(address, Some(files));
        let mut bytes = framed(&Message::Hello(Version::OURS, hello())).into_iter();
        while let Some(byte) = bytes.next()
            && tls.write_all(&[byte]).and_then(|()| tls.flush()).is_ok()
        {
            std::thread::sleep(Duration::from_millis(100));
        }
        start.elapsed()
    })
    .await;
    assert!(took < Duration::from_secs(3), "handshake_timeout is 1 s: {took:?}");
    assert_eq!(refusal, Refusal::Slow(Duration::from_secs(1)));
}

#[tokio::test]
async fn many_at_once_are_few_and_cheap() {
    let mut kit = Kit::new();
    let settings = TransportSettings { handshakes_per_ip_max: 8, ..quick() };
    let mut node = kit.node_with("node", settings);
    let address = node.node.address.to_string();
    let label = "reason=too_many";
    let (before, memory) = (counted("tenure_transport_refused_total", label), kit::resident());
    let fds = || std::fs::read_dir("/proc/self/fd").unwrap().count();

    let before_fds = fds();
    let flood = spawn_blocking(move || {
        for _ in 0..10 {
            let crowd: Vec<_> = (0..100).map(|_| TcpStream::connect(&address).unwrap()).collect();
            for mut tcp in crowd {
                let _ = tcp.write_all(&[0x16, 0x03, 0x01]); // As TLS begins.
            }
        }
    });
    let told = refusal(&mut node).await;
    assert!(matches!(told, Refusal::TooMany(_) | Refusal::Cut(_)), "{told}");
    flood.await.unwrap();
    let refused = |label| counted("tenure_transport_refused_total", label);
    let start = Instant::now();
    while refused(label) + refused("reason=cut") < before + 1000 {
        assert!(start.elapsed() < kit::LONG, "{} {}", refused(label), refused("reason=cut"));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let too_many = refused(label) - before;
    assert!(too_many > 500, "{too_many}");
    let lines = logged("unfinished handshakes from its address");
    assert!((1..=20).contains(&lines), "{lines} lines for {too_many} refusals");
    let grown = kit::resident().saturating_sub(memory);
    assert!(grown < 32 << 20, "memory grew by {grown} bytes");

    // All of them are gone when the handshake's time is over, and a peer gets in.
    let gone = Instant::now();
    while fds() > before_fds + 4 {
        assert!(gone.elapsed() < kit::LONG, "{} descriptors", fds());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let good = kit.node("good");
    assert!(good.transport.control(&node.node.address, None, vec![1]));
    assert_eq!(node.control_frame().await, [1]);
}

#[tokio::test]
async fn a_member_that_sends_an_endless_frame_is_cut_off() {
    let mut kit = Kit::new();
    let files = kit.authority.issue("*", &[]).unwrap();
    let mut node = kit.node("node");
    let address = node.node.address.to_string();
    let member = spawn_blocking(move || {
        let mut tls = tls(&address, Some(files));
        tls.write_all(&framed(&Message::Hello(Version::OURS, hello()))).unwrap();
        assert!(matches!(answer(&mut tls), Ok(Message::Accepted(..))));
        // A good frame, then one that says it has 4 GiB.
        tls.write_all(&[1, 0, 0, 0, 7, 0xff, 0xff, 0xff, 0xff, 1, 2, 3]).unwrap();
        end_of(&mut tls);
    });
    assert_eq!(node.control_frame().await, [7], "what was good is handled");
    let why =
        node.told(|event| if let Event::Down { why, .. } = event { Some(why) } else { None }).await;
    let max = TransportSettings::default().control_frame_max;
    assert_eq!(why, Down::Frame(FrameError::TooLong { len: u32::MAX as usize, max }));
    member.await.unwrap();
}

#[tokio::test]
async fn a_member_that_comes_again_replaces_its_former_link() {
    let mut kit = Kit::new();
    let mut node = kit.node("node");
    let address = node.node.address.to_string();
    let files = kit.authority.issue("*", &[]).unwrap();
    let hello = |name: &str| Hello { name: name.into(), lane: Lane::Data, ..hello() };
    let member = |hello: Hello, byte: u8| {
        let (address, files) = (address.clone(), files.clone());
        spawn_blocking(move || {
            let mut tls = tls(&address, Some(files));
            tls.write_all(&framed(&Message::Hello(Version::OURS, hello))).unwrap();
            assert!(matches!(answer(&mut tls), Ok(Message::Accepted(..))));
            tls.write_all(&[1, 0, 0, 0, byte]).unwrap();
            tls.flush().unwrap();
            tls
        })
    };
    let mut first = member(hello("alice"), 1).await.unwrap();
    let mut frames = node.data().await;
    assert_eq!(kit::receive(&mut frames).await.next().unwrap()[..], [1]);
    let _second = member(hello("alice"), 2).await.unwrap();
    let down =
        node.told(|event| if let Event::Down { why, .. } = event { Some(why) } else { None }).await;
    assert_eq!(down, Down::Replaced);
    spawn_blocking(move || end_of(&mut first)).await.unwrap();
    assert_eq!(kit::receive(&mut frames).await.next().unwrap()[..], [2], "the same channel");

    // Somebody of another name who claims the same address is refused, and replaces nobody.
    let mallory = Message::Hello(Version::OURS, hello("mallory"));
    let answer = spawn_blocking(move || greet(&address, Some(files), mallory)).await.unwrap();
    let why = why(answer);
    assert!(why.contains("\"mallory\"") && why.contains("\"alice\""), "{why}");
    assert!(frames.try_recv().is_err());
    while let Ok(event) = node.told.try_recv() {
        assert!(!matches!(event, Event::Down { .. }), "{event:?}");
    }
}

#[tokio::test]
async fn whoever_dials_a_stranger_sends_nothing() {
    let mut kit = Kit::new();
    let mut node = kit.node("node");
    // A node of the same name, but of another authority.
    let other = Authority::new("shop").unwrap();
    other.issue("other", &[]).unwrap().save(kit.path("other")).unwrap();
    Identity::load(kit.path("other"), "shop", "other").unwrap();
    let mut stranger = kit.node("other");
    assert!(node.transport.control(&stranger.node.address, None, vec![1]));
    let refusal = node
        .told(|event| match event {
            Event::Failed { refusal, .. } => Some(refusal),
            Event::Up(link) => panic!("linked with a stranger: {link:?}"),
            _ => None,
        })
        .await;
    assert!(refusal.to_string().contains("not signed by an authority"), "{refusal}");
    // And the stranger has refused us, as we have it.
    let refusal = stranger
        .told(|event| if let Event::Refused { refusal, .. } = event { Some(refusal) } else { None })
        .await;
    assert_eq!(refusal.reason(), "by_peer", "{refusal}");
}

fn hello() -> Hello {
    Hello {
        cluster: "shop".into(),
        name: "alice".into(),
        node: Node { address: "127.0.0.1:9".parse().unwrap(), incarnation: Incarnation(9) },
        lane: Lane::Control,
    }
}

/// A certificate of our authority for a node of another cluster.
fn bank(kit: &Kit) -> NodeFiles {
    use rcgen::{CertificateParams, DistinguishedName, DnType, Issuer, KeyPair, SanType};
    let path = kit.path("ca");
    let key = std::fs::read_to_string(path.join("ca.key")).unwrap();
    let mut issuer = CertificateParams::default();
    issuer.distinguished_name = DistinguishedName::new();
    issuer.distinguished_name.push(DnType::CommonName, "authority of shop");
    let issuer = Issuer::new(issuer, KeyPair::from_pem(&key).unwrap());
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    let uri = "tenure://bank/teller".to_owned();
    params.subject_alt_names = vec![SanType::URI(uri.try_into().unwrap())];
    let certificate = params.signed_by(&key, &issuer).unwrap().pem();
    NodeFiles {
        authority: kit.authority.certificate().into(),
        certificate,
        key: key.serialize_pem(),
    }
}

type Tls = StreamOwned<ClientConnection, TcpStream>;

/// Dials without checking who answers, as a stranger would.
fn tls(address: &str, files: Option<NodeFiles>) -> Tls {
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Credulous(provider)));
    let mut config = match files {
        None => config.with_no_client_auth(),
        Some(files) => {
            let chain = vec![CertificateDer::from_pem_slice(files.certificate.as_bytes()).unwrap()];
            let key = PrivateKeyDer::from_pem_slice(files.key.as_bytes()).unwrap();
            config.with_client_auth_cert(chain, key).unwrap()
        }
    };
    config.alpn_protocols = vec![b"tenure".to_vec()];
    let name = ServerName::try_from("tenure.invalid").unwrap();
    let tls = ClientConnection::new(Arc::new(config), name).unwrap();
    let tcp = TcpStream::connect(address).unwrap();
    tcp.set_read_timeout(Some(kit::LONG)).unwrap();
    StreamOwned::new(tls, tcp)
}

fn greet(address: &str, files: Option<NodeFiles>, hello: Message) -> std::io::Result<Message> {
    let mut tls = tls(address, files);
    tls.write_all(&framed(&hello))?;
    tls.flush()?;
    answer(&mut tls)
}

fn answer(tls: &mut Tls) -> std::io::Result<Message> {
    let mut length = [0; 4];
    tls.read_exact(&mut length)?;
    let mut body = vec![0; u32::from_le_bytes(length) as usize];
    tls.read_exact(&mut body)?;
    Ok(Message::decode(&body).unwrap())
}

fn why(answer: std::io::Result<Message>) -> String {
    match answer {
        Ok(Message::Refused(_, why)) => why,
        other => panic!("{other:?}"),
    }
}

fn framed(message: &Message) -> Vec<u8> {
    let body = message.encode();
    [&(body.len() as u32).to_le_bytes()[..], &body].concat()
}

/// Waits until the other side has closed the connection.
fn end_of(stream: &mut impl std::io::Read) {
    let mut buffer = [0; 1024];
    while matches!(stream.read(&mut buffer), Ok(count) if count > 0) {}
}

#[derive(Debug)]
struct Credulous(Arc<CryptoProvider>);

impl ServerCertVerifier for Credulous {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        unreachable!("only TLS 1.3 is offered")
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, leaf, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
