//! What a run of the suite found.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

/// The outcome of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The kind of store.
    pub kind: &'static str,
    /// One line per check.
    pub lines: Vec<Line>,
    /// How long all of them took together.
    pub took: Duration,
}

/// The outcome of one check.
#[derive(Clone, Debug)]
pub struct Line {
    /// The check.
    pub name: &'static str,
    /// How it came out.
    pub verdict: Verdict,
    /// What it measured.
    pub remarks: Vec<String>,
    /// How long it took.
    pub took: Duration,
}

/// How a check came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The store keeps the rule.
    Passed,
    /// It does not, and this shows it.
    Failed(String),
    /// Nothing was learnt, for this reason.
    Skipped(String),
}

impl Report {
    /// Prints it.
    pub fn print(self) -> Self {
        println!("{self}");
        self
    }

    /// Panics if a check failed.
    pub fn assert_passed(&self) -> &Self {
        let failed: Vec<String> = self.failed().map(Line::to_string).collect();
        assert!(failed.is_empty(), "the {} store fails:\n{}", self.kind, failed.join("\n"));
        self
    }

    /// Panics unless exactly these checks were skipped.
    pub fn assert_skipped(&self, expected: &[&str]) {
        let skipped: BTreeSet<&str> = self.skipped().map(|line| line.name).collect();
        let expected: BTreeSet<&str> = expected.iter().copied().collect();
        assert_eq!(skipped, expected, "what the {} store's suite skips has changed", self.kind);
    }

    /// The checks that failed.
    pub fn failed(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(|line| matches!(line.verdict, Verdict::Failed(_)))
    }

    /// The checks that were skipped.
    pub fn skipped(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(|line| matches!(line.verdict, Verdict::Skipped(_)))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            writeln!(f, "{line}")?;
        }
        let (failed, skipped) = (self.failed().count(), self.skipped().count());
        write!(
            f,
            "{} store: {} checks, {} passed, {failed} failed, {skipped} skipped, {:.1} s",
            self.kind,
            self.lines.len(),
            self.lines.len() - failed - skipped,
            self.took.as_secs_f64(),
        )
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, verdict, remarks, took } = self;
        let (word, why) = match verdict {
            Verdict::Passed => ("passed", None),
            Verdict::Failed(why) => ("FAILED", Some(why)),
            Verdict::Skipped(why) => ("skipped", Some(why)),
        };
        write!(f, "{word:<8}{name:<46}{:>7.2} s", took.as_secs_f64())?;
        for text in why.into_iter().chain(remarks) {
            write!(f, "  {text}")?;
        }
        Ok(())
    }
}
