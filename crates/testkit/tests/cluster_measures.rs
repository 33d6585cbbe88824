//! How long things take in a cluster, over many seeds of virtual time.
//!
//! `TENURE_SIM_SEEDS=1000` for the full count; `-- --nocapture` shows the figures.

use std::time::Duration;

use tenure_cluster::Node;
use tenure_testkit::sim::cluster::{Sim, SimSettings, Weather};

fn seeds() -> u64 {
    std::env::var("TENURE_SIM_SEEDS").map_or(40, |seeds| seeds.parse().expect("a number of seeds"))
}

/// A cluster that has been up for a while.
fn cluster(seed: u64, nodes: usize) -> Sim {
    let mut sim = Sim::new(seed, SimSettings::nodes(nodes));
    sim.start_all();
    assert!(sim.run_until(secs(60), Sim::agrees).is_some(), "seed {seed}");
    // So that a fault meets heartbeats at any moment.
    sim.run_for(secs(20) + Duration::from_millis(seed * 37 % 1000));
    sim
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn until(sim: &mut Sim, holds: impl FnMut(&Sim) -> bool) -> Duration {
    sim.run_until(secs(60), holds).expect("within a minute")
}

fn identities(sim: &Sim) -> Vec<Node> {
    let view = sim.view(0).expect("n0 is in a cluster");
    view.members().map(|(node, _)| node.clone()).collect()
}

fn marks(sim: &Sim) -> u64 {
    sim.coverage().get("unreachable").copied().unwrap_or(0)
}

/// Each of these sees exactly those as unreachable.
fn see(sim: &Sim, who: &[usize], whom: &[usize]) -> bool {
    who.iter().all(|node| sim.unreachable_from(*node) == whom)
}

struct Figures(Vec<Duration>);

impl Figures {
    fn over(seeds: u64, measure: impl FnMut(u64) -> Duration) -> Self {
        let mut figures: Vec<Duration> = (0..seeds).map(measure).collect();
        figures.sort_unstable();
        Self(figures)
    }

    fn median(&self) -> Duration {
        self.0[self.0.len() / 2]
    }

    fn most(&self) -> Duration {
        self.0[self.0.len() - 1]
    }

    fn print(&self, what: &str) -> &Self {
        let (median, most) = (self.median().as_secs_f64(), self.most().as_secs_f64());
        println!("{what:<44} median {median:>5.1} s, at most {most:>5.1} s");
        self
    }
}

#[test]
fn a_split_is_noticed_and_heals_without_a_new_identity() {
    let (some, others) = ([0, 1], [2, 3, 4]);
    let mut first = Vec::new();
    let mut healed = Vec::new();
    let sides = Figures::over(seeds(), |seed| {
        let mut sim = cluster(seed, 5);
        let before = identities(&sim);
        sim.partition(&some, &others);
        let mark = until(&mut sim, |sim| (0..5).any(|node| !sim.unreachable_from(node).is_empty()));
        let rest = until(&mut sim, |sim| see(sim, &some, &others) && see(sim, &others, &some));
        first.push(mark);
        sim.run_for(secs(30));
        sim.heal();
        healed.push(until(&mut sim, Sim::agrees));
        assert_eq!(identities(&sim), before, "seed {seed}");
        mark + rest
    });
    Figures::over(seeds(), |seed| first[seed as usize]).print("2|3 cut: first mark");
    sides.print("2|3 cut: both sides agree");
    let healed = Figures::over(seeds(), |seed| healed[seed as usize]);
    assert!(healed.print("2|3 cut of 30 s: healed").median() <= secs(3));
    assert!(sides.most() <= secs(8));
}

#[test]
fn two_nodes_heal() {
    let healed = Figures::over(seeds(), |seed| {
        let mut sim = cluster(seed, 2);
        let before = identities(&sim);
        sim.partition(&[0], &[1]);
        sim.run_for(secs(30));
        assert!(see(&sim, &[0], &[1]) && see(&sim, &[1], &[0]), "seed {seed}");
        sim.heal();
        let healed = until(&mut sim, Sim::agrees);
        assert_eq!(identities(&sim), before, "seed {seed}");
        healed
    });
    assert!(healed.print("1|1 cut of 30 s: healed").median() <= secs(3));
}

#[test]
fn a_blip_is_not_noticed() {
    for blip in [1, 2, 3] {
        let mut marked = 0;
        for seed in 0..seeds() {
            let mut sim = cluster(seed, 5);
            sim.partition(&[0, 1], &[2, 3, 4]);
            sim.run_for(secs(blip));
            sim.heal();
            sim.run_for(secs(20));
            marked += u64::from(marks(&sim) > 0);
        }
        println!("{:<44} {marked} of {} runs", format!("blip of {blip} s: any mark"), seeds());
        assert!(marked == 0 || blip > 2);
    }
}

#[test]
fn loss_marks_hardly_anybody_and_removes_nobody() {
    for percent in [5, 20] {
        let mut all = 0;
        for seed in 0..seeds() {
            let mut sim = cluster(seed, 5);
            let before = identities(&sim);
            sim.weather(Weather { loss: percent * 10, ..Weather::FAIR });
            sim.run_for(secs(600));
            all += marks(&sim);
            sim.heal();
            until(&mut sim, Sim::agrees);
            assert_eq!(identities(&sim), before, "seed {seed}");
        }
        let what = format!("{percent} % loss, 600 s, 5 nodes: told unreachable");
        println!("{what:<44} {all} times in {} runs", seeds());
        // Each mark is told by up to five nodes.
        assert!(percent > 5 || all <= seeds() * 5, "{all}");
    }
}

#[test]
fn a_cut_link_is_known_to_all() {
    let known = Figures::over(seeds(), |seed| {
        let mut sim = cluster(seed, 5);
        sim.partition(&[0], &[1]);
        let known = until(&mut sim, |sim| see(sim, &[0, 1, 2, 3, 4], &[0, 1]));
        sim.heal();
        until(&mut sim, Sim::agrees);
        known
    });
    known.print("one link cut: known to all");
}

#[test]
fn a_crash_is_known_to_all() {
    for (nodes, seeds) in [(5, seeds()), (20, seeds()), (100, seeds().div_ceil(10))] {
        let known = Figures::over(seeds, |seed| {
            let mut sim = cluster(seed, nodes);
            let victim = (seed as usize * 7) % nodes;
            sim.crash(victim);
            let rest: Vec<usize> = (0..nodes).filter(|node| *node != victim).collect();
            until(&mut sim, |sim| see(sim, &rest, &[victim]))
        });
        let known = known.print(&format!("crash of one of {nodes}: all know")).most();
        assert!(known <= secs(10), "{known:?}");
    }
}

#[test]
fn a_big_split_is_seen_whole() {
    let nodes = 60;
    let (some, others): (Vec<usize>, Vec<usize>) = (0..nodes).partition(|node| node % 2 == 0);
    let known = Figures::over(seeds().div_ceil(10), |seed| {
        let mut sim = cluster(seed, nodes);
        sim.partition(&some, &others);
        let known = until(&mut sim, |sim| see(sim, &some, &others) && see(sim, &others, &some));
        sim.heal();
        until(&mut sim, Sim::agrees);
        known
    });
    known.print("30|30 cut: both sides agree");
}

#[test]
fn nodes_join_in_a_second_or_two() {
    for (nodes, most) in [(5, 5), (20, 8)] {
        let formed = Figures::over(seeds(), |seed| {
            let mut sim = Sim::new(seed, SimSettings::nodes(nodes));
            sim.start_all();
            until(&mut sim, Sim::agrees)
        });
        let formed = formed.print(&format!("{nodes} start at once: all up")).most();
        assert!(formed <= secs(most), "{formed:?}");
    }
    let joined = Figures::over(seeds(), |seed| {
        let mut sim = Sim::new(seed, SimSettings::nodes(6));
        for node in 0..5 {
            sim.start(node);
        }
        until(&mut sim, Sim::agrees);
        sim.run_for(secs(10));
        sim.start(5);
        until(&mut sim, |sim| sim.running().count() == 6 && sim.agrees())
    });
    joined.print("a sixth joins five: all know it is up");
    let restarted = Figures::over(seeds(), |seed| {
        let mut sim = cluster(seed, 5);
        sim.restart(2);
        until(&mut sim, Sim::agrees)
    });
    restarted.print("a restart at the same address: all know");
    let back = Figures::over(seeds(), |seed| {
        let mut sim = cluster(seed, 5);
        let before = sim.view(0).expect("a view").cluster();
        for node in 0..5 {
            sim.restart(node);
        }
        let back = until(&mut sim, Sim::agrees);
        assert!(sim.view(0).expect("a view").cluster() > before, "seed {seed}");
        back
    });
    // Nobody says that those who held the lease are dead: a ttl and the detection time are waited.
    let settings = SimSettings::nodes(5);
    let waited = settings.formation_ttl + settings.membership.detection();
    let back = back.print("all killed and restarted: all up").most();
    assert!(back <= waited + secs(2), "{back:?}, {waited:?}");
}
