//! `dynamodb://TABLE?region=…&endpoint=…&create=true`

use std::path::PathBuf;

use percent_encoding::percent_decode_str;

use tenure_lease::OpenError;

/// Which table, and where.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) table: String,
    /// `None`: as the environment says.
    pub(super) region: Option<String>,
    /// Without a slash at its end. `None`: AWS's own for the region.
    pub(super) endpoint: Option<String>,
    /// Whether a table that does not exist is created.
    pub(super) create: bool,
    pub(super) ca: Option<PathBuf>,
}

impl Options {
    /// Takes a URL apart. No error repeats the URL: who errs may have put a secret into it.
    pub(super) fn parse(url: &str) -> Result<Self, OpenError> {
        let rest = url.strip_prefix("dynamodb://").ok_or_else(|| refuse("it names no table"))?;
        let (table, query) = rest.split_once('?').unwrap_or((rest, ""));
        if table.contains('@') {
            return Err(refuse(
                "credentials do not belong in it, they come from the environment, a profile or the \
                 role of this machine",
            ));
        }
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        if !(3..=255).contains(&table.len()) || !table.bytes().all(plain) {
            return Err(refuse("a table has 3 to 255 letters, digits, '-', '_' and '.'"));
        }
        let table = table.to_owned();
        let mut options = Self { table, region: None, endpoint: None, create: false, ca: None };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = percent_decode_str(value).decode_utf8();
            let value = value.map_err(|_| refuse("it is not UTF-8"))?.into_owned();
            match key {
                "region" => options.region = Some(region(value)?),
                "endpoint" => options.endpoint = Some(endpoint(&value)?),
                "create" => options.create = is_set(&value)?,
                "ca" => options.ca = Some(value.into()),
                _ => return Err(refuse("its options are region, endpoint, create and ca")),
            }
        }
        Ok(options)
    }
}

/// An endpoint, wherever it is named: scheme, host and port, and nothing else.
pub(super) fn endpoint(text: &str) -> Result<String, OpenError> {
    let text = text.trim_end_matches('/');
    let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let plain = |byte: u8| {
        byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b':' | b'[' | b']')
    };
    match host {
        Some(host) if !host.is_empty() && host.bytes().all(plain) => Ok(text.to_owned()),
        _ => Err(refuse("an endpoint is \"http://host:port\" or \"https://host:port\"")),
    }
}

fn region(value: String) -> Result<String, OpenError> {
    // It becomes part of a host's name.
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if value.is_empty() || !value.bytes().all(plain) {
        return Err(refuse("a region is like \"eu-central-1\""));
    }
    Ok(value)
}

fn is_set(value: &str) -> Result<bool, OpenError> {
    match value {
        "true" | "1" | "" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(refuse("create is true or false")),
    }
}

fn refuse(why: &str) -> OpenError {
    OpenError::Url(format!(
        "this is not the URL of a DynamoDB store: {why}; \"dynamodb://leases?region=eu-central-1\" \
         is"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let options = Options::parse("dynamodb://shop.leases?region=eu-west-1&create=true");
        let options = options.unwrap();
        assert_eq!(options.table, "shop.leases");
        assert_eq!(options.region.as_deref(), Some("eu-west-1"));
        assert!(options.create && options.endpoint.is_none() && options.ca.is_none());
        for url in ["http%3A%2F%2F127.0.0.1%3A8000", "http://127.0.0.1:8000/"] {
            let options = Options::parse(&format!("dynamodb://leases?endpoint={url}")).unwrap();
            assert_eq!(options.endpoint.as_deref(), Some("http://127.0.0.1:8000"));
            assert!(!options.create);
        }
    }

    #[test]
    fn refusals_keep_secrets() {
        for url in [
            "dynamodb:",
            "dynamodb://",
            "dynamodb://AKID:secret@leases",
            "dynamodb://leases/secret",
            "dynamodb://leases?secret=secret",
            "dynamodb://leases?create=secret",
            "dynamodb://leases?endpoint=secret",
            "dynamodb://leases?endpoint=http://me:secret@host",
            "dynamodb://leases?region=eu.secret",
        ] {
            let error = Options::parse(url).expect_err(url);
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
