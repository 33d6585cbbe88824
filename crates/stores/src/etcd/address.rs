//! The URL of an etcd store, taken apart.

use std::path::PathBuf;

use tenure_lease::OpenError;

use crate::percent;

/// Where a store is and how to get in.
pub(super) struct Address {
    /// `host:port` of each member that may be asked.
    pub(super) members: Vec<String>,
    /// What all keys begin with, without a slash at its end.
    pub(super) prefix: String,
    pub(super) login: Option<Login>,
    pub(super) tls: Option<TlsFiles>,
}

/// The name and password of an etcd user. Never shown to anybody.
pub(super) struct Login {
    pub(super) user: String,
    pub(super) password: String,
}

/// PEM files.
#[derive(Default, Debug, PartialEq, Eq)]
pub(super) struct TlsFiles {
    pub(super) ca: Option<PathBuf>,
    pub(super) cert: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
}

impl Address {
    /// Takes a URL apart. No error repeats a part of it, because each may be a part of a password
    /// that was not percent-encoded.
    pub(super) fn parse(url: &str) -> Result<Self, OpenError> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("it needs //"))?;
        if rest.find(['/', '?', '#']).is_some_and(|end| rest[end..].contains('@')) {
            return Err(wrong(
                "percent-encode special characters: / ? # @ in the password, @ in the rest",
            ));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = match rest.find('/') {
            Some(slash) => rest.split_at(slash),
            None => (rest, ""),
        };
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(self::login(login)?), hosts),
            None => (None, authority),
        };
        let members = hosts.split(',').map(member).collect::<Result<Vec<_>, _>>()?;
        let prefix = match path.trim_end_matches('/') {
            "" => PREFIX.to_owned(),
            path => decode(path)?,
        };
        let mut tls = (scheme == "etcds").then(TlsFiles::default);
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (key, value) = option.split_once('=').unwrap_or((option, "true"));
            let value = decode(value)?;
            let file = Some(PathBuf::from(&value));
            match (key, &*value) {
                ("tls", "true") => _ = tls.get_or_insert_default(),
                ("tls", "false") if scheme == "etcd" => {}
                ("tls", _) => return Err(wrong("tls is true or false (and etcds: means true)")),
                ("ca", _) => tls.get_or_insert_default().ca = file,
                ("cert", _) => tls.get_or_insert_default().cert = file,
                ("key", _) => tls.get_or_insert_default().key = file,
                _ => return Err(wrong("its options are tls, ca, cert and key")),
            }
        }
        if tls.as_ref().is_some_and(|tls| tls.cert.is_some() != tls.key.is_some()) {
            return Err(wrong("cert and key go together"));
        }
        Ok(Self { members, prefix, login, tls })
    }
}

fn login(text: &str) -> Result<Login, OpenError> {
    let (user, password) =
        text.split_once(':').ok_or_else(|| wrong("a user needs a password: user:password@"))?;
    Ok(Login { user: decode(user)?, password: decode(password)? })
}

fn member(text: &str) -> Result<String, OpenError> {
    // The colons of an IPv6 address are inside brackets.
    let has_port = text.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
    let (host, port) =
        if has_port { text.rsplit_once(':') } else { None }.unwrap_or((text, "2379"));
    if host.is_empty() || host.contains([' ', '@', '#']) {
        return Err(wrong("it needs hosts: etcd://host:2379,host:2379/prefix"));
    }
    let port: u16 = port.parse().map_err(|_| wrong("a port is a number up to 65535"))?;
    Ok(format!("{host}:{port}"))
}

fn decode(text: &str) -> Result<String, OpenError> {
    percent::decoded(text).map_err(wrong)
}

fn wrong(why: &str) -> OpenError {
    OpenError::Url(format!("not the URL of an etcd store: {why}"))
}

const PREFIX: &str = "/tenure";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_prefix_and_login() {
        let address = Address::parse("etcd://a:1,b,[::1]:3,[::2]/shop/leases/").unwrap();
        assert_eq!(address.members, ["a:1", "b:2379", "[::1]:3", "[::2]:2379"]);
        assert_eq!(address.prefix, "/shop/leases");
        assert!(address.login.is_none() && address.tls.is_none());

        let address = Address::parse("etcds://me:p%40ss%3a@a").unwrap();
        let login = address.login.unwrap();
        assert_eq!((&*login.user, &*login.password), ("me", "p@ss:"));
        assert_eq!((&*address.prefix, address.tls), ("/tenure", Some(TlsFiles::default())));
    }

    #[test]
    fn tls_is_asked_for_by_scheme_or_option() {
        let tls = |url| Address::parse(url).unwrap().tls;
        assert_eq!(tls("etcd://a?tls=false"), None);
        assert_eq!(tls("etcd://a?tls=true"), Some(TlsFiles::default()));
        let ca = Some("/etc/ca.pem".into());
        assert_eq!(tls("etcd://a/p?ca=/etc/ca.pem"), Some(TlsFiles { ca, ..Default::default() }));
    }

    #[test]
    fn what_is_wrong_is_said_without_the_password() {
        for url in [
            "etcd:a",
            "etcd://",
            "etcd://me:secret@",
            "etcd://me:secret@a:b",
            "etcd://me:se%xcret@a",
            "etcd://me@a",
            "etcd://me:secret@a?color=red",
            "etcd://me:secret@a?tls=maybe",
            "etcds://me:secret@a?tls=false",
            "etcd://me:secret@a?cert=x",
            "etcd://me:secret",
            "etcd://me:secret/1@a:2379/x",
            "etcd://me:1/secret@a:2379/x",
            "etcd://me:1?secret@a",
            "etcd://me:1#secret@a",
            "etcd://me:p@secret/x@a",
            "etcd://me:p/x?secret",
        ] {
            let error = Address::parse(url).err().expect(url).to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
