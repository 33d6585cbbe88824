//! What each strategy does in splits that people can follow, and in those that went wrong
//! elsewhere.

mod split;

use std::time::Duration;

use split::*;
use tenure_cluster::downing::*;

fn down(decision: &Decision<String>) -> String {
    decision.down().join(" ")
}

#[test]
fn each_strategy_in_clean_splits() {
    let table = [
        (majority(), "a b c | d e", "live | down"),
        (majority(), "a b | c d e", "down | live"),
        (majority(), "b c | a d", "down | live"),
        (majority(), "a b | c d | e f", "down | down | down"),
        (majority(), "a b | c | d", "live | down | down"),
        (majority(), "a | b | c d", "down | down | down"),
        (quorum(3), "a b c | d e", "live | down"),
        (quorum(3), "a b | c d | e", "down | down | down"),
        (quorum(3), "a b c | d e f", "stay | stay"),
        (oldest(true), "a b | c d e", "live | down"),
        (oldest(false), "a b | c d e", "live | down"),
        (oldest(true), "b c | a d e", "down | live"),
        (referee("c", 1), "a b d e | c", "down | live"),
        (referee("c", 2), "a b d e | c", "down | down"),
        (referee("z", 1), "a b | c", "stay | stay"),
        (ties(), "a b c | d e", "live | down"),
        (ties(), "a b | c d", "ask | ask"),
        (ties(), "a b | c | d", "ask | down | down"),
        (always(), "a b c | d e", "ask | ask"),
        (down_all(), "a b c | d", "down | down"),
    ];
    for (strategy, split, expected) in table {
        assert_eq!(play(&strategy, split), expected, "{strategy:?}: {split}");
    }
}

#[test]
fn nothing_happens_while_nobody_is_unreachable() {
    for strategy in [majority(), quorum(5), oldest(true), referee("z", 1), ties(), down_all()] {
        assert_eq!(play(&strategy, "a b c"), "stay", "{strategy:?}");
        assert_eq!(play(&strategy, "a"), "stay", "{strategy:?}");
    }
}

/// A cluster that is still smaller than its quorum must not down itself.
#[test]
fn a_cluster_below_its_quorum_starts_in_peace() {
    assert_eq!(play(&quorum(3), "a"), "stay");
    assert_eq!(play(&quorum(3), "a b"), "stay");
    // Not even when somebody on its way in gets lost.
    let decision = quorum(3).decide(&belief(&cluster("a b | c?"), 0, None));
    assert_eq!(down(&decision), "c");
    // But what has lost too many does end.
    assert_eq!(play(&quorum(3), "a | b c"), "down | down");
}

/// An oldest that is alone makes way, if it is told to and there is somebody to make
/// way for.
#[test]
fn an_oldest_that_is_alone_makes_way() {
    assert_eq!(play(&oldest(true), "a | b c"), "down | live");
    assert_eq!(play(&oldest(false), "a | b c"), "live | down");
    // Of two, the oldest.
    assert_eq!(play(&oldest(true), "a | b"), "live | down");
    // Nobody but the oldest itself knows that it is alone.
    assert_eq!(play(&oldest(true), "a | b c | d e"), "down | down | down");
    assert_eq!(play(&oldest(false), "a | b c | d e"), "live | down | down");
    // A joining member is no company.
    assert_eq!(play(&oldest(true), "a d? | b c"), "down | live");
}

/// A sick node that accuses twenty, and is accused by some, takes nobody along.
#[test]
fn one_sick_node_of_twenty_goes_alone() {
    let names: Vec<String> = (b'a'..=b't').map(|letter| char::from(letter).to_string()).collect();
    let all = names.join(" ");
    // Also if it is the oldest.
    for sick in ["k", "a", "t"] {
        let others: Vec<&String> = names.iter().filter(|name| *name != sick).collect();
        let accuses: Vec<String> = others.iter().map(|name| format!("{sick}>{name}")).collect();
        let accused: Vec<String> =
            others.iter().step_by(3).map(|name| format!("{name}>{sick}")).collect();
        for cuts in [accuses.join(" "), accused.join(" "), [accuses, accused].concat().join(" ")] {
            for strategy in [majority(), ties(), quorum(11), oldest(true)] {
                for me in ["b", sick] {
                    let decision = strategy.decide(&situation(me, &all, &all, &cuts));
                    assert!(matches!(decision, Decision::Down { .. }), "{decision}");
                    assert_eq!(down(&decision), sick, "{strategy:?}");
                }
            }
            let decision = always().decide(&situation("b", &all, &all, &cuts));
            assert!(matches!(&decision, Decision::AskLease { after: Duration::ZERO, .. }));
            assert_eq!(down(&decision), sick);
        }
    }
}

#[test]
fn a_cut_link_costs_the_younger_end() {
    for cuts in ["b>d", "d>b", "b>d d>b"] {
        for me in ["a", "b", "c", "d"] {
            let decision = majority().decide(&situation(me, "a b c d", "a b c d", cuts));
            assert_eq!(down(&decision), "d");
        }
    }
    // The one with most cut links first: without b the rest see each other.
    let decision = majority().decide(&situation("a", "a b c d e", "a b c d e", "b>d b>e"));
    assert_eq!(down(&decision), "b");
    // The rest must win. It is two of five here.
    let decision =
        majority().decide(&situation("a", "a b c d e", "a b c d e", "b>c b>d b>e c>d c>e d>e"));
    assert_eq!(down(&decision), "a b c d e");
    assert!(decision.reason().contains("2 of 5"), "{decision}");
    // Beside a clean cut, both go.
    let decision = majority().decide(&situation("a", "a b c d e f g", "a b c d e f", "a>g c>e"));
    assert_eq!(down(&decision), "e g");
}

#[test]
fn a_side_decides_when_all_of_it_have_seen_the_view() {
    let decision = majority().decide(&situation("a", "a b c d", "a b", "a>d b>d"));
    assert_eq!(decision.reason(), "not everybody here has seen this view yet: c");
    assert_eq!(down(&majority().decide(&situation("a", "a b c d", "a b c", "a>d"))), "d");
    // Nobody waits for somebody who is only joining.
    assert_eq!(down(&majority().decide(&situation("a", "a b c? d", "a b", "a>d"))), "d");
    // One that finds the others unreachable and has not seen the view is not of this side.
    assert_eq!(down(&majority().decide(&situation("a", "a b c d", "a b c", "d>a"))), "d");
}

#[test]
fn joining_members_have_no_say() {
    // They do not make a majority.
    assert_eq!(play(&majority(), "a b | c d e? f?"), "live | down");
    assert_eq!(play(&ties(), "a b e? f? | c d"), "ask | ask");
    // Those that are out of reach are downed without a count.
    let decision = ties().decide(&belief(&cluster("a b | c? d?"), 0, None));
    assert_eq!(down(&decision), "c d");
    // They end with their side, and do not decide for themselves.
    let decision = majority().decide(&belief(&cluster("a b c | d e?"), 1, None));
    assert_eq!(down(&decision), "d e");
    assert_eq!(play(&majority(), "a b | c? d?"), "live | stay");
    // Two that reach only each other and a do not cost the cluster a.
    let seen = "a b c y z";
    let decision = majority().decide(&situation("a", "a b c y? z?", seen, "y>a a>z"));
    assert_eq!(down(&decision), "y z");
    // What they say about others does not count.
    let decision = majority().decide(&situation("a", "a b c z?", "a b z", "z>c"));
    assert_eq!(decision.reason(), "nobody is unreachable");
}

#[test]
fn leaving_and_exiting_members_count_and_those_that_are_down_do_not() {
    assert_eq!(play(&ties(), "a b- | c d!"), "ask | ask");
    assert_eq!(play(&majority(), "a- b! | c"), "live | down");
    assert_eq!(play(&oldest(true), "a- b | c d"), "live | down");
    let who = cluster("a b | c d | ex fx");
    assert_eq!(play(&ties(), "a b | c d ex"), "ask | ask");
    assert_eq!(down(&majority().decide(&belief(&who, 0, None))), "c d");
    assert_eq!(majority().decide(&belief(&who, 2, None)).reason(), "this node is down already");
}

#[test]
fn only_members_with_the_role_are_counted() {
    let role = || Some("r".to_owned());
    let majority = Strategy::KeepMajority(KeepMajority { role: role() });
    assert_eq!(play(&majority, "a/r b/r | c/r d e f"), "live | down");
    assert_eq!(play(&majority, "a b c | d/r"), "down | live");
    assert_eq!(play(&majority, "b/r a | c/r"), "live | down");
    let quorum = Strategy::StaticQuorum(StaticQuorum { size: 2, role: role() });
    assert_eq!(play(&quorum, "a/r b/r | c/r d e f"), "live | down");
    let oldest = Strategy::KeepOldest(KeepOldest { down_if_alone: true, role: role() });
    assert_eq!(play(&oldest, "a b c | d/r"), "down | live");
    assert_eq!(play(&oldest, "a d/r e/r | b c f/r"), "live | down");
    // Company without the role is none.
    assert_eq!(play(&oldest, "a d/r | b c e/r f/r"), "down | live");
    for (mode, expected) in [(Mode::Ties, "ask | ask | down"), (Mode::Always, "ask | ask | down")] {
        let lease = LeaseMajority { role: role(), mode, ..LeaseMajority::default() };
        let lease = Strategy::LeaseMajority(lease);
        assert_eq!(play(&lease, "a b/r | c/r | d e f"), expected, "{mode:?}");
        // Who asks has the role; where nobody has, the leader ends the side.
        let who = cluster("a b/r | c/r | d e f");
        assert_eq!(lease.decider(&belief(&who, 0, None)).as_deref(), Some("b"));
        assert_eq!(lease.decider(&belief(&who, 2, None)).as_deref(), Some("d"));
    }
}

#[test]
fn a_role_that_nobody_has_ends_nobody() {
    let role = || Some("wroker".to_owned());
    let lease = |mode| LeaseMajority { role: role(), mode, ..LeaseMajority::default() };
    for strategy in [
        Strategy::KeepMajority(KeepMajority { role: role() }),
        Strategy::StaticQuorum(StaticQuorum { size: 2, role: role() }),
        Strategy::KeepOldest(KeepOldest { down_if_alone: true, role: role() }),
        Strategy::LeaseMajority(lease(Mode::Ties)),
        Strategy::LeaseMajority(lease(Mode::Always)),
    ] {
        assert_eq!(play(&strategy, "a/worker b/worker c | d/worker e"), "stay | stay");
        let decision = strategy.decide(&belief(&cluster("a/worker b | c"), 0, None));
        assert!(decision.reason().contains("no member has the role wroker"), "{decision}");
    }
}

#[test]
fn always_lets_the_larger_side_be_first() {
    let after = |text: &str, side| match always().decide(&belief(&cluster(text), side, None)) {
        Decision::AskLease { after, survivors, .. } => (after.as_secs(), survivors.join(" ")),
        other => panic!("{other}"),
    };
    assert_eq!(after("a b | c d e", 0), (2, "a b".into()));
    assert_eq!(after("a b | c d e", 1), (0, "c d e".into()));
    assert_eq!(after("a b | c d", 1), (0, "c d".into()));
}

#[test]
fn a_membership_that_changes_is_counted_twice() {
    // c was made up, and not all have seen it: three of five, but two of four.
    let before = converged(&cluster("a b d e"));
    let present = cluster("a b c | d e");
    let play =
        |strategy: &Strategy, side| strategy.decide(&belief(&present, side, Some(before.clone())));
    assert!(matches!(play(&ties(), 0), Decision::AskLease { .. }), "no minority under either");
    let unsure = play(&ties(), 1);
    assert!(matches!(unsure, Decision::Stay { .. }), "half before, a minority now: {unsure}");
    assert!(matches!(play(&majority(), 0), Decision::Down { .. }), "wins under both");
    assert!(matches!(play(&majority(), 1), Decision::Down { .. }), "loses under both");
    // Half of four, and then three of five that do not have the lowest address.
    let waits = majority().decide(&belief(&cluster("d e z | a b"), 0, Some(before)));
    assert!(waits.reason().contains("do not agree"), "{waits}");
    let standing = |side| LeaseMajority::default().standing(&belief(&present, side, None)).unwrap();
    assert_eq!((standing(0), standing(1)), (Standing::Majority, Standing::Minority));
}

#[test]
fn the_leader_is_the_first_that_is_up() {
    let leader = |text: &str| {
        let situation = belief(&cluster(text), 0, None);
        situation.side().unwrap().leader(None).cloned().unwrap_or_default()
    };
    assert_eq!(leader("b c | a"), "b");
    assert_eq!(leader("a? b- c d | e"), "c");
    assert_eq!(leader("a? b! c- | d"), "c");
    assert_eq!(leader("a? | d"), "");
}

#[test]
fn decisions_are_sentences() {
    let says = |strategy: &Strategy, text: &str, side| {
        strategy.decide(&belief(&cluster(text), side, None)).to_string()
    };
    assert_eq!(says(&majority(), "a b | c", 0), "down c: 2 of 3 members are here, a majority");
    assert_eq!(
        says(&majority(), "a b | c d", 1),
        "down c, d: 2 of 4 members are here, half, not with the lowest address, a"
    );
    assert_eq!(
        says(&always(), "a | b c", 0),
        "ask the lease after 2s, and if it is won down b, c: 1 of 3 members is here, a minority"
    );
    assert_eq!(
        says(&quorum(1), "a b | c", 0),
        "stay: there are 3 members, and a quorum of 1 decides for up to 1: two sides could both \
         have it; raise the quorum to 2"
    );
}

#[test]
fn beliefs_that_make_no_sense_are_refused() {
    let seats = || seats(&cluster("a b"), |_| true);
    let cut = [("a".to_owned(), "q".to_owned())];
    let error = Situation::new(&"a".to_owned(), seats(), cut, None).unwrap_err();
    assert_eq!(error, SituationError::NoMember("q".into()));
    let error = Situation::new(&"q".to_owned(), seats(), [], None).unwrap_err();
    assert_eq!(error, SituationError::NoMember("q".into()));
    let twice = seats().into_iter().chain(seats());
    let error = Situation::new(&"a".to_owned(), twice, [], None).unwrap_err();
    assert_eq!(error, SituationError::Twice("a".into()));
}

/// The table that operators read.
#[test]
fn the_page_tells_the_truth() {
    let page = include_str!("../../../docs/downing.md");
    let splits = ["a b c | d e", "a b | c d", "a | b c d", "a b | c d | e", "a b | c d | e f"];
    let mut lines = page.lines().skip_while(|line| !line.contains(splits[0])).take(9);
    let header = lines.next().unwrap();
    assert!(splits.iter().all(|split| header.contains(split)), "{header}");
    let strategies = [
        ("static-quorum, 3", quorum(3)),
        ("keep-majority", majority()),
        ("keep-oldest", oldest(true)),
        ("  not down-if-alone", oldest(false)),
        ("keep-referee, a", referee("a", 1)),
        ("lease-majority", ties()),
        ("  mode always", always()),
        ("down-all", down_all()),
    ];
    for ((name, strategy), line) in strategies.into_iter().zip(lines) {
        let written = line.strip_prefix(name).unwrap_or_else(|| panic!("{name}: {line}"));
        let played = splits.map(|split| play(&strategy, split).replace('|', "")).join(" ");
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words(written), words(&played), "{name}");
    }
}
