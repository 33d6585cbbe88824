//! Plays tests/scenarios/*.txt and compares what they print. `UPDATE_SCENARIOS=1` writes it down.

use std::fs;
use std::path::Path;

use tenure_testkit::sim::cluster::scenario::play;

#[test]
fn scenarios_end_as_written() {
    let update = std::env::var_os("UPDATE_SCENARIOS").is_some();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut paths: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let mut different = Vec::new();
    for path in &paths {
        let written = fs::read_to_string(path).unwrap();
        let played = play(&written).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        if update {
            fs::write(path, &played).unwrap();
        } else if let Some((was, is)) = first_difference(&written, &played) {
            different.push(format!("{}\n  written: {was}\n  played:  {is}", path.display()));
        }
    }
    assert!(paths.len() >= 14, "{} scenarios", paths.len());
    let all = different.join("\n");
    assert!(different.is_empty(), "{all}\nUPDATE_SCENARIOS=1 writes down what is played");
}

fn first_difference<'a>(written: &'a str, played: &'a str) -> Option<(&'a str, &'a str)> {
    let end = "(the end)";
    let lines = written.lines().count().max(played.lines().count());
    let line = |text: &'a str, index| text.lines().nth(index).unwrap_or(end);
    (0..lines).map(|index| (line(written, index), line(played, index))).find(|(was, is)| was != is)
}

#[test]
fn says_what_would_be_right() {
    for (text, right) in [
        ("start", "nodes NUMBER"),
        ("nodes 3\ncut n0", "NODES | NODES"),
        ("nodes 3\nrun fast", "10s"),
        ("nodes 3\ncrash n7", "n0"),
        ("nodes 3\nfly", "no such command"),
    ] {
        let error = play(text).unwrap_err();
        assert!(error.contains(right), "{text:?}: {error}");
    }
}
