use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use super::DiscoveryError;

/// A name with SRV records, and whom to ask for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SrvName {
    /// The whole name, `_cluster._tcp.shop.default.svc` for instance.
    pub name: String,
    /// The DNS server to ask; without one, those of this machine.
    pub server: Option<SocketAddr>,
}

impl FromStr for SrvName {
    type Err = DiscoveryError;

    fn from_str(text: &str) -> Result<Self, DiscoveryError> {
        let refuse = || DiscoveryError::form(text, FORM);
        let (name, server) = match text.split_once('@') {
            Some((name, server)) => {
                let parsed: SocketAddr = server.parse().map_err(|_| refuse())?;
                // One server is written in one way, as a node's address is.
                if parsed.to_string() != server {
                    return Err(refuse());
                }
                (name, Some(parsed))
            }
            None => (text, None),
        };
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if !(1..=NAME_MAX).contains(&name.len()) || !name.bytes().all(is_part) {
            return Err(refuse());
        }
        Ok(Self { name: name.to_owned(), server })
    }
}

impl fmt::Display for SrvName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.server {
            Some(server) => write!(f, "{}@{server}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

const FORM: &str = "srv:NAME, or srv:NAME@IP:PORT with the address of a DNS server";
const NAME_MAX: usize = 253;
