//! Views of small clusters, for tests: made by the real membership.

use std::sync::Arc;
use std::time::Duration;

use tenure_cluster::membership::{Effect, Membership};
use tenure_cluster::{Address, Incarnation, MembershipSettings, Node, Roles, View};
use tenure_lease::Moment;
use tenure_lease::record::SessionRef;

use crate::Host;

/// A cluster without delays, on one clock.
pub(crate) struct Nodes {
    memberships: Vec<Option<Membership>>,
    now: Moment,
}

pub(crate) fn node(index: usize) -> Node {
    let address = Address::new(&format!("n{index}:7400")).unwrap();
    Node { address, incarnation: Incarnation(index as u64 + 1) }
}

pub(crate) fn host(index: usize, term: u64) -> Host {
    Host { node: node(index), session: Some(session(index, term)) }
}

pub(crate) fn session(index: usize, term: u64) -> SessionRef {
    SessionRef { name: format!("s{index}").parse().unwrap(), term }
}

pub(crate) fn at(millis: u64) -> Moment {
    Moment::ZERO + Duration::from_millis(millis)
}

impl Nodes {
    /// This many, all up; the first is the oldest.
    pub(crate) fn up(count: usize) -> Self {
        let new = |index| {
            let settings = MembershipSettings::default();
            let seed = index as u64;
            Some(Membership::new(node(index), Roles::default(), Arc::new([]), settings, seed))
        };
        let mut nodes = Self { memberships: (0..count).map(new).collect(), now: at(1000) };
        for index in 0..count {
            let membership = nodes.memberships[index].as_mut().unwrap();
            match index {
                0 => membership.form(7, nodes.now),
                _ => membership.join(vec![node(0).address], nodes.now),
            }
            // One after another, so that the order of their ages is known.
            nodes.pass(Duration::from_secs(5));
        }
        nodes
    }

    pub(crate) fn view(&self, index: usize) -> &View {
        self.memberships[index].as_ref().unwrap().view().unwrap()
    }

    pub(crate) fn leave(&mut self, index: usize) {
        self.memberships[index].as_mut().unwrap().leave(self.now);
        self.pass(Duration::from_secs(5));
    }

    pub(crate) fn crash(&mut self, index: usize) {
        self.memberships[index] = None;
        self.pass(Duration::from_secs(10));
    }

    pub(crate) fn down(&mut self, by: usize, whom: usize) {
        self.memberships[by].as_mut().unwrap().down(&node(whom), self.now);
        self.pass(Duration::from_secs(5));
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += Duration::from_millis(50);
            for index in 0..self.memberships.len() {
                if let Some(membership) = &mut self.memberships[index] {
                    membership.poll(self.now);
                }
            }
            while self.exchange() {}
        }
    }

    fn exchange(&mut self) -> bool {
        let mut any = false;
        for index in 0..self.memberships.len() {
            let Some(membership) = &mut self.memberships[index] else { continue };
            let effects: Vec<Effect> = membership.effects().collect();
            for effect in effects {
                let (to, message) = match effect {
                    Effect::Send(to, message) => (to.address, message),
                    Effect::Greet(to, message) => (to, message),
                    _ => continue,
                };
                let place = |other: &usize| node(*other).address == to;
                let Some(place) = (0..self.memberships.len()).find(place) else { continue };
                if let Some(receiver) = &mut self.memberships[place] {
                    any = true;
                    receiver.receive(&node(index), message, self.now);
                }
            }
        }
        any
    }
}
