//! What happened, for people, and a hash of everything that happened, for comparing two runs.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::core::Core;
use super::process;

/// The story of one run.
pub(super) struct Story {
    lines: VecDeque<String>,
    left_out: u64,
    hash: u64,
    /// Everything is printed at once.
    aloud: bool,
}

impl Default for Story {
    fn default() -> Self {
        let aloud = std::env::var_os("TENURE_WORLD_TRACE").is_some();
        Self { lines: VecDeque::new(), left_out: 0, hash: 0xcbf2_9ce4_8422_2325, aloud }
    }
}

impl Story {
    pub(super) fn tell(&mut self, now: Duration, who: &str, what: &str) {
        let line = format!("{:9.3} s  {who:<10} {what}", now.as_secs_f64());
        self.add(line.as_bytes());
        if self.aloud {
            println!("{line}");
        }
        if self.lines.len() == LINES_MAX {
            self.lines.pop_front();
            self.left_out += 1;
        }
        self.lines.push_back(line);
    }

    pub(super) fn trace(&mut self, now: Duration, what: fmt::Arguments<'_>) {
        if self.aloud {
            println!("{:9.3} s  {what}", now.as_secs_f64());
        }
        self.add(&now.as_nanos().to_le_bytes());
        let mut hashing = Hashing(self);
        // Hashing does not fail.
        let _ = hashing.write_fmt(what);
    }

    /// A hash of all that was told and traced so far.
    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

struct Hashing<'a>(&'a mut Story);

impl fmt::Write for Hashing<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.add(text.as_bytes());
        Ok(())
    }
}

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.left_out > 0 {
            writeln!(
                f,
                "({} earlier lines left out; TENURE_WORLD_TRACE=1 prints all)",
                self.left_out
            )?;
        }
        self.lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

/// Puts what processes log into the story: what they say in production is what people read here.
pub(super) struct Logged {
    core: Arc<Core>,
    spans: AtomicU64,
}

impl Logged {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self { core, spans: AtomicU64::new(1) }
    }
}

impl Subscriber for Logged {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::DEBUG && metadata.is_event()
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed))
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let metadata = event.metadata();
        let text = format!("{}{}", text.message, text.fields);
        self.core.with(|state| {
            let who = process::current().map_or_else(|| "world".to_owned(), |it| state.name(it));
            if *metadata.level() <= Level::INFO {
                state.tell(&who, format!("{}: {text}", metadata.target()));
            } else {
                state.trace(format_args!("{who} {}: {text}", metadata.target()));
            }
        });
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

/// How many lines of the story are kept.
const LINES_MAX: usize = 2000;
