//! Simulated clusters.
use std::time::Duration;
use tenure_testkit::sim::cluster::{Sim, SimSettings};

#[test]
fn quick() {
    for seed in 0..20 {
        let mut settings = SimSettings::nodes(5);
        settings.trace = true;
        let mut sim = Sim::new(seed, settings);
        sim.start_all();
        let formed = sim.run_until(Duration::from_secs(20), Sim::agrees);
        if formed.is_none() || seed == 0 {
            for line in sim.take_trace() {
                println!("{line}");
            }
        }
        println!("{seed} {formed:?} {:?}", sim.violations());
        assert!(formed.is_some());
        sim.partition(&[0, 1], &[2, 3, 4]);
        sim.run_for(Duration::from_secs(10));
        assert_eq!(sim.unreachable_from(0), [2, 3, 4]);
        sim.heal();
        let healed = sim.run_until(Duration::from_secs(20), Sim::agrees);
        println!("{seed} healed {healed:?} {:?}", sim.violations());
    }
    let start = std::time::Instant::now();
    let mut sim = Sim::new(7, SimSettings::nodes(5));
    sim.start_all();
    sim.run_for(Duration::from_secs(20_000));
    println!("{:?} for 20000 virtual s, {} steps", start.elapsed(), sim.steps());
}
