//! Who watches whom: everybody the next few on a ring.

use crate::Node;

/// The members that `me` watches: those that follow it on the ring, until `count` of them can be
/// reached. In a small cluster everybody watches everybody.
///
/// Who is known to be unreachable does not count, so that somebody who is left alone, or with few
/// others, finds out about everybody else in the end.
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
