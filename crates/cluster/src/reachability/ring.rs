//! Who watches whom: everybody the next few on a ring.

use crate::Node;

/// The members that `me` watches: those that follow it on the ring, until `count` of them can be
/// reached. In a small cluster everybody watches everybody.
///
/// It looks past those that do not answer, because in a split all who would watch some node may be
/// on that node's own side: then nobody on the other side would ever find it unreachable.
pub(super) fn neighbours<'a>(
    me: &Node,
    members: impl Iterator<Item = &'a Node>,
    is_unreachable: impl Fn(&Node) -> bool,
    count: usize,
) -> Vec<&'a Node> {
    let mut others: Vec<&Node> = members.filter(|node| *node != me).collect();
    if others.len() <= count {
        return others;
    }
    // The order on the ring is that of scrambled incarnations, so that neighbours are in different
    // racks, whatever the addresses say.
    let from = place(me);
    others.sort_unstable_by_key(|node| (place(node).wrapping_sub(from), *node));
    let mut reachable = 0;
    let mut taken = 0;
    others.retain(|node| {
        let answers = !is_unreachable(node);
        let take = if answers { reachable < count } else { taken < count };
        reachable += usize::from(answers);
        taken += usize::from(take);
        take
    });
    others
}

fn place(node: &Node) -> u64 {
    node.incarnation.0.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Address, Incarnation};

    fn nodes(count: u64) -> Vec<Node> {
        let node = |number: u64| Node {
            address: Address::new(&format!("n{number}:7400")).unwrap(),
            incarnation: Incarnation(number.wrapping_mul(0x2545_f491_4f6c_dd1d)),
        };
        (1..=count).map(node).collect()
    }

    #[test]
    fn everybody_watches_and_is_watched_by_nine() {
        let nodes = nodes(40);
        let mut watched = std::collections::BTreeMap::new();
        for me in &nodes {
            let neighbours = neighbours(me, nodes.iter(), |_| false, 9);
            assert_eq!(neighbours.len(), 9);
            assert!(!neighbours.contains(&me));
            for node in neighbours {
                *watched.entry(node).or_insert(0) += 1;
            }
        }
        assert!(nodes.iter().all(|node| watched[node] == 9), "{watched:?}");
    }

    #[test]
    fn one_side_of_a_split_watches_all_of_the_other_in_the_end() {
        let nodes = nodes(60);
        let (here, there) = nodes.split_at(30);
        // Whoever of the other side was watched is found not to answer, and looked past.
        let mut silent = std::collections::BTreeSet::new();
        for _ in 0..30 {
            for me in here {
                let found: Vec<Node> =
                    neighbours(me, nodes.iter(), |node| silent.contains(node), 9)
                        .into_iter()
                        .filter(|node| there.contains(node))
                        .cloned()
                        .collect();
                silent.extend(found);
            }
        }
        assert_eq!(silent.len(), there.len());
    }
}
