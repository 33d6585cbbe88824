//! A strategy as it stands in a file: its name, and the options that it has, side by side.
//!
//! Flat, and not an enum for serde, so that whatever is wrong is found at the setting itself.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    DownAll, KeepMajority, KeepOldest, KeepReferee, LeaseMajority, Mode, StaticQuorum, Strategy,
};
use crate::settings::SettingsError;

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    strategy: Name,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    role: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    quorum_size: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    down_if_alone: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    referee: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    down_all_if_less_than: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mode: Option<Mode>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::humane::option")]
    acquire_timeout: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Name {
    StaticQuorum,
    KeepOldest,
    KeepReferee,
    KeepMajority,
    LeaseMajority,
    DownAll,
}

impl Name {
    fn as_str(self) -> &'static str {
        match self {
            Self::StaticQuorum => "static-quorum",
            Self::KeepOldest => "keep-oldest",
            Self::KeepReferee => "keep-referee",
            Self::KeepMajority => "keep-majority",
            Self::LeaseMajority => "lease-majority",
            Self::DownAll => "down-all",
        }
    }
}

impl Strategy {
    /// What it is called in settings and metrics.
    pub fn name(&self) -> &'static str {
        let name = match self {
            Self::StaticQuorum(_) => Name::StaticQuorum,
            Self::KeepOldest(_) => Name::KeepOldest,
            Self::KeepReferee(_) => Name::KeepReferee,
            Self::KeepMajority(_) => Name::KeepMajority,
            Self::LeaseMajority(_) => Name::LeaseMajority,
            Self::DownAll(_) => Name::DownAll,
        };
        name.as_str()
    }
}

impl Written {
    /// Options of another strategy are slips: whoever wrote them believes that they do something.
    fn has_only_its_own(&self) -> Result<(), SettingsError> {
        use Name::*;
        let name = self.strategy;
        let options = [
            ("role", self.role.is_some(), !matches!(name, KeepReferee | DownAll)),
            ("quorum_size", self.quorum_size.is_some(), name == StaticQuorum),
            ("down_if_alone", self.down_if_alone.is_some(), name == KeepOldest),
            ("referee", self.referee.is_some(), name == KeepReferee),
            ("down_all_if_less_than", self.down_all_if_less_than.is_some(), name == KeepReferee),
            ("mode", self.mode.is_some(), name == LeaseMajority),
            ("acquire_timeout", self.acquire_timeout.is_some(), name == LeaseMajority),
        ];
        match options.into_iter().find(|(_, given, used)| *given && !used) {
            Some((option, ..)) => Err(SettingsError(format!(
                "{option} means nothing to {}: remove it, or take another strategy",
                name.as_str()
            ))),
            None => Ok(()),
        }
    }
}

impl TryFrom<Written> for Strategy {
    type Error = SettingsError;

    fn try_from(written: Written) -> Result<Self, SettingsError> {
        written.has_only_its_own()?;
        let name = written.strategy;
        let needs = |option| SettingsError(format!("{} needs {option}", name.as_str()));
        let role = written.role;
        Ok(match name {
            Name::StaticQuorum => {
                let size = written.quorum_size.ok_or_else(|| needs("quorum_size"))?;
                Self::StaticQuorum(StaticQuorum { size, role })
            }
            Name::KeepOldest => {
                let down_if_alone = written.down_if_alone.unwrap_or(true);
                Self::KeepOldest(KeepOldest { down_if_alone, role })
            }
            Name::KeepReferee => {
                let address = written.referee.ok_or_else(|| needs("referee, a node's address"))?;
                let down_all_if_less_than = written.down_all_if_less_than.unwrap_or(1);
                Self::KeepReferee(KeepReferee { address, down_all_if_less_than })
            }
            Name::KeepMajority => Self::KeepMajority(KeepMajority { role }),
            Name::LeaseMajority => {
                let usual = LeaseMajority::default();
                Self::LeaseMajority(LeaseMajority {
                    role,
                    mode: written.mode.unwrap_or(usual.mode),
                    acquire_timeout: written.acquire_timeout.unwrap_or(usual.acquire_timeout),
                })
            }
            Name::DownAll => Self::DownAll(DownAll),
        })
    }
}

impl From<Strategy> for Written {
    fn from(strategy: Strategy) -> Self {
        let mut written = Self {
            strategy: Name::DownAll,
            role: None,
            quorum_size: None,
            down_if_alone: None,
            referee: None,
            down_all_if_less_than: None,
            mode: None,
            acquire_timeout: None,
        };
        match strategy {
            Strategy::StaticQuorum(StaticQuorum { size, role }) => {
                (written.strategy, written.role) = (Name::StaticQuorum, role);
                written.quorum_size = Some(size);
            }
            Strategy::KeepOldest(KeepOldest { down_if_alone, role }) => {
                (written.strategy, written.role) = (Name::KeepOldest, role);
                written.down_if_alone = Some(down_if_alone);
            }
            Strategy::KeepReferee(KeepReferee { address, down_all_if_less_than }) => {
                (written.strategy, written.referee) = (Name::KeepReferee, Some(address));
                written.down_all_if_less_than = Some(down_all_if_less_than);
            }
            Strategy::KeepMajority(KeepMajority { role }) => {
                (written.strategy, written.role) = (Name::KeepMajority, role);
            }
            Strategy::LeaseMajority(LeaseMajority { role, mode, acquire_timeout }) => {
                (written.strategy, written.role) = (Name::LeaseMajority, role);
                written.mode = Some(mode);
                written.acquire_timeout = Some(acquire_timeout);
            }
            Strategy::DownAll(DownAll) => {}
        }
        written
    }
}

impl Strategy {
    /// Its options as they stand in a file, by name, without those that have their default.
    pub(crate) fn written(&self) -> Vec<(String, String)> {
        let written = Written::from(self.clone());
        let needed = Written { role: None, down_if_alone: None, mode: None, ..written.clone() };
        let needed = Written { down_all_if_less_than: None, acquire_timeout: None, ..needed };
        let must_say = options(&needed);
        let usual = Self::try_from(needed).map(|usual| options(&Written::from(usual)));
        let usual = usual.unwrap_or_default(); // What it needs is there.
        let says = |option: &(String, String)| must_say.contains(option) || !usual.contains(option);
        let said = options(&written).into_iter().filter(says);
        said.map(|(option, value)| (format!("downing.{option}"), value)).collect()
    }
}

fn options(written: &Written) -> Vec<(String, String)> {
    let serde_json::Value::Object(options) = serde_json::json!(written) else { return Vec::new() };
    let text = |value: serde_json::Value| match value {
        serde_json::Value::String(text) => text,
        other => other.to_string(),
    };
    options.into_iter().map(|(option, value)| (option, text(value))).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn read(text: &str) -> Result<Strategy, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn every_strategy_is_read_as_it_was_written() {
        let role = || Some("worker".to_owned());
        let all = [
            Strategy::StaticQuorum(StaticQuorum { size: 3, role: role() }),
            Strategy::KeepOldest(KeepOldest { down_if_alone: false, role: role() }),
            Strategy::KeepReferee(KeepReferee {
                address: "shop-0:7400".into(),
                down_all_if_less_than: 2,
            }),
            Strategy::KeepMajority(KeepMajority { role: role() }),
            Strategy::LeaseMajority(LeaseMajority {
                role: role(),
                mode: Mode::Always,
                acquire_timeout: Duration::from_millis(1500),
            }),
            Strategy::DownAll(DownAll),
        ];
        for strategy in all {
            let text = serde_json::to_string(&strategy).unwrap();
            assert_eq!(read(&text), Ok(strategy), "{text}");
        }
    }

    #[test]
    fn only_what_differs_from_the_default_must_agree() {
        let written = |text: &str| {
            let pairs = BTreeMap::from_iter(read(text).unwrap().written());
            pairs.iter().map(|(option, value)| format!("{option}={value}")).collect::<Vec<_>>()
        };
        let usual = ["downing.strategy=lease-majority"];
        assert_eq!(written(r#"{"strategy": "lease-majority"}"#), usual);
        let said = r#"{"strategy": "lease-majority", "mode": "ties", "acquire_timeout": "5s"}"#;
        assert_eq!(written(said), usual);
        let other = r#"{"strategy": "lease-majority", "mode": "always", "role": "worker"}"#;
        let other = written(other);
        assert_eq!(other.len(), 3, "{other:?}");
        assert!(other.contains(&"downing.mode=always".to_owned()), "{other:?}");
        let quorum = r#"{"strategy": "static-quorum", "quorum_size": 3}"#;
        assert_eq!(written(quorum), ["downing.quorum_size=3", "downing.strategy=static-quorum"]);
        let referee = r#"{"strategy": "keep-referee", "referee": "a:1"}"#;
        assert_eq!(written(referee), ["downing.referee=a:1", "downing.strategy=keep-referee"]);
    }

    #[test]
    fn what_is_not_said_has_its_default() {
        let referee = Strategy::KeepReferee(KeepReferee::new("a:1"));
        for (text, expected) in [
            (r#""lease-majority""#, Strategy::LeaseMajority(LeaseMajority::default())),
            (r#""keep-majority""#, Strategy::KeepMajority(KeepMajority::default())),
            (r#""keep-oldest""#, Strategy::KeepOldest(KeepOldest::default())),
            (r#""keep-referee", "referee": "a:1""#, referee),
            (r#""static-quorum", "quorum_size": 2"#, Strategy::StaticQuorum(StaticQuorum::new(2))),
            (r#""down-all""#, Strategy::DownAll(DownAll)),
        ] {
            assert_eq!(read(&format!(r#"{{"strategy": {text}}}"#)), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_cannot_work_is_named() {
        for (text, expected) in [
            (r#""static-quorum""#, "static-quorum needs quorum_size"),
            (r#""keep-referee""#, "keep-referee needs referee"),
            (r#""keep-majority", "mode": "ties""#, "mode means nothing to keep-majority"),
            (r#""down-all", "role": "worker""#, "role means nothing to down-all"),
            (r#""lease-majority", "quorum_size": 2"#, "quorum_size means nothing"),
            (r#""lease-majority", "mode": "never""#, "unknown variant `never`"),
            (r#""lease-majority", "acquire_timeout": "5""#, "is no duration"),
            (r#""keep-everybody""#, "unknown variant `keep-everybody`"),
            (r#""keep-majority", "rolle": "worker""#, "unknown field `rolle`"),
        ] {
            let error = read(&format!(r#"{{"strategy": {text}}}"#)).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
