use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Where a node is reached: `host:port`. Also how nodes are ordered: by this text.
///
/// ```
/// use tenure_cluster::Address;
/// let address: Address = "shop-0.shop:7400".parse().unwrap();
/// assert_eq!((address.host(), address.port()), ("shop-0.shop", 7400));
/// assert!("shop-0".parse::<Address>().unwrap_err().to_string().contains("host:port"));
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address(Arc<str>);

impl Address {
    /// Parses `host:port`; an IPv6 host stands in brackets.
    pub fn new(text: &str) -> Result<Self, AddressError> {
        let refuse = |why| Err(AddressError { text: text.chars().take(80).collect(), why });
        if text.len() > MAX_LEN {
            return refuse("it is longer than 261 characters");
        }
        let Some((host, port)) = text.rsplit_once(':') else {
            return refuse("it has no port");
        };
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let bare = bracketed.unwrap_or(host);
        if bare.is_empty() {
            return refuse("it has no host");
        }
        if bare.contains(['[', ']']) || (bracketed.is_none() && bare.contains(':')) {
            return refuse("an IPv6 host stands in brackets");
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return refuse("only printable ASCII is allowed");
        }
        match port.parse::<u16>() {
            // Nodes are known by this text: one port must not be written in two ways.
            Ok(number) if number > 0 && number.to_string() == port => Ok(Self(text.into())),
            _ => refuse("its port is not a number from 1 to 65535"),
        }
    }

    /// The host, without brackets.
    pub fn host(&self) -> &str {
        self.split().0.trim_start_matches('[').trim_end_matches(']')
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.split().1.parse().unwrap_or_default() // Checked when it was made.
    }

    /// The whole text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn split(&self) -> (&str, &str) {
        self.0.rsplit_once(':').unwrap_or((&self.0, ""))
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        Self::new(text)
    }
}

impl TryFrom<String> for Address {
    type Error = AddressError;

    fn try_from(text: String) -> Result<Self, AddressError> {
        Self::new(&text)
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.0.as_ref().into()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text that is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is not an address: {why}; an address is host:port, like shop-0.shop:7400")]
pub struct AddressError {
    text: String,
    why: &'static str,
}

/// A random number that tells one process from the next at the same address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Incarnation(pub u64);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One process in a cluster: an address, and the incarnation that answers there.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node {
    /// Where it is reached.
    pub address: Address,
    /// Which process it is.
    pub incarnation: Incarnation,
}

/// Readable where people read it; just the two values where nodes do.
impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { address, incarnation } = self;
        if serializer.is_human_readable() {
            return Fields { address: address.clone(), incarnation: *incarnation }
                .serialize(serializer);
        }
        (address, incarnation).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (address, incarnation) = if deserializer.is_human_readable() {
            let Fields { address, incarnation } = Fields::deserialize(deserializer)?;
            (address, incarnation)
        } else {
            Deserialize::deserialize(deserializer)?
        };
        Ok(Self { address, incarnation })
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename = "Node")]
struct Fields {
    address: Address,
    incarnation: Incarnation,
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.address, self.incarnation)
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A host name has 253 characters at most, a port five.
const MAX_LEN: usize = 261;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_and_one_way_to_write_it() {
        for (good, host) in [("a:1", "a"), ("[::1]:65535", "::1"), ("10.0.0.1:80", "10.0.0.1")] {
            assert_eq!(Address::new(good).unwrap().host(), host);
        }
        for bad in
            ["[:5", "[]:5", "]:5", "a]:5", "[a:5", "[[a]]:5", "::1:5", ":5", "a:+5", "a:05", "a:0"]
        {
            assert!(Address::new(bad).is_err(), "{bad}");
        }
    }
}
