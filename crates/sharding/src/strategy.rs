//! Which region a shard goes to, and which shards move for balance. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use tenure_cluster::Node;

use crate::Shard;

/// How shards are given to regions. Whatever it says, a shard is given away only when it is nowhere.
#[derive(Clone, Debug, Default)]
pub enum Strategy {
    /// To those that have least; from those that have most, while others have two less.
    #[default]
    LeastShards,
    /// Each shard to the same node whoever coordinates, as long as the nodes are the same; of those
    /// nodes none has to move what it has when another comes or goes. Numbers of shards differ by a
    /// few; with ten shards for each node, some have half of that more. Nodes are told apart by their
    /// names ([`Load::label`]), so one that is started again at another address gets its shards back.
    ConsistentHashing,
    /// These shards to the nodes of these names or addresses, while they are there; the others to those
    /// that have least.
    Pinned(Arc<BTreeMap<Shard, Arc<str>>>),
    /// As you like.
    Custom(Arc<dyn Placement>),
}

impl Strategy {
    /// These shards to these nodes: each by its name, which it keeps when it is started again elsewhere,
    /// or by its address, `host:port`.
    pub fn pinned<N: ToString>(pins: impl IntoIterator<Item = (Shard, N)>) -> Self {
        let pins = pins.into_iter().map(|(shard, node)| (shard, node.to_string().into()));
        Self::Pinned(Arc::new(pins.collect()))
    }

    /// As you like.
    pub fn custom(placement: impl Placement) -> Self {
        Self::Custom(Arc::new(placement))
    }

    pub(crate) fn placement(&self) -> &dyn Placement {
        match self {
            Self::LeastShards => &Least,
            Self::ConsistentHashing => &Hashing,
            Self::Pinned(pins) => pins,
            Self::Custom(placement) => &**placement,
        }
    }
}

impl PartialEq for Strategy {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::LeastShards, Self::LeastShards) => true,
            (Self::ConsistentHashing, Self::ConsistentHashing) => true,
            (Self::Pinned(one), Self::Pinned(two)) => one == two,
            (Self::Custom(one), Self::Custom(two)) => Arc::ptr_eq(one, two),
            _ => false,
        }
    }
}

impl Eq for Strategy {}

/// A region that may be given shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// Where it is.
    pub node: Node,
    /// The node's name, which it keeps when it is started again elsewhere; `None` if it has told none, or
    /// if another of these regions has the same one.
    pub name: Option<Arc<str>>,
    /// How many shards it has, or will have.
    pub shards: usize,
}

impl Load {
    /// What stays the same when the node is started again: its name if that says which one it is, else its
    /// address.
    pub fn label(&self) -> &str {
        self.name.as_deref().unwrap_or_else(|| self.node.address.as_str())
    }

    fn is_pinned_to(&self, pin: &str) -> bool {
        self.name.as_deref() == Some(pin) || self.node.address.as_str() == pin
    }
}

/// Decides where shards go. It keeps nothing and looks at nothing but what it is given, so that every
/// coordinator decides the same.
pub trait Placement: fmt::Debug + Send + Sync + 'static {
    /// Which of these regions a shard goes to, by its place in the list, which is not empty. `None`:
    /// the shard waits until something changes.
    fn place(&self, shard: Shard, regions: &[Load]) -> Option<usize>;

    /// Which shards to take from where they are, so that [`place`](Self::place) can give them away
    /// anew: at most so many at a time. `homes` says where they are, by the place in the list.
    fn moves(&self, regions: &[Load], homes: &[(Shard, usize)], limit: usize) -> Vec<Shard>;
}

#[derive(Debug)]
struct Least;

impl Placement for Least {
    fn place(&self, _: Shard, regions: &[Load]) -> Option<usize> {
        let least = regions.iter().enumerate().min_by_key(|(place, load)| (load.shards, *place));
        least.map(|(place, _)| place)
    }

    fn moves(&self, regions: &[Load], homes: &[(Shard, usize)], limit: usize) -> Vec<Shard> {
        let mut counts: Vec<usize> = regions.iter().map(|load| load.shards).collect();
        // How many could be taken from each.
        let mut theirs = vec![0; regions.len()];
        homes.iter().for_each(|(_, place)| theirs[*place] += 1);
        let mut moved = Vec::new();
        let mut homes = homes.to_vec();
        while moved.len() < limit {
            let places = || counts.iter().copied().zip(0..);
            let rich = places().filter(|(_, place): &(usize, usize)| theirs[*place] > 0);
            let (Some((few, least)), Some((many, most))) = (places().min(), rich.max()) else {
                break;
            };
            let last = homes.iter().rposition(|(_, place)| *place == most);
            let Some(index) = last.filter(|_| many >= few + 2) else { break };
            moved.push(homes.swap_remove(index).0);
            theirs[most] -= 1;
            counts[most] -= 1;
            counts[least] += 1;
        }
        moved
    }
}

/// The node with the highest score has it.
#[derive(Debug)]
struct Hashing;

impl Hashing {
    /// The same in every version, for good: it says where shards are.
    fn score(shard: Shard, label: &str) -> u64 {
        let bytes = label.bytes().chain(shard.0.to_le_bytes());
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        hash ^ (hash >> 31)
    }
}

impl Placement for Hashing {
    fn place(&self, shard: Shard, regions: &[Load]) -> Option<usize> {
        let scores = regions.iter().enumerate();
        scores.max_by_key(|(_, load)| Self::score(shard, load.label())).map(|(place, _)| place)
    }

    fn moves(&self, regions: &[Load], homes: &[(Shard, usize)], limit: usize) -> Vec<Shard> {
        let strays =
            homes.iter().filter(|(shard, home)| self.place(*shard, regions) != Some(*home));
        strays.map(|(shard, _)| *shard).take(limit).collect()
    }
}

impl Placement for Arc<BTreeMap<Shard, Arc<str>>> {
    fn place(&self, shard: Shard, regions: &[Load]) -> Option<usize> {
        let pinned =
            self.get(&shard).and_then(|pin| regions.iter().position(|load| load.is_pinned_to(pin)));
        pinned.or_else(|| Least.place(shard, regions))
    }

    fn moves(&self, regions: &[Load], homes: &[(Shard, usize)], limit: usize) -> Vec<Shard> {
        let is_stray = |(shard, home): &(Shard, usize)| match self.get(shard) {
            None => false,
            Some(pin) => {
                let wanted = regions.iter().position(|load| load.is_pinned_to(pin));
                wanted.is_some_and(|wanted| wanted != *home)
            }
        };
        let mut moved: Vec<Shard> =
            homes.iter().filter(|home| is_stray(home)).map(|(shard, _)| *shard).collect();
        moved.truncate(limit);
        let free: Vec<_> =
            homes.iter().filter(|(shard, _)| !self.contains_key(shard)).copied().collect();
        moved.extend(Least.moves(regions, &free, limit - moved.len()));
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::node;

    fn loads(count: usize) -> Vec<Load> {
        (0..count).map(|index| Load { node: node(index), name: None, shards: 0 }).collect()
    }

    fn homes(strategy: &Strategy, regions: &mut [Load], shards: u32) -> Vec<(Shard, usize)> {
        let mut homes = Vec::new();
        for shard in (0..shards).map(Shard) {
            let place = strategy.placement().place(shard, regions).unwrap();
            regions[place].shards += 1;
            homes.push((shard, place));
        }
        homes
    }

    #[test]
    fn consistent_hashing_moves_no_more_than_it_must() {
        let strategy = Strategy::ConsistentHashing;
        let mut ten = loads(10);
        let before = homes(&strategy, &mut ten, 10_000);
        assert!(ten.iter().all(|load| (850..1150).contains(&load.shards)), "{ten:?}");
        let mut eleven = loads(11);
        eleven.iter_mut().zip(&ten).for_each(|(new, old)| new.shards = old.shards);
        let moved = strategy.placement().moves(&eleven, &before, usize::MAX);
        assert!((700..1150).contains(&moved.len()), "{}", moved.len());
        for shard in moved {
            assert_eq!(strategy.placement().place(shard, &eleven), Some(10));
        }
    }

    /// Each node has another address after a restart, and the same name.
    #[test]
    fn names_outlive_addresses() {
        let named = |from: usize| -> Vec<Load> {
            let name = |index: usize| Some(format!("shop-{index}").into());
            let load = |index| Load { node: node(from + index), name: name(index), shards: 0 };
            (0..5).map(load).collect()
        };
        let pins = (0..10).map(|shard| (Shard(shard), "shop-3"));
        for strategy in [Strategy::ConsistentHashing, Strategy::pinned(pins)] {
            let (mut before, mut after) = (named(0), named(5));
            let first = homes(&strategy, &mut before, 100);
            assert_eq!(homes(&strategy, &mut after, 100), first, "{strategy:?}");
            assert_eq!(strategy.placement().moves(&after, &first, 100), [], "{strategy:?}");
        }
    }

    /// Those that are pinned stay, however many they are.
    #[test]
    fn others_are_evened_out_beside_pinned_ones() {
        let strategy = Strategy::pinned((0..20).map(|shard| (Shard(shard), node(0).address)));
        let homes: Vec<_> = (0..30).map(|shard| (Shard(shard), usize::from(shard >= 20))).collect();
        let loads = [20, 10, 0].into_iter().zip(loads(3));
        let regions: Vec<_> = loads.map(|(shards, load)| Load { shards, ..load }).collect();
        let moved = strategy.placement().moves(&regions, &homes, 100);
        assert_eq!(moved.len(), 5);
        assert!(moved.iter().all(|shard| shard.0 >= 20), "{moved:?}");
    }

    #[test]
    fn pinned_shards_go_where_they_are_pinned_and_others_even_that_out() {
        let pins = (0..10).map(|shard| (Shard(shard), node(2).address));
        let strategy = Strategy::pinned(pins);
        let mut regions = loads(3);
        let homes = homes(&strategy, &mut regions, 30);
        assert!(homes[..10].iter().all(|(_, place)| *place == 2));
        assert!(regions.iter().all(|load| load.shards == 10), "{regions:?}");
        // The pinned node was away, and is back.
        let astray: Vec<_> = (0..30).map(|shard| (Shard(shard), shard as usize % 2)).collect();
        let regions: Vec<_> = [15, 15, 0]
            .into_iter()
            .zip(loads(3))
            .map(|(shards, load)| Load { shards, ..load })
            .collect();
        let moved = strategy.placement().moves(&regions, &astray, 10);
        assert_eq!(moved, (0..10).map(Shard).collect::<Vec<_>>());
    }
}
