//! Tokens of Microsoft Entra, by Azure's own library (`azure_identity`) on this crate's HTTP client.
//!
//! The library finds tokens. Here the last one is kept: a renewal does not wait for a new token
//! while the old one is good, and a search goes on if the request that began it is dropped.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use azure_core::credentials::{Secret, TokenCredential};
use azure_core::error::ErrorKind;
use azure_core::http::headers::Headers;
use azure_core::http::{
    AsyncRawResponse, Body, ClientOptions, HttpClient, Request, RetryOptions, StatusCode, Transport,
};
use azure_core::time::OffsetDateTime;
use azure_identity::{
    ClientAssertionCredentialOptions, ClientSecretCredential, ClientSecretCredentialOptions,
    DeveloperToolsCredential, ManagedIdentityCredential, ManagedIdentityCredentialOptions,
    UserAssignedId, WorkloadIdentityCredential, WorkloadIdentityCredentialOptions,
};
use http_body_util::Full;
use hyper::header::HeaderValue;

use tenure_lease::backend::{StoreError, StoreErrorKind};
use tenure_lease::{Moment, OpenError};

use super::driver;
use crate::detached::DetachedSearch;
use crate::generations::Lane;
use crate::http::{Http, Trust};

/// Fetches tokens and keeps the last. Holds secrets: not `Debug`. Clones share the token.
#[derive(Clone)]
pub(super) struct Entra {
    shared: Arc<EntraShared>,
}

struct EntraShared {
    way: EntraWay,
    transport: Arc<EntraTransport>,
    state: Mutex<EntraState>,
    search: DetachedSearch,
}

#[derive(Default)]
struct EntraState {
    credential: Option<Arc<dyn TokenCredential>>,
    token: Option<KnownToken>,
}

enum EntraWay {
    Secret { tenant: String, client: String, secret: Secret },
    Workload { tenant: String, client: String, file: String },
    Machine { client: Option<String> },
    Developer,
}

#[derive(Clone)]
struct KnownToken {
    header: HeaderValue,
    refresh_at: Moment,
    ends_at: Moment,
}

impl Entra {
    /// What the environment names, by the variables of Azure's own libraries.
    pub(super) fn find(environment: impl Fn(&str) -> Option<String>) -> Result<Self, OpenError> {
        let client = environment("AZURE_CLIENT_ID");
        let way = match (
            environment("AZURE_TENANT_ID"),
            client.clone(),
            environment("AZURE_CLIENT_SECRET"),
            environment("AZURE_FEDERATED_TOKEN_FILE"),
        ) {
            _ if environment("AZURE_TOKEN_CREDENTIALS").as_deref() == Some("dev") => {
                EntraWay::Developer
            }
            (Some(tenant), Some(client), Some(secret), _) => {
                EntraWay::Secret { tenant, client, secret: secret.into() }
            }
            (Some(tenant), Some(client), None, Some(file)) => {
                EntraWay::Workload { tenant, client, file }
            }
            _ => EntraWay::Machine { client },
        };
        let http = match &way {
            EntraWay::Secret { .. } | EntraWay::Workload { .. } => Http::new(&Trust::System)?,
            // These do without TLS, so the machine may have no authorities.
            EntraWay::Machine { .. } | EntraWay::Developer => Http::new(&Trust::Nothing)?,
        };
        let transport = Arc::new(EntraTransport { http });
        let (state, search) = (Mutex::default(), DetachedSearch::default());
        Ok(Self { shared: Arc::new(EntraShared { way, transport, state, search }) })
    }

    /// A token that is good for a while, as the header that shows it.
    pub(super) async fn token(&self) -> Result<HeaderValue, StoreError> {
        let now = Moment::now();
        let known = || self.shared.state().token.clone().filter(|token| now < token.ends_at);
        match known() {
            Some(token) if now < token.refresh_at => Ok(token.header),
            Some(token) => {
                self.shared.search.begin(self.clone().search(now));
                Ok(token.header)
            }
            None => {
                let search = self.shared.search.finish(self.clone().search(now));
                let way = self.shared.way.describe();
                let silent = || StoreError::unavailable(format!("{way} has not given a token yet"));
                driver::within(TOKEN_WAIT, search).await.ok_or_else(silent)??;
                let useless = || StoreError::unavailable(format!("{way} gives expired tokens"));
                known().map(|token| token.header).ok_or_else(useless)
            }
        }
    }

    /// Azure refused the token: the next request asks for another.
    pub(super) fn forget(&self) {
        *self.shared.state() = EntraState::default();
    }

    async fn search(self, now: Moment) -> Result<(), StoreError> {
        let credential = {
            let mut state = self.shared.state();
            if let Some(token) = state.token.as_mut().filter(|token| now < token.ends_at) {
                if now < token.refresh_at {
                    return Ok(());
                }
                // An authority that does not answer is not asked all the time.
                token.refresh_at = now + REFRESH_PAUSE;
            }
            match &state.credential {
                Some(credential) => Arc::clone(credential),
                None => {
                    let credential = self.shared.credential();
                    let credential = credential.map_err(|error| self.shared.refusal(&error))?;
                    Arc::clone(state.credential.insert(credential))
                }
            }
        };
        let granted = credential.get_token(&[SCOPE], None).await;
        let granted = granted.map_err(|error| self.shared.refusal(&error))?;
        let unclear = || {
            let way = self.shared.way.describe();
            StoreError::unavailable(format!("{way} answered with no token"))
        };
        let mut header = HeaderValue::from_str(&format!("Bearer {}", granted.token.secret()))
            .map_err(|_| unclear())?;
        header.set_sensitive(true);
        let lasts = granted.expires_on - OffsetDateTime::now_utc();
        let lasts = Duration::try_from(lasts).map_err(|_| unclear())?;
        let now = Moment::now();
        let refresh_at = now + lasts.saturating_sub(REFRESH_BEFORE).max(lasts / 2);
        let token = KnownToken { header, refresh_at, ends_at: now + lasts };
        self.shared.state().token = Some(token);
        Ok(())
    }
}

impl EntraShared {
    fn credential(&self) -> azure_core::Result<Arc<dyn TokenCredential>> {
        let client_options = ClientOptions {
            transport: Some(Transport::new(self.transport.clone())),
            // The keeper retries. (The machine's service has retries of its own.)
            retry: RetryOptions::none(),
            ..ClientOptions::default()
        };
        Ok(match &self.way {
            EntraWay::Secret { tenant, client, secret } => {
                let options = Some(ClientSecretCredentialOptions { client_options });
                let (client, secret) = (client.clone(), secret.clone());
                ClientSecretCredential::new(tenant, client, secret, options)?
            }
            EntraWay::Workload { tenant, client, file } => {
                let options = WorkloadIdentityCredentialOptions {
                    credential_options: ClientAssertionCredentialOptions { client_options },
                    client_id: Some(client.clone()),
                    tenant_id: Some(tenant.clone()),
                    token_file_path: Some(file.into()),
                };
                WorkloadIdentityCredential::new(Some(options))?
            }
            EntraWay::Machine { client } => {
                let user_assigned_id = client.clone().map(UserAssignedId::ClientId);
                let options = ManagedIdentityCredentialOptions { user_assigned_id, client_options };
                ManagedIdentityCredential::new(Some(options))?
            }
            EntraWay::Developer => DeveloperToolsCredential::new(None)?,
        })
    }

    /// Of an answer only its status and codes: what it says besides may repeat what it was shown.
    fn refusal(&self, error: &azure_core::Error) -> StoreError {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
        let mut answer = None;
        while let Some(error) = cause {
            if let Some(error) = error.downcast_ref::<azure_core::Error>()
                && let ErrorKind::HttpResponse { status, error_code, .. } = error.kind()
            {
                answer = Some((*status, error_code.clone().unwrap_or_default()));
            }
            cause = error.source();
        }
        let way = self.way.describe();
        match answer {
            Some((status, code)) => {
                let passing = status.is_server_error() || status == StatusCode::TooManyRequests;
                let kind =
                    if passing { StoreErrorKind::Unavailable } else { StoreErrorKind::Denied };
                let code: String = code.chars().take(60).collect();
                let text = format!("{way} gave no token: {} ({code})", u16::from(status));
                StoreError::new(kind, text)
            }
            None => {
                let why: String = error.to_string().chars().take(300).collect();
                StoreError::unavailable(format!("{way} gave no token: {why}"))
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, EntraState> {
        // Its parts are put in whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EntraWay {
    fn describe(&self) -> &'static str {
        match self {
            Self::Secret { .. } => "Entra (client secret)",
            Self::Workload { .. } => "Entra (workload identity)",
            Self::Machine { .. } => {
                "the machine's identity service (no SAS token, account key or client is set)"
            }
            Self::Developer => "the developer's log-in (az, azd)",
        }
    }
}

/// Carries the library's requests.
struct EntraTransport {
    http: Http,
}

#[async_trait::async_trait]
impl HttpClient for EntraTransport {
    async fn execute_request(&self, request: &Request) -> azure_core::Result<AsyncRawResponse> {
        let failed = |text: String| azure_core::Error::with_message(ErrorKind::Io, text);
        let Body::Bytes(body) = request.body() else {
            return Err(failed("a body that is a stream".into()));
        };
        let mut sent =
            hyper::Request::builder().method(request.method().as_str()).uri(request.url().as_str());
        for (name, value) in request.headers().iter() {
            sent = sent.header(name.as_str(), value.as_str());
        }
        let sent = sent.body(Full::new(body.clone()));
        let sent = sent.map_err(|_| failed("its address is not a URL".into()))?;
        let reply = self.http.send(Lane::Renewal, sent).await.map_err(failed)?;
        let mut headers = Headers::new();
        for (name, value) in &reply.headers {
            headers.insert(name.as_str().to_owned(), value.to_str().unwrap_or("").to_owned());
        }
        let status = StatusCode::from(reply.status.as_u16());
        Ok(AsyncRawResponse::from_bytes(status, headers, reply.body))
    }
}

impl fmt::Debug for EntraTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EntraTransport")
    }
}

const SCOPE: &str = "https://storage.azure.com/.default";
const REFRESH_BEFORE: Duration = Duration::from_secs(300);
const REFRESH_PAUSE: Duration = Duration::from_secs(20);
/// How long a request waits for the first token. The search goes on.
const TOKEN_WAIT: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_chooses_the_way() {
        let find = |set: &[(&str, &str)]| {
            let find = |name: &str| {
                let found = set.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            Entra::find(find).ok().unwrap().shared.way.describe()
        };
        let (client, tenant) = (("AZURE_CLIENT_ID", "c"), ("AZURE_TENANT_ID", "t"));
        let file = ("AZURE_FEDERATED_TOKEN_FILE", "/token");
        let secret = ("AZURE_CLIENT_SECRET", "s");
        assert_eq!(find(&[client, tenant, secret, file]), "Entra (client secret)");
        assert_eq!(find(&[client, tenant, file]), "Entra (workload identity)");
        assert!(find(&[client]).starts_with("the machine's"));
        let developer = ("AZURE_TOKEN_CREDENTIALS", "dev");
        assert!(find(&[client, tenant, secret, developer]).starts_with("the developer's"));
    }
}
