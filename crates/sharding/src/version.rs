use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The version of an application: numbers with dots between, compared one after the other.
///
/// ```
/// use tenure_sharding::Version;
/// let (old, new): (Version, Version) = ("1.9.3".parse().unwrap(), "1.10".parse().unwrap());
/// assert!(old < new && Version::default() < old);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Version(Vec<u64>);

impl FromStr for Version {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, VersionError> {
        let wrong = || VersionError(text.chars().take(80).collect());
        let parts: Result<Vec<u64>, _> = text.split('.').map(str::parse).collect();
        let parts = parts.map_err(|_| wrong())?;
        if parts.len() > PARTS_MAX { Err(wrong()) } else { Ok(Self(parts)) }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, part) in self.0.iter().enumerate() {
            let dot = if place == 0 { "" } else { "." };
            write!(f, "{dot}{part}")?;
        }
        Ok(())
    }
}

/// It is no version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no version: give up to eight numbers with dots between, such as 1.12.0")]
pub struct VersionError(String);

const PARTS_MAX: usize = 8;
