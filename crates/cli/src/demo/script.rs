//! What happens when, as text: one step per line, a time and what to do. Pure.

use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::time::Duration;

use crate::duration;

/// Steps in the order of their times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Script {
    pub(super) steps: VecDeque<(Duration, Action)>,
    /// When it is over.
    pub(super) end: Duration,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// The network falls into these groups.
    Cut(Vec<Vec<Target>>),
    /// The network is whole again.
    Heal,
    /// `kill -9`.
    Kill(Vec<Target>),
    /// SIGSTOP, and SIGCONT after a while.
    Pause(Vec<Target>, Duration),
    /// It leaves the cluster in order, and ends.
    Leave(Vec<Target>),
    /// Those that are gone are started again; all of them if none is named.
    Restart(Vec<Target>),
    /// Processes that start from now on run this program: another version of this one.
    Program(PathBuf),
    /// The store answers these no more; nobody if none is named.
    StoreAway(Vec<Target>),
    /// The store answers everybody.
    StoreBack,
}

/// Whom it is done to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// The node that hosts the worker when it is done.
    Holder,
    /// The node that says where shards are when it is done.
    Coordinator,
    /// A node by its number, from 1.
    Node(usize),
    /// Who sends the jobs; only the network can be cut for it.
    Client,
    /// Everybody in no other group.
    Rest,
}

impl Script {
    /// Nothing happens by itself, for as long as anybody likes.
    pub(super) fn empty() -> Self {
        Self { steps: VecDeque::new(), end: Duration::MAX }
    }

    /// Reads a script for so many nodes; the error says what is wrong, and where.
    pub(super) fn parse(text: &str, nodes: usize) -> Result<Self, String> {
        let mut script = Self { steps: VecDeque::new(), end: Duration::ZERO };
        let (mut last, mut ended) = (Duration::ZERO, false);
        for (number, line) in (1..).zip(text.lines()) {
            let wrong = |what: String| format!("line {number}: {what}");
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            if ended {
                return Err(wrong("nothing can come after \"end\"".into()));
            }
            let (time, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let time = duration::parse(time).map_err(wrong)?;
            if time < last {
                return Err(wrong("its time is before that of the line above".into()));
            }
            last = time;
            match rest.trim() {
                "end" => (script.end, ended) = (time, true),
                rest => script.steps.push_back((time, Action::parse(rest, nodes).map_err(wrong)?)),
            }
        }
        if script.steps.is_empty() {
            return Err("the script has no step".into());
        }
        if !ended {
            script.end = last + AFTERWARDS;
        }
        Ok(script)
    }
}

impl Action {
    pub(super) fn parse(text: &str, nodes: usize) -> Result<Self, String> {
        let (verb, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let rest = rest.trim();
        let some = || match targets(rest, nodes)? {
            none if none.is_empty() => {
                Err(format!("{verb} whom? \"{verb} holder\" or \"{verb} 2\""))
            }
            some => Ok(some),
        };
        let nothing = |action: Self| match rest {
            "" => Ok(action),
            rest => Err(format!("{rest:?} means nothing after {verb:?}")),
        };
        match verb {
            "cut" => groups(rest, nodes).map(Self::Cut),
            "heal" => nothing(Self::Heal),
            "kill" => some().map(Self::Kill),
            "leave" => some().map(Self::Leave),
            "restart" => targets(rest, nodes).map(Self::Restart),
            "program" if rest.is_empty() => Err("which program? \"program ./tenure-0.2\"".into()),
            "program" => Ok(Self::Program(rest.into())),
            "pause" => {
                let (whom, time) = rest
                    .rsplit_once(char::is_whitespace)
                    .ok_or("pause whom, for how long? \"pause holder 6s\"")?;
                Ok(Self::Pause(targets(whom, nodes)?, duration::parse(time)?))
            }
            "store" => match rest.split_once(char::is_whitespace).unwrap_or((rest, "")) {
                ("away", whom) => targets(whom, nodes).map(Self::StoreAway),
                ("back", "") => Ok(Self::StoreBack),
                _ => Err("the store can be \"away\" or \"back\"".into()),
            },
            _ => Err(format!(
                "{verb:?} is nothing that can be done; cut, heal, kill, pause, leave, restart, \
                 program, store and end are"
            )),
        }
    }

    /// Whether it is about somebody who is not there now.
    pub(super) fn misses(&self, named: &Named) -> bool {
        let whom: Vec<Target> = match self {
            Self::Cut(groups) => groups.iter().flatten().copied().collect(),
            Self::Kill(whom)
            | Self::Pause(whom, _)
            | Self::Leave(whom)
            | Self::StoreAway(whom)
            | Self::Restart(whom) => whom.clone(),
            Self::Heal | Self::Program(_) | Self::StoreBack => Vec::new(),
        };
        whom.contains(&Target::Holder) && named.holder.is_none()
            || whom.contains(&Target::Coordinator) && named.coordinator.is_none()
    }
}

/// Who is meant by a word.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Named {
    pub(super) holder: Option<usize>,
    pub(super) coordinator: Option<usize>,
}

/// Groups of processes, 0 for the client, as a cut names them. Who is not named goes with the
/// largest.
pub(super) fn sides(groups: &[Vec<Target>], named: &Named, nodes: usize) -> Vec<Vec<usize>> {
    let mut taken = BTreeSet::new();
    let mut sides: Vec<Vec<usize>> = Vec::new();
    for group in groups {
        let mut side = numbers(group, named);
        // The holder may be named once more by its number.
        side.retain(|one| taken.insert(*one));
        sides.push(side);
    }
    let others: Vec<usize> = (0..=nodes).filter(|one| !taken.contains(one)).collect();
    let rest = groups.iter().position(|group| group.contains(&Target::Rest));
    let largest = || (0..sides.len()).rev().max_by_key(|side| sides[*side].len());
    if let Some(side) = rest.or_else(largest) {
        sides[side].extend(others);
        sides[side].sort_unstable();
    }
    sides
}

/// The processes that are meant, 0 for the client.
pub(super) fn numbers(targets: &[Target], named: &Named) -> Vec<usize> {
    let number = |target: &Target| match target {
        Target::Holder => named.holder,
        Target::Coordinator => named.coordinator,
        Target::Node(number) => Some(*number),
        Target::Client => Some(0),
        Target::Rest => None,
    };
    targets.iter().filter_map(number).collect()
}

fn groups(text: &str, nodes: usize) -> Result<Vec<Vec<Target>>, String> {
    let mut groups = Vec::new();
    let mut named = Vec::new();
    for part in text.split('|') {
        let mut group = Vec::new();
        for word in part.split([',', ' ']).filter(|word| !word.is_empty()) {
            let target = match word {
                "client" => Target::Client,
                "rest" => Target::Rest,
                word => target(word, nodes)?,
            };
            if named.contains(&target) {
                return Err(format!("{word} is in two groups"));
            }
            named.push(target);
            group.push(target);
        }
        if group.is_empty() {
            return Err("a group has nobody in it; \"cut 1,2 | 3,4,5\" has two".into());
        }
        groups.push(group);
    }
    if groups.len() < 2 {
        return Err(
            "a cut has two sides at least: \"cut 1,2 | 3,4,5\", \"cut holder | rest\"".into()
        );
    }
    Ok(groups)
}

fn targets(text: &str, nodes: usize) -> Result<Vec<Target>, String> {
    text.split([',', ' ']).filter(|word| !word.is_empty()).map(|word| target(word, nodes)).collect()
}

fn target(word: &str, nodes: usize) -> Result<Target, String> {
    match word.parse() {
        Ok(number) if (1..=nodes).contains(&number) => Ok(Target::Node(number)),
        Ok(_) => Err(format!("there is no node {word}; they are 1 to {nodes}")),
        Err(_) if word == "holder" => Ok(Target::Holder),
        Err(_) if word == "coordinator" => Ok(Target::Coordinator),
        Err(_) => Err(format!("{word:?} is no node; \"holder\" or a number is")),
    }
}

/// How long a script goes on after its last step, unless it says.
const AFTERWARDS: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    fn action(text: &str) -> Action {
        Action::parse(text, 5).unwrap()
    }

    #[test]
    fn the_tour_is_a_script_with_every_fault() {
        let tour = Script::parse(super::super::TOUR, 5).unwrap();
        let all = |is: fn(&Action) -> bool| tour.steps.iter().any(|(_, action)| is(action));
        assert!(all(|it| matches!(it, Action::Cut(_))));
        assert!(all(|it| matches!(it, Action::Heal)));
        assert!(all(|it| matches!(it, Action::Kill(_))));
        assert!(all(|it| matches!(it, Action::Pause(..))));
        assert!(all(|it| matches!(it, Action::Leave(_))));
        assert!(all(|it| matches!(it, Action::Restart(_))));
        assert!(all(|it| matches!(it, Action::StoreAway(whom) if whom.is_empty())));
        assert!(all(|it| matches!(it, Action::StoreAway(whom) if !whom.is_empty())));
        assert!(all(|it| matches!(it, Action::StoreBack)));
        assert!(tour.end <= Duration::from_secs(60));
    }

    #[test]
    fn steps_are_read() {
        use Target::*;
        let script = Script::parse("# why\n1s heal\n\n2.5s kill 3 # bang\n", 5).unwrap();
        assert_eq!(script.steps[1], (Duration::from_millis(2500), Action::Kill(vec![Node(3)])));
        assert_eq!(script.end, Duration::from_millis(7500));
        assert_eq!(Script::parse("1s heal\n9s end", 5).unwrap().end, Duration::from_secs(9));
        let six = Duration::from_secs(6);
        assert_eq!(action("pause holder 6s"), Action::Pause(vec![Holder], six));
        assert_eq!(action("store away"), Action::StoreAway(vec![]));
        assert_eq!(action("store away 1,2"), Action::StoreAway(vec![Node(1), Node(2)]));
        assert_eq!(action("restart"), Action::Restart(vec![]));
        assert_eq!(action("program ./tenure-0.2"), Action::Program("./tenure-0.2".into()));
        let groups = vec![vec![Holder, Client], vec![Rest]];
        assert_eq!(action("cut holder, client | rest"), Action::Cut(groups));
    }

    #[test]
    fn who_is_not_named_goes_with_the_largest_side() {
        let cut = |text: &str, holder| {
            let Action::Cut(groups) = action(text) else { panic!("{text}") };
            sides(&groups, &Named { holder, coordinator: Some(2) }, 5)
        };
        assert_eq!(cut("cut 1,2 | 3,4,5", None), [vec![1, 2], vec![0, 3, 4, 5]]);
        assert_eq!(cut("cut holder | rest", Some(4)), [vec![4], vec![0, 1, 2, 3, 5]]);
        assert_eq!(cut("cut client, 1 | rest", None), [vec![0, 1], vec![2, 3, 4, 5]]);
        assert_eq!(cut("cut 1,2 | 3,4", None), [vec![0, 1, 2, 5], vec![3, 4]]);
        assert_eq!(cut("cut holder, 4 | 1, 2", Some(4)), [vec![4], vec![0, 1, 2, 3, 5]]);
        assert_eq!(cut("cut coordinator | rest", None), [vec![2], vec![0, 1, 3, 4, 5]]);
    }

    #[test]
    fn a_step_about_somebody_waits_for_one() {
        let holder = Named { holder: Some(1), coordinator: None };
        assert!(!action("kill holder").misses(&holder));
        assert!(action("kill coordinator").misses(&holder));
        assert!(action("cut holder | rest").misses(&Named::default()));
        assert!(!action("kill 3").misses(&Named::default()));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, expected) in [
            ("", "no step"),
            ("1s heal\nheal", "line 2: \"heal\" is no duration"),
            ("2s heal\n1s heal", "line 2: its time is before"),
            ("1s end\n2s heal", "line 2: nothing can come after"),
            ("1s explode", "\"explode\" is nothing that can be done"),
            ("1s kill", "kill whom?"),
            ("1s kill 6", "they are 1 to 5"),
            ("1s kill everybody", "is no node"),
            ("1s pause holder", "for how long?"),
            ("1s pause holder long", "is no duration"),
            ("1s cut 1,2", "two sides"),
            ("1s cut 1,2 |", "nobody in it"),
            ("1s cut 1,2 | 2,3", "2 is in two groups"),
            ("1s heal 3", "means nothing"),
            ("1s store gone", "\"away\" or \"back\""),
        ] {
            let error = Script::parse(text, 5).unwrap_err();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }
}
