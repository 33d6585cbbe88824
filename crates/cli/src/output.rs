//! What goes to stdout.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

use serde::Serialize;

use crate::exit::Failure;

/// Prints a value: as one line of JSON, or for people.
pub(crate) fn print<T: Display + Serialize>(value: &T, as_json: bool) -> Result<(), Failure> {
    if as_json { json(value) } else { text(value) }
}

/// Prints one line of JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<(), Failure> {
    // Our own types have string keys and no fallible parts.
    text(&serde_json::to_string(value).expect("the value is JSON"))
}

/// Prints for people.
pub(crate) fn text(value: &impl Display) -> Result<(), Failure> {
    let mut out = io::stdout();
    match writeln!(out, "{value}").and_then(|()| out.flush()) {
        // Whoever read it has seen enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        outcome => outcome.map_err(|error| Failure::system("stdout", &error)),
    }
}
