//! What the workers of all processes have written down, and what follows from it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use tenure_lease::{Moment, Token};

/// Read as it grows.
pub(crate) struct Log {
    file: File,
    rest: Vec<u8>,
    /// By the number of the worker and its token.
    runs: BTreeMap<(u32, Token), Run>,
    /// Whether a process coordinates, and how many members it sees.
    sees: BTreeMap<String, (bool, usize)>,
}

/// One worker in one place.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) process: String,
    from: Moment,
    /// When it last worked.
    worked: Moment,
    /// When it was last there, though it may not have been allowed to work any more.
    seen: Moment,
    ended: bool,
    /// How often it would have worked when it was not allowed to.
    late: usize,
}

/// What happened to workers since a moment.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    /// How long nobody ran, of each one that began somewhere.
    pub(crate) gaps: Vec<Duration>,
    /// When the last one began, from that moment.
    pub(crate) back: Duration,
}

impl Log {
    pub(crate) fn new(path: &Path) -> Self {
        File::create(path).unwrap();
        let (runs, sees) = (BTreeMap::new(), BTreeMap::new());
        Self { file: File::open(path).unwrap(), rest: Vec::new(), runs, sees }
    }

    pub(crate) fn read(&mut self) {
        self.file.read_to_end(&mut self.rest).unwrap();
        let whole = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let lines: Vec<u8> = self.rest.drain(..whole).collect();
        for line in std::str::from_utf8(&lines).unwrap().lines() {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["sees", process, coordinates, members] => {
                    let sees = (coordinates == "true", members.parse().unwrap());
                    self.sees.insert(process.to_owned(), sees);
                }
                [what, process, number, term, step, at] => {
                    let token = Token::new(term.parse().unwrap(), step.parse().unwrap());
                    let at = Moment::from_nanos(at.parse().unwrap());
                    self.note(what, process, (number.parse().unwrap(), token), at);
                }
                _ => panic!("{line:?}"),
            }
        }
    }

    fn note(&mut self, what: &str, process: &str, key: (u32, Token), at: Moment) {
        let run = self.runs.entry(key).or_insert_with(|| Run {
            process: process.to_owned(),
            from: at,
            worked: at,
            seen: at,
            ended: false,
            late: 0,
        });
        assert_eq!(run.process, process, "{key:?}: one token in two places");
        assert!(!run.ended, "{key:?}: begun twice with one token");
        run.seen = run.seen.max(at);
        match what {
            "works" => run.worked = run.worked.max(at),
            "late" => run.late += 1,
            "ends" => run.ended = true,
            _ => panic!("{what:?}"),
        }
    }

    pub(crate) fn coordinates(&self, process: &str) -> bool {
        self.sees.get(process).is_some_and(|(coordinates, _)| *coordinates)
    }

    /// How many members a process sees, if all of them are up and know of each other.
    pub(crate) fn members(&self, process: &str) -> usize {
        self.sees.get(process).map_or(0, |(_, members)| *members)
    }

    /// Who runs which one now: it has worked a moment ago.
    pub(crate) fn running(&self) -> BTreeMap<u32, &str> {
        let now = Moment::now();
        let recent = |run: &Run| !run.ended && now.since(run.worked) < RECENT;
        let runs = self.runs.iter().map(|((number, _), run)| (*number, run));
        runs.filter(|(_, run)| recent(run)).map(|(number, run)| (number, &*run.process)).collect()
    }

    /// How often the workers of a process would have worked when they were not allowed to.
    pub(crate) fn late(&self, process: &str) -> usize {
        self.runs.values().filter(|run| run.process == process).map(|run| run.late).sum()
    }

    /// Checks that at no moment one ran twice, and that tokens rose; who was stopped may have been
    /// there, but not have worked. How many runs there were.
    pub(crate) fn check(&self, stopped: &BTreeSet<String>) -> usize {
        for (number, runs) in self.by_number() {
            for pair in runs.windows(2) {
                let (before, after) = (pair[0], pair[1]);
                assert!(before.0 < after.0, "{number}: tokens must rise: {before:?} {after:?}");
                let until = match stopped.contains(&before.1.process) {
                    true => before.1.worked,
                    false => before.1.seen,
                };
                assert!(until <= after.1.from, "{number} ran twice at once: {before:?} {after:?}");
            }
        }
        self.runs.len()
    }

    /// What happened since a moment.
    pub(crate) fn since(&self, began: Moment) -> Moves {
        let mut moves = Moves::default();
        for runs in self.by_number().values() {
            for pair in runs.windows(2) {
                let (before, after) = (pair[0].1, pair[1].1);
                if after.from >= began {
                    moves.gaps.push(after.from.since(before.worked));
                    moves.back = moves.back.max(after.from.since(began));
                }
            }
        }
        moves
    }

    /// Those of each number, in the order in which they began.
    fn by_number(&self) -> BTreeMap<u32, Vec<(Token, &Run)>> {
        let mut numbers = BTreeMap::<_, Vec<_>>::new();
        for ((number, token), run) in &self.runs {
            numbers.entry(*number).or_default().push((*token, run));
        }
        for runs in numbers.values_mut() {
            runs.sort_by_key(|(_, run)| run.from);
        }
        numbers
    }
}

/// Whoever has worked since then is at work.
const RECENT: Duration = Duration::from_millis(300);
