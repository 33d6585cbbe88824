//! How the program ends: one line that says what is wrong, and a documented code.

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use tenure_lease::backend::StoreError;
use tenure_lease::{LeaseError, NameError, SettingsError};

/// The arguments are wrong.
pub(crate) const USAGE: u8 = 64;
/// The store cannot be used.
pub(crate) const UNAVAILABLE: u8 = 69;
/// The operating system refused a process, a pipe, a signal.
pub(crate) const SYSTEM: u8 = 71;
/// Another holds the lease.
pub(crate) const HELD: u8 = 75;

/// What `--help` says about them.
pub(crate) const HELP: &str = "\
Exit codes:
  0     done
  1     sim, demo: something happened that must not
  64    an argument is wrong
  69    the store cannot be used: not reachable, no permission, read-only, full, damaged;
        no node answers (cluster)
  71    the operating system refused something that is needed
  75    another holds the lease (run --no-wait, lease release); nobody has taken the order yet
        (cron run-now)
  126   the command cannot be run
  127   the command was not found
  128+n ended by signal n: tenure was told to stop by it, or the command died of it
  any other: what the command exited with";

/// Why the program ends without having done what it was asked for.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, message)
    }

    pub(crate) fn system(what: &str, error: &std::io::Error) -> Self {
        Self::new(SYSTEM, format!("{what}: {error}"))
    }

    /// The code that the program would end with.
    pub(crate) fn code(&self) -> u8 {
        self.code
    }

    /// What is wrong.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Says it, in one line.
    pub(crate) fn tell(&self) -> ExitCode {
        let line = self.message.split_whitespace().collect::<Vec<_>>().join(" ");
        // Nobody may be reading; the code says it as well.
        let _ = writeln!(std::io::stderr(), "tenure: {line}");
        ExitCode::from(self.code)
    }
}

impl From<NameError> for Failure {
    fn from(error: NameError) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<SettingsError> for Failure {
    fn from(error: SettingsError) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::new(UNAVAILABLE, error.to_string())
    }
}

impl From<LeaseError> for Failure {
    fn from(error: LeaseError) -> Self {
        match error {
            LeaseError::Name(error) => error.into(),
            LeaseError::Settings(error) => error.into(),
            LeaseError::Store(error) => error.into(),
            other => Self::new(UNAVAILABLE, other.to_string()),
        }
    }
}

/// Answers what clap refused: help and version as they are, anything else in one line.
pub(crate) fn refused(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // A closed pipe (`tenure --help | head -1`) is no failure.
        return match error.print() {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => ExitCode::from(SYSTEM),
            _ => ExitCode::SUCCESS,
        };
    }
    let text = error.render().to_string();
    let mut paragraphs = text.split("\n\n");
    let first = paragraphs.next().unwrap_or_default().trim_start_matches("error: ");
    let tip = paragraphs.find(|paragraph| paragraph.trim_start().starts_with("tip:"));
    let hint = tip.unwrap_or("try 'tenure --help'");
    Failure::usage(format!("{}; {hint}", first.trim())).tell()
}
