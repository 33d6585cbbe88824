//! `tenure downing decide`, `tenure bench downing`, and the failover that `tenure timings` expects.
#![cfg(all(target_os = "linux", feature = "cluster"))]

mod common;

use std::fs::File;
use std::process::Output;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::*;
use serde_json::{Value, json};

/// From a file: a pipe would have to be filled and emptied at once.
fn decide(options: &str, input: &str) -> Output {
    let name = format!("downing-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let dir = Dir::new(&name);
    std::fs::write(dir.join("views"), input).unwrap();
    tenure()
        .args(["downing", "decide", "--strategy"])
        .args(options.split_whitespace())
        .stdin(File::open(dir.join("views")).unwrap())
        .output()
        .unwrap()
}

static NEXT: AtomicUsize = AtomicUsize::new(0);

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn answers(options: &str, input: &str) -> Vec<Value> {
    let output = decide(&format!("{options} --json"), input);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn refused(options: &str, input: &str) -> String {
    let output = decide(options, input);
    assert_eq!(output.status.code(), Some(64), "{}", text(&output.stdout));
    text(&output.stderr)
}

/// a and b on one side, c and d on the other; c has a role.
fn halves(me: &str) -> Value {
    let member = |(number, node): (usize, &&str)| {
        let roles = if *node == "c" { vec!["r"] } else { vec![] };
        json!({"node": node, "status": "up", "up_number": number + 1, "roles": roles})
    };
    let (ours, theirs) = if "ab".contains(me) { ("ab", "cd") } else { ("cd", "ab") };
    let rows = ours.chars().flat_map(|one| {
        theirs.chars().map(move |other| json!({"observer": one, "subject": other}))
    });
    let members: Vec<Value> = ["a", "b", "c", "d"].iter().enumerate().map(member).collect();
    json!({
        "self": me,
        "members": members,
        "reachability": rows.collect::<Vec<_>>(),
        "seen_by": ours.chars().collect::<Vec<_>>(),
    })
}

#[test]
fn each_strategy_by_name() {
    let both = format!("{}\n{}\n", halves("a"), halves("d"));
    let table = [
        ("keep-majority", ("down", "cd"), ("down", "cd")),
        ("keep-majority --role r", ("down", "ab"), ("down", "ab")),
        ("static-quorum --quorum-size 3", ("down", "ab"), ("down", "cd")),
        ("static-quorum --quorum-size 2", ("stay", ""), ("stay", "")),
        ("keep-oldest", ("down", "cd"), ("down", "cd")),
        ("keep-oldest --role r --down-if-alone false", ("down", "ab"), ("down", "ab")),
        ("keep-referee --referee d", ("down", "ab"), ("down", "ab")),
        ("keep-referee --referee d --down-all-if-less-than 3", ("down", "ab"), ("down", "abcd")),
        ("lease-majority", ("ask_lease", "cd"), ("ask_lease", "ab")),
        ("lease-majority --mode ties --role r", ("down", "ab"), ("down", "ab")),
        ("lease-majority --mode always", ("ask_lease", "cd"), ("ask_lease", "ab")),
        ("down-all", ("down", "abcd"), ("down", "abcd")),
    ];
    for (options, one, other) in table {
        let answers = answers(options, &both);
        assert_eq!(answers.len(), 2);
        for (answer, (decision, down)) in answers.iter().zip([one, other]) {
            assert_eq!(answer["decision"], decision, "{options}: {answer}");
            let expected: Vec<String> = down.chars().map(String::from).collect();
            assert_eq!(answer["down"], json!(expected), "{options}: {answer}");
            assert!(!answer["reason"].as_str().unwrap().is_empty(), "{answer}");
        }
    }
}

#[test]
fn people_get_a_sentence() {
    let output = decide("keep-majority", &halves("a").to_string());
    assert_eq!(
        text(&output.stdout),
        "down c, d: 2 of 4 members are here, half, with the lowest address, a\n"
    );
}

#[test]
fn a_view_may_stand_on_many_lines() {
    let pretty = format!("{:#}\n\n{}", halves("a"), halves("c"));
    assert_eq!(answers("lease-majority", &pretty).len(), 2);
}

#[test]
fn the_last_converged_membership_counts_too() {
    let mut view = halves("a");
    // d was made up a moment ago: two of four, but two of three.
    let members = view["members"].as_array().unwrap()[..3].to_vec();
    view["converged"] = json!(members);
    let [answer] = &answers("lease-majority", &view.to_string())[..] else { panic!() };
    assert_eq!(answer["decision"], "ask_lease");
    view["self"] = "c".into();
    view["seen_by"] = json!(["c", "d"]);
    let [answer] = &answers("lease-majority", &view.to_string())[..] else { panic!() };
    assert_eq!(answer["decision"], "stay", "{answer}");
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let good = halves("a").to_string();
    let output = decide("down-all --json", &format!("{good}\n\n{{\"self\": 3}}\n"));
    assert_eq!(text(&output.stdout).lines().count(), 1, "what came before is answered");
    assert!(text(&output.stderr).contains("line 3: column 10: invalid type"));
    for (input, expected) in [
        ("{", "line 1"),
        ("nonsense", "line 1: column 2: expected ident"),
        ("", "no view on stdin"),
        (&good.replace("\"self\":\"a\"", "\"self\":\"q\""), "line 1: \"q\" is mentioned"),
        (&good.replace("\"up\"", "\"sleeping\""), "unknown variant `sleeping`, expected one of"),
        (&good.replace("\"seen_by\"", "\"seen\""), "unknown field `seen`"),
    ] {
        let said = refused("down-all", input);
        assert!(said.contains(expected), "{said}");
    }
    for (options, expected) in [
        ("static-quorum", "needs --quorum-size"),
        ("static-quorum --quorum-size 0", "--quorum-size"),
        ("keep-referee", "needs --referee"),
        ("keep-youngest", "keep-oldest"),
    ] {
        let said = refused(options, &good);
        assert!(said.contains(expected), "{said}");
    }
    let idle = decide("down-all --role r", &good);
    assert!(idle.status.success() && text(&idle.stderr).contains("--role means nothing"));
}

#[test]
fn tools_can_ask_thousands() {
    let view = halves("b").to_string();
    let answers = answers("lease-majority", &format!("{view}\n").repeat(5_000));
    assert_eq!(answers.len(), 5_000);
}

#[test]
fn the_bench_measures_decisions() {
    let output = tenure().args(["bench", "downing", "--json"]).output().unwrap();
    let figures: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(figures["decide_us_p99_1000_members"].as_f64() > Some(0.0), "{figures}");
}

#[test]
fn timings_tell_the_failover_in_a_cluster() {
    let timings = |options: &[&str]| {
        let output = tenure().args(["timings", "--json"]).args(options).output().unwrap();
        let timings: Value = serde_json::from_slice(&output.stdout).unwrap();
        timings["in_cluster"].clone()
    };
    let usual = timings(&["--detection", "4s"]);
    assert_eq!(usual["with_lease_ms"], 15_000);
    assert_eq!(usual["singleton_without_lease_ms"], 4_000 + 3_000 + 1_000 + 20_000);
    assert_eq!(usual["shards_without_lease_ms"], 4_000 + 3_000 + 1_000 + 10_000);
    assert_eq!(usual["warning"], Value::Null);
    let large = timings(&["--members", "50", "--detection", "4s", "--removal-margin", "1s"]);
    for without in ["singleton_without_lease_ms", "shards_without_lease_ms"] {
        assert_eq!(large[without], 4_000 + 5_000 + 1_000 + 1_000);
    }
    let slow = timings(&["--ttl", "5s", "--detection", "6s"]);
    assert_eq!(slow["with_lease_ms"], 6_000);
    assert!(slow["warning"].as_str().unwrap().contains("max(ttl 5s, detection 6s) = 6s"));
    let output = tenure().args(["timings", "--ttl", "4s"]).output().unwrap();
    let said = text(&output.stdout);
    assert!(said.contains("warning: detection takes longer than the lease"), "{said}");
}
