//! Who is connected, and who gives way when all places are taken. Pure.
//!
//! Whoever connects is a *stranger* until it was allowed to read something. Strangers and those who were
//! let in have places apart, so that neither can take the other's; and a newcomer always gets one, so
//! that a probe is answered however many connections others hold open. Who gives way for it is the oldest
//! stranger of the address that has the most: many connections from one address compete with each other,
//! not with a probe's.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};

/// The number of a connection; later ones are higher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ConnectionId(u64);

/// Everybody who is connected.
#[derive(Debug, Default)]
pub(super) struct Connections {
    last: u64,
    /// Where each stranger comes from.
    strangers: BTreeMap<ConnectionId, IpAddr>,
    let_in: BTreeSet<ConnectionId>,
}

impl Connections {
    /// A stranger connects; if there was no place for it, which connection to close.
    pub(super) fn add_stranger(&mut self, from: IpAddr) -> (ConnectionId, Option<ConnectionId>) {
        self.last += 1;
        let id = ConnectionId(self.last);
        self.strangers.insert(id, origin(from));
        let gives_way = (self.strangers.len() > STRANGERS_MAX).then(|| self.crowded_out());
        if let Some(gives_way) = gives_way {
            self.strangers.remove(&gives_way);
        }
        (id, gives_way)
    }

    /// The oldest stranger of the address that has the most; of several such addresses, the oldest.
    fn crowded_out(&self) -> ConnectionId {
        let mut counts = BTreeMap::<IpAddr, usize>::new();
        for origin in self.strangers.values() {
            *counts.entry(*origin).or_default() += 1;
        }
        let most = counts.values().max().copied().unwrap_or_default();
        let crowded = self.strangers.iter().find(|(_, origin)| counts[origin] == most);
        *crowded.expect("there are strangers").0
    }

    /// This one is no stranger any more; which connection to close, if there was no place for it.
    pub(super) fn let_in(&mut self, id: ConnectionId) -> Option<ConnectionId> {
        self.strangers.remove(&id)?;
        self.let_in.insert(id);
        if self.let_in.len() > LET_IN_MAX { self.let_in.pop_first() } else { None }
    }

    pub(super) fn is_stranger(&self, id: ConnectionId) -> bool {
        !self.let_in.contains(&id)
    }

    /// This connection has ended.
    pub(super) fn remove(&mut self, id: ConnectionId) {
        self.strangers.remove(&id);
        self.let_in.remove(&id);
    }
}

/// What counts as one address: of IPv6, the network, since whoever has one address there has them all.
fn origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
    }
}

/// How many may be connected who have not been let in.
pub(super) const STRANGERS_MAX: usize = 128;
/// How many who have.
pub(super) const LET_IN_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: usize) -> IpAddr {
        let [high, low] = u16::try_from(last).unwrap().to_be_bytes();
        [10, 0, high, low].into()
    }

    #[test]
    fn a_crowd_from_one_address_gives_way_to_everybody_else() {
        let mut all = Connections::default();
        let (probe, _) = all.add_stranger(address(1));
        let mut crowd = Vec::new();
        for _ in 0..10_000 {
            let (id, gives_way) = all.add_stranger(address(2));
            crowd.push(id);
            assert_eq!(gives_way.is_some(), crowd.len() >= STRANGERS_MAX);
            if let Some(gives_way) = gives_way {
                assert_eq!(
                    gives_way,
                    crowd[crowd.len() - STRANGERS_MAX],
                    "the oldest of the crowd"
                );
            }
        }
        assert!(all.strangers.contains_key(&probe), "older than all, and alone");
        let (_, gives_way) = all.add_stranger(address(3));
        assert_eq!(gives_way, Some(crowd[crowd.len() - STRANGERS_MAX + 1]));
    }

    #[test]
    fn of_as_many_addresses_as_places_the_oldest_gives_way() {
        let mut all = Connections::default();
        let ids: Vec<_> = (0..STRANGERS_MAX).map(|it| all.add_stranger(address(it)).0).collect();
        assert_eq!(all.add_stranger(address(9999)).1, Some(ids[0]));
        // Of an address that has one already, that one.
        assert_eq!(all.add_stranger(address(7)).1, Some(ids[7]));
    }

    #[test]
    fn who_was_let_in_and_strangers_have_places_apart() {
        let mut all = Connections::default();
        let mut ids = Vec::new();
        for _ in 0..LET_IN_MAX {
            let (id, gives_way) = all.add_stranger(address(1));
            assert_eq!((gives_way, all.let_in(id)), (None, None));
            ids.push(id);
        }
        for _ in 0..10_000 {
            let (id, gives_way) = all.add_stranger(address(1));
            assert!(gives_way.is_none_or(|id| !ids.contains(&id)));
            assert!(all.is_stranger(id));
        }
        let (one_more, _) = all.add_stranger(address(1));
        assert_eq!(all.let_in(one_more), Some(ids[0]), "the oldest of them");
        assert_eq!(all.let_in(one_more), None, "it has its place already");
        assert!(!all.is_stranger(one_more));
        for id in ids.into_iter().chain([one_more]) {
            all.remove(id);
        }
        assert!(all.let_in.is_empty() && all.strangers.len() <= STRANGERS_MAX);
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let of = |text: &str| origin(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    }
}
