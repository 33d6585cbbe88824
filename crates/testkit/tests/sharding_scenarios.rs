//! Plays tests/sharding_scenarios/*.txt and compares what they print. `UPDATE_SCENARIOS=1` writes it
//! down.

use std::fs;
use std::path::Path;

use tenure_testkit::sim::sharding::scenario::play;

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
    assert!(paths.len() >= 9, "{} scenarios", paths.len());
    let all = different.join("\n");
    assert!(different.is_empty(), "{all}\nUPDATE_SCENARIOS=1 writes down what is played");
}
