//! `redis://[user:password@]host:port/db?prefix=…&ca=…`, `rediss://` with TLS.

use std::sync::OnceLock;

use ::redis::{Client, IntoConnectionInfo as _, TlsCertificates};

use tenure_lease::OpenError;

/// Where the server is, and what the store's keys begin with. Holds secrets: not `Debug`.
pub(super) struct Options {
    pub(super) client: Client,
    /// For people: without user and password.
    pub(super) place: String,
    pub(super) prefix: String,
}

impl Options {
    /// Takes a URL apart. No error repeats the URL: there may be a password in it.
    pub(super) fn parse(url: &str) -> Result<Self, OpenError> {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut prefix, mut ca) = ("tenure", None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("prefix", value)) => prefix = value,
                Some(("ca", value)) => ca = Some(value),
                _ => return Err(refuse("its options are prefix and ca")),
            }
        }
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:/".contains(&byte);
        if prefix.is_empty() || !prefix.bytes().all(plain) {
            return Err(refuse("its prefix may have letters, digits and any of \"-._:/\""));
        }
        let info = base.into_connection_info().map_err(|_| refuse("it has no host and port"))?;
        let tls = base.starts_with("rediss:");
        let client = if tls {
            provide_ring();
            let root_cert = match ca {
                None => None,
                Some(path) => {
                    let pem = std::fs::read(path);
                    Some(pem.map_err(|error| OpenError::Url(format!("{path}: {error}")))?)
                }
            };
            let certificates = TlsCertificates { client_tls: None, root_cert };
            Client::build_with_tls(info, certificates).map_err(|_| {
                OpenError::Url("TLS cannot be set up: is the CA file PEM?".to_owned())
            })?
        } else if ca.is_some() {
            return Err(refuse("ca needs the scheme \"rediss\""));
        } else {
            Client::open(info).map_err(|_| refuse("it has no host and port"))?
        };
        let place = client.get_connection_info().addr().to_string();
        Ok(Self { client, place, prefix: prefix.to_owned() })
    }
}

/// The client takes the TLS provider of the process; if that has chosen none, it is `ring`.
fn provide_ring() {
    static PROVIDED: OnceLock<()> = OnceLock::new();
    PROVIDED.get_or_init(|| {
        // An `Err` is the provider that somebody else has chosen, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
}

fn refuse(why: &str) -> OpenError {
    OpenError::Url(format!(
        "this is not the URL of a Redis store: {why}; \
         \"redis://127.0.0.1:6379/0?prefix=leases\" is, or \"rediss://…\" with TLS"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let options = Options::parse("redis://me:secret@127.0.0.1:6380/3?prefix=a:b").unwrap();
        assert_eq!(options.prefix, "a:b");
        assert_eq!(options.place, "127.0.0.1:6380");
        assert_eq!(options.client.get_connection_info().redis_settings().db(), 3);
        assert_eq!(Options::parse("redis://h").unwrap().prefix, "tenure");
        assert!(Options::parse("rediss://h/0").is_ok());
    }

    #[test]
    fn refusals_keep_secrets() {
        for url in [
            "redis:",
            "redis://u:secret@",
            "redis://u:secret@host/x",
            "redis://u:secret@host/0?prefix={x}",
            "redis://u:secret@host/0?secret=1",
            "redis://u:secret@host/0?ca=x",
        ] {
            let error = Options::parse(url).err().expect(url);
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
