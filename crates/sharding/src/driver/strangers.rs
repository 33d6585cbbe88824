//! Nodes that this one cannot work together with: the kind is set up otherwise there.
//!
//! Of two such groups one serves, or a shard would be in two places: the one that does already, or, if both
//! do, the one with the older node. The others *stand back*: they do not coordinate, and say why. They
//! serve when everybody whom they stood back for has been gone for the removal margin.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_cluster::{Node, View};
use tenure_lease::Moment;

#[derive(Default)]
pub(super) struct Strangers {
    known: BTreeMap<Node, Stranger>,
    /// The up-number of this node; 0 until it is up.
    up_number: u64,
    stands_back: bool,
}

struct Stranger {
    why: String,
    serves: bool,
    up_number: u64,
    /// It is gone, and counts until then.
    until: Moment,
}

impl Strangers {
    /// Something was said by a node that this one cannot work together with; whether that is news.
    pub(super) fn meet(&mut self, node: &Node, why: String, serves: bool) -> bool {
        let known = self.known.get_mut(node);
        match known {
            Some(known) => {
                known.serves = serves;
                std::mem::replace(&mut known.why, why.clone()) != why
            }
            None => {
                let stranger = Stranger { why, serves, up_number: 0, until: Moment::NEVER };
                self.known.insert(node.clone(), stranger);
                true
            }
        }
    }

    /// This one can work together with that node.
    pub(super) fn forget(&mut self, node: &Node) {
        self.known.remove(node);
    }

    /// The view has changed.
    pub(super) fn view(&mut self, view: &View, me: &Node, margin: Duration, now: Moment) {
        self.up_number = view.member(me).map_or(0, |member| member.up_number);
        for (node, stranger) in &mut self.known {
            match view.member(node) {
                Some(member) => stranger.up_number = member.up_number,
                None => stranger.until = stranger.until.min(now + margin),
            }
        }
    }

    /// Whether this node stands back, if that has changed.
    pub(super) fn decide(&mut self, now: Moment) -> Option<bool> {
        self.known.retain(|_, stranger| now < stranger.until);
        let (mine, stands_back) = (self.up_number, self.stands_back);
        let is_older = |it: &Stranger| it.up_number > 0 && (mine == 0 || it.up_number < mine);
        let yields = |it: &Stranger| it.serves && (stands_back || is_older(it));
        self.stands_back = self.known.values().any(yields);
        (self.stands_back != stands_back).then_some(self.stands_back)
    }

    pub(super) fn stands_back(&self) -> bool {
        self.stands_back
    }

    pub(super) fn next_wake(&self) -> Moment {
        self.known.values().map(|it| it.until).min().unwrap_or(Moment::NEVER)
    }

    /// Why this node does not work together with somebody, for people.
    pub(super) fn why(&self) -> Option<&str> {
        self.known.values().next().map(|stranger| stranger.why.as_str())
    }
}

#[cfg(test)]
mod tests {
    use tenure_cluster::{Member, Status};

    use super::*;
    use crate::testing::{at, node};

    /// These nodes are up, in this order of age.
    fn view(nodes: &[usize]) -> View {
        let up = |(age, index): (usize, &usize)| {
            let (status, up_number) = (Status::Up, age as u64 + 1);
            (
                node(*index),
                Member { status, up_number, roles: Default::default(), facts: Default::default() },
            )
        };
        View::of(nodes.iter().enumerate().map(up), [])
    }

    fn on(me: usize, nodes: &[usize]) -> Strangers {
        let mut strangers = Strangers::default();
        strangers.view(&view(nodes), &node(me), MARGIN, at(0));
        strangers
    }

    const MARGIN: Duration = Duration::from_secs(10);

    #[test]
    fn whoever_serves_already_goes_on() {
        let mut new = on(2, &[0, 1, 2]);
        assert!(new.meet(&node(0), "why".into(), true), "it is news");
        assert!(!new.meet(&node(0), "why".into(), true), "and is told once");
        new.view(&view(&[0, 1, 2]), &node(2), MARGIN, at(0));
        assert_eq!(new.decide(at(0)), Some(true), "an older one serves");
        let mut old = on(0, &[0, 1, 2]);
        old.meet(&node(2), "why".into(), true);
        old.view(&view(&[0, 1, 2]), &node(0), MARGIN, at(0));
        assert_eq!(old.decide(at(0)), None, "a younger one says that it would");
        // The one that stood back is the oldest now, and stands back on.
        new.meet(&node(3), "why".into(), true);
        new.view(&view(&[2, 3]), &node(2), MARGIN, at(1000));
        assert_eq!(new.decide(at(60_000)), None);
        assert!(new.stands_back());
    }

    #[test]
    fn whoever_stood_back_serves_when_nobody_else_has_for_the_margin() {
        let mut strangers = on(1, &[0, 1]);
        strangers.meet(&node(0), "why".into(), true);
        strangers.view(&view(&[0, 1]), &node(1), MARGIN, at(0));
        assert_eq!(strangers.decide(at(0)), Some(true));
        strangers.view(&view(&[1]), &node(1), MARGIN, at(1000));
        assert_eq!(strangers.decide(at(10_900)), None);
        assert_eq!(strangers.next_wake(), at(11_000));
        assert_eq!(strangers.decide(at(11_000)), Some(false));
        // And when the others say that they stand back.
        let mut strangers = on(1, &[0, 1]);
        strangers.meet(&node(0), "why".into(), true);
        strangers.view(&view(&[0, 1]), &node(1), MARGIN, at(0));
        strangers.decide(at(0));
        strangers.meet(&node(0), "why".into(), false);
        assert_eq!(strangers.decide(at(1)), Some(false));
    }
}
