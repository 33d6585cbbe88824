//! What coordinator and regions tell each other, on the control lane. Who sent it is known from the
//! connection. How it may change: [`tenure_wire`].

use serde::{Deserialize, Serialize};
use tenure_cluster::Node;
use tenure_lease::Token;
use tenure_wire::WireMessage;

use crate::{Host, Shard, Version};

/// What the nodes say to each other about one kind, and how the sender is set up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Letter {
    pub(crate) setup: SetupHere,
    /// Whether the sender hosts and coordinates, or would. It does not if it *stands back*: others, with
    /// which it cannot work together, do.
    pub(crate) serves: bool,
    /// None: the sender has been told something by a node that it cannot work together with.
    pub(crate) message: Option<Message>,
}

impl WireMessage for Letter {}
impl WireMessage for Message {}

/// How a kind is set up on one node. Nodes that differ in it cannot work together, unless the
/// difference is that one has a session and the other has none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SetupHere {
    /// How many shards the sender believes that there are, placed by which key
    /// ([`Settings::placing`](crate::Settings)): entities belong elsewhere otherwise.
    pub(crate) placing: u32,
    pub(crate) guarded_by: GuardedBy,
}

/// What keeps a kind's shards from being hosted twice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum GuardedBy {
    /// It hosts nothing, and needs no guard.
    SendsOnly,
    /// The membership alone.
    Gossip,
    /// The coordinator's lease of this name.
    Lease(String),
    /// The same, and a session.
    Sessions(String),
}

/// A message between a coordinator and a region, or between coordinators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// I coordinate, with this term: from now on obey nobody with a lower one, and tell me what you
    /// host. Repeated with the digest of what I believe; to be answered only if that is wrong.
    Greeting {
        /// The coordinator's term.
        term: u64,
        /// Of the host and what it hosts; `None` if that is not known.
        digest: Option<u64>,
    },
    /// I obey you from now on, and host this.
    Report {
        /// Of the coordinator that asked.
        term: u64,
        /// Who I am; `None` if I host nothing and will not.
        host: Option<Host>,
        /// What I host, or am still stopping.
        shards: Vec<(Shard, Token)>,
        /// My version of the application.
        version: Version,
    },
    /// Directive: host these.
    Allocate(Directive),
    /// It is done.
    Started(Answer),
    /// Directive: stop these. Also ends an allocation that has not arrived yet.
    HandOff(Directive),
    /// It is done: these allocations are over here, for good.
    Stopped(Answer),
    /// Where are these?
    Where(Vec<Shard>),
    /// There.
    Homes {
        /// The coordinator's term.
        term: u64,
        /// Shard, token of the allocation, node.
        homes: Vec<(Shard, Token, Node)>,
    },
    /// I do not do what you ask.
    Refused(Refusal),
    /// Whether I reach the store, so that I could coordinate.
    Able(bool),
    /// I take part: I host shards, or would, and could coordinate. Do you? To be answered with
    /// [`Message::Able`], by whoever does.
    Introduce {
        /// Whether I reach the store.
        able: bool,
    },
}

/// An order of the coordinator to a region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Directive {
    /// The coordinator's term.
    pub term: u64,
    /// Whom it is for; a successor of that session refuses it.
    pub host: Host,
    /// Which allocations.
    pub shards: Vec<(Shard, Token)>,
}

/// What a region says about a directive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Who says it.
    pub host: Host,
    /// About which allocations.
    pub shards: Vec<(Shard, Token)>,
}

/// Why something is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// I obey another coordinator, with this term.
    OtherCoordinator {
        /// Not below the term of whoever is refused.
        term: u64,
    },
    /// The directive is for another session than mine.
    OtherSession,
    /// Too many requests wait already; ask again later.
    Busy,
}

/// A digest of who hosts what; independent of the order.
pub(crate) fn digest(host: Option<&Host>, shards: impl Iterator<Item = (Shard, Token)>) -> u64 {
    let session = host.and_then(|host| host.session.as_ref()).map_or(0, |session| session.term);
    let start = mix(session ^ u64::from(host.is_some()) << 63);
    shards.fold(start, |sum, (shard, token)| {
        sum.wrapping_add(mix(mix(mix(u64::from(shard.0)) ^ token.term) ^ token.step))
    })
}

fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (value ^ (value >> 31)).wrapping_add(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tenure_cluster::Incarnation;
    use tenure_lease::record::SessionRef;
    use tenure_wire::samples;

    use super::*;
    use crate::{Roster, RosterEntry};

    tenure_wire::variants!(Message {
        Greeting,
        Report,
        Allocate,
        Started,
        HandOff,
        Stopped,
        Where,
        Homes,
        Refused,
        Able,
        Introduce
    });

    fn host() -> Host {
        let node = Node { address: "n1:7400".parse().unwrap(), incarnation: Incarnation(5) };
        let session = Some(SessionRef { name: "s1".parse().unwrap(), term: 6 });
        Host { node, session }
    }

    fn letters() -> Vec<Letter> {
        let (term, shards, node) = (9, vec![(Shard(300), Token::new(7, 1 << 40))], host().node);
        let directive = Directive { term, host: host(), shards: shards.clone() };
        let answer = Answer { host: host(), shards: shards.clone() };
        let version = "1.12".parse().unwrap();
        let messages = [
            Message::Greeting { term, digest: Some(u64::MAX) },
            Message::Report { term, host: Some(host()), shards: shards.clone(), version },
            Message::Allocate(directive.clone()),
            Message::Started(answer.clone()),
            Message::HandOff(directive),
            Message::Stopped(answer),
            Message::Where(vec![Shard(3)]),
            Message::Homes { term, homes: vec![(shards[0].0, shards[0].1, node)] },
            Message::Refused(Refusal::OtherCoordinator { term }),
            Message::Refused(Refusal::OtherSession),
            Message::Refused(Refusal::Busy),
            Message::Able(true),
            Message::Introduce { able: true },
        ];
        let guards = [
            GuardedBy::SendsOnly,
            GuardedBy::Gossip,
            GuardedBy::Lease("carts".into()),
            GuardedBy::Sessions("carts".into()),
        ];
        let letter = |message: Option<&Message>, guarded_by: &GuardedBy| Letter {
            setup: SetupHere { placing: 64, guarded_by: guarded_by.clone() },
            serves: true,
            message: message.cloned(),
        };
        let all = messages.iter().map(|message| letter(Some(message), &guards[1]));
        all.chain(guards.iter().map(|guard| letter(None, guard))).collect()
    }

    #[test]
    fn every_message_has_samples_that_can_be_read() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/sharding.txt");
        let variant_of = |letter: &Letter| letter.message.as_ref().map_or("none", variant_of);
        samples::check_message(&file, "Letter", &letters(), VARIANTS, variant_of);
    }

    #[test]
    fn samples_of_rosters_can_be_read() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/records.txt");
        let mut roster = Roster::default();
        roster.insert(host(), RosterEntry { cluster: 1 << 50, up_number: 3 });
        roster.insert(Host::node(host().node), RosterEntry { cluster: 1 << 50, up_number: 4 });
        let current = vec![("Roster".to_owned(), roster.to_note().unwrap())];
        samples::check_bytes(&file, "Roster", current, |note| match Roster::parse(note) {
            Ok(read) if read == roster => Ok(()),
            other => Err(format!("{other:?}")),
        });
    }
}
