//! Views as JSON: one after the other, on a line each or on many.

use std::collections::BTreeSet;
use std::io::{BufRead, Read as _};
use std::sync::Arc;

use serde::{Deserialize, Deserializer};
use tenure_cluster::downing::{Converged, Seat, Situation};
use tenure_cluster::{Role, Status};

use crate::exit::Failure;

/// What one node believes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct View {
    #[serde(rename = "self")]
    me: String,
    members: Vec<Member>,
    #[serde(default)]
    reachability: Vec<Observation>,
    seen_by: BTreeSet<String>,
    #[serde(default)]
    converged: Option<Vec<Member>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Member {
    node: String,
    status: Status,
    /// A joining member has none.
    #[serde(default, deserialize_with = "or_default")]
    up_number: u64,
    #[serde(default, deserialize_with = "or_default")]
    roles: BTreeSet<Role>,
}

/// The observer cannot reach the subject.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Observation {
    observer: String,
    subject: String,
}

fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl View {
    fn situation(self) -> Result<Situation<String>, String> {
        let members: BTreeSet<&String> = self.members.iter().map(|one| &one.node).collect();
        if let Some(node) = self.seen_by.iter().find(|node| !members.contains(node)) {
            return Err(format!("\"seen_by\" names {node:?}, which is not among the members"));
        }
        if let Some(row) = self.reachability.iter().find(|row| row.observer == row.subject) {
            return Err(format!("{:?} is said to be unreachable for itself", row.subject));
        }
        let converged = self.converged.map(|members| {
            Arc::new(Converged::new(
                members
                    .into_iter()
                    .map(|one| (one.node, one.status, one.up_number, Arc::new(one.roles))),
            ))
        });
        let seats = self.members.into_iter().map(|one| Seat {
            seen: self.seen_by.contains(&one.node),
            node: one.node,
            status: one.status,
            up_number: one.up_number,
            roles: Arc::new(one.roles),
        });
        let cuts = self.reachability.into_iter().map(|row| (row.observer, row.subject));
        Situation::new(&self.me, seats, cuts, converged).map_err(|error| error.to_string())
    }
}

/// The views that come in.
pub(super) struct Views<R> {
    input: R,
    /// The line that was read last.
    line: usize,
}

impl<R: BufRead> Views<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, line: 0 }
    }

    /// The next one, as soon as its last line is there.
    pub(super) fn next(&mut self) -> Result<Option<Situation<String>>, Failure> {
        let mut text = Vec::new();
        let mut nesting = Nesting::default();
        let mut first = self.line + 1;
        loop {
            let start = text.len();
            let read = self
                .input
                .by_ref()
                .take((MAX_LEN + 1 - start) as u64)
                .read_until(b'\n', &mut text)
                .map_err(|error| Failure::system("stdin", &error))?;
            self.line += usize::from(read > 0);
            if text.len() > MAX_LEN {
                return Err(wrong(first, &format!("a view is longer than {MAX_LEN} bytes")));
            }
            if text.trim_ascii().is_empty() {
                if read == 0 {
                    return Ok(None);
                }
                text.clear();
                first = self.line + 1;
                continue;
            }
            nesting.read(&text[start..]);
            if nesting.depth == 0 || read == 0 {
                break;
            }
        }
        let view: View = serde_json::from_slice(&text).map_err(|error| {
            let what = error.to_string();
            let what = what.rsplit_once(" at line ").map_or(&*what, |(what, _)| what);
            let line = first + error.line().saturating_sub(1);
            wrong(line, &format!("column {}: {what}", error.column()))
        })?;
        view.situation().map(Some).map_err(|what| wrong(first, &what))
    }
}

fn wrong(line: usize, what: &str) -> Failure {
    Failure::usage(format!("stdin, line {line}: {what}"))
}

/// How deep in brackets a text ends, so that the end of a view is known without reading on.
#[derive(Default)]
struct Nesting {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Nesting {
    fn read(&mut self, text: &[u8]) {
        for byte in text {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
    }
}

/// Some hundred thousand members.
const MAX_LEN: usize = 64 << 20;
