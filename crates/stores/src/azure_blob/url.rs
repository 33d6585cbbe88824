//! `azblob://ACCOUNT/CONTAINER?prefix=…&endpoint=…&sas=…&key=…&ca=…`

use std::path::PathBuf;

use tenure_lease::OpenError;

use crate::percent;

/// Where the container is and what to show it. Holds secrets: not `Debug`.
#[derive(PartialEq, Eq)]
pub(super) struct Options {
    pub(super) account: String,
    pub(super) container: String,
    /// Of all blobs, with the slash at its end; empty for none.
    pub(super) prefix: String,
    /// `https://ACCOUNT.blob.core.windows.net`, or what stands for it.
    pub(super) endpoint: String,
    pub(super) sas: Option<String>,
    pub(super) key: Option<String>,
    pub(super) ca: Option<PathBuf>,
}

impl Options {
    /// Takes a URL apart. No error repeats the URL: there may be a secret in it.
    pub(super) fn parse(url: &str) -> Result<Self, OpenError> {
        let rest = url.strip_prefix("azblob://").ok_or_else(|| refuse("it has no account"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (account, container) = rest.split_once('/').unwrap_or((rest, ""));
        let container = container.trim_end_matches('/');
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        if account.is_empty() || !account.bytes().all(plain) {
            return Err(refuse("an account has lower-case letters and digits"));
        }
        let of_name = |byte: u8| plain(byte) || byte == b'-' || byte == b'$';
        if container.is_empty() || !container.bytes().all(of_name) {
            return Err(refuse("a container has lower-case letters, digits and '-'"));
        }
        let mut options = Self {
            account: account.to_owned(),
            container: container.to_owned(),
            prefix: String::new(),
            endpoint: format!("https://{account}.blob.core.windows.net"),
            sas: None,
            key: None,
            ca: None,
        };
        // A SAS token is a query itself; as it is, it goes last.
        let (query, sas) = match query.split_once("sas=") {
            Some((query, sas)) if query.is_empty() || query.ends_with('&') => (query, Some(sas)),
            _ => (query, None),
        };
        if let Some(sas) = sas {
            options.sas = Some(whole_sas(sas)?);
        }
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decoded(value)?;
            match key {
                "endpoint" => options.endpoint = endpoint(&value)?,
                "prefix" => options.prefix = prefix(&value)?,
                "key" => options.key = Some(value).filter(|key| !key.is_empty()),
                "ca" => options.ca = Some(value.into()),
                _ => {
                    return Err(refuse("its options are endpoint, prefix, key, ca and, last, sas"));
                }
            }
        }
        Ok(options)
    }

    pub(super) fn is_tls(&self) -> bool {
        self.endpoint.starts_with("https://")
    }
}

/// A SAS token as the portal shows it, or encoded to be one option's value.
pub(super) fn whole_sas(text: &str) -> Result<String, OpenError> {
    let text = text.trim().trim_start_matches('?');
    let sas = if text.contains('=') { text.to_owned() } else { decoded(text)? };
    let sas = sas.trim_start_matches('?');
    let fits = |byte: u8| byte.is_ascii_graphic() && byte != b'#';
    if !sas.split('&').any(|pair| pair.starts_with("sig=")) || !sas.bytes().all(fits) {
        return Err(refuse("its SAS token has no signature (\"sas=…\" goes last, and whole)"));
    }
    Ok(sas.to_owned())
}

fn endpoint(value: &str) -> Result<String, OpenError> {
    let value = value.trim_end_matches('/');
    let rest = value.strip_prefix("https://").or_else(|| value.strip_prefix("http://"));
    match rest {
        Some(rest) if !rest.is_empty() && !rest.contains(['?', '#', '@', ' ']) => {
            Ok(value.to_owned())
        }
        _ => Err(refuse("an endpoint is http(s)://host:port/path")),
    }
}

fn prefix(path: &str) -> Result<String, OpenError> {
    let path = path.trim_matches('/');
    if path.is_empty() {
        return Ok(String::new());
    }
    let plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'/');
    if !path.bytes().all(plain) || path.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(refuse(
            "its prefix may have letters, digits, '-', '_', '.' and '/' between them",
        ));
    }
    Ok(format!("{path}/"))
}

fn decoded(text: &str) -> Result<String, OpenError> {
    percent::decoded(text).map_err(refuse)
}

fn refuse(why: &str) -> OpenError {
    OpenError::Url(format!(
        "this is not the URL of an Azure Blob store: {why}; \
         \"azblob://ACCOUNT/CONTAINER?prefix=leases\" is"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let options = Options::parse("azblob://shop/leases?prefix=a/b&key=a%2Bb==").unwrap();
        assert_eq!(options.endpoint, "https://shop.blob.core.windows.net");
        assert_eq!((&*options.account, &*options.container), ("shop", "leases"));
        assert_eq!((&*options.prefix, options.key.as_deref()), ("a/b/", Some("a+b==")));
        let url = "azblob://shop/leases?endpoint=http://127.0.0.1:1/shop/&sas=?sv=1&sig=a%2Bb";
        let options = Options::parse(url).unwrap();
        assert_eq!(options.endpoint, "http://127.0.0.1:1/shop");
        assert_eq!(options.sas.as_deref(), Some("sv=1&sig=a%2Bb"));
        let encoded = Options::parse("azblob://shop/leases?sas=sv%3D1%26sig%3Da%252Bb").unwrap();
        assert_eq!(encoded.sas, options.sas);
    }

    #[test]
    fn refusals_keep_secrets() {
        for url in [
            "azblob:",
            "azblob://",
            "azblob:///secret",
            "azblob://secret",
            "azblob://a:secret@host/x",
            "azblob://a/x?secret=secret",
            "azblob://a/x?key=secret%1",
            "azblob://a/x?endpoint=secret",
            "azblob://a/x?sas=secret",
        ] {
            let error = Options::parse(url).err().expect(url);
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
