//! A node's settings, from a file.
//!
//! Whatever is wrong is said with the line and the name of the setting.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tenure_cluster::Settings;
use toml::de::{DeTable, DeValue, Deserializer};

use crate::duration;
use crate::exit::Failure;
use crate::store::StoreArgs;

/// The file, read and understood.
pub(super) struct NodeFile {
    place: Place,
    settings: Settings,
    own: Own,
}

/// What stands in the file beside the cluster's own settings.
#[derive(Deserialize)]
struct Own {
    store: Option<String>,
    formation: Option<String>,
    formation_ttl: Option<String>,
    admin: Option<PathBuf>,
}

impl NodeFile {
    pub(super) fn load(path: &Path) -> Result<Self, Failure> {
        let text = fs::read_to_string(path)
            .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
        Self::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, Failure> {
        let mut place = Place { path: path.into(), lines: lines(text), keys: Vec::new() };
        let table = DeTable::parse(text).map_err(|error| place.refuse(&error))?;
        place.note("", table.get_ref());
        let own = Own::deserialize(Deserializer::from(table.clone()))
            .map_err(|error| place.refuse(&error))?;
        let mut rest = table;
        for name in OWN {
            rest.get_mut().remove(name);
        }
        let settings = Settings::deserialize(Deserializer::from(rest))
            .map_err(|error| place.refuse(&error))?;
        Ok(Self { place, settings, own })
    }

    /// Where to listen for `tenure cluster`.
    pub(super) fn admin(&self) -> Option<&Path> {
        self.own.admin.as_deref()
    }

    /// Everything, with the formation lease in its store.
    pub(super) async fn settings(&self) -> Result<Settings, Failure> {
        let settings = self.settings.clone();
        let settings = match (&self.own.store, &self.own.formation) {
            (Some(url), Some(name)) => {
                let store = StoreArgs::from(url.as_str()).open().await?;
                let mut lease = store.lease(name.as_str()).owner(&settings.name);
                if let Err(error) = lease.name() {
                    return Err(self.wrong_at("formation", &error.to_string()));
                }
                if let Some(ttl) = &self.own.formation_ttl {
                    let ttl = duration::parse(ttl)
                        .map_err(|error| self.wrong_at("formation_ttl", &error))?;
                    lease = lease.ttl(ttl);
                }
                lease
                    .timing()
                    .check_for(&lease.store().info())
                    .map_err(|error| self.wrong_at("formation_ttl", &error.to_string()))?;
                settings.formation(lease)
            }
            (None, None) if self.own.formation_ttl.is_none() => settings,
            (Some(_), None) => {
                return Err(self.wrong_at("store", "set formation, too: the lease's name in it"));
            }
            (None, _) => {
                let which =
                    if self.own.formation.is_some() { "formation" } else { "formation_ttl" };
                return Err(self.wrong_at(which, "set store, too: where the lease is kept"));
            }
        };
        settings.check().map_err(|error| self.wrong(&error.to_string()))?;
        Ok(settings)
    }

    /// Something is wrong; if the message names a setting that is in the file, it is said where.
    pub(super) fn wrong(&self, message: &str) -> Failure {
        let mut words = message.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let found = words.find_map(|word| {
            self.place.keys.iter().find(|key| key.name.rsplit('.').next() == Some(word))
        });
        self.place.failure(found, message)
    }

    /// Something is wrong with this setting.
    pub(super) fn wrong_at(&self, setting: &str, message: &str) -> Failure {
        let found = self.place.keys.iter().find(|key| key.name == setting);
        match found {
            Some(_) => self.place.failure(found, &format!("{setting}: {message}")),
            None => self.place.failure(None, &format!("{setting} (not set): {message}")),
        }
    }
}

/// What stands where in the file.
struct Place {
    path: PathBuf,
    /// Where each line begins.
    lines: Vec<usize>,
    keys: Vec<Key>,
}

/// A setting's name, `membership.watched` for instance, or its value.
struct Key {
    name: String,
    span: Range<usize>,
}

impl Place {
    /// Remembers where the settings of a table are.
    fn note(&mut self, prefix: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let name = format!("{prefix}{}", key.get_ref());
            self.keys.push(Key { name: name.clone(), span: key.span() });
            match value.get_ref() {
                DeValue::Table(inner) => self.note(&format!("{name}."), inner),
                _ => self.keys.push(Key { name, span: value.span() }),
            }
        }
    }

    fn refuse(&self, error: &toml::de::Error) -> Failure {
        let message = error.message();
        let Some(span) = error.span() else { return self.failure(None, message) };
        let within = |key: &&Key| key.span.start <= span.start && span.end <= key.span.end;
        match self.keys.iter().filter(within).min_by_key(|key| key.span.len()) {
            Some(key) if message.starts_with("unknown field") && !key.name.contains('.') => {
                let own = OWN.map(|name| format!("`{name}`")).join(", ");
                self.failure(Some(key), &format!("{message}, {own}"))
            }
            Some(key) if message.starts_with("unknown field") => self.failure(Some(key), message),
            Some(key) => self.failure(Some(key), &format!("{}: {message}", key.name)),
            // Not understood at all, or the whole of it.
            None if self.keys.is_empty() => {
                let key = Key { name: String::new(), span };
                self.failure(Some(&key), message)
            }
            None => self.failure(None, message),
        }
    }

    fn failure(&self, key: Option<&Key>, message: &str) -> Failure {
        let file = self.path.display();
        Failure::usage(match key {
            Some(key) => {
                let line = self.lines.partition_point(|start| *start <= key.span.start);
                format!("{file}, line {line}: {message}")
            }
            None => format!("{file}: {message}"),
        })
    }
}

fn lines(text: &str) -> Vec<usize> {
    let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
    std::iter::once(0).chain(breaks.map(|(index, _)| index + 1)).collect()
}

/// The settings that are not the cluster's own.
const OWN: [&str; 4] = ["store", "formation", "formation_ttl", "admin"];

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<NodeFile, Failure> {
        NodeFile::parse(Path::new("node.toml"), text)
    }

    async fn error(text: &str) -> String {
        let failure = match parse(text) {
            Err(failure) => failure,
            Ok(file) => file.settings().await.expect_err(text),
        };
        format!("{failure:?}")
    }

    const WHOLE: &str = "
        cluster = 'shop'
        name = 'shop-0'
        address = '127.0.0.1:7400'
        identity = 'certs/shop-0'
        roles = ['worker']
        store = 'memory:'
        formation = 'shop.formation'
        formation_ttl = '5s'
        admin = 'shop-0.sock'
        [membership]
        heartbeat_interval = '500ms'
        [transport]
        silence_max = '3s'";

    #[tokio::test]
    async fn a_whole_file_is_understood() {
        let file = parse(WHOLE).unwrap();
        assert_eq!(file.admin(), Some(Path::new("shop-0.sock")));
        let settings = file.settings().await.unwrap();
        assert_eq!(settings.membership.heartbeat_interval.as_millis(), 500);
    }

    #[test]
    fn the_documentation_has_every_setting() {
        let documentation = include_str!("../../../../docs/cluster.md");
        let example = documentation.split("```").find_map(|block| block.strip_prefix("toml\n"));
        let file = parse(example.expect("an example")).unwrap();
        let all = serde_json::to_value(&file.settings).unwrap();
        let mut settings: Vec<&str> = OWN.to_vec();
        for part in [&all, &all["membership"], &all["transport"]] {
            let part = part.as_object().unwrap().iter();
            settings.extend(part.filter(|(_, value)| !value.is_object()).map(|(name, _)| &**name));
        }
        for setting in settings {
            assert!(documentation.contains(&format!("`{setting}`")), "{setting}");
        }
    }

    #[tokio::test]
    async fn what_is_wrong_is_said_with_line_and_setting() {
        for (from, to, expected) in [
            (
                "'500ms'",
                "'500'",
                "line 12: membership.heartbeat_interval: \\\"500\\\" is no duration",
            ),
            ("'500ms'", "'0ms'", "line 12: heartbeat_interval 0ns must be at least"),
            ("'500ms'", "500", "line 12: membership.heartbeat_interval: invalid type"),
            ("'127.0.0.1:7400'", "'here'", "line 4: address: \\\"here\\\" is not an address"),
            ("roles", "rolls", "line 6: unknown field `rolls`, expected one of `cluster`"),
            ("roles", "rolls", "`formation_ttl`, `admin`"),
            ("silence_max", "silence", "line 14: unknown field `silence`"),
            ("'worker'", "7", "line 6: roles: invalid type"),
            ("['worker']", "", "line 6: "),
            ("cluster = 'shop'", "", "missing field `cluster`"),
            ("'5s'", "'5'", "line 9: formation_ttl: \\\"5\\\" is no duration"),
            ("formation = 'shop.formation'", "", "line 7: store: set formation"),
            ("store = 'memory:'", "", "line 8: formation: set store"),
            ("'shop.formation'", "'Shop'", "line 8: formation: "),
            ("identity", "#", "set identity to a directory"),
        ] {
            let found = error(&WHOLE.replace(from, to)).await;
            assert!(found.contains("node.toml") && found.contains(expected), "{to}: {found}");
        }
    }
}
