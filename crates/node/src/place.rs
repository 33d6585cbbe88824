//! Where each setting is in a file, so that what is wrong is said with its line.

use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

/// What stands where in the file.
#[derive(Debug)]
pub(crate) struct Place {
    path: PathBuf,
    /// Where each line begins.
    lines: Vec<usize>,
    keys: Vec<Key>,
}

/// A setting's name, `membership.watched` for instance, or its value.
#[derive(Debug)]
pub(crate) struct Key {
    name: String,
    span: Range<usize>,
}

impl Place {
    pub(crate) fn new(path: &Path, text: &str) -> Self {
        Self { path: path.into(), lines: lines(text), keys: Vec::new() }
    }

    /// Remembers where the settings of a table are.
    pub(crate) fn note(&mut self, prefix: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let name = format!("{prefix}{}", key.get_ref());
            self.keys.push(Key { name: name.clone(), span: key.span() });
            match value.get_ref() {
                DeValue::Table(inner) => self.note(&format!("{name}."), inner),
                _ => self.keys.push(Key { name, span: value.span() }),
            }
        }
    }

    /// Where this setting is, if it is in the file.
    pub(crate) fn find(&self, setting: &str) -> Option<&Key> {
        self.keys.iter().find(|key| key.name == setting)
    }

    /// The first setting that a message names, if it is in the file.
    pub(crate) fn named_in(&self, message: &str) -> Option<&Key> {
        let mut words = message.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        words
            .find_map(|word| self.keys.iter().find(|key| key.name.rsplit('.').next() == Some(word)))
    }

    /// What is wrong with the file, and where. `known`: what it may have beyond what the message says,
    /// by table.
    pub(crate) fn refuse(&self, error: &toml::de::Error, known: &[(&str, &[&str])]) -> String {
        let message = error.message();
        let Some(span) = error.span() else { return self.failure(None, message) };
        let within = |key: &&Key| key.span.start <= span.start && span.end <= key.span.end;
        let is_unknown = message.starts_with("unknown field");
        let known_beside = |key: &Key| {
            let table = key.name.rfind('.').map_or("", |dot| &key.name[..=dot]);
            let names = known.iter().find(|(of, _)| *of == table)?.1;
            Some(names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "))
        };
        match self.keys.iter().filter(within).min_by_key(|key| key.span.len()) {
            Some(key) if is_unknown && known_beside(key).is_some() => {
                let beside = known_beside(key).unwrap_or_default();
                self.failure(Some(key), &format!("{message}, {beside}"))
            }
            Some(key) if is_unknown => self.failure(Some(key), message),
            Some(key) => self.failure(Some(key), &format!("{}: {message}", key.name)),
            // Not understood at all, or the whole of it.
            None if self.keys.is_empty() => {
                let key = Key { name: String::new(), span };
                self.failure(Some(&key), message)
            }
            None => self.failure(self.named_in(message), message),
        }
    }

    pub(crate) fn failure(&self, key: Option<&Key>, message: &str) -> String {
        let file = self.path.display();
        match key {
            Some(key) => {
                let line = self.lines.partition_point(|start| *start <= key.span.start);
                format!("{file}, line {line}: {message}")
            }
            None => format!("{file}: {message}"),
        }
    }
}

fn lines(text: &str) -> Vec<usize> {
    let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
    std::iter::once(0).chain(breaks.map(|(index, _)| index + 1)).collect()
}
