//! Clusters that are cut in two while both sides reach the store: with a lease exactly one
//! coordinator is active, whatever the sides make of each other. `TENURE_SIM_SEEDS` says how many
//! schedules.

use std::time::Duration;

use tenure_cluster::downing::{LeaseMajority, Strategy};
use tenure_sharding::{Settings, Setup};
use tenure_testkit::sim::Random;
use tenure_testkit::sim::cluster::SimSettings;
use tenure_testkit::sim::sharding::World;

#[test]
fn with_a_lease_exactly_one_coordinator_is_active() {
    for seed in 0..seeds() {
        for setup in [Setup::Lease, Setup::Sessions] {
            let Split { most, last, violations } = split(seed, setup);
            assert!(violations.is_empty(), "seed {seed}, {setup:?}: {violations:#?}");
            assert_eq!((most, last), (1, 1), "seed {seed}, {setup:?}: most at a time, at the end");
        }
    }
}

/// The checker can fail.
#[test]
fn without_a_lease_there_are_two() {
    let twos = (0..seeds()).filter(|seed| split(*seed, Setup::Gossip).most > 1).count();
    assert!(twos > 0, "none in {} schedules", seeds());
}

struct Split {
    /// How many coordinators were active at a time, at most.
    most: usize,
    /// How many are while the split lasts, after the sides have settled.
    last: usize,
    violations: Vec<String>,
}

/// Odd seeds force both sides to go on: an operator on each declares the other down. Even ones leave
/// it to the resolver.
fn split(seed: u64, setup: Setup) -> Split {
    let mut random = Random::new(seed ^ 0x0073_706c_6974);
    let nodes = random.within(3..10) as usize;
    let forced = seed % 2 == 1;
    let downing = (!forced).then(|| Strategy::LeaseMajority(LeaseMajority::default()));
    let cluster =
        SimSettings { downing, rejoin: true, wrong_clocks: true, ..SimSettings::nodes(nodes) };
    let settings = Settings::new(setup, 16);
    let lease = tenure_lease::Settings::new(Duration::from_secs(10));
    let mut world = World::new(seed, cluster, settings, lease, random.percent(50));
    for node in 0..nodes {
        world.start(node);
    }
    world.run_until(Duration::from_secs(60), World::is_served).expect("a cluster that serves");
    world.run_for(random.up_to(Duration::from_secs(20)));
    let half = random.within(1..nodes as u64) as usize;
    let sides: [Vec<usize>; 2] = [(0..half).collect(), (half..nodes).collect()];
    world.cluster().partition(&sides[0], &sides[1]);
    let mut most = watch(&mut world, Duration::from_secs(8));
    if forced {
        for side in &sides {
            world.down_unreachable(side[0]);
            most = most.max(watch(&mut world, random.up_to(Duration::from_secs(10))));
        }
    }
    most = most.max(watch(&mut world, Duration::from_secs(60)));
    let last = world.coordinators().len();
    let violations = world.violations().iter().map(ToString::to_string).collect();
    Split { most, last, violations }
}

/// Lets time pass; how many coordinators were active at a time.
fn watch(world: &mut World, time: Duration) -> usize {
    let end = world.elapsed() + time;
    let mut most = 0;
    while world.elapsed() < end {
        world.run_for(Duration::from_millis(100));
        world.look();
        most = most.max(world.coordinators().len());
    }
    most
}

fn seeds() -> u64 {
    let seeds = std::env::var("TENURE_SIM_SEEDS");
    seeds.map_or(40, |seeds| seeds.parse().expect("a number of seeds"))
}
