//! How long a decision takes, from a view as a node has it, in time of the processor.

use std::collections::BTreeSet;
use std::fmt;
use std::hint::black_box;
use std::sync::Arc;

use serde::Serialize;
use tenure_cluster::downing::{
    Converged, DownAll, KeepMajority, KeepOldest, KeepReferee, LeaseMajority, Situation,
    StaticQuorum, Strategy,
};
use tenure_cluster::{Address, Incarnation, Member, Node, Roles, Status, View};

use super::cpu;
use super::samples::Samples;

/// What `--json` prints; its shape is stable.
#[derive(Serialize)]
pub(super) struct Figures {
    decide_us_p50_1000_members: f64,
    decide_us_p99_1000_members: f64,
    /// How many were taken: each strategy in each of the splits.
    decisions: usize,
}

/// What one node believes about a thousand.
struct Belief {
    me: Node,
    view: View,
    seen: BTreeSet<Node>,
    converged: Arc<Converged<Node>>,
}

pub(super) fn measure() -> Figures {
    let strategies = [
        Strategy::StaticQuorum(StaticQuorum::new(MEMBERS / 2 + 1)),
        Strategy::KeepOldest(KeepOldest::default()),
        Strategy::KeepReferee(KeepReferee::new(node(0).address.to_string())),
        Strategy::KeepMajority(KeepMajority::default()),
        Strategy::LeaseMajority(LeaseMajority::default()),
        Strategy::DownAll(DownAll),
    ];
    let beliefs = [halves(), one_sick(), many_cut_links()];
    let mut samples = Samples::default();
    for _ in 0..ROUNDS {
        for belief in &beliefs {
            for strategy in &strategies {
                let start = cpu::time();
                let converged = Some(belief.converged.clone());
                let situation = Situation::of(&belief.me, &belief.view, &belief.seen, converged);
                black_box(strategy.decide(black_box(&situation)));
                samples.push(cpu::time() - start);
            }
        }
    }
    let micros = |percent| samples.percentile(percent).as_nanos() as f64 / 1e3;
    Figures {
        decide_us_p50_1000_members: micros(50),
        decide_us_p99_1000_members: micros(99),
        decisions: samples.len(),
    }
}

/// Two halves, by turns, that do not reach each other.
fn halves() -> Belief {
    let cuts = |a: usize, b: usize| a.is_multiple_of(2) && !b.is_multiple_of(2);
    belief(|node| node.is_multiple_of(2), cuts)
}

/// All in touch, and one that neither reaches nor is reached by those it watches.
fn one_sick() -> Belief {
    belief(|_| true, |a, b| a == SICK || b == SICK)
}

/// All in touch, and every third link cut.
fn many_cut_links() -> Belief {
    belief(|_| true, |a, b| (a * 7 + b * 13).is_multiple_of(3))
}

fn belief(in_touch: impl Fn(usize) -> bool, cut: impl Fn(usize, usize) -> bool) -> Belief {
    let roles = Roles::default();
    let member = |number: usize| Member {
        status: Status::Up,
        up_number: number as u64 + 1,
        roles: roles.clone(),
        facts: Default::default(),
    };
    let members = (0..MEMBERS).map(|number| (node(number), member(number)));
    let touched = || (0..MEMBERS).filter(|number| in_touch(*number));
    // Each watches the next nine.
    let watched = |one: usize| (1..=WATCHED).map(move |step| (one, (one + step) % MEMBERS));
    let cuts = touched().flat_map(watched).filter(|(one, other)| cut(*one, *other));
    let view = View::of(members, cuts.map(|(one, other)| (node(one), node(other))));
    let seen = touched().map(node).collect();
    let converged = Arc::new(Converged::of(&view));
    Belief { me: node(0), view, seen, converged }
}

fn node(number: usize) -> Node {
    let address = format!("shop-{number:04}.shop.default.svc:7400");
    Node {
        address: Address::new(&address).expect("it is an address"),
        incarnation: Incarnation(number as u64),
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (p50, p99) = (self.decide_us_p50_1000_members, self.decide_us_p99_1000_members);
        write!(
            f,
            "a decision for {MEMBERS} members: p50 {p50:.0} us, p99 {p99:.0} us ({} decisions)",
            self.decisions
        )
    }
}

const MEMBERS: usize = 1_000;
const WATCHED: usize = 9;
/// Neither the first nor the last.
const SICK: usize = 500;
const ROUNDS: usize = 100;
