//! What becomes of a cluster in splits of every kind, strategy by strategy: counts, printed as the
//! table of docs/downing.md.
//!
//! ```text
//! TENURE_SIM_SEEDS=1000 cargo test --release -p tenure-testkit --test downing_compared -- --nocapture
//! ```

use std::time::Duration;

use tenure_cluster::downing::{
    KeepMajority, KeepOldest, LeaseMajority, Mode, StaticQuorum, Strategy,
};
use tenure_testkit::sim::Random;
use tenure_testkit::sim::cluster::{Sim, SimSettings};

fn seeds() -> u64 {
    std::env::var("TENURE_SIM_SEEDS").map_or(30, |count| count.parse().expect("a number of seeds"))
}

/// How the network falls apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Into two, and stays so.
    TwoSides,
    /// Into three, and stays so.
    ThreeSides,
    /// Some links are cut, each both ways.
    SomeLinks,
    /// Some links are cut, each in one direction.
    OneWay,
    /// Into two, and every 2 to 12 s into two others, five times.
    Shifting,
}

impl Kind {
    const ALL: [(&'static str, Self); 5] = [
        ("two sides", Self::TwoSides),
        ("three sides", Self::ThreeSides),
        ("some links", Self::SomeLinks),
        ("one way", Self::OneWay),
        ("shifting", Self::Shifting),
    ];

    fn play(self, sim: &mut Sim, nodes: usize, random: &mut Random) {
        match self {
            Self::TwoSides => into(2, sim, nodes, random),
            Self::ThreeSides => into(3, sim, nodes, random),
            Self::SomeLinks | Self::OneWay => links(sim, nodes, self == Self::OneWay, random),
            Self::Shifting => {
                for _ in 0..SHIFTS {
                    sim.mend_all();
                    into(2, sim, nodes, random);
                    pass(sim, Duration::from_millis(random.within(2_000..12_000)));
                }
            }
        }
        pass(sim, SETTLED);
    }
}

/// Every node is on one of so many sides, and none is empty.
fn into(count: u64, sim: &mut Sim, nodes: usize, random: &mut Random) {
    let sides: Vec<u64> = loop {
        let sides: Vec<u64> = (0..nodes).map(|_| random.within(0..count)).collect();
        if (0..count).all(|side| sides.contains(&side)) {
            break sides;
        }
    };
    let on = |wanted: u64| (0..nodes).filter(|node| sides[*node] == wanted).collect::<Vec<_>>();
    for side in 0..count {
        for other in 0..side {
            sim.partition(&on(side), &on(other));
        }
    }
}

fn links(sim: &mut Sim, nodes: usize, one_way: bool, random: &mut Random) {
    let share = random.within(10..60);
    for one in 0..nodes {
        for other in (0..nodes).filter(|other| one_way && *other != one || *other < one) {
            if random.percent(share) {
                match one_way {
                    true => sim.partition_one_way(&[one], &[other]),
                    false => sim.partition(&[one], &[other]),
                }
            }
        }
    }
}

fn pass(sim: &mut Sim, time: Duration) {
    let end = sim.elapsed() + time;
    while sim.elapsed() < end {
        sim.run_for(LOOK);
        sim.look();
    }
}

/// How often each thing came of it.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// One side goes on.
    one: u64,
    /// Two sides went on without each other, at any time.
    two: u64,
    /// Everybody has ended.
    nobody: u64,
    /// Somebody is still unreachable for somebody.
    undecided: u64,
}

impl Counts {
    fn add(&mut self, sim: &Sim) {
        let views = || sim.running().filter_map(|node| sim.view(node));
        let doubled = sim.violations().iter().any(|found| found.invariant == "one side survives");
        let count = if doubled {
            &mut self.two
        } else if views().count() == 0 {
            &mut self.nobody
        } else if views().any(|view| view.observations().next().is_some()) {
            &mut self.undecided
        } else {
            &mut self.one
        };
        *count += 1;
    }
}

fn run(seed: u64, strategy: &Strategy, kind: Kind, nodes: usize) -> Sim {
    let settings = SimSettings { downing: Some(strategy.clone()), ..SimSettings::nodes(nodes) };
    let mut sim = Sim::new(seed, settings);
    let mut random = Random::new(seed ^ 0x6b69_6e64);
    sim.start_all();
    assert!(sim.run_until(Duration::from_secs(20), Sim::agrees).is_some(), "seed {seed}");
    kind.play(&mut sim, nodes, &mut random);
    sim
}

/// With nodes that are full members of a cluster of this size.
fn strategies(nodes: usize) -> [(&'static str, Strategy); 5] {
    let lease = |mode| Strategy::LeaseMajority(LeaseMajority { mode, ..LeaseMajority::default() });
    [
        ("lease-majority, always", lease(Mode::Always)),
        ("lease-majority, ties", lease(Mode::Ties)),
        ("keep-majority", Strategy::KeepMajority(KeepMajority::default())),
        ("static-quorum", Strategy::StaticQuorum(StaticQuorum::new(nodes / 2 + 1))),
        ("keep-oldest", Strategy::KeepOldest(KeepOldest::default())),
    ]
}

#[test]
fn what_comes_of_splits() {
    println!("of {} runs: one side / two / nobody / undecided", seeds());
    for (kind_name, kind) in Kind::ALL {
        let mut all = [("", Counts::default()); 5];
        for seed in 0..seeds() {
            let nodes = [4, 5, 9][seed as usize % 3];
            for (which, (name, strategy)) in strategies(nodes).iter().enumerate() {
                all[which].0 = name;
                all[which].1.add(&run(seed, strategy, kind, nodes));
            }
        }
        for (name, Counts { one, two, nobody, undecided }) in all {
            println!("{kind_name:12} {name:24} {one:6} {two:6} {nobody:6} {undecided:6}");
            let promised = kind == Kind::TwoSides || name == "lease-majority, always";
            assert!(!promised || two == 0, "{name}, {kind_name}: {two} times two sides");
        }
    }
}

const SHIFTS: usize = 5;
const LOOK: Duration = Duration::from_millis(200);
/// Long after every decision is made.
const SETTLED: Duration = Duration::from_secs(60);
