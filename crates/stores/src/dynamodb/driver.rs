//! What needs a clock or a task of its own: the time for signatures, and credentials.
#![allow(clippy::disallowed_methods)] // It reads the wall clock, which signatures carry.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::Credentials;
use aws_credential_types::provider::ProvideCredentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use tokio::task::JoinHandle;

use tenure_lease::backend::{StoreError, StoreErrorKind};

use super::url;

/// Where to ask, and as whom. Clones share what they found.
#[derive(Clone)]
pub(super) struct Access {
    shared: Arc<Shared>,
}

/// All that a request needs. Holds secrets: not `Debug`.
#[derive(Clone)]
pub(super) struct Pass {
    pub(super) region: String,
    pub(super) endpoint: String,
    pub(super) credentials: Credentials,
}

struct Shared {
    region: Option<String>,
    endpoint: Option<String>,
    given: Option<Credentials>,
    pass: Mutex<Option<Pass>>,
    /// Held while credentials are being looked for; what was learned on the way, for the next time.
    loading: tokio::sync::Mutex<Option<SdkConfig>>,
}

impl Access {
    pub(super) fn new(
        region: Option<String>,
        endpoint: Option<String>,
        given: Option<Credentials>,
    ) -> Self {
        let (pass, loading) = (Mutex::new(None), tokio::sync::Mutex::new(None));
        Self { shared: Arc::new(Shared { region, endpoint, given, pass, loading }) }
    }

    /// What the last search found, or a new one. The search goes on if nobody waits for it any
    /// more: it may take longer than one operation may, and the next one is to find its result.
    pub(super) async fn pass(&self) -> Result<Pass, StoreError> {
        match self.shared.current(now()) {
            Some((pass, left)) if left >= RENEW_BEFORE => Ok(pass),
            Some((pass, _)) => {
                // Good for now. A holder's renewal does not wait for a metadata service.
                if self.shared.loading.try_lock().is_ok() {
                    drop(self.search());
                }
                Ok(pass)
            }
            None => self.search().await.unwrap_or_else(|error| {
                Err(StoreError::unavailable(format!("the search for credentials ended: {error}")))
            }),
        }
    }

    /// They were refused: the next one looks for others.
    pub(super) fn forget(&self) {
        *self.shared.pass.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn search(&self) -> JoinHandle<Result<Pass, StoreError>> {
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            let mut config = shared.loading.lock().await;
            if let Some((pass, _)) = shared.current(now()).filter(|(_, left)| *left >= RENEW_BEFORE)
            {
                return Ok(pass);
            }
            let pass = tokio::time::timeout(SEARCH_TIMEOUT, shared.load(&mut config)).await;
            let pass = pass.unwrap_or_else(|_| {
                let text = format!("no AWS credentials were found within {SEARCH_TIMEOUT:?}");
                Err(StoreError::unavailable(text))
            })?;
            *shared.pass.lock().unwrap_or_else(PoisonError::into_inner) = Some(pass.clone());
            Ok(pass)
        })
    }
}

impl Shared {
    /// The credentials that were found, and how long they last.
    fn current(&self, now: SystemTime) -> Option<(Pass, Duration)> {
        let pass = self.pass.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        let left = match pass.credentials.expiry() {
            Some(expiry) => expiry.duration_since(now).ok()?,
            None => Duration::MAX,
        };
        Some((pass, left))
    }

    async fn load(&self, config: &mut Option<SdkConfig>) -> Result<Pass, StoreError> {
        if let (Some(credentials), Some(endpoint)) = (&self.given, &self.endpoint) {
            // Nothing is left to be found.
            let region = self.named_region().unwrap_or_else(|| EMULATOR_REGION.to_owned());
            let (endpoint, credentials) = (endpoint.clone(), credentials.clone());
            return Ok(Pass { region, endpoint, credentials });
        }
        if config.is_none() {
            *config = Some(self.configure().await);
        }
        // It was just set.
        let found = config.as_ref().expect("a configuration");
        let (region, endpoint) = self.place(found)?;
        if let Some(credentials) = &self.given {
            return Ok(Pass { region, endpoint, credentials: credentials.clone() });
        }
        let none = || denied("no AWS credentials: no provider is configured".to_owned());
        let provider = found.credentials_provider().ok_or_else(none)?;
        match provider.provide_credentials().await {
            Ok(credentials) => Ok(Pass { region, endpoint, credentials }),
            Err(error) => {
                // What it read may have changed by the next time: a profile, a mounted token.
                *config = None;
                Err(refusal(&error))
            }
        }
    }

    /// The standard chain: environment, profile, web identity, container, instance.
    async fn configure(&self) -> SdkConfig {
        let http = aws_smithy_http_client::Builder::new()
            .tls_provider(Provider::Rustls(CryptoMode::Ring))
            .build_https();
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(CALL_TIMEOUT)
            .operation_timeout(CALL_TIMEOUT)
            .build();
        let mut loader = aws_config::defaults(BehaviorVersion::latest())
            .http_client(http)
            .retry_config(RetryConfig::disabled())
            .timeout_config(timeouts);
        let unsaid = self.endpoint.as_ref().map(|_| EMULATOR_REGION.to_owned());
        let region = self.named_region().or(unsaid);
        if let Some(region) = region {
            loader = loader.region(Region::new(region));
        }
        if let Some(given) = &self.given {
            loader = loader.credentials_provider(given.clone());
        }
        loader.load().await
    }

    /// The region that the URL names, or the environment.
    fn named_region(&self) -> Option<String> {
        let environment = || std::env::var("AWS_REGION").ok().filter(|region| !region.is_empty());
        self.region.clone().or_else(environment)
    }

    fn place(&self, config: &SdkConfig) -> Result<(String, String), StoreError> {
        let region = config.region().map(Region::to_string).ok_or_else(|| {
            let text = "no AWS region: name it in the URL (region=…) or in AWS_REGION";
            StoreError::new(StoreErrorKind::Unsuitable, text)
        })?;
        let named = self.endpoint.as_deref().or(config.endpoint_url());
        let endpoint = match named {
            Some(endpoint) => url::endpoint(endpoint)
                .map_err(|error| StoreError::new(StoreErrorKind::Unsuitable, error.to_string()))?,
            None => aws_endpoint(&region, config.use_fips() == Some(true)),
        };
        Ok((region, endpoint))
    }
}

fn aws_endpoint(region: &str, fips: bool) -> String {
    let service = if fips { "dynamodb-fips" } else { "dynamodb" };
    let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
    format!("https://{service}.{region}.{domain}")
}

/// Only the outermost text: what caused it may quote a file or an answer.
fn refusal(error: &CredentialsError) -> StoreError {
    let text = format!("no AWS credentials: {error}");
    match error {
        CredentialsError::ProviderTimedOut(_) | CredentialsError::ProviderError(_) => {
            StoreError::unavailable(text)
        }
        _ => denied(format!(
            "{text}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give this \
             machine or container a role"
        )),
    }
}

fn denied(text: String) -> StoreError {
    StoreError::new(StoreErrorKind::Denied, text)
}

/// This machine's idea of the time. Signatures carry it, and people read it; nothing else.
pub(super) fn now() -> SystemTime {
    SystemTime::now()
}

/// The same, in seconds since 1970.
pub(super) fn now_s() -> i64 {
    now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

/// What an endpoint of its own is told, if nobody said which region it is.
const EMULATOR_REGION: &str = "us-east-1";
/// New credentials are looked for so long before the old ones end.
const RENEW_BEFORE: Duration = Duration::from_secs(5 * 60);
const SEARCH_TIMEOUT: Duration = Duration::from_secs(15);
/// Of one call to a metadata or token service.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_aws_own() {
        assert_eq!(aws_endpoint("eu-west-1", false), "https://dynamodb.eu-west-1.amazonaws.com");
        assert_eq!(
            aws_endpoint("cn-north-1", false),
            "https://dynamodb.cn-north-1.amazonaws.com.cn"
        );
        assert_eq!(
            aws_endpoint("us-east-1", true),
            "https://dynamodb-fips.us-east-1.amazonaws.com"
        );
    }

    #[test]
    fn credentials_are_used_until_they_end() {
        let now = now();
        let pass = |expiry| Pass {
            region: String::new(),
            endpoint: String::new(),
            credentials: Credentials::new("a", "b", None, expiry, "test"),
        };
        let access = Access::new(None, None, None);
        let left = |expiry| {
            *access.shared.pass.lock().unwrap() = Some(pass(expiry));
            access.shared.current(now).map(|(_, left)| left)
        };
        assert_eq!(left(None), Some(Duration::MAX));
        assert_eq!(left(Some(now + RENEW_BEFORE)), Some(RENEW_BEFORE));
        assert_eq!(left(Some(now - RENEW_BEFORE)), None);
    }
}
