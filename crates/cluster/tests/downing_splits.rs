//! Every split of every small cluster, under every strategy: never two survivors.
//!
//! *Survivors* are sides that go on; those that ask the lease are at most one survivor together, if
//! nobody goes on without asking.

mod split;

use std::collections::BTreeSet;
use std::sync::Arc;

use split::*;
use tenure_cluster::Status;
use tenure_cluster::downing::*;

/// Every way to put `nodes` nodes on two or three sides, as the side of each; sides in the order of
/// their first nodes, so that none comes twice.
fn partitions(nodes: usize) -> Vec<Vec<usize>> {
    fn extend(nodes: usize, so_far: &mut Vec<usize>, all: &mut Vec<Vec<usize>>) {
        let sides = so_far.iter().max().map_or(0, |side| side + 1);
        if so_far.len() == nodes {
            if (2..=3).contains(&sides) {
                all.push(so_far.clone());
            }
            return;
        }
        for side in 0..=sides.min(2) {
            so_far.push(side);
            extend(nodes, so_far, all);
            so_far.pop();
        }
    }
    let mut all = Vec::new();
    extend(nodes, &mut Vec::new(), &mut all);
    all
}

/// Every assignment of `choices` to `nodes` nodes in which at most `others` differ from the first.
fn assignments<T: Copy + PartialEq>(nodes: usize, choices: &[T], others: usize) -> Vec<Vec<T>> {
    let mut all = vec![vec![]];
    for _ in 0..nodes {
        all = all
            .iter()
            .flat_map(|so_far: &Vec<T>| {
                choices.iter().map(move |choice| [so_far.as_slice(), &[*choice]].concat())
            })
            .filter(|chosen| chosen.iter().filter(|one| **one != choices[0]).count() <= others)
            .collect();
    }
    all
}

fn name(node: usize) -> String {
    char::from(b'a' + u8::try_from(node).unwrap()).to_string()
}

/// Everything in which strategies can differ for a cluster of this size. `role` for those that
/// have one.
fn strategies(nodes: usize, role: Option<&str>) -> Vec<Strategy> {
    let role = role.map(str::to_owned);
    let mut all = vec![Strategy::KeepMajority(KeepMajority { role: role.clone() })];
    for mode in [Mode::Ties, Mode::Always] {
        let lease = LeaseMajority { role: role.clone(), mode, ..LeaseMajority::default() };
        all.push(Strategy::LeaseMajority(lease));
    }
    for size in 1..=nodes {
        all.push(Strategy::StaticQuorum(StaticQuorum { size, role: role.clone() }));
    }
    for down_if_alone in [true, false] {
        all.push(Strategy::KeepOldest(KeepOldest { down_if_alone, role: role.clone() }));
    }
    if role.is_none() {
        all.push(down_all());
        // The last referee is no member.
        for node in 0..=nodes {
            all.extend([1, 2, nodes].map(|least| referee(&name(node), least)));
        }
    }
    all
}

const JOINING_LEAVING: [Status; 4] =
    [Status::Up, Status::Joining, Status::Leaving, Status::Exiting];

/// The ages are the order of the names, turned by so many places, so that each node is once the
/// oldest.
fn members(sides: &[usize], statuses: &[Status], roles: &[bool], turn: usize) -> Vec<Who> {
    let nodes = sides.len();
    (0..nodes)
        .map(|node| Who {
            name: name(node),
            status: statuses[node],
            up_number: match statuses[node] {
                Status::Joining => 0,
                _ => ((node + turn) % nodes + 1) as u64,
            },
            roles: if roles[node] { BTreeSet::from([Arc::from("r")]) } else { BTreeSet::new() },
            side: sides[node],
        })
        .collect()
}

/// The rule that all of this is about.
fn at_most_one(strategy: &Strategy, fates: &[Fate], what: &dyn Fn() -> String) {
    let count = |wanted: Fate| fates.iter().filter(|fate| **fate == wanted).count();
    let (survivors, askers) = (count(Fate::Survives), count(Fate::Asks));
    assert!(survivors <= 1, "{survivors} survivors, {strategy:?}: {}", what());
    assert!(
        survivors == 0 || askers == 0,
        "one goes on without the lease while another may win it, {strategy:?}: {}",
        what()
    );
}

/// What each strategy promises beyond that, when the network falls into exactly two.
fn of_two_sides(strategy: &Strategy, who: &[Who], fates: &[Fate]) -> bool {
    use Fate::*;
    let counted = |role: &Option<String>| {
        who.iter()
            .filter(|one| one.status != Status::Joining)
            .filter(|one| role.as_deref().is_none_or(|role| one.roles.contains(role)))
            .collect::<Vec<_>>()
    };
    let on = |members: &[&Who], side| members.iter().filter(|one| one.side == side).count();
    let one_of_two = |fates: &[Fate]| matches!(fates, [Survives, Ends] | [Ends, Survives]);
    let role = match strategy {
        Strategy::KeepMajority(KeepMajority { role })
        | Strategy::KeepOldest(KeepOldest { role, .. })
        | Strategy::StaticQuorum(StaticQuorum { role, .. })
        | Strategy::LeaseMajority(LeaseMajority { role, .. }) => role,
        Strategy::KeepReferee(_) | Strategy::DownAll(_) => &None,
    };
    // A role that nobody has is a mistake, and no reason to end the cluster.
    if role.is_some() && counted(role).is_empty() {
        return fates == [Waits, Waits];
    }
    match strategy {
        // Exactly one, whatever the split.
        Strategy::KeepMajority(_) | Strategy::KeepOldest(_) => one_of_two(fates),
        Strategy::StaticQuorum(StaticQuorum { size, role }) => {
            let members = counted(role);
            (0..2).all(|side| {
                let expected = match on(&members, side) {
                    _ if members.len() >= 2 * size => Waits,
                    enough if enough >= *size => Survives,
                    _ => Ends,
                };
                fates[side] == expected
            })
        }
        Strategy::KeepReferee(KeepReferee { address, down_all_if_less_than }) => {
            let members = counted(&None);
            match members.iter().find(|one| one.name == *address) {
                None => fates == [Waits, Waits],
                Some(one) if on(&members, one.side) < *down_all_if_less_than => {
                    fates == [Ends, Ends]
                }
                Some(one) => fates[one.side] == Survives && fates[1 - one.side] == Ends,
            }
        }
        Strategy::LeaseMajority(LeaseMajority { role, mode, .. }) => {
            let members = counted(role);
            (0..2).all(|side| {
                let expected = match (mode, on(&members, side)) {
                    (_, 0) => Ends,
                    (Mode::Always, _) => Asks,
                    (Mode::Ties, here) if 2 * here > members.len() => Survives,
                    (Mode::Ties, here) if 2 * here < members.len() => Ends,
                    (Mode::Ties, _) => Asks,
                };
                fates[side] == expected
            })
        }
        Strategy::DownAll(_) => fates == [Ends, Ends],
    }
}

fn check_clean(strategies: &[Strategy], who: &[Who]) {
    let sides = who.iter().map(|one| one.side).max().unwrap() + 1;
    let beliefs: Vec<_> = (0..sides).map(|side| belief(who, side, None)).collect();
    for strategy in strategies {
        check_one(strategy, who, &beliefs);
    }
}

fn check_one(strategy: &Strategy, who: &[Who], beliefs: &[Situation<String>]) {
    let what = || format!("{who:?}");
    let decisions: Vec<_> = beliefs.iter().map(|belief| strategy.decide(belief)).collect();
    let fates: Vec<Fate> =
        beliefs.iter().zip(&decisions).map(|(belief, decision)| fate(belief, decision)).collect();
    at_most_one(strategy, &fates, &what);
    let has_members =
        |side| who.iter().any(|one| one.side == side && one.status != Status::Joining);
    for (side, fate) in fates.iter().enumerate() {
        if !has_members(side) {
            assert_eq!(*fate, Fate::Waits, "joiners decide nothing: {}", what());
        }
    }
    if fates.len() == 2 && has_members(0) && has_members(1) {
        assert!(of_two_sides(strategy, who, &fates), "{fates:?}, {strategy:?}: {}", what());
    }
    for (side, decision) in decisions.iter().enumerate() {
        let names = |wanted: &dyn Fn(&Who) -> bool| -> Vec<String> {
            who.iter().filter(|one| wanted(one)).map(|one| one.name.clone()).collect()
        };
        let expected = match (&fates[side], strategy) {
            (Fate::Waits, _) => vec![],
            (Fate::Survives | Fate::Asks, _) => names(&|one| one.side != side),
            (Fate::Ends, Strategy::DownAll(_)) => names(&|_| true),
            (Fate::Ends, Strategy::KeepReferee(_)) if decision.reason().contains("takes") => {
                names(&|_| true)
            }
            (Fate::Ends, _) => names(&|one| one.side == side),
        };
        assert_eq!(decision.down(), expected, "{strategy:?}: {}", what());
    }
}

#[test]
fn clean_splits() {
    let mut splits = 0;
    for nodes in 2..=6 {
        let (up, no_role) = (vec![Status::Up; nodes], vec![false; nodes]);
        let statuses = assignments(nodes, &JOINING_LEAVING, if nodes <= 4 { nodes } else { 2 });
        let roles = assignments(nodes, &[true, false], nodes);
        for turn in 0..nodes {
            // The age matters to one strategy only.
            let matters =
                |strategy: &Strategy| turn == 0 || matches!(strategy, Strategy::KeepOldest(_));
            let [plain, with_role] = [None, Some("r")].map(|role| {
                strategies(nodes, role).into_iter().filter(matters).collect::<Vec<_>>()
            });
            for sides in partitions(nodes) {
                for statuses in &statuses {
                    check_clean(&plain, &members(&sides, statuses, &no_role, turn));
                }
                for roles in &roles {
                    check_clean(&with_role, &members(&sides, &up, roles, turn));
                }
                splits += statuses.len() + roles.len();
            }
        }
    }
    println!("{splits} splits");
}

/// Whoever asks on a side gets the same answer.
#[test]
fn a_side_has_one_opinion() {
    for sides in partitions(5) {
        let who = members(&sides, &[Status::Up; 5], &[true, false, true, false, true], 2);
        for strategy in strategies(5, None).into_iter().chain(strategies(5, Some("r"))) {
            for side in 0..=*sides.iter().max().unwrap() {
                let situation = belief(&who, side, None);
                let expected = strategy.decide(&situation);
                for me in who.iter().filter(|one| one.side == side) {
                    let mut mine = who.clone();
                    // Whoever comes first speaks.
                    mine.sort_by_key(|one| one.name != me.name);
                    let situation = belief(&mine, side, None);
                    assert_eq!(strategy.decide(&situation), expected);
                }
            }
        }
    }
}

/// How two nodes find the link between them.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Link {
    Works,
    FirstLosesSecond,
    SecondLosesFirst,
    Cut,
}

/// What those think who are in touch with each other, directly or through others. A link that one
/// end finds cut may still carry news, or not.
fn partial(who: &[Who], links: &[Link], carries: &dyn Fn(Link) -> bool) -> Vec<Situation<String>> {
    let pairs: Vec<(usize, usize)> =
        (0..who.len()).flat_map(|b| (0..b).map(move |a| (a, b))).collect();
    let mut group: Vec<usize> = (0..who.len()).collect();
    for _ in 0..who.len() {
        for (&(a, b), link) in pairs.iter().zip(links) {
            if carries(*link) {
                let lower = group[a].min(group[b]);
                (group[a], group[b]) = (lower, lower);
            }
        }
    }
    let groups: BTreeSet<usize> = group.iter().copied().collect();
    groups
        .into_iter()
        .map(|touch| {
            // What they know is what those of them that look have found.
            let cuts = pairs.iter().zip(links).flat_map(|(&(a, b), link)| {
                let first = matches!(link, Link::Cut | Link::FirstLosesSecond);
                let second = matches!(link, Link::Cut | Link::SecondLosesFirst);
                let found = [(first, a, b), (second, b, a)].into_iter();
                found.filter(|(lost, observer, _)| *lost && group[*observer] == touch)
            });
            let cuts = cuts.map(|(_, a, b)| (who[a].name.clone(), who[b].name.clone()));
            let in_touch: BTreeSet<&str> = (0..who.len())
                .filter(|node| group[*node] == touch)
                .map(|node| who[node].name.as_str())
                .collect();
            let seats = seats(who, |one| in_touch.contains(&*one.name));
            Situation::new(&who[touch].name, seats, cuts.collect::<Vec<_>>(), None).unwrap()
        })
        .collect()
}

fn check_partial(who: &[Who], links: &[Link], carries: &dyn Fn(Link) -> bool) -> [usize; 4] {
    let situations = partial(who, links, carries);
    let mut met = [0; 4];
    for strategy in strategies(who.len(), None) {
        let fates: Vec<Fate> = situations
            .iter()
            .map(|situation| fate(situation, &strategy.decide(situation)))
            .collect();
        at_most_one(&strategy, &fates, &|| format!("{who:?} {links:?}"));
        for fate in fates {
            met[fate as usize] += 1;
        }
    }
    met
}

/// Every graph of working links: whole, in pieces, or hanging together by single nodes.
#[test]
fn partial_cuts() {
    let mut met = [0; 4];
    for nodes in 2..=6 {
        let pairs = nodes * (nodes - 1) / 2;
        // With joiners and leavers where there are few graphs.
        let others = if nodes <= 4 { nodes } else { 0 };
        for statuses in assignments(nodes, &JOINING_LEAVING[..3], others) {
            let who = members(&vec![0; nodes], &statuses, &vec![false; nodes], 0);
            for graph in 0..1_u32 << pairs {
                let link = |pair| if graph >> pair & 1 == 1 { Link::Cut } else { Link::Works };
                let links: Vec<Link> = (0..pairs).map(link).collect();
                let more = check_partial(&who, &links, &|link| link == Link::Works);
                (0..4).for_each(|fate| met[fate] += more[fate]);
            }
        }
    }
    println!("live, down, stay, ask: {met:?}");
    assert!(met.iter().all(|count| *count > 10_000), "{met:?}");
}

#[test]
fn one_way_observations() {
    let choices = [Link::Works, Link::FirstLosesSecond, Link::SecondLosesFirst, Link::Cut];
    for nodes in 2..=4 {
        let who = members(&vec![0; nodes], &vec![Status::Up; nodes], &vec![false; nodes], 0);
        let pairs = nodes * (nodes - 1) / 2;
        for links in assignments(nodes * (nodes - 1) / 2, &choices, pairs) {
            check_partial(&who, &links, &|link| link != Link::Cut);
            check_partial(&who, &links, &|link| link == Link::Works);
        }
    }
}

/// A node whose status changed, while not everybody has heard.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Changed {
    No,
    /// Was joining, and the leader made it up.
    Up,
    /// Was exiting, has handed over and is gone: declared itself down.
    Down,
}

/// What the sides do if each knows some of the changes, and each has taken in, or not, that the
/// changed membership converged.
fn check_changing(changes: &[Changed], sides: &[usize], counted_twice: bool) -> usize {
    let nodes = changes.len();
    let strategies = strategies(nodes, None);
    let count = sides.iter().max().unwrap() + 1;
    let member = |node: usize, known: bool| {
        let (status, up_number) = match (changes[node], known) {
            (Changed::No, _) => (Status::Up, node as u64 + 1),
            (Changed::Up, false) => (Status::Joining, 0),
            (Changed::Up, true) => (Status::Up, (node + nodes) as u64 + 1),
            (Changed::Down, false) => (Status::Exiting, node as u64 + 1),
            (Changed::Down, true) => (Status::Down, node as u64 + 1),
        };
        let side = if changes[node] == Changed::Down { usize::MAX } else { sides[node] };
        Who { name: name(node), status, up_number, roles: BTreeSet::new(), side }
    };
    let changed: Vec<usize> = (0..nodes).filter(|node| changes[*node] != Changed::No).collect();
    let all = (1_usize << changed.len()) - 1;
    let view = |known: usize| -> Vec<Who> {
        let knows = |node| changed.iter().position(|one| *one == node);
        (0..nodes)
            .map(|node| member(node, knows(node).is_some_and(|bit| known >> bit & 1 == 1)))
            .collect()
    };
    let mut doubles = 0;
    let knowledge = assignments(count, &(0..=all).collect::<Vec<_>>(), count);
    let joined: usize = (0..changed.len())
        .filter(|bit| changes[changed[*bit]] == Changed::Up)
        .map(|bit| 1 << bit)
        .sum();
    // Who made them up, all at once: the leader. Its side knows.
    let leader = (0..nodes).find(|node| changes[*node] == Changed::No);
    for known in &knowledge {
        let at_once = known.iter().all(|known| known & joined == 0 || known & joined == joined);
        let led = leader.is_some_and(|leader| known[sides[leader]] & joined == joined);
        if !at_once || joined != 0 && !led {
            continue;
        }
        // Only what all have seen can have converged.
        let converged_on =
            if known.iter().all(|known| *known == all) { vec![0, all] } else { vec![0] };
        for base in assignments(count, &converged_on, count) {
            // A side whose only member has left is none.
            let beliefs: Vec<Situation<String>> = (0..count)
                .filter(|side| view(0).iter().any(|one| one.side == *side))
                .map(|side| {
                    let before = counted_twice.then(|| converged(&view(base[side])));
                    belief(&view(known[side]), side, before)
                })
                .collect();
            for strategy in &strategies {
                let decide = |situation| fate(situation, &strategy.decide(situation));
                let fates: Vec<Fate> = beliefs.iter().map(decide).collect();
                let survivors = fates.iter().filter(|fate| **fate == Fate::Survives).count();
                let asks = fates.contains(&Fate::Asks);
                if survivors > 1 || survivors == 1 && asks {
                    doubles += 1;
                    assert!(
                        !counted_twice,
                        "{fates:?}, {strategy:?}: {changes:?} on {sides:?}, known {known:?}, \
                         converged {base:?}"
                    );
                }
            }
        }
    }
    doubles
}

#[test]
fn a_membership_in_change() {
    let mut doubles = 0;
    for nodes in 2..=5 {
        let choices = [Changed::No, Changed::Up, Changed::Down];
        for changes in assignments(nodes, &choices, 2) {
            for sides in partitions(nodes) {
                check_changing(&changes, &sides, true);
                if nodes <= 4 {
                    doubles += check_changing(&changes, &sides, false);
                }
            }
        }
    }
    // The second count is needed: on the present membership alone, there are two survivors.
    println!("{doubles} doubles if only the present membership is counted");
    assert!(doubles > 0);
}

/// What is not promised. Two sides that overlap, because one node saw the view of the one and then,
/// when links had shifted, that of the other, can both be the majority. Only a lease that is always
/// asked, and then by both, keeps one of them.
#[test]
fn sides_that_overlap_can_both_go_on() {
    let one = situation("a", "a b c d e", "a b c", "a>d a>e b>d b>e c>d c>e");
    let other = situation("d", "a b c d e", "c d e", "c>a c>b d>a d>b e>a e>b");
    for strategy in [majority(), quorum(3), ties()] {
        for (situation, others) in [(&one, ["d", "e"]), (&other, ["a", "b"])] {
            assert_eq!(strategy.decide(situation).down(), others, "{strategy:?}");
        }
    }
    for strategy in [oldest(true), referee("a", 1)] {
        let fates = [&one, &other].map(|situation| fate(situation, &strategy.decide(situation)));
        assert_eq!(fates, [Fate::Survives, Fate::Ends], "one node decides: {strategy:?}");
    }
    let fates = [&one, &other].map(|situation| fate(situation, &always().decide(situation)));
    assert_eq!(fates, [Fate::Asks, Fate::Asks]);
}
