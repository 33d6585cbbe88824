//! What becomes of a cluster in splits of every kind, strategy by strategy: counts, printed as the
//! table of docs/downing.md. `TENURE_SIM_TRACE=7` prints what happens in seed 7.
//!
//! ```text
//! TENURE_SIM_SEEDS=1000 cargo test --release -p tenure-testkit --test downing_compared -- --nocapture --test-threads=1
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
    /// Into two, and one node after another moves to the other side, about when a decision is made.
    Shifting,
    /// Into two, and every few seconds into two others.
    Flapping,
    /// Into two, just when somebody joins or leaves.
    Changing,
}

impl Kind {
    fn play(self, sim: &mut Sim, nodes: usize, random: &mut Random) {
        match self {
            Self::TwoSides => into(2, sim, nodes, random),
            Self::ThreeSides => into(3, sim, nodes, random),
            Self::SomeLinks | Self::OneWay => links(sim, nodes, self == Self::OneWay, random),
            Self::Changing => {
                match random.percent(50) {
                    true => sim.leave(random.within(0..nodes as u64 - 1) as usize),
                    false => sim.start(nodes),
                }
                sim.run_for(random.up_to(Duration::from_secs(2)));
                into(2, sim, nodes + 1, random);
            }
            Self::Shifting => {
                let mut sides = divide(2, nodes, random);
                for _ in 0..SHIFTS {
                    sim.mend_all();
                    cut(sim, &sides);
                    // It takes some 4.5 s to notice and at least 3 s to be sure.
                    pass(sim, Duration::from_millis(random.within(7_000..10_000)));
                    let node = random.within(0..nodes as u64) as usize;
                    sides[node] = 1 - sides[node];
                }
            }
            Self::Flapping => {
                for _ in 0..FLAPS {
                    sim.mend_all();
                    into(2, sim, nodes, random);
                    pass(sim, Duration::from_millis(random.within(500..6_000)));
                }
            }
        }
        pass(sim, SETTLED);
    }
}

fn into(count: usize, sim: &mut Sim, nodes: usize, random: &mut Random) {
    cut(sim, &divide(count, nodes, random));
}

/// On which of so many sides each node is; none is empty.
fn divide(count: usize, nodes: usize, random: &mut Random) -> Vec<usize> {
    loop {
        let sides: Vec<usize> =
            (0..nodes).map(|_| random.within(0..count as u64) as usize).collect();
        if (0..count).all(|side| sides.contains(&side)) {
            return sides;
        }
    }
}

fn cut(sim: &mut Sim, sides: &[usize]) {
    for (one, side) in sides.iter().enumerate() {
        for other in (0..one).filter(|other| sides[*other] != *side) {
            sim.partition(&[one], &[other]);
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
    /// One side goes on, and the others have ended.
    one: u64,
    /// Two sides went on without each other, at any time.
    two: u64,
    /// Everybody has ended.
    nobody: u64,
    /// A side has not decided, and waits for an operator.
    waits: u64,
}

impl Counts {
    /// Whether a side waits.
    fn add(&mut self, sim: &Sim) -> bool {
        let views = || sim.running().filter_map(|node| sim.view(node));
        let doubled = sim.violations().iter().any(|found| found.invariant == "one side survives");
        // Where links are cut one way, two can each count the other in, and know it of nobody else.
        let others = || sim.violations().iter().filter(|it| it.invariant != "one of a side asks");
        assert!(doubled || others().next().is_none(), "{:?}", sim.violations());
        let waited = self.waits;
        let count = if doubled {
            &mut self.two
        } else if views().count() == 0 {
            &mut self.nobody
        } else if views().any(|view| view.observations().next().is_some()) {
            &mut self.waits
        } else {
            &mut self.one
        };
        *count += 1;
        self.waits > waited
    }
}

fn run(seed: u64, strategy: &Strategy, kind: Kind, nodes: usize) -> Sim {
    let downing = Some(strategy.clone());
    let trace = std::env::var("TENURE_SIM_TRACE").is_ok_and(|wanted| wanted == seed.to_string());
    let mut sim = Sim::new(seed, SimSettings { downing, trace, ..SimSettings::nodes(nodes + 1) });
    let mut random = Random::new(seed ^ 0x6b69_6e64);
    (0..nodes).for_each(|node| sim.start(node));
    assert!(sim.run_until(Duration::from_secs(20), Sim::agrees).is_some(), "seed {seed}");
    // Until everybody knows that all have seen who is there.
    sim.run_for(Duration::from_secs(10));
    kind.play(&mut sim, nodes, &mut random);
    sim.take_trace().iter().for_each(|line| println!("{line}"));
    sim
}

/// With nodes that are full members of a cluster of this size.
fn strategies(nodes: usize) -> [(&'static str, Strategy); 5] {
    let lease = |mode| Strategy::LeaseMajority(LeaseMajority { mode, ..LeaseMajority::default() });
    [
        (ALWAYS, lease(Mode::Always)),
        ("lease-majority, ties", lease(Mode::Ties)),
        ("keep-majority", Strategy::KeepMajority(KeepMajority::default())),
        ("static-quorum", Strategy::StaticQuorum(StaticQuorum::new(nodes / 2 + 1))),
        ("keep-oldest", Strategy::KeepOldest(KeepOldest::default())),
    ]
}

fn compare(name: &str, kind: Kind) {
    let mut all = [("", Counts::default()); 5];
    let mut undecided = Vec::new();
    for seed in 0..seeds() {
        let nodes = [4, 5, 9][seed as usize % 3];
        for (which, (strategy_name, strategy)) in strategies(nodes).iter().enumerate() {
            all[which].0 = strategy_name;
            let waits = all[which].1.add(&run(seed, strategy, kind, nodes));
            if waits && *strategy_name == ALWAYS {
                undecided.push(seed);
            }
        }
    }
    println!(
        "{name}, of {} runs{:>19} {:>6} {:>6} {:>6}",
        seeds(),
        "one",
        "two",
        "nobody",
        "waits"
    );
    for (strategy, Counts { one, two, nobody, waits }) in all {
        println!("  {strategy:24} {one:>6} {two:>6} {nobody:>6} {waits:>6}");
    }
    for (strategy, Counts { two, .. }) in all {
        let promised = kind == Kind::TwoSides || strategy == ALWAYS;
        assert!(!promised || two == 0, "{strategy}, {name}: two sides went on {two} times");
    }
    assert!(undecided.is_empty(), "{ALWAYS}, {name}: a side waits at seeds {undecided:?}");
}

#[test]
fn two_sides() {
    compare("two sides", Kind::TwoSides);
}

#[test]
fn three_sides() {
    compare("three sides", Kind::ThreeSides);
}

#[test]
fn some_links() {
    compare("some links", Kind::SomeLinks);
}

#[test]
fn some_links_one_way() {
    compare("some links, one way", Kind::OneWay);
}

/// Every loser reads the record by itself. When only a side's decider did, the losers of this split
/// ended one after the other, the last one 53 s after the verdict.
#[test]
fn losers_of_a_one_way_split_do_not_wait_for_their_decider() {
    let always = LeaseMajority { mode: Mode::Always, ..LeaseMajority::default() };
    let sim = run(785, &Strategy::LeaseMajority(always), Kind::OneWay, 9);
    let mut counts = Counts::default();
    assert!(!counts.add(&sim), "somebody still waits {SETTLED:?} after the cut: {counts:?}");
}

#[test]
fn sides_that_shift() {
    compare("sides that shift", Kind::Shifting);
}

#[test]
fn sides_that_flap() {
    compare("sides that flap", Kind::Flapping);
}

#[test]
fn two_sides_while_somebody_joins_or_leaves() {
    compare("two sides while somebody joins or leaves", Kind::Changing);
}

const ALWAYS: &str = "lease-majority, always";
const SHIFTS: usize = 4;
const FLAPS: usize = 12;
const LOOK: Duration = Duration::from_millis(200);
/// Within this every decision is made and followed.
const SETTLED: Duration = Duration::from_secs(45);
