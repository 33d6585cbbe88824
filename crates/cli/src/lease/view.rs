//! A lease as people and scripts see it.

use std::fmt;

use serde::Serialize;
use tenure_lease::backend::{Promise, StoreInfo};
use tenure_lease::record::{Expiry, SessionRef};
use tenure_lease::{LeaseName, Record, Token};

/// What `--json` prints; its shape is stable.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct View {
    name: String,
    store: &'static str,
    promise: &'static str,
    /// `held`, `released` or `absent`.
    state: &'static str,
    owner: Option<String>,
    /// 16 hexadecimal digits; all zero if a foreign tool wrote the record.
    incarnation: Option<String>,
    session: Option<SessionRef>,
    token: Option<Token>,
    ttl_ms: Option<u64>,
    /// `by_store`, `by_observation`, or `with_session`.
    expiry: Option<&'static str>,
    /// How long until the store itself frees it.
    remaining_ms: Option<u64>,
    note: Option<Note>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Note {
    bytes: usize,
    /// If it is UTF-8.
    text: Option<String>,
    /// If it is not.
    hex: Option<String>,
}

impl View {
    pub(crate) fn new(name: &LeaseName, store: &StoreInfo, record: Option<&Record>) -> Self {
        let holder = record.and_then(|record| record.holder.as_ref());
        let (expiry, remaining) = match record {
            Some(record) if record.session().is_some() => (Some("with_session"), None),
            Some(Record { holder: Some(_), expiry: Expiry::ByStore(left), .. }) => {
                (Some("by_store"), Some(*left))
            }
            Some(Record { holder: Some(_), expiry: Expiry::ByObservation, .. }) => {
                (Some("by_observation"), None)
            }
            _ => (None, None),
        };
        Self {
            name: name.to_string(),
            store: store.kind,
            promise: match store.promise {
                Promise::Safe => "safe",
                Promise::BestEffort => "best_effort",
            },
            state: match record {
                None => "absent",
                Some(Record { holder: None, .. }) => "released",
                Some(_) => "held",
            },
            owner: holder.map(|holder| holder.owner.name.clone()),
            incarnation: holder.map(|holder| format!("{:016x}", holder.owner.incarnation)),
            session: holder.and_then(|holder| holder.session.clone()),
            token: record.map(|record| record.token),
            ttl_ms: record.map(|record| millis(record.ttl)),
            expiry,
            remaining_ms: remaining.map(millis),
            note: record.map(|record| Note::new(&record.note)),
        }
    }

    /// Name, holder, token, ttl and expiry, for a table.
    pub(super) fn row(&self) -> [String; 5] {
        let expires = match (self.expiry, self.remaining_ms, &self.session) {
            (Some("by_store"), Some(left), _) => format!("in {}", seconds(left)),
            (Some("by_observation"), ..) => "by observation".to_owned(),
            (Some("with_session"), _, Some(session)) => format!("with session {}", session.name),
            _ => "-".to_owned(),
        };
        [
            self.name.clone(),
            self.owner.clone().unwrap_or_else(|| "free".to_owned()),
            self.token.map_or_else(String::new, |token| token.to_string()),
            self.ttl_ms.map_or_else(String::new, seconds),
            expires,
        ]
    }

    /// Without what changes at each look.
    pub(super) fn lasting(self) -> Self {
        Self { remaining_ms: None, ..self }
    }
}

impl Note {
    fn new(note: &[u8]) -> Self {
        let text = str::from_utf8(note).ok().map(str::to_owned);
        let hex = text.is_none().then(|| note.iter().map(|byte| format!("{byte:02x}")).collect());
        Self { bytes: note.len(), text, hex }
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let promise = if self.promise == "safe" { "safe" } else { "best effort" };
        write!(f, "lease    {} ({} store, {promise})\nstate    ", self.name, self.store)?;
        let (Some(token), Some(ttl)) = (self.token, self.ttl_ms) else {
            return f.write_str("absent: it was never held, or its record was deleted");
        };
        match (&self.owner, &self.incarnation) {
            (Some(owner), Some(incarnation)) => {
                write!(f, "held\nowner    {owner}\nprocess  {incarnation}")?;
            }
            _ => f.write_str("free: it was released")?,
        }
        if let Some(session) = &self.session {
            write!(f, "\nsession  {} under term {}", session.name, session.term)?;
        }
        write!(f, "\ntoken    {token}\nttl      {}", seconds(ttl))?;
        match (self.expiry, self.remaining_ms) {
            (Some("by_store"), Some(left)) => {
                write!(f, "\nexpires  in {} unless it is renewed", seconds(left))?;
            }
            (Some("by_observation"), _) => {
                write!(f, "\nexpires  when it has not been renewed for its ttl")?;
            }
            (Some("with_session"), _) => write!(f, "\nexpires  with its session")?,
            _ => {}
        }
        match &self.note {
            Some(Note { bytes, text: Some(text), .. }) if *bytes > 0 => {
                write!(f, "\nnote     {} ({bytes} bytes)", text.escape_debug())
            }
            Some(Note { bytes, hex: Some(hex), .. }) => {
                let shown: String = hex.chars().take(128).collect();
                let more = if shown.len() < hex.len() { "…" } else { "" };
                write!(f, "\nnote     0x{shown}{more} ({bytes} bytes)")
            }
            _ => f.write_str("\nnote     none"),
        }
    }
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn seconds(millis: u64) -> String {
    format!("{:?}", std::time::Duration::from_millis(millis))
}
