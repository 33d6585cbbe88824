use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Side;
use crate::view::{Roles, Status, View};
use crate::{Incarnation, Member, Node};

/// What can be a node here: a [`Node`] of a running cluster, or just a name.
pub trait HasAddress: Clone + Ord + Hash {
    /// Its address; nodes are in the order of their addresses.
    fn address(&self) -> &str;
}

impl HasAddress for Node {
    fn address(&self) -> &str {
        self.address.as_str()
    }
}

impl HasAddress for String {
    fn address(&self) -> &str {
        self
    }
}

/// What one node believes, as far as downing is concerned.
#[derive(Clone, Debug)]
pub struct Situation<N> {
    /// Whose belief it is; `None` if it is down.
    me: Option<usize>,
    /// Those that are not down, in the order of nodes.
    pub(super) seats: Vec<Seat<N>>,
    /// Links that somebody found cut, as places in `seats`; the lower place first, each once.
    pub(super) cuts: Vec<(usize, usize)>,
    pub(super) converged: Option<Arc<Converged<N>>>,
}

/// One member, and whether it has seen the view.
#[derive(Clone, Debug)]
pub struct Seat<N> {
    /// Which node.
    pub node: N,
    /// How far it has come.
    pub status: Status,
    /// Its age: lower is older.
    pub up_number: u64,
    /// What it can be used for.
    pub roles: Roles,
    /// Whether it is known to believe exactly this.
    pub seen: bool,
}

impl<N> Seat<N> {
    /// Whether it is counted: not while it is only joining, or leaves before it was up, and not when
    /// it is down.
    pub(super) fn counts(&self) -> bool {
        counts(self.status, self.up_number)
    }
}

/// The membership that all had seen when the view was last converged.
///
/// To be taken whenever every member that is not down has seen the view, and when a verdict was
/// merged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(deserialize = "N: Ord + Deserialize<'de>"))]
pub struct Converged<N> {
    /// The members that were counted, their age and roles.
    pub(super) members: BTreeMap<N, (u64, Roles)>,
}

impl<N: HasAddress> Converged<N> {
    /// Of these members: node, status, up-number and roles.
    pub fn new(members: impl IntoIterator<Item = (N, Status, u64, Roles)>) -> Self {
        let counted = members.into_iter().filter(|(_, status, age, _)| counts(*status, *age));
        Self { members: counted.map(|(node, _, age, roles)| (node, (age, roles))).collect() }
    }
}

impl Converged<Node> {
    /// What a view says, which all have seen.
    pub fn of(view: &View) -> Self {
        Self::new(view.members().map(|(node, member)| {
            let Member { status, up_number, roles, .. } = member.clone();
            (node.clone(), status, up_number, roles)
        }))
    }
}

impl<N: HasAddress> Situation<N> {
    /// What `me` believes: the members; who, as observer, cannot reach whom; and the membership
    /// that was last converged, if it may be another.
    pub fn new(
        me: &N,
        members: impl IntoIterator<Item = Seat<N>>,
        cuts: impl IntoIterator<Item = (N, N)>,
        converged: Option<Arc<Converged<N>>>,
    ) -> Result<Self, SituationError> {
        let mut all: Vec<Seat<N>> = members.into_iter().collect();
        all.sort_unstable_by(|a, b| a.node.cmp(&b.node));
        let twice = all.windows(2).find(|pair| pair[0].node == pair[1].node);
        if let Some(pair) = twice {
            return Err(SituationError::Twice(pair[0].node.address().to_owned()));
        }
        let places: HashMap<&N, usize> =
            all.iter().enumerate().map(|(place, seat)| (&seat.node, place)).collect();
        let place = |node: &N| {
            places.get(node).copied().ok_or_else(|| SituationError::NoMember(node.address().into()))
        };
        let my_place = place(me)?;
        let cuts = cuts
            .into_iter()
            .map(|(observer, subject)| Ok((place(&observer)?, place(&subject)?)))
            .collect::<Result<Vec<_>, _>>()?;
        // Those that are down are left out, and what they or others found out about them.
        let mut next = 0;
        let kept: Vec<Option<usize>> = all
            .iter()
            .map(|seat| {
                let kept = (seat.status < Status::Down).then_some(next);
                next += usize::from(kept.is_some());
                kept
            })
            .collect();
        let cuts = cuts
            .into_iter()
            .filter_map(|(observer, subject)| Some((kept[observer]?, kept[subject]?)));
        let cuts = links(cuts.collect());
        let me = kept[my_place];
        all.retain(|seat| seat.status < Status::Down);
        if let Some(me) = me {
            all[me].seen = true;
        }
        Ok(Self { me, seats: all, cuts, converged })
    }

    /// The side of the node that believes this; `None` if it is down itself.
    pub fn side(&self) -> Option<Side<'_, N>> {
        self.me.map(|_| Side::of(self))
    }
}

impl Situation<Node> {
    /// What a node of a running cluster believes, and who is known to believe the same.
    pub fn of(
        me: &Node,
        view: &View,
        seen: &BTreeSet<Node>,
        converged: Option<Arc<Converged<Node>>>,
    ) -> Self {
        let mut seats: Vec<Seat<Node>> = Vec::with_capacity(view.members().len());
        let mut seen = seen.iter().peekable();
        for (node, member) in view.members().filter(|(_, member)| member.status < Status::Down) {
            // Both are in the order of nodes.
            while seen.next_if(|other| *other < node).is_some() {}
            let has_seen = node == me || seen.peek() == Some(&node);
            let Member { status, up_number, roles, .. } = member.clone();
            seats.push(Seat { node: node.clone(), status, up_number, roles, seen: has_seen });
        }
        // Found by incarnation, which is quicker to compare than an address, and nearly unique.
        let mut places: Vec<(Incarnation, usize)> =
            seats.iter().enumerate().map(|(place, seat)| (seat.node.incarnation, place)).collect();
        places.sort_unstable();
        let place = |node: &Node| {
            let from = places.partition_point(|(incarnation, _)| *incarnation < node.incarnation);
            let same = places[from..].iter().take_while(|(one, _)| *one == node.incarnation);
            same.map(|(_, place)| *place).find(|place| seats[*place].node == *node)
        };
        let mut cuts = Vec::new();
        for (observer, seat) in seats.iter().enumerate() {
            let Some(row) = view.row(&seat.node) else { continue };
            cuts.extend(row.unreachable.iter().filter_map(|one| Some((observer, place(one)?))));
        }
        let me = place(me);
        Self { me, cuts: links(cuts), seats, converged }
    }
}

/// A link is cut if either end finds it so: a link that carries questions but no answers is none.
fn links(cuts: Vec<(usize, usize)>) -> Vec<(usize, usize)> {
    let mut links: Vec<(usize, usize)> =
        cuts.into_iter().filter(|(a, b)| a != b).map(|(a, b)| (a.min(b), a.max(b))).collect();
    links.sort_unstable();
    links.dedup();
    links
}

fn counts(status: Status, up_number: u64) -> bool {
    match status {
        Status::Up => true,
        Status::Leaving | Status::Exiting => up_number > 0,
        Status::Joining | Status::Down => false,
    }
}

/// A belief that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SituationError {
    /// Somebody is mentioned who is not listed.
    #[error("\"{0}\" is mentioned, but is not among the members")]
    NoMember(String),
    /// Somebody is listed more than once.
    #[error("\"{0}\" is listed twice among the members")]
    Twice(String),
}

#[cfg(test)]
mod tests {
    use super::super::{Decision, KeepMajority, LeaseMajority, Mode, Strategy};
    use super::*;
    use crate::Address;
    use crate::view::Facts;
    use crate::view::Row;

    fn node(name: char, incarnation: u64) -> Node {
        let address = Address::new(&format!("{name}:1")).unwrap();
        Node { address, incarnation: Incarnation(incarnation) }
    }

    /// The same belief, from a view and by hand, with a member that is down, one that took its
    /// address, and two that share an incarnation.
    #[test]
    fn a_view_and_its_parts_say_the_same() {
        let nodes = [node('a', 7), node('b', 3), node('b', 9), node('c', 3), node('d', 1)];
        let [a, old, b, c, d] = nodes.clone();
        let mut view = View::new(1);
        for (number, one) in nodes.iter().enumerate() {
            let status = if *one == old { Status::Down } else { Status::Up };
            let up_number = number as u64 + 1;
            view.set_member(
                one,
                Member { status, up_number, roles: Roles::default(), facts: Facts::default() },
            );
        }
        let rows = [(&a, vec![&c, &old]), (&b, vec![&c, &d]), (&c, vec![&a]), (&old, vec![&a])];
        for (observer, subjects) in rows.clone() {
            let unreachable = subjects.into_iter().cloned().collect::<BTreeSet<_>>().into();
            view.set_row(observer, Row { version: 1, unreachable });
        }
        let seen = BTreeSet::from([a.clone(), b.clone()]);
        let seats = view.members().map(|(node, member)| {
            let Member { status, up_number, roles, .. } = member.clone();
            Seat { node: node.clone(), status, up_number, roles, seen: seen.contains(node) }
        });
        let cuts = rows.iter().flat_map(|(observer, subjects)| {
            subjects.iter().map(|subject| ((*observer).clone(), (*subject).clone()))
        });
        let by_hand = Situation::new(&a, seats, cuts, None).unwrap();
        let of_view = Situation::of(&a, &view, &seen, Some(Arc::new(Converged::of(&view))));
        assert_eq!(of_view.cuts, by_hand.cuts);
        assert_eq!(of_view.cuts, [(0, 2), (1, 2), (1, 3)]);
        let strategy = Strategy::KeepMajority(KeepMajority::default());
        let decision = strategy.decide(&of_view);
        assert_eq!(decision, strategy.decide(&by_hand));
        assert_eq!(decision.down(), [c, d]);
        let of_the_dead = Situation::of(&old, &view, &seen, None);
        assert!(of_the_dead.side().is_none());
    }

    /// Those who have not heard that it leaves hold it for joining, and give it up without counting
    /// it. So it must not decide for those around it.
    #[test]
    fn who_leaves_before_it_was_up_has_no_say() {
        let (leaves, joins, up) = (node('a', 1), node('b', 2), node('c', 3));
        let mut view = View::new(1);
        let member = |status, up_number| Member {
            status,
            up_number,
            roles: Roles::default(),
            facts: Facts::default(),
        };
        view.set_member(&leaves, member(Status::Leaving, 0));
        view.set_member(&joins, member(Status::Joining, 0));
        view.set_member(&up, member(Status::Up, 1));
        let beyond = |nodes: &[&Node]| Row {
            version: 1,
            unreachable: nodes.iter().copied().cloned().collect::<BTreeSet<_>>().into(),
        };
        let mut other = view.clone();
        view.set_row(&leaves, beyond(&[&up]));
        other.set_row(&up, beyond(&[&leaves, &joins]));
        let strategy = Strategy::LeaseMajority(LeaseMajority {
            mode: Mode::Always,
            ..LeaseMajority::default()
        });
        let seen = BTreeSet::from([leaves.clone(), joins.clone()]);
        let here = Situation::of(&leaves, &view, &seen, None);
        assert!(matches!(strategy.decide(&here), Decision::Stay { .. }));
        assert_eq!(strategy.decider(&here), None);
        let there = Situation::of(&up, &other, &BTreeSet::from([up.clone()]), None);
        assert_eq!(strategy.decide(&there).down(), [leaves, joins]);
    }
}
