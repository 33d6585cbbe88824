//! The other end of the API, for programs like `tenure cluster`: one request, one answer.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::http::Uri;
use hyper::{Method, Request, StatusCode};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::Value;

use crate::driver;
use crate::settings::Token;

/// Asks one node.
#[derive(Clone, Debug)]
pub struct Client {
    url: String,
    host: String,
    port: u16,
    tls: Option<ClientTls>,
    token: Option<Token>,
}

#[derive(Clone, Debug)]
struct ClientTls {
    ca: PathBuf,
    config: Arc<ClientConfig>,
}

impl Client {
    /// Of the node at `http://host:port` or `https://host:port`. For the latter, `ca` is a file with
    /// the certificates of the authorities that its certificate must be of. A token goes to another
    /// host over https only.
    pub fn new(url: &str, token: Option<Token>, ca: Option<&Path>) -> Result<Self, ClientError> {
        let wrong = |why: &str| {
            ClientError::Usage(format!("{url:?}: {why}; http://127.0.0.1:7480 is such a URL"))
        };
        let uri: Uri = url.parse().map_err(|_| wrong("it is no URL"))?;
        let host = uri.host().ok_or_else(|| wrong("it has no host"))?.to_owned();
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(wrong("it has a path, and this asks for paths of its own"));
        }
        let (tls, usual) = match (uri.scheme_str(), ca) {
            (Some("http"), None) if token.is_some() && !is_this_machine(&host) => {
                return Err(wrong(
                    "over http anybody on the way could read the token; use https, with the \
                     certificate of the node's authority (--ca)",
                ));
            }
            (Some("http"), None) => (None, 80),
            (Some("http"), Some(_)) => return Err(wrong("a certificate means nothing to http")),
            (Some("https"), Some(ca)) => {
                let config = driver::client_tls(ca, None)?;
                (Some(ClientTls { ca: ca.into(), config }), 443)
            }
            (Some("https"), None) => {
                return Err(wrong("https needs the certificate of the node's authority"));
            }
            _ => return Err(wrong("it is neither http nor https")),
        };
        let port = uri.port_u16().unwrap_or(usual);
        Ok(Self { url: url.trim_end_matches('/').into(), host, port, tls, token })
    }

    /// Shows this certificate to nodes that ask for one (`client_ca`): files in PEM.
    pub fn with_certificate(mut self, certificate: &Path, key: &Path) -> Result<Self, ClientError> {
        match &mut self.tls {
            Some(tls) => tls.config = driver::client_tls(&tls.ca, Some((certificate, key)))?,
            None => {
                return Err(ClientError::Usage(format!(
                    "{:?}: a certificate is shown over https only",
                    self.url
                )));
            }
        }
        Ok(self)
    }

    /// What stands at this path.
    pub async fn get(&self, path: &str) -> Result<Value, ClientError> {
        self.ask(Method::GET, path, Bytes::new()).await
    }

    /// Sends this there.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, ClientError> {
        self.ask(Method::POST, path, body.to_string().into()).await
    }

    async fn ask(&self, method: Method, path: &str, body: Bytes) -> Result<Value, ClientError> {
        let mut request = Request::new(Full::new(body));
        let wrong = |_| ClientError::Usage(format!("{path:?} is no path"));
        (*request.method_mut(), *request.uri_mut()) = (method, path.parse().map_err(wrong)?);
        let headers = request.headers_mut();
        let mut set = |name, value: &str| match value.parse() {
            Ok(value) => drop(headers.insert(name, value)),
            Err(_) => debug_assert!(false, "a header that was checked before"),
        };
        set(HOST, &format!("{}:{}", self.host, self.port));
        set(CONTENT_TYPE, "application/json");
        if let Some(token) = &self.token {
            set(AUTHORIZATION, &format!("Bearer {}", String::from_utf8_lossy(token.bytes())));
        }
        let name = match &self.tls {
            Some(_) => {
                let bare = self.host.trim_start_matches('[').trim_end_matches(']').to_owned();
                let name = ServerName::try_from(bare);
                Some(name.map_err(|error| self.unreachable(&error.to_string()))?)
            }
            None => None,
        };
        let tls = self.tls.as_ref().map(|tls| tls.config.clone()).zip(name);
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let answer = driver::exchange((host, self.port), tls, request).await;
        let (status, body) = answer.map_err(|why| self.unreachable(&why))?;
        let value: Result<Value, _> = serde_json::from_slice(&body);
        match (status, value) {
            (StatusCode::OK | StatusCode::ACCEPTED, Ok(value)) => Ok(value),
            (status, Ok(value)) if value["error"].is_string() => Err(ClientError::Refused {
                status: status.as_u16(),
                sentence: value["error"].as_str().unwrap_or_default().to_owned(),
            }),
            (status, _) => {
                Err(self
                    .unreachable(&format!("it answered with {status}, and nothing that is known")))
            }
        }
    }

    fn unreachable(&self, why: &str) -> ClientError {
        ClientError::Unreachable(format!("no node answers at {}: {why}", self.url))
    }
}

/// Whether what is sent to this host stays on this machine.
fn is_this_machine(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare.eq_ignore_ascii_case("localhost")
        || bare.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
}

/// Why there is no answer, or not the one that was wanted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// It cannot be asked like that.
    #[error("{0}")]
    Usage(String),
    /// Nobody answers.
    #[error("{0}")]
    Unreachable(String),
    /// The node says no.
    #[error("{sentence}")]
    Refused {
        /// In HTTP's numbers.
        status: u16,
        /// In a sentence.
        sentence: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_asked_is_a_url() {
        for (url, port) in
            [("http://127.0.0.1:7480", 7480), ("http://[::1]:1/", 1), ("http://shop", 80)]
        {
            assert_eq!(Client::new(url, None, None).unwrap().port, port);
        }
        for (url, why) in [
            ("127.0.0.1:7480", "neither http nor https"),
            ("ftp://shop", "neither http nor https"),
            ("https://shop", "needs the certificate"),
            ("http://shop/api", "has a path"),
            ("http://", "no URL"),
        ] {
            let error = Client::new(url, None, None).unwrap_err().to_string();
            assert!(error.contains(why), "{url}: {error}");
        }
    }

    #[test]
    fn a_token_is_not_sent_in_the_clear_to_another_host() {
        let token = || Some(Token::new("0123456789abcdef").unwrap());
        for near in ["http://127.0.0.1:7480", "http://[::1]:1", "http://localhost:7480"] {
            assert!(Client::new(near, token(), None).is_ok(), "{near}");
        }
        for far in ["http://shop-0.shop:7480", "http://10.0.0.7:7480", "http://127.0.0.1.evil"] {
            let error = Client::new(far, token(), None).unwrap_err().to_string();
            assert!(error.contains("could read the token"), "{error}");
            assert!(Client::new(far, None, None).is_ok(), "{far}: without a token");
        }
    }
}
