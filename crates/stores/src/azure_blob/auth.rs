//! Who we are to Azure: a SAS token, an account key, or an identity of Entra's.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hyper::header::HeaderValue;
use ring::hmac;

use tenure_lease::OpenError;
use tenure_lease::backend::StoreError;

use super::entra::Entra;
use super::url::{Options, whole_sas};

/// What every request shows. Holds secrets: not `Debug`.
pub(super) enum Auth {
    /// Goes into the query.
    Sas(String),
    /// Signs each request.
    Key { account: String, key: hmac::Key },
    /// Goes into a header.
    Entra(Box<Entra>),
}

/// What a signature covers.
pub(super) struct Signed<'a> {
    pub(super) method: &'a str,
    /// With the account's own part, if the endpoint has one.
    pub(super) path: &'a str,
    pub(super) query: &'a [(&'a str, &'a str)],
    pub(super) headers: &'a [(&'a str, String)],
    pub(super) length: usize,
}

impl Auth {
    /// What the URL says; else what the environment says.
    pub(super) fn find(
        options: &Options,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, OpenError> {
        if let Some(sas) = &options.sas {
            return Ok(Self::Sas(sas.clone()));
        }
        if let Some(key) = &options.key {
            return Self::key(&options.account, key);
        }
        if let Some(sas) = environment("AZURE_STORAGE_SAS_TOKEN") {
            return Ok(Self::Sas(whole_sas(&sas)?));
        }
        if let Some(key) = environment("AZURE_STORAGE_KEY") {
            return Self::key(&options.account, &key);
        }
        let local = ["http://127.0.0.1", "http://localhost", "http://[::1]"];
        if !options.is_tls() && !local.iter().any(|local| options.endpoint.starts_with(local)) {
            return Err(OpenError::Url(
                "the endpoint is not https: an identity of Entra's must not be shown to it".into(),
            ));
        }
        Ok(Self::Entra(Box::new(Entra::find(environment)?)))
    }

    fn key(account: &str, key: &str) -> Result<Self, OpenError> {
        let key = BASE64.decode(key.trim()).map_err(|_| {
            OpenError::Url("the account key is not base64; it may be cut off".into())
        })?;
        let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
        Ok(Self::Key { account: account.to_owned(), key })
    }

    /// What is appended to the query.
    pub(super) fn query(&self) -> Option<&str> {
        match self {
            Self::Sas(sas) => Some(sas),
            Self::Key { .. } | Self::Entra(_) => None,
        }
    }

    /// The header that shows who we are.
    pub(super) async fn header(
        &self,
        request: &Signed<'_>,
    ) -> Result<Option<HeaderValue>, StoreError> {
        match self {
            Self::Sas(_) => Ok(None),
            Self::Key { account, key } => {
                let signature = hmac::sign(key, to_sign(account, request).as_bytes());
                let value = format!("SharedKey {account}:{}", BASE64.encode(signature.as_ref()));
                // An account's name and base64 are ASCII.
                let mut value = HeaderValue::from_str(&value).expect("a header");
                value.set_sensitive(true);
                Ok(Some(value))
            }
            Self::Entra(entra) => entra.token().await.map(Some),
        }
    }

    /// Azure does not take what was shown; the next request shows something new, if it can.
    pub(super) fn refused(&self) {
        if let Self::Entra(entra) = self {
            entra.forget();
        }
    }
}

/// The text that a Shared Key signs.
fn to_sign(account: &str, request: &Signed<'_>) -> String {
    let header = |name: &str| {
        let found = request.headers.iter().find(|(known, _)| *known == name);
        found.map_or("", |(_, value)| value.as_str())
    };
    let length = if request.length == 0 { String::new() } else { request.length.to_string() };
    let mut text = [
        request.method,
        header("content-encoding"),
        header("content-language"),
        &length,
        header("content-md5"),
        header("content-type"),
        // The date is in x-ms-date.
        "",
        header("if-modified-since"),
        header("if-match"),
        header("if-none-match"),
        header("if-unmodified-since"),
        header("range"),
        "",
    ]
    .join("\n");
    let own = request.headers.iter().filter(|(name, _)| name.starts_with("x-ms-"));
    let mut own: Vec<_> = own.map(|(name, value)| format!("{name}:{value}\n")).collect();
    own.sort();
    text.extend(own);
    text.push('/');
    text.push_str(account);
    text.push_str(request.path);
    let mut query: Vec<_> =
        request.query.iter().map(|(name, value)| format!("\n{name}:{value}")).collect();
    query.sort();
    text.extend(query);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_to_sign_is_in_order() {
        let headers = [
            ("x-ms-version", "2021-12-02".to_owned()),
            ("if-match", "\"0x1\"".to_owned()),
            ("x-ms-date", "Sun, 06 Nov 1994 08:49:37 GMT".to_owned()),
            ("content-type", "text/plain".to_owned()),
        ];
        let request = Signed {
            method: "PUT",
            path: "/shop/leases/a",
            query: &[("timeout", "5"), ("comp", "lease")],
            headers: &headers,
            length: 3,
        };
        assert_eq!(
            to_sign("shop", &request),
            "PUT\n\n\n3\n\ntext/plain\n\n\n\"0x1\"\n\n\n\n\
             x-ms-date:Sun, 06 Nov 1994 08:49:37 GMT\nx-ms-version:2021-12-02\n\
             /shop/shop/leases/a\ncomp:lease\ntimeout:5"
        );
    }

    #[test]
    fn the_url_comes_before_the_environment() {
        let options = |query: &str| Options::parse(&format!("azblob://shop/leases{query}"));
        let environment = |name: &str| match name {
            "AZURE_STORAGE_SAS_TOKEN" => Some("?sv=1&sig=environment".to_owned()),
            _ => None,
        };
        let find = |query: &str| Auth::find(&options(query).unwrap(), environment).unwrap();
        assert_eq!(find("?sas=sig=url").query(), Some("sig=url"));
        assert_eq!(find("").query(), Some("sv=1&sig=environment"));
        assert!(matches!(find("?key=AAAA"), Auth::Key { .. }));
        let plain = options("?endpoint=http://example.org").unwrap();
        assert!(Auth::find(&plain, |_| None).is_err());
    }
}
