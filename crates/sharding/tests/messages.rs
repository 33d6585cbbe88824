//! Messages survive the wire, and nothing that comes from it does harm.

use proptest::prelude::*;
use tenure_cluster::{Address, Incarnation, Node};
use tenure_lease::Token;
use tenure_lease::record::SessionRef;
use tenure_sharding::message::{Answer, DecodeError, Directive, Message, Refusal};
use tenure_sharding::{Host, Roster, RosterError, Shard, Version};

fn node() -> impl Strategy<Value = Node> {
    (0..9u8, any::<u64>()).prop_map(|(index, incarnation)| Node {
        address: Address::new(&format!("n{index}:7400")).unwrap(),
        incarnation: Incarnation(incarnation),
    })
}

fn host() -> impl Strategy<Value = Host> {
    let session = (0..9u8, any::<u64>())
        .prop_map(|(index, term)| SessionRef { name: format!("s{index}").parse().unwrap(), term });
    (node(), proptest::option::of(session)).prop_map(|(node, session)| Host { node, session })
}

fn shards() -> impl Strategy<Value = Vec<(Shard, Token)>> {
    let shard = (any::<u32>(), any::<u64>(), any::<u64>())
        .prop_map(|(shard, term, step)| (Shard(shard), Token::new(term, step)));
    proptest::collection::vec(shard, 0..20)
}

fn message() -> impl Strategy<Value = Message> {
    let directive = || {
        (any::<u64>(), host(), shards()).prop_map(|(term, host, shards)| Directive {
            term,
            host,
            shards,
        })
    };
    let answer = || (host(), shards()).prop_map(|(host, shards)| Answer { host, shards });
    let home = (any::<u32>(), any::<u64>(), node())
        .prop_map(|(shard, term, node)| (Shard(shard), Token::new(term, 1), node));
    prop_oneof![
        (any::<u64>(), any::<Option<u64>>())
            .prop_map(|(term, digest)| Message::Greeting { term, digest }),
        (any::<u64>(), proptest::option::of(host()), shards()).prop_map(|(term, host, shards)| {
            Message::Report { term, host, shards, version: Version::default() }
        }),
        directive().prop_map(Message::Allocate),
        directive().prop_map(Message::HandOff),
        answer().prop_map(Message::Started),
        answer().prop_map(Message::Stopped),
        proptest::collection::vec(any::<u32>().prop_map(Shard), 0..20).prop_map(Message::Where),
        (any::<u64>(), proptest::collection::vec(home, 0..20))
            .prop_map(|(term, homes)| Message::Homes { term, homes }),
        any::<u64>().prop_map(|term| Message::Refused(Refusal::OtherCoordinator { term })),
        any::<bool>().prop_map(Message::Able),
        any::<bool>().prop_map(|able| Message::Introduce { able }),
    ]
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(message in message()) {
        prop_assert_eq!(Message::decode(&message.encode()), Ok(message));
    }

    #[test]
    fn no_frame_does_harm(mut frame in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Message::decode(&frame);
        if let Some(version) = frame.first_mut() {
            *version = 1;
        }
        let _ = Message::decode(&frame);
        let _ = Roster::parse(&frame);
    }

    #[test]
    fn a_frame_that_was_cut_or_changed_does_no_harm(
        message in message(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut frame = message.encode();
        let _ = Message::decode(&frame[..at.index(frame.len())]);
        let index = at.index(frame.len());
        frame[index] = byte;
        let _ = Message::decode(&frame);
    }
}

#[test]
fn another_version_is_named() {
    let mut frame = Message::Able(true).encode();
    frame[0] = 9;
    assert_eq!(Message::decode(&frame), Err(DecodeError::Version(9)));
    assert_eq!(Message::decode(&[]), Err(DecodeError::Malformed));
}

/// Whoever changes the format sees this, and gives it the next number once there has been a release.
#[test]
fn the_format_is_that_of_its_number() {
    let node = Node { address: Address::new("n1:7400").unwrap(), incarnation: Incarnation(5) };
    let session = Some(SessionRef { name: "s1".parse().unwrap(), term: 6 });
    let host = Host { node, session };
    let shards = vec![(Shard(3), Token::new(7, 8))];
    let (term, version) = (9, "1.12".parse().unwrap());
    let report =
        Message::Report { term, host: Some(host.clone()), shards: shards.clone(), version };
    let known = b"\x01\x01\x09\x01\x07n1:7400\x05\x01\x02s1\x06\x01\x03\x07\x08\x02\x01\x0c";
    assert_eq!(report.encode(), known);
    let allocate = Message::Allocate(Directive { term, host, shards });
    let known = b"\x01\x02\x09\x07n1:7400\x05\x01\x02s1\x06\x01\x03\x07\x08";
    assert_eq!(allocate.encode(), known);
}

#[test]
fn a_roster_of_a_newer_version_is_not_misread() {
    assert_eq!(Roster::parse(b"{\"version\":2,\"x\":1}"), Err(RosterError::Newer(2)));
    assert!(matches!(Roster::parse(b"something else"), Err(RosterError::Foreign(_))));
    assert_eq!(Roster::parse(b""), Ok(Roster::default()));
}
