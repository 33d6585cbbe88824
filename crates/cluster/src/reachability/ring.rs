//! Who watches whom: everybody the next few on a ring.

use crate::Node;

/// The members that `me` watches: the `count` that follow it on the ring. In a small cluster
/// everybody watches everybody.
pub(super) fn neighbours<'a>(
    me: &Node,
    members: impl Iterator<Item = &'a Node>,
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
    others.truncate(count);
    others
}

fn place(node: &Node) -> u64 {
    node.incarnation.0.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31)
}
