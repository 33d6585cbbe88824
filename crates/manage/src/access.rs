//! Who may do what. Pure.

use std::net::IpAddr;

use subtle::ConstantTimeEq as _;

use crate::settings::Token;

/// What it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing: probes, and what is in every copy of the program anyway.
    Nothing,
    /// To be allowed to read.
    Reading,
    /// To be allowed to change things.
    Writing,
}

/// Who may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// With this token one may read.
    pub read: Option<Token>,
    /// With this one may read and write.
    pub write: Option<Token>,
    /// Anybody may read: nobody beyond this machine is let in.
    pub open: bool,
}

/// Who asks, and how.
#[derive(Clone, Copy, Debug, Default)]
pub struct Caller<'a> {
    /// The header `Authorization`.
    pub authorization: Option<&'a str>,
    /// The header `Host`.
    pub host: Option<&'a str>,
    /// The header `Origin`: a browser's page, perhaps somebody else's.
    pub origin: Option<&'a str>,
    /// What its certificate lets it do.
    pub certificate: Option<Needs>,
}

/// Why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// 401: who are you?
    Unknown(&'static str),
    /// 403: you may not.
    Forbidden(&'static str),
}

impl Rules {
    /// Whether the caller may.
    pub fn allow(&self, needs: Needs, caller: Caller<'_>) -> Result<(), Denied> {
        if needs == Needs::Nothing {
            return Ok(());
        }
        if !is_ours(caller) {
            return Err(Denied::Forbidden(
                "a page of another origin asks, and browsers do so without being told",
            ));
        }
        let given = caller.authorization.and_then(bearer);
        let is = |token: &Option<Token>| match (given, token) {
            (Some(given), Some(token)) => bool::from(given.ct_eq(token.bytes())),
            _ => false,
        };
        // Both are compared, whatever comes of the first.
        let (reader, writer) = (is(&self.read), is(&self.write));
        let writer = writer || caller.certificate == Some(Needs::Writing);
        let reader = reader || writer || caller.certificate.is_some();
        match needs {
            Needs::Writing if writer => Ok(()),
            Needs::Reading if reader => Ok(()),
            _ if given.is_some() && !reader => Err(Denied::Unknown("this token is not known here")),
            // Without a token it is the address that one is trusted for: it must be one of this
            // machine, or a page elsewhere could have made its own name point here.
            Needs::Reading if self.open && caller.host.is_some_and(is_loopback) => Ok(()),
            Needs::Reading if self.open => Err(Denied::Forbidden(
                "without a token, ask by an address of this machine: 127.0.0.1, [::1] or localhost",
            )),
            Needs::Writing if reader => {
                Err(Denied::Forbidden("you may read, but not change anything"))
            }
            Needs::Writing if self.write.is_none() => Err(Denied::Forbidden(
                "nothing can be changed here: this node was given no write token",
            )),
            _ => Err(Denied::Unknown("send a token: Authorization: Bearer TOKEN")),
        }
    }
}

/// No browser sent it, or a page of this very server.
fn is_ours(caller: Caller<'_>) -> bool {
    let Some(origin) = caller.origin else { return true };
    let authority = origin.split_once("://").map(|(_, authority)| authority);
    authority.is_some() && authority == caller.host
}

fn bearer(header: &str) -> Option<&[u8]> {
    let (scheme, token) = header.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim().as_bytes())
}

fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(read: Option<&str>, write: Option<&str>) -> Rules {
        let token = |text: Option<&str>| text.map(|text| Token::new(text).unwrap());
        Rules { read: token(read), write: token(write), open: read.is_none() }
    }

    const READ: &str = "a-token-for-readers";
    const WRITE: &str = "a-token-for-writers";

    fn caller(authorization: &str) -> Caller<'_> {
        Caller { authorization: Some(authorization), host: Some("shop:1"), ..Caller::default() }
    }

    #[test]
    fn tokens_let_in_whom_they_should() {
        let rules = rules(Some(READ), Some(WRITE));
        let (read, write) = (format!("Bearer {READ}"), format!("bearer {WRITE}"));
        assert_eq!(rules.allow(Needs::Reading, caller(&read)), Ok(()));
        assert_eq!(rules.allow(Needs::Reading, caller(&write)), Ok(()));
        assert_eq!(rules.allow(Needs::Writing, caller(&write)), Ok(()));
        let denied = rules.allow(Needs::Writing, caller(&read)).unwrap_err();
        assert!(matches!(denied, Denied::Forbidden(why) if why.contains("may read")), "{denied:?}");
        for wrong in
            ["", "Bearer", "Bearer ", "Bearer x", "Basic eDp5", READ, "Bearer a-token-for-reader"]
        {
            for needs in [Needs::Reading, Needs::Writing] {
                let denied = rules.allow(needs, caller(wrong)).unwrap_err();
                assert!(matches!(denied, Denied::Unknown(_)), "{wrong}: {denied:?}");
            }
            assert_eq!(rules.allow(Needs::Nothing, caller(wrong)), Ok(()));
        }
    }

    #[test]
    fn without_tokens_this_machine_may_read_and_nobody_may_write() {
        let rules = rules(None, None);
        let from = |host| Caller { host: Some(host), ..Caller::default() };
        for host in ["127.0.0.1:7480", "127.1.2.3", "localhost:1", "[::1]:7480", "[::1]"] {
            assert_eq!(rules.allow(Needs::Reading, from(host)), Ok(()), "{host}");
            let denied = rules.allow(Needs::Writing, from(host)).unwrap_err();
            assert!(matches!(denied, Denied::Forbidden(why) if why.contains("no write token")));
        }
        for host in ["evil.example:7480", "10.0.0.1", "", "[::2]:1", "127.0.0.1.evil.example"] {
            assert!(rules.allow(Needs::Reading, from(host)).is_err(), "{host}");
        }
        assert!(rules.allow(Needs::Reading, Caller::default()).is_err(), "no host");
    }

    #[test]
    fn pages_of_others_are_refused_whatever_they_know() {
        let rules = rules(None, Some(WRITE));
        let write = format!("Bearer {WRITE}");
        let from = |origin| Caller {
            authorization: Some(&write),
            host: Some("127.0.0.1:7480"),
            origin: Some(origin),
            ..Caller::default()
        };
        assert_eq!(rules.allow(Needs::Writing, from("http://127.0.0.1:7480")), Ok(()));
        for origin in ["http://evil.example", "null", "http://127.0.0.1:7481"] {
            for needs in [Needs::Reading, Needs::Writing] {
                let denied = rules.allow(needs, from(origin)).unwrap_err();
                assert!(matches!(denied, Denied::Forbidden(_)), "{origin}");
            }
        }
    }

    #[test]
    fn certificates_let_in_whom_they_should() {
        let rules = Rules { open: false, ..rules(None, None) };
        let with = |certificate| Caller { certificate, host: Some("shop:1"), ..Caller::default() };
        assert_eq!(rules.allow(Needs::Reading, with(Some(Needs::Reading))), Ok(()));
        assert_eq!(rules.allow(Needs::Writing, with(Some(Needs::Writing))), Ok(()));
        assert!(rules.allow(Needs::Writing, with(Some(Needs::Reading))).is_err());
        assert!(matches!(rules.allow(Needs::Reading, with(None)), Err(Denied::Unknown(_))));
    }
}
