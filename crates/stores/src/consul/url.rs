//! `consul://host:port/prefix?token=…&tls=…&ca=…`

use std::path::PathBuf;

use hyper::Uri;

use tenure_lease::OpenError;

use crate::percent;

/// Where the server is and what to tell it. Holds a secret: not `Debug`.
#[derive(PartialEq, Eq)]
pub(super) struct Options {
    /// `host:port`, for people and for requests.
    pub(super) authority: String,
    /// Of all keys, with the slash at its end; never empty.
    pub(super) prefix: String,
    pub(super) token: Option<String>,
    pub(super) tls: bool,
    pub(super) ca: Option<PathBuf>,
}

impl Options {
    /// Takes a URL apart. No error repeats the URL: there may be a token in it.
    pub(super) fn parse(url: &str) -> Result<Self, OpenError> {
        let rest = url.strip_prefix("consul://").ok_or_else(|| refuse("it has no host"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.is_empty() {
            return Err(refuse("it has no host"));
        }
        if authority.contains('@') {
            return Err(refuse("a user means nothing to Consul; a token goes into \"token=…\""));
        }
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| {
            !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
        });
        let mut options = Self {
            authority: if has_port { authority.to_owned() } else { format!("{authority}:8500") },
            prefix: prefix(&decoded(path)?)?,
            token: None,
            tls: false,
            ca: None,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decoded(value)?;
            match key {
                "token" => options.token = Some(value).filter(|token| !token.is_empty()),
                "tls" => options.tls = is_set(&value)?,
                "ca" => options.ca = Some(value.into()),
                _ => return Err(refuse("its options are token, tls and ca")),
            }
        }
        options.tls |= options.ca.is_some();
        Ok(options)
    }

    /// Where connections go.
    pub(super) fn server(&self) -> Result<Uri, OpenError> {
        let server = format!("{}://{}", if self.tls { "https" } else { "http" }, self.authority);
        server.parse().map_err(|_| refuse("its host is none"))
    }
}

fn prefix(path: &str) -> Result<String, OpenError> {
    let path = path.trim_matches('/');
    if path.is_empty() {
        return Ok(DEFAULT_PREFIX.to_owned());
    }
    let plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'/');
    if !path.bytes().all(plain) || path.split('/').any(str::is_empty) {
        return Err(refuse(
            "its prefix may have letters, digits, '-', '_', '.' and '/' between them",
        ));
    }
    Ok(format!("{path}/"))
}

/// So that a store which is named by its host alone does not share keys with everything else there.
const DEFAULT_PREFIX: &str = "tenure/";

fn is_set(value: &str) -> Result<bool, OpenError> {
    match value {
        "true" | "1" | "" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(refuse("tls is true or false")),
    }
}

fn decoded(text: &str) -> Result<String, OpenError> {
    percent::decoded(text).map_err(refuse)
}

fn refuse(why: &str) -> OpenError {
    OpenError::Url(format!(
        "this is not the URL of a Consul store: {why}; \
         \"consul://127.0.0.1:8500/leases?tls=true&token=…\" is"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let options = Options::parse("consul://c.example/shop/leases/?token=a%2Bb&tls=1").unwrap();
        assert_eq!(options.server().unwrap(), "https://c.example:8500");
        assert_eq!(options.prefix, "shop/leases/");
        assert_eq!(options.token.as_deref(), Some("a+b"));
        let options = Options::parse("consul://[::1]:8501?ca=/etc/ca.pem").unwrap();
        assert_eq!(options.server().unwrap(), "https://[::1]:8501");
        assert!(options.prefix == "tenure/" && options.ca.is_some());
        assert_eq!(Options::parse("consul://c.example/").unwrap().prefix, "tenure/");
        assert_eq!(Options::parse("consul://[::1]").unwrap().authority, "[::1]:8500");
    }

    #[test]
    fn refusals_keep_secrets() {
        for url in [
            "consul:",
            "consul:///secret",
            "consul://a:secret@host/x",
            "consul://host/x?tls=secret",
            "consul://host/x?secret=secret",
            "consul://host/x?token=secret%1",
            "consul://host/x y?token=secret",
        ] {
            let error = Options::parse(url).err().expect(url);
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
