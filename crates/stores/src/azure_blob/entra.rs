//! Tokens of Microsoft Entra, by the three ways that a server has: a client's secret, a workload
//! identity (a token that Kubernetes keeps in a file), or the machine's managed identity.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use hyper::header::HeaderValue;
use serde::Deserialize;
use tokio::sync::Mutex;

use tenure_lease::backend::{StoreError, StoreErrorKind};
use tenure_lease::{Moment, OpenError};

use super::driver;
use crate::http::{Http, Lane, Trust};
use crate::percent::encoded;

/// Fetches tokens and keeps the last. Holds secrets: not `Debug`.
pub(super) struct Entra {
    http: Http,
    way: Way,
    cached: Mutex<Option<Cached>>,
}

enum Way {
    Secret { url: String, client: String, secret: String },
    Workload { url: String, client: String, file: PathBuf },
    Machine { url: String },
}

#[derive(Clone)]
struct Cached {
    token: HeaderValue,
    refresh_at: Moment,
    ends_at: Moment,
}

impl Entra {
    /// What the environment names, by the variables of Azure's own libraries.
    pub(super) fn find(environment: impl Fn(&str) -> Option<String>) -> Result<Self, OpenError> {
        let client = environment("AZURE_CLIENT_ID");
        let authority = environment("AZURE_AUTHORITY_HOST")
            .unwrap_or_else(|| "https://login.microsoftonline.com".into());
        let authority = authority.trim_end_matches('/');
        let tenant = environment("AZURE_TENANT_ID");
        let plain =
            |text: &String| text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
        if !tenant.iter().chain(client.iter()).all(plain) {
            return Err(OpenError::Url("AZURE_TENANT_ID or AZURE_CLIENT_ID is not an id".into()));
        }
        let url = tenant.map(|tenant| format!("{authority}/{tenant}/oauth2/v2.0/token"));
        let secret = environment("AZURE_CLIENT_SECRET");
        let file = environment("AZURE_FEDERATED_TOKEN_FILE");
        let way = match (url, client, secret, file) {
            (Some(url), Some(client), Some(secret), _) => Way::Secret { url, client, secret },
            (Some(url), Some(client), None, Some(file)) => {
                Way::Workload { url, client, file: file.into() }
            }
            (_, client, _, _) => {
                let host = environment("AZURE_POD_IDENTITY_AUTHORITY_HOST")
                    .unwrap_or_else(|| "http://169.254.169.254".into());
                let client = client.map(|client| format!("&client_id={client}"));
                Way::Machine {
                    url: format!(
                        "{}/metadata/identity/oauth2/token?api-version=2018-02-01&resource={}{}",
                        host.trim_end_matches('/'),
                        encoded("https://storage.azure.com/"),
                        client.unwrap_or_default()
                    ),
                }
            }
        };
        let trust = if way.url().starts_with("https:") { Trust::System } else { Trust::Nothing };
        Ok(Self { http: Http::new(&trust)?, way, cached: Mutex::default() })
    }

    /// A token that is good for some minutes, as the header that shows it.
    pub(super) async fn token(&self) -> Result<HeaderValue, StoreError> {
        // Whoever comes while one is fetched waits for that one.
        let mut cached = self.cached.lock().await;
        let now = Moment::now();
        let token = match &*cached {
            Some(known) if now < known.refresh_at => known.clone(),
            // It is good for a while yet, so that a sick authority stops nobody.
            Some(known) if now < known.ends_at => {
                match driver::within(REFRESH_TIMEOUT, self.fetch(now)).await {
                    Some(Ok(fresh)) => fresh,
                    _ => Cached { refresh_at: now + REFRESH_PAUSE, ..known.clone() },
                }
            }
            _ => self.fetch(now).await?,
        };
        let header = token.token.clone();
        *cached = Some(token);
        Ok(header)
    }

    pub(super) async fn forget(&self) {
        *self.cached.lock().await = None;
    }

    async fn fetch(&self, now: Moment) -> Result<Cached, StoreError> {
        let unsuitable = |text: String| StoreError::new(StoreErrorKind::Unsuitable, text);
        let form = match &self.way {
            Way::Secret { client, secret, .. } => {
                format!("client_id={client}&client_secret={}", encoded(secret))
            }
            Way::Workload { client, file, .. } => {
                // It is small, local and replaced every hour or so: read each time.
                let token = std::fs::read_to_string(file)
                    .map_err(|error| unsuitable(format!("{}: {error}", file.display())))?;
                format!(
                    "client_id={client}&client_assertion_type={}&client_assertion={}",
                    encoded("urn:ietf:params:oauth:client-assertion-type:jwt-bearer"),
                    encoded(token.trim())
                )
            }
            Way::Machine { .. } => String::new(),
        };
        let url = self.way.url();
        let request = match &self.way {
            Way::Machine { .. } => {
                Request::get(url).header("metadata", "true").body(Full::default())
            }
            Way::Secret { .. } | Way::Workload { .. } => {
                let scope = encoded("https://storage.azure.com/.default");
                let form = format!("{form}&grant_type=client_credentials&scope={scope}");
                Request::post(url)
                    .header("content-type", "application/x-www-form-urlencoded")
                    .body(Full::new(Bytes::from(form)))
            }
        };
        let request = request.map_err(|_| unsuitable("Entra's address is not a URL".into()))?;
        let reply = self.http.send(Lane::Ordinary, request).await;
        let reply = reply.map_err(|error| {
            StoreError::unavailable(format!("{} did not answer: {error}", self.way.describe()))
        })?;
        if !reply.status.is_success() {
            let refusal: Refusal = serde_json::from_slice(&reply.body).unwrap_or_default();
            let text = format!(
                "{} gave no token: {} ({})",
                self.way.describe(),
                reply.status,
                refusal.error.chars().take(60).collect::<String>()
            );
            let passing = reply.status.is_server_error() || reply.status.as_u16() == 429;
            let kind = if passing { StoreErrorKind::Unavailable } else { StoreErrorKind::Denied };
            return Err(StoreError::new(kind, text));
        }
        let unclear =
            || StoreError::unavailable(format!("{} answered with no token", self.way.describe()));
        let granted: Granted = serde_json::from_slice(&reply.body).map_err(|_| unclear())?;
        let mut token = HeaderValue::from_str(&format!("Bearer {}", granted.access_token))
            .map_err(|_| unclear())?;
        token.set_sensitive(true);
        let lasts = granted.expires_in.secs().ok_or_else(unclear)?;
        let lasts = Duration::from_secs(lasts);
        let refresh_at = now + lasts.saturating_sub(REFRESH_BEFORE).max(lasts / 2);
        Ok(Cached { token, refresh_at, ends_at: now + lasts })
    }
}

impl Way {
    fn url(&self) -> &str {
        match self {
            Self::Secret { url, .. } | Self::Workload { url, .. } | Self::Machine { url } => url,
        }
    }

    fn describe(&self) -> &'static str {
        match self {
            Self::Secret { .. } => "Entra (client secret)",
            Self::Workload { .. } => "Entra (workload identity)",
            Self::Machine { .. } => {
                "the machine's identity service (no SAS token, account key or client is set)"
            }
        }
    }
}

#[derive(Deserialize)]
struct Granted {
    access_token: String,
    expires_in: Lasts,
}

/// A number, or (the machine's service) text with a number in it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Lasts {
    Number(u64),
    Text(String),
}

impl Lasts {
    fn secs(&self) -> Option<u64> {
        match self {
            Self::Number(secs) => Some(*secs),
            Self::Text(text) => text.parse().ok(),
        }
    }
}

#[derive(Default, Deserialize)]
struct Refusal {
    #[serde(default)]
    error: String,
}

const REFRESH_BEFORE: Duration = Duration::from_secs(300);
const REFRESH_PAUSE: Duration = Duration::from_secs(20);
const REFRESH_TIMEOUT: Duration = Duration::from_secs(2);

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // A server of their own, on a thread.
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::mpsc;

    use super::*;

    /// Answers each connection with the next of these; what it was asked comes out.
    fn serve(answers: Vec<(u16, &'static str)>) -> (String, mpsc::Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (asked, heard) = mpsc::channel();
        std::thread::spawn(move || {
            for (status, body) in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 4096];
                let mut length = 0;
                // A GET, or all of a form, whose last field is the scope.
                while !request[..length].ends_with(b"\r\n\r\n")
                    && !request[..length].ends_with(b".default")
                {
                    length += stream.read(&mut request[length..]).unwrap();
                }
                asked.send(String::from_utf8_lossy(&request[..length]).into_owned()).unwrap();
                let length = body.len();
                let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n");
                write!(stream, "{head}connection: close\r\n\r\n{body}").unwrap();
            }
        });
        (address, heard)
    }

    fn token(entra: &Entra) -> Result<String, StoreError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(entra.token()).map(|token| token.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_secret_buys_a_token_that_is_kept() {
        let (address, heard) = serve(vec![
            (200, "{\"access_token\":\"one\",\"expires_in\":3599}"),
            (401, "{\"error\":\"invalid_client\",\"error_description\":\"tell s&cret\"}"),
        ]);
        let entra = Entra::find(|name| match name {
            "AZURE_AUTHORITY_HOST" => Some(format!("{address}/")),
            "AZURE_TENANT_ID" => Some("tenant".to_owned()),
            "AZURE_CLIENT_ID" => Some("client".to_owned()),
            "AZURE_CLIENT_SECRET" => Some("s&cret".to_owned()),
            _ => None,
        });
        let entra = entra.ok().unwrap();
        assert_eq!(token(&entra).unwrap(), "Bearer one");
        assert_eq!(token(&entra).unwrap(), "Bearer one");
        let asked = heard.recv().unwrap();
        assert!(asked.starts_with("POST /tenant/oauth2/v2.0/token HTTP/1.1"), "{asked}");
        assert!(asked.contains("client_id=client&client_secret=s%26cret&grant_type="), "{asked}");
        *entra.cached.try_lock().unwrap() = None;
        let error = token(&entra).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Denied);
        let text = error.to_string();
        assert!(text.contains("invalid_client") && !text.contains("s&cret"), "{text}");
    }

    #[test]
    fn a_workload_shows_the_token_in_its_file() {
        let (address, heard) = serve(vec![(200, "{\"access_token\":\"two\",\"expires_in\":3599}")]);
        let name = format!("tenure-test-token-{}", tenure_lease::Nonce::random());
        let file = std::env::temp_dir().join(name);
        std::fs::write(&file, "signed.by+kubernetes\n").unwrap();
        let entra = Entra::find(|name| match name {
            "AZURE_AUTHORITY_HOST" => Some(address.clone()),
            "AZURE_TENANT_ID" => Some("tenant".to_owned()),
            "AZURE_CLIENT_ID" => Some("client".to_owned()),
            "AZURE_FEDERATED_TOKEN_FILE" => Some(file.display().to_string()),
            _ => None,
        });
        let token = token(&entra.ok().unwrap());
        std::fs::remove_file(&file).unwrap();
        assert_eq!(token.unwrap(), "Bearer two");
        let asked = heard.recv().unwrap();
        assert!(asked.contains("&client_assertion=signed.by%2Bkubernetes&"), "{asked}");
        assert!(asked.contains("jwt-bearer") && !asked.contains("client_secret"), "{asked}");
    }

    #[test]
    fn the_machine_is_asked_for_its_own() {
        let (address, heard) =
            serve(vec![(200, "{\"access_token\":\"mine\",\"expires_in\":\"86399\"}")]);
        let entra = Entra::find(|name| match name {
            "AZURE_POD_IDENTITY_AUTHORITY_HOST" => Some(address.clone()),
            _ => None,
        });
        assert_eq!(token(&entra.ok().unwrap()).unwrap(), "Bearer mine");
        let asked = heard.recv().unwrap();
        assert!(asked.starts_with("GET /metadata/identity/oauth2/token?api-version="), "{asked}");
        assert!(asked.contains("metadata: true"), "{asked}");
    }

    #[test]
    fn the_environment_chooses_the_way() {
        let find = |set: &[(&str, &str)]| {
            let set: Vec<_> = set.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            // Not of this machine's authorities.
            let find = |name: &str| match name {
                "AZURE_AUTHORITY_HOST" => Some("http://127.0.0.1:1".to_owned()),
                _ => set.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone()),
            };
            Entra::find(find).map(|entra| entra.way)
        };
        let (client, tenant) = (("AZURE_CLIENT_ID", "c"), ("AZURE_TENANT_ID", "t"));
        let file = ("AZURE_FEDERATED_TOKEN_FILE", "/token");
        let way = find(&[client, tenant, ("AZURE_CLIENT_SECRET", "s"), file]).ok().unwrap();
        assert!(matches!(&way, Way::Secret { secret, .. } if secret == "s"));
        assert_eq!(way.url(), "http://127.0.0.1:1/t/oauth2/v2.0/token");
        assert!(matches!(find(&[client, tenant, file]), Ok(Way::Workload { .. })));
        let way = find(&[client]).ok().unwrap();
        assert!(way.url().ends_with("&client_id=c"), "{}", way.url());
        assert!(find(&[("AZURE_CLIENT_ID", "c&d")]).is_err());
    }
}
