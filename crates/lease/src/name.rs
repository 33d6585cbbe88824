use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The name of a lease: a DNS subdomain, in every store.
///
/// Lower-case letters, digits, `-` and `.`; each part between dots begins and ends with a letter
/// or digit; at most 253 characters. That is what the strictest store (Kubernetes) takes, so a
/// name that works here works everywhere.
///
/// ```
/// use tenure_lease::LeaseName;
/// assert!("nightly-report".parse::<LeaseName>().is_ok());
/// let error = "Nightly report".parse::<LeaseName>().unwrap_err();
/// assert!(error.to_string().contains("lower-case"));
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LeaseName(Arc<str>);

impl LeaseName {
    /// Parses a name; see the type for what is allowed.
    pub fn new(name: &str) -> Result<Self, NameError> {
        let refuse = |why| Err(NameError { name: name.chars().take(60).collect(), why });
        if name.is_empty() {
            return refuse("it is empty");
        }
        if name.len() > MAX_LEN {
            return refuse("it is longer than 253 characters");
        }
        let allowed =
            |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
        if !name.chars().all(allowed) {
            return refuse("only lower-case letters, digits, '-' and '.' are allowed");
        }
        if name
            .split('.')
            .any(|part| part.is_empty() || part.starts_with('-') || part.ends_with('-'))
        {
            return refuse("each part between dots must begin and end with a letter or digit");
        }
        Ok(Self(name.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for LeaseName {
    type Err = NameError;

    fn from_str(name: &str) -> Result<Self, NameError> {
        Self::new(name)
    }
}

impl TryFrom<String> for LeaseName {
    type Error = NameError;

    fn try_from(name: String) -> Result<Self, NameError> {
        Self::new(&name)
    }
}

impl From<LeaseName> for String {
    fn from(name: LeaseName) -> Self {
        name.0.as_ref().to_owned()
    }
}

impl fmt::Display for LeaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for LeaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// Why a text is not a lease name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name:?} is not a lease name: {why}; a name such as \"nightly-report\" or \"shop.cron\" is"
)]
pub struct NameError {
    name: String,
    why: &'static str,
}

const MAX_LEN: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_dns_subdomains_only() {
        for good in ["a", "0", "a-b", "a.b", "shop.cron-1", &"a".repeat(253)] {
            assert!(LeaseName::new(good).is_ok(), "{good}");
        }
        for bad in
            ["", "A", "a b", "a_b", "-a", "a-", ".a", "a.", "a..b", "a/b", "ä", &"a".repeat(254)]
        {
            assert!(LeaseName::new(bad).is_err(), "{bad}");
        }
    }
}
