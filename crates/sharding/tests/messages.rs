//! Messages survive the wire, and nothing that comes from it does harm.

use proptest::prelude::*;
use tenure_cluster::{Address, Incarnation, Node};
use tenure_lease::Token;
use tenure_lease::record::SessionRef;
use tenure_sharding::wire::{Answer, Directive, Message, Refusal};
use tenure_sharding::{Host, Roster, RosterError, Shard, Version};
use tenure_wire::Unreadable;

fn encode(message: &Message) -> Vec<u8> {
    tenure_wire::encode(message, tenure_wire::Version::OURS).unwrap()
}

fn decode(frame: &[u8]) -> Result<Message, Unreadable> {
    tenure_wire::decode(frame)
}

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
        prop_assert_eq!(decode(&encode(&message)), Ok(message));
    }

    #[test]
    fn no_frame_does_harm(frame in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode(&frame);
        let _ = Roster::parse(&frame);
    }

    #[test]
    fn a_frame_that_was_cut_or_changed_does_no_harm(
        message in message(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut frame = encode(&message);
        let _ = decode(&frame[..at.index(frame.len())]);
        let index = at.index(frame.len());
        frame[index] = byte;
        let _ = decode(&frame);
    }
}

#[test]
fn a_roster_of_a_newer_version_is_not_misread() {
    assert_eq!(Roster::parse(b"{\"version\":2,\"x\":1}"), Err(RosterError::Newer(2)));
    assert!(matches!(Roster::parse(b"something else"), Err(RosterError::Foreign(_))));
    assert_eq!(Roster::parse(b""), Ok(Roster::default()));
}
