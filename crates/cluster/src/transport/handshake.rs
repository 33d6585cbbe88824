//! The first two frames of a connection: who dials says hello, who accepts answers.
//!
//! ```text
//! "tenure" | kind: u8 | major: u16 | minor: u16 | rest
//! ```
//!
//! The part up to the version, and a refusal's text after it, stay as they are in every version to
//! come, so that two nodes that share no version can still tell each other why they part. How the
//! rest may change within a major version: [`tenure_wire`].

use std::fmt;

use serde::{Deserialize, Serialize};
pub use tenure_wire::Version;
use tenure_wire::WireMessage;

use super::refusal::Refusal;
use super::{Lane, Local};
use crate::Node;

/// What the dialer says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The name of the cluster that it is of.
    pub cluster: String,
    /// Its name within it, as in its certificate.
    pub name: String,
    /// Its address and incarnation.
    pub node: Node,
    /// What the connection is for.
    pub lane: Lane,
}

/// What a client says, which is no node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientHello {
    /// The name of the cluster that it wants to talk with.
    pub cluster: String,
    /// Its name, as in its certificate behind `client/`.
    pub name: String,
}

/// What the acceptor says if it takes the connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// The name of the cluster that it is of.
    pub cluster: String,
    /// Its name within it, as in its certificate.
    pub name: String,
    /// Its address and incarnation.
    pub node: Node,
}

/// A handshake's frame, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// From the dialer.
    Hello(Version, Hello),
    /// From a dialer that is a client.
    Client(Version, ClientHello),
    /// The acceptor agrees.
    Accepted(Version, Accepted),
    /// The acceptor refuses, in words for people.
    Refused(Version, String),
    /// Of a major version that we cannot read further.
    Foreign(Version),
}

impl Message {
    /// The body of its frame.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, version, rest) = match self {
            Self::Hello(version, hello) => (HELLO, version, pack(hello)),
            Self::Client(version, hello) => (CLIENT, version, pack(hello)),
            Self::Accepted(version, accepted) => (ACCEPTED, version, pack(accepted)),
            Self::Refused(version, why) => {
                (REFUSED, version, limited(why, REASON_MAX).as_bytes().to_vec())
            }
            Self::Foreign(version) => (FOREIGN, version, Vec::new()),
        };
        let mut body = Vec::with_capacity(PREFIX + rest.len());
        body.extend_from_slice(MAGIC);
        body.push(kind);
        body.extend_from_slice(&version.major.to_le_bytes());
        body.extend_from_slice(&version.minor.to_le_bytes());
        body.extend_from_slice(&rest);
        body
    }

    /// Reads the body of a frame.
    pub fn decode(body: &[u8]) -> Result<Self, Refusal> {
        let not_ours = || Refusal::NotTenure;
        let rest = body.strip_prefix(MAGIC).ok_or_else(not_ours)?;
        let (&[kind, a, b, c, d], rest) = rest.split_first_chunk().ok_or_else(not_ours)?;
        let version =
            Version { major: u16::from_le_bytes([a, b]), minor: u16::from_le_bytes([c, d]) };
        match kind {
            // Before the version is looked at: this one we can always read.
            REFUSED => {
                let why = String::from_utf8_lossy(&rest[..rest.len().min(REASON_MAX)]);
                // It is logged: no control characters that could pass for lines of the log, and
                // not longer for what stands in place of bytes that are no text.
                let why = why.replace(char::is_control, " ");
                Ok(Self::Refused(version, limited(&why, REASON_MAX).to_owned()))
            }
            _ if version.major != Version::OURS.major => Ok(Self::Foreign(version)),
            HELLO => Ok(Self::Hello(version, unpack(rest)?)),
            CLIENT => Ok(Self::Client(version, unpack(rest)?)),
            ACCEPTED => Ok(Self::Accepted(version, unpack(rest)?)),
            _ => Err(Refusal::Malformed("its first frame is no greeting".into())),
        }
    }
}

/// Which names of a cluster a certificate is good for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Names {
    /// Every name: the certificate is shared by all replicas, or there is no certificate.
    Any,
    /// These.
    Only(Vec<String>),
}

impl Names {
    /// Whether `name` is among them.
    pub fn covers(&self, name: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Only(names) => names.iter().any(|covered| covered == name),
        }
    }
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any name"),
            Self::Only(names) => write!(f, "\"{}\"", names.join("\", \"")),
        }
    }
}

/// The acceptor judges the first frame of a connection whose certificate is good for `names`.
pub fn judge_hello(
    message: Message,
    local: &Local,
    names: &Names,
) -> Result<(Version, Hello), Refusal> {
    match message {
        Message::Hello(theirs, hello) => {
            let version = agree(theirs)?;
            judge_names(&hello.cluster, &hello.name, local, names)?;
            // A node may well dial itself under another name, to find that out.
            if hello.node.address == local.node.address && hello.node != local.node {
                return Err(Refusal::OurAddress(hello.node.address.clone()));
            }
            Ok((version, hello))
        }
        Message::Foreign(theirs) => Err(Refusal::Version { ours: Version::OURS, theirs }),
        Message::Client(..) => Err(Refusal::Malformed("it is a client, and no node".into())),
        Message::Accepted(..) | Message::Refused(..) => {
            Err(Refusal::Malformed("its first frame is an answer to nothing".into()))
        }
    }
}

/// The acceptor judges the first frame of a client, whose certificate is good for `names`; none, if
/// nothing is encrypted. A certificate for all nodes is for no client.
pub fn judge_client(
    theirs: Version,
    hello: ClientHello,
    local: &Local,
    names: Option<&Names>,
) -> Result<ClientHello, Refusal> {
    agree(theirs)?;
    let certified = match names {
        None => &Names::Any,
        Some(names @ Names::Only(_)) => names,
        Some(Names::Any) => &Names::Only(Vec::new()),
    };
    let name = client_name(&hello.name);
    if hello.cluster != local.cluster {
        let (ours, theirs) = (local.cluster.clone(), shown(&hello.cluster));
        return Err(Refusal::Cluster { ours, theirs });
    }
    if !is_name(&hello.name) {
        return Err(Refusal::Malformed(format!("{:?} is no name of a client", shown(&hello.name))));
    }
    if !certified.covers(&name) {
        let certified = names.map(Names::to_string).unwrap_or_default();
        return Err(Refusal::Name { claimed: name, certified });
    }
    Ok(hello)
}

/// What the certificate of a client says in place of a node's name. No node is called so.
pub fn client_name(name: &str) -> String {
    format!("{CLIENT_PREFIX}{name}")
}

/// Whether this is what the certificate of a client says.
pub(crate) fn is_client_name(name: &str) -> bool {
    name.strip_prefix(CLIENT_PREFIX).is_some_and(is_name)
}

/// The dialer judges the answer of whoever accepted, whose certificate is good for `names`.
pub fn judge_answer(
    message: Message,
    local: &Local,
    names: &Names,
) -> Result<(Version, Accepted), Refusal> {
    match message {
        Message::Accepted(theirs, accepted) => {
            let version = agree(theirs)?;
            judge_names(&accepted.cluster, &accepted.name, local, names)?;
            Ok((version, accepted))
        }
        Message::Refused(_, why) => Err(Refusal::ByPeer(why)),
        Message::Foreign(theirs) => Err(Refusal::Version { ours: Version::OURS, theirs }),
        Message::Hello(..) | Message::Client(..) => {
            Err(Refusal::Malformed("it answers hello with hello".into()))
        }
    }
}

fn agree(theirs: Version) -> Result<Version, Refusal> {
    Version::announced().agree(theirs).ok_or(Refusal::Version { ours: Version::OURS, theirs })
}

fn judge_names(cluster: &str, name: &str, local: &Local, names: &Names) -> Result<(), Refusal> {
    if cluster != local.cluster {
        let (ours, theirs) = (local.cluster.clone(), shown(cluster));
        return Err(Refusal::Cluster { ours, theirs });
    }
    if !names.covers(name) {
        return Err(Refusal::Name { claimed: shown(name), certified: names.to_string() });
    }
    // The name goes into logs and labels.
    if !is_name(name) {
        return Err(Refusal::Malformed(format!("{:?} is no name of a node", shown(name))));
    }
    Ok(())
}

/// Whether this can name a cluster or a node: 1 to 128 characters that a URI's path may hold.
pub fn is_name(name: &str) -> bool {
    (1..=NAME_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
}

/// What strangers sent, made fit for a log line.
fn shown(text: &str) -> String {
    limited(text, 80).replace(char::is_control, " ")
}

fn limited(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

impl WireMessage for Hello {}
impl WireMessage for ClientHello {}
impl WireMessage for Accepted {}

fn pack(greeting: &impl WireMessage) -> Vec<u8> {
    // Nothing is agreed yet; and greetings are of the first version, so that there always are bytes.
    tenure_wire::encode(greeting, Version::FIRST).unwrap_or_default()
}

fn unpack<T: WireMessage>(rest: &[u8]) -> Result<T, Refusal> {
    tenure_wire::decode(rest)
        .map_err(|error| Refusal::Malformed(format!("its greeting cannot be read: {error}")))
}

/// No greeting is longer: two names, an address.
pub const GREETING_MAX: usize = 4096;
const MAGIC: &[u8] = b"tenure";
const PREFIX: usize = MAGIC.len() + 5;
const REASON_MAX: usize = 1024;
const NAME_MAX: usize = 128;
const CLIENT_PREFIX: &str = "client/";
const HELLO: u8 = 1;
const ACCEPTED: u8 = 2;
const REFUSED: u8 = 3;
const CLIENT: u8 = 4;
/// Never sent; so that every message can be encoded.
const FOREIGN: u8 = 0;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;
    use tenure_wire::samples;

    use super::*;
    use crate::Incarnation;

    fn local() -> Local {
        Local { cluster: "shop".into(), name: "shop-0".into(), node: node(1, 1) }
    }

    #[test]
    fn samples_can_be_read() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/greetings.txt");
        let (cluster, name) = ("shop".to_owned(), "shop-1".to_owned());
        let (lane, node) = (Lane::Data, node(7400, 1 << 60));
        let hello =
            Hello { cluster: cluster.clone(), name: name.clone(), node: node.clone(), lane };
        let client = ClientHello { cluster: cluster.clone(), name: name.clone() };
        let accepted = Accepted { cluster, name, node };
        let greetings = [
            ("Hello", Message::Hello(Version::FIRST, hello.clone())),
            ("Hello", Message::Hello(Version::FIRST, Hello { lane: Lane::Control, ..hello })),
            ("Client", Message::Client(Version::FIRST, client)),
            ("Accepted", Message::Accepted(Version::FIRST, accepted)),
            ("Refused", Message::Refused(Version::FIRST, "another cluster".into())),
        ];
        let current =
            greetings.iter().map(|(kind, it)| (format!("Greeting::{kind}"), it.encode())).collect();
        samples::check_bytes(&file, "Greeting", current, |body| match Message::decode(body) {
            Ok(read) if greetings.iter().any(|(_, greeting)| *greeting == read) => Ok(()),
            other => Err(format!("{other:?}")),
        });
    }

    fn node(port: u16, incarnation: u64) -> Node {
        Node {
            address: format!("127.0.0.1:{port}").parse().unwrap(),
            incarnation: Incarnation(incarnation),
        }
    }

    fn hello() -> Hello {
        Hello {
            cluster: "shop".into(),
            name: "shop-1".into(),
            node: node(2, 2),
            lane: Lane::Control,
        }
    }

    fn judged(version: Version, hello: Hello, names: &Names) -> Result<Version, String> {
        let message = Message::decode(&Message::Hello(version, hello).encode()).unwrap();
        judge_hello(message, &local(), names)
            .map(|(version, _)| version)
            .map_err(|refusal| refusal.to_string())
    }

    prop_compose! {
        fn any_message()(
            kind in 0..3,
            version in (Just(1u16), any::<u16>()),
            cluster in ".{0,40}",
            name in ".{0,40}",
            port in 1u16..,
            incarnation: u64,
            data: bool,
            why in "[^\\pC]{0,300}",
        ) -> Message {
            let version = Version { major: version.0, minor: version.1 };
            let node = node(port, incarnation);
            let lane = if data { Lane::Data } else { Lane::Control };
            match kind {
                0 => Message::Hello(version, Hello { cluster, name, node, lane }),
                1 => Message::Accepted(version, Accepted { cluster, name, node }),
                _ => Message::Refused(version, limited(&why, REASON_MAX).into()),
            }
        }
    }

    proptest! {
        #[test]
        fn greetings_survive_the_wire(message in any_message()) {
            let body = message.encode();
            prop_assert!(body.len() <= GREETING_MAX);
            prop_assert_eq!(Message::decode(&body).unwrap(), message);
        }

        #[test]
        fn a_greeting_cut_at_any_byte_is_refused(message in any_message()) {
            let body = message.encode();
            // A refusal's text may be of any length, so every cut of it is one, too.
            let least = if matches!(message, Message::Refused(..)) { PREFIX } else { body.len() };
            for cut in 0..least {
                prop_assert!(Message::decode(&body[..cut]).is_err(), "cut at {}", cut);
            }
        }

        #[test]
        fn what_a_newer_minor_version_appends_is_ignored(
            message in any_message(),
            more in proptest::collection::vec(any::<u8>(), 0..50),
        ) {
            prop_assume!(!matches!(message, Message::Refused(..)));
            let mut body = message.encode();
            body.extend_from_slice(&more);
            prop_assert_eq!(Message::decode(&body).unwrap(), message);
        }

        #[test]
        fn garbage_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(Message::decode(&bytes).is_err());
            let mut tailored = MAGIC.to_vec();
            tailored.extend_from_slice(&bytes);
            let _ = Message::decode(&tailored); // Must not panic.
        }
    }

    #[test]
    fn a_reason_that_is_no_text_is_not_longer_than_one_that_is() {
        let mut body = Message::Refused(Version::OURS, String::new()).encode();
        body.resize(PREFIX + REASON_MAX, 0xff);
        let Ok(Message::Refused(_, why)) = Message::decode(&body) else { panic!("no refusal") };
        assert!(!why.is_empty() && why.len() <= REASON_MAX, "{} bytes", why.len());
    }

    #[test]
    fn the_lower_minor_is_spoken() {
        let newer = Version { minor: 7, ..Version::OURS };
        assert_eq!(judged(newer, hello(), &Names::Any), Ok(Version::OURS));
        assert_eq!(newer.agree(Version::OURS), Some(Version::OURS));
    }

    #[test]
    fn another_major_is_refused_with_both_versions() {
        let newer = Version { major: 2, minor: 3 };
        let error = judged(newer, hello(), &Names::Any).unwrap_err();
        assert!(error.contains("2.3") && error.contains("1.0"), "{error}");
        // And the newer one's refusal is readable here.
        let refusal = Message::Refused(newer, "we speak 2.3".into()).encode();
        let answer = judge_answer(Message::decode(&refusal).unwrap(), &local(), &Names::Any);
        assert_eq!(answer, Err(Refusal::ByPeer("we speak 2.3".into())));
    }

    #[test]
    fn names_must_be_those_of_the_certificate() {
        let only = Names::Only(vec!["shop-7".into()]);
        let error = judged(Version::OURS, hello(), &only).unwrap_err();
        assert!(error.contains("shop-1") && error.contains("shop-7"), "{error}");

        let other = Hello { cluster: "bank".into(), ..hello() };
        let error = judged(Version::OURS, other, &Names::Any).unwrap_err();
        assert!(error.contains("shop") && error.contains("bank"), "{error}");

        let odd = Hello { name: "a b".into(), ..hello() };
        judged(Version::OURS, odd, &Names::Any).unwrap_err();
        let ours = Hello { node: node(1, 9), ..hello() };
        judged(Version::OURS, ours, &Names::Any).unwrap_err();
    }
}
