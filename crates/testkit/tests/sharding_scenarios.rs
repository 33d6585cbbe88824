//! Plays tests/sharding_scenarios/*.txt and compares what they print. `UPDATE_SCENARIOS=1` writes it
//! down.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use tenure_testkit::sim::sharding::scenario::play;

/// What went wrong for users of others, and the scenario in which it does not here.
const NAMED: [(&str, &str); 7] = [
    // The coordinator's side of a split starts what the other side still runs.
    ("akka-core#26480", "minority_runs_on"),
    // The same shard on two nodes, and both write.
    ("akka-core#30604", "two_writers"),
    // What a shard was guarded by is not given back when it moves: the next host waits for a ttl.
    ("akka-core#31715", "released_on_rebalance"),
    // The same when a node goes down.
    ("akka.net#7379", "released_on_down"),
    // The same when it leaves.
    ("akka.net#7379", "released_on_leave"),
    // Minutes without shards in a rolling restart: a hand-off waits behind a lease.
    ("akka.net#8146, #8147, #8148", "rolling_restart"),
    // Two coordinators after a split, and what they wrote has to be deleted by hand.
    ("akka-core#17955", "two_coordinators"),
];

#[test]
fn scenarios_end_as_written() {
    let update = std::env::var_os("UPDATE_SCENARIOS").is_some();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sharding_scenarios");
    let mut paths: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let mut different = Vec::new();
    for path in &paths {
        let written = fs::read_to_string(path).unwrap();
        let played = play(&written).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        if update {
            fs::write(path, &played).unwrap();
        } else if written != played {
            different.push(format!("{}\n{played}", path.display()));
        }
    }
    let stems: BTreeSet<_> = paths.iter().filter_map(|path| path.file_stem()?.to_str()).collect();
    assert!(stems.len() >= 13, "{} scenarios", stems.len());
    for (whose, scenario) in NAMED {
        assert!(stems.contains(scenario), "{scenario} is missing, for {whose}");
    }
    let all = different.join("\n");
    assert!(different.is_empty(), "{all}\nUPDATE_SCENARIOS=1 writes down what is played");
}
