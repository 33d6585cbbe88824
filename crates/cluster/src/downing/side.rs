use std::collections::BinaryHeap;

use super::situation::{HasAddress, Seat, Situation};
use crate::view::Status;

/// How one node sees the split: who is with it, and who is not.
///
/// Those who have seen the view are in touch with this node, directly or through others. Whoever has
/// not, and has lost its link to one of them, is out of reach. Whoever has not, though nobody lost
/// a link to it, will have seen it in a moment, or will be found to be unreachable; until then
/// nothing is decided.
///
/// If links are cut between nodes that are in touch, they are *indirectly connected*: somebody
/// reaches both. No line between them would make two sides, so the node with most cut links is
/// dropped, then the next, until the rest see each other. That is what keeps one sick node, which
/// accuses twenty and is accused by twenty, from taking them with it: it goes alone. Of two that
/// have lost as many the younger is dropped.
#[derive(Clone, Debug)]
pub struct Side<'a, N> {
    /// Those who see each other, joining ones among them, in the order of nodes.
    pub here: Vec<&'a Seat<N>>,
    /// Those who are in touch, but do not see all of this side.
    pub dropped: Vec<&'a Seat<N>>,
    /// Those out of reach.
    pub gone: Vec<&'a Seat<N>>,
    /// Those who count, are not out of reach, and have not seen the view.
    pub unseen: Vec<&'a Seat<N>>,
    /// What it was worked out from.
    pub(super) situation: &'a Situation<N>,
    /// Whether each of its seats is of this side.
    pub(super) is_here: Vec<bool>,
}

impl<'a, N: HasAddress> Side<'a, N> {
    pub(super) fn of(situation: &'a Situation<N>) -> Self {
        let seats = &situation.seats;
        let mut is_gone = vec![false; seats.len()];
        let mut inner = Vec::new();
        for (a, b) in situation.cuts.iter().copied() {
            match (seats[a].seen, seats[b].seen) {
                (true, true) => inner.push((a, b)),
                // A joining member has no say in who is out of reach.
                (true, false) => is_gone[b] |= seats[a].counts(),
                (false, true) => is_gone[a] |= seats[b].counts(),
                (false, false) => {}
            }
        }
        let is_dropped = indirectly_connected(seats, &inner);
        let (mut here, mut dropped, mut gone, mut unseen) = (vec![], vec![], vec![], vec![]);
        let is_here = seats.iter().zip(&is_dropped).map(|(seat, dropped)| seat.seen && !dropped);
        let is_here: Vec<bool> = is_here.collect();
        for (place, seat) in seats.iter().enumerate() {
            if is_here[place] {
                here.push(seat);
            } else if is_dropped[place] {
                dropped.push(seat);
            } else if is_gone[place] {
                gone.push(seat);
            } else if seat.counts() {
                unseen.push(seat);
            }
        }
        Self { here, dropped, gone, unseen, situation, is_here }
    }

    /// Who leads this side: the up member with the lowest address, of those with the role. If
    /// nobody is up any more, the first of those who leave.
    pub fn leader(&self, role: Option<&str>) -> Option<&'a N> {
        let rank = |status| match status {
            Status::Up => Some(0),
            Status::Leaving => Some(1),
            Status::Exiting => Some(2),
            Status::Joining | Status::Down => None,
        };
        self.here
            .iter()
            .filter(|seat| seat.counts() && role.is_none_or(|role| seat.roles.contains(role)))
            .filter_map(|seat| Some((rank(seat.status)?, &seat.node)))
            .min()
            .map(|(_, node)| node)
    }
}

/// Whom to drop so that the rest see each other, given the links that are cut between them.
fn indirectly_connected<N: HasAddress>(seats: &[Seat<N>], cuts: &[(usize, usize)]) -> Vec<bool> {
    let mut dropped = vec![false; seats.len()];
    // A joining member that does not reach a full one goes first: it has no say, and hosts nothing.
    for &(a, b) in cuts {
        match (seats[a].counts(), seats[b].counts()) {
            (true, false) => dropped[b] = true,
            (false, true) => dropped[a] = true,
            _ => {}
        }
    }
    let kept = || cuts.iter().filter(|(a, b)| !dropped[*a] && !dropped[*b]);
    let mut count = vec![0_usize; seats.len()];
    for &(a, b) in kept() {
        count[a] += 1;
        count[b] += 1;
    }
    // The other ends of each one's links, one after the other in a single list.
    let mut start = vec![0; seats.len() + 1];
    for place in 0..seats.len() {
        start[place + 1] = start[place] + count[place];
    }
    let mut filled = start.clone();
    let mut links = vec![0_usize; start[seats.len()]];
    for &(a, b) in kept() {
        for (one, other) in [(a, b), (b, a)] {
            links[filled[one]] = other;
            filled[one] += 1;
        }
    }
    // The worst on top. An entry whose count has fallen since is out of date and passed over; a new
    // one was added when it fell.
    let entry = |place: usize, count: usize| (count, age(&seats[place]), place);
    let mut worst: BinaryHeap<_> = (0..seats.len())
        .filter(|place| count[*place] > 0)
        .map(|place| entry(place, count[place]))
        .collect();
    while let Some((cut, _, place)) = worst.pop() {
        if dropped[place] || cut != count[place] {
            continue;
        }
        dropped[place] = true;
        for &other in &links[start[place]..start[place + 1]] {
            if !dropped[other] {
                count[other] -= 1;
                if count[other] > 0 {
                    worst.push(entry(other, count[other]));
                }
            }
        }
    }
    dropped
}

/// Higher is younger. Who is only joining is younger than everybody else.
fn age<N>(seat: &Seat<N>) -> (bool, u64) {
    (!seat.counts(), seat.up_number)
}

/// For people: the first few by name.
pub(super) fn names<'n, N: HasAddress + 'n>(nodes: impl Iterator<Item = &'n N>) -> String {
    const SHOWN: usize = 12;
    let mut nodes: Vec<&str> = nodes.map(HasAddress::address).collect();
    let more = nodes.len().saturating_sub(SHOWN);
    nodes.truncate(SHOWN);
    let shown = nodes.join(", ");
    if more == 0 { shown } else { format!("{shown} and {more} more") }
}
