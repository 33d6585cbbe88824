//! Many nodes: they join, agree, lose ten at once, and all know.
//!
//! `TENURE_SIM_NODES=1000` for the full size; `-- --nocapture` shows the figures.

use std::time::Duration;

use tenure_testkit::sim::cluster::{Sim, SimSettings};

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Sent per second and node while time passes.
fn rate(sim: &mut Sim, pass: impl FnOnce(&mut Sim)) -> u64 {
    let (bytes, began) = (sim.bytes(), sim.elapsed());
    pass(sim);
    let seconds = (sim.elapsed() - began).as_secs_f64();
    ((sim.bytes() - bytes) as f64 / seconds / sim.running().count() as f64) as u64
}

fn measure(nodes: usize) {
    let settings = SimSettings { count_bytes: true, ..SimSettings::nodes(nodes) };
    let mut sim = Sim::new(1, settings);
    let mut joined = None;
    let joining = rate(&mut sim, |sim| {
        for node in 0..nodes {
            sim.start(node);
            if node % 50 == 49 {
                sim.run_for(secs(1));
            }
        }
        joined = sim.run_until(secs(300), Sim::agrees);
    });
    let joined = joined.expect("all are up").as_secs_f64();
    println!("{nodes} nodes: all up {joined:.1} s after the last has started, {joining} B/s/node");
    let idle = rate(&mut sim, |sim| sim.run_for(secs(60)));
    println!("{nodes} nodes: idle {idle} B/s/node");
    let count = 10.min(nodes / 5);
    let dead: Vec<usize> = (0..count).map(|index| index * nodes / count).collect();
    let mut known = None;
    let losing = rate(&mut sim, |sim| {
        for node in &dead {
            sim.crash(*node);
        }
        known = sim.run_until(secs(120), |sim| {
            let mut running = sim.running();
            running.all(|node| sim.unreachable_from(node) == dead)
        });
    });
    let known = known.expect("all know").as_secs_f64();
    println!("{nodes} nodes: {} die, all know after {known:.1} s, {losing} B/s/node", dead.len());
    let by = sim.running().next().expect("somebody lives");
    for node in &dead {
        sim.down_dead(by, *node);
    }
    let mut agreed = None;
    let changing = rate(&mut sim, |sim| agreed = sim.run_until(secs(120), Sim::agrees));
    let agreed = agreed.expect("all agree").as_secs_f64();
    println!("{nodes} nodes: they are removed after {agreed:.1} s, {changing} B/s/node");
    assert!(sim.violations().is_empty(), "{:?}", sim.violations());
}

#[test]
fn many_nodes_agree() {
    let most = std::env::var("TENURE_SIM_NODES").map_or(200, |nodes| nodes.parse().expect("nodes"));
    for nodes in [5, 100, most] {
        measure(nodes);
    }
    let memory = peak_memory_mib();
    println!("at most {memory} MiB of memory");
    // What nodes believe grows with their square; a view of a thousand takes some 200 KiB.
    let bound = 200 + most as u64 * most as u64 / 1000;
    assert!(memory < bound, "{memory} MiB, not below {bound}");
}

fn peak_memory_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}
