//! Where to ask and as whom: AWS's configuration, credentials, and the clock that signatures carry.
//!
//! The SDK finds credentials. Its own cache of them is not used: it drops a search together with
//! the request that waits for it, so that a credential process slower than one request is never
//! heard, and it makes a renewal wait for a metadata service while the old credentials are good yet.
#![allow(clippy::disallowed_methods)] // It waits, and reads the wall clock, which signatures carry.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_config::retry::RetryConfig;
use aws_config::stalled_stream_protection::StalledStreamProtectionConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, future};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{Builder, IdentityCache};
use aws_smithy_async::time::TimeSource;

use tenure_lease::backend::{StoreError, StoreErrorKind};

use super::transport::SdkTransport;
use crate::date::parse_date;
use crate::detached::DetachedSearch;
use crate::generations::Lane;
use crate::http::{Http, Trust};

/// Where to ask, and as whom. Clones share what they found.
#[derive(Clone)]
pub(super) struct Access {
    shared: Arc<AccessShared>,
}

struct AccessShared {
    http: Http,
    region: Option<String>,
    endpoint: Option<String>,
    given: Option<Credentials>,
    clock: ServerClock,
    found: Mutex<AccessFound>,
    search: DetachedSearch,
}

/// What searches have found.
#[derive(Default)]
struct AccessFound {
    config: Option<SdkConfig>,
    clients: Option<Clients>,
    credentials: Option<Credentials>,
}

/// The same client on each lane.
#[derive(Clone)]
struct Clients {
    other: Client,
    renewal: Client,
    fresh_renewal: Client,
}

impl Access {
    pub(super) fn new(
        http: Http,
        region: Option<String>,
        endpoint: Option<String>,
        given: Option<Credentials>,
    ) -> Self {
        let (clock, found, search) =
            (ServerClock::default(), Mutex::default(), DetachedSearch::default());
        let shared = AccessShared { http, region, endpoint, given, clock, found, search };
        Self { shared: Arc::new(shared) }
    }

    /// The client of a lane, with credentials at hand.
    pub(super) async fn client(&self, lane: Lane) -> Result<Client, StoreError> {
        let known = || self.shared.client(lane, self.shared.clock.now());
        match known() {
            Some((client, left)) if left >= RENEW_BEFORE => Ok(client),
            Some((client, _)) => {
                // They are good for now: a renewal does not wait for a metadata service.
                self.shared.search.begin(self.clone().find());
                Ok(client)
            }
            None => {
                self.shared.search.finish(self.clone().find()).await?;
                let expired = || StoreError::unavailable("the AWS credentials here have expired");
                known().map(|(client, _)| client).ok_or_else(expired)
            }
        }
    }

    /// The credentials were refused: the next request looks for others.
    pub(super) fn forget(&self) {
        self.shared.found().credentials = None;
    }

    /// For people: where the requests go.
    pub(super) fn place(&self) -> String {
        let found = self.shared.found();
        let config = found.config.as_ref();
        let endpoint = config.and_then(SdkConfig::endpoint_url).map(str::to_owned);
        let region = config.and_then(SdkConfig::region).map(|region| format!("AWS {region}"));
        self.shared.endpoint.clone().or(endpoint).or(region).unwrap_or_else(|| "AWS".to_owned())
    }

    async fn find(self) -> Result<(), StoreError> {
        let shared = &self.shared;
        let there = shared.client(Lane::Other, shared.clock.now());
        if there.is_some_and(|(_, left)| left >= RENEW_BEFORE) {
            return Ok(());
        }
        within(SEARCH_TIMEOUT, self.load()).await.unwrap_or_else(|| {
            let text = format!("no AWS credentials were found within {SEARCH_TIMEOUT:?}");
            Err(StoreError::unavailable(text))
        })
    }

    async fn load(&self) -> Result<(), StoreError> {
        let shared = &self.shared;
        let known = shared.found().config.clone();
        let config = match known {
            Some(config) => config,
            None => shared.configure().await,
        };
        let clients = self.clients(&config)?;
        let credentials = match &shared.given {
            Some(given) => given.clone(),
            None => {
                let provider = config.credentials_provider();
                let provider =
                    provider.ok_or_else(|| refusal(&CredentialsError::not_loaded("")))?;
                provider.provide_credentials().await.map_err(|error| {
                    // What was read may have changed by the next time: a profile, a token's file.
                    shared.found().config = None;
                    refusal(&error)
                })?
            }
        };
        let (config, clients, credentials) = (Some(config), Some(clients), Some(credentials));
        *shared.found() = AccessFound { config, clients, credentials };
        Ok(())
    }

    fn clients(&self, config: &SdkConfig) -> Result<Clients, StoreError> {
        let shared = &self.shared;
        if config.region().is_none() {
            let text = "no AWS region: name it in the URL (region=…) or in AWS_REGION";
            return Err(StoreError::new(StoreErrorKind::Unsuitable, text));
        }
        let client = |lane| {
            let (http, clock) = (shared.http.clone(), shared.clock.clone());
            let transport = SdkTransport { http, lane, clock: Some(clock.clone()), limit: None };
            let mut config = Builder::from(config)
                .http_client(transport)
                .credentials_provider(FoundCredentials(self.clone()))
                .identity_cache(IdentityCache::no_cache())
                .time_source(clock)
                // The keeper retries, and drops what takes too long.
                .retry_config(RetryConfig::disabled())
                .timeout_config(TimeoutConfig::disabled())
                .stalled_stream_protection(StalledStreamProtectionConfig::disabled());
            if let Some(endpoint) = &shared.endpoint {
                config = config.endpoint_url(endpoint);
            }
            Client::from_conf(config.build())
        };
        Ok(Clients {
            other: client(Lane::Other),
            renewal: client(Lane::Renewal),
            fresh_renewal: client(Lane::FreshRenewal),
        })
    }
}

impl AccessShared {
    /// The client of a lane, and how long the credentials last.
    fn client(&self, lane: Lane, now: SystemTime) -> Option<(Client, Duration)> {
        let found = self.found();
        let left = match found.credentials.as_ref()?.expiry() {
            Some(expiry) => expiry.duration_since(now).ok()?,
            None => Duration::MAX,
        };
        let clients = found.clients.as_ref()?;
        let client = match lane {
            Lane::Other => &clients.other,
            Lane::Renewal => &clients.renewal,
            Lane::FreshRenewal => &clients.fresh_renewal,
        };
        Some((client.clone(), left))
    }

    /// AWS's standard places: environment, profile, web identity, container, instance.
    async fn configure(&self) -> SdkConfig {
        let environment = std::env::var("AWS_REGION").ok().filter(|region| !region.is_empty());
        // An endpoint of its own does not mind.
        let unsaid = self.endpoint.as_ref().map(|_| EMULATOR_REGION.to_owned());
        let region = self.region.clone().or(environment).or(unsaid).map(Region::new);
        if let (Some(_), Some(_), Some(region)) = (&self.given, &self.endpoint, &region) {
            // Nothing is left to be found.
            let config = SdkConfig::builder().behavior_version(BehaviorVersion::latest());
            return config.region(region.clone()).build();
        }
        // Metadata services and emulators do without TLS, so a machine may have no authorities.
        let http = Http::new(&Trust::System).or_else(|_| Http::new(&Trust::Nothing));
        let http = http.unwrap_or_else(|_| self.http.clone());
        let transport = SdkTransport { http, lane: Lane::Renewal, clock: None, limit: None };
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(CALL_TIMEOUT)
            .operation_timeout(CALL_TIMEOUT)
            .build();
        let mut loader = aws_config::defaults(BehaviorVersion::latest())
            .http_client(transport)
            .retry_config(RetryConfig::disabled())
            .timeout_config(timeouts);
        if let Some(region) = region {
            loader = loader.region(region);
        }
        if let Some(given) = &self.given {
            loader = loader.credentials_provider(given.clone());
        }
        loader.load().await
    }

    fn found(&self) -> std::sync::MutexGuard<'_, AccessFound> {
        // Its parts are put in whole.
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives the SDK what was found.
struct FoundCredentials(Access);

impl ProvideCredentials for FoundCredentials {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        let found = self.0.shared.found().credentials.clone();
        future::ProvideCredentials::ready(found.ok_or_else(|| CredentialsError::not_loaded("")))
    }
}

impl fmt::Debug for FoundCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FoundCredentials")
    }
}

/// This machine's clock, corrected by DynamoDB's `Date` if it is far off: DynamoDB refuses
/// signatures of another time than its own. Clones share the correction.
#[derive(Clone, Debug, Default)]
pub(super) struct ServerClock {
    ahead_s: Arc<AtomicI64>,
}

impl ServerClock {
    /// Compares it with the `Date` of an answer.
    pub(super) fn learn(&self, date: Option<&str>) {
        if let Some(date) = date.and_then(parse_date) {
            let ahead = date as i64 - now_s();
            let ahead = if ahead.abs() > SKEW_MAX_S { ahead } else { 0 };
            self.ahead_s.store(ahead, Ordering::Relaxed);
        }
    }
}

impl TimeSource for ServerClock {
    fn now(&self) -> SystemTime {
        let (now, ahead_s) = (SystemTime::now(), self.ahead_s.load(Ordering::Relaxed));
        let by = Duration::from_secs(ahead_s.unsigned_abs());
        let shifted = if ahead_s >= 0 { now.checked_add(by) } else { now.checked_sub(by) };
        shifted.unwrap_or(now)
    }
}

/// Only the outermost text: what caused it may quote a file or an answer.
fn refusal(error: &CredentialsError) -> StoreError {
    let text = format!("no AWS credentials: {error}");
    match error {
        CredentialsError::ProviderTimedOut(_) | CredentialsError::ProviderError(_) => {
            StoreError::unavailable(text)
        }
        _ => StoreError::new(
            StoreErrorKind::Denied,
            format!(
                "{text}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give \
                 this machine or container a role"
            ),
        ),
    }
}

/// Gives up on what takes longer.
pub(super) async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, future).await.ok()
}

/// This machine's idea of the time, in seconds since 1970. Nothing but what people read rests on it.
pub(super) fn now_s() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

/// What an endpoint of its own is told, if nobody said which region it is.
const EMULATOR_REGION: &str = "us-east-1";
/// New credentials are looked for so long before the old ones end.
const RENEW_BEFORE: Duration = Duration::from_secs(5 * 60);
const SEARCH_TIMEOUT: Duration = Duration::from_secs(15);
/// Of one call to a metadata or token service.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
const SKEW_MAX_S: i64 = 120;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn credentials_are_used_until_they_end() {
        let http = Http::new(&Trust::Nothing).unwrap();
        let given = Credentials::new("a", "b", None, None, "test");
        let access = Access::new(http, None, Some("http://127.0.0.1:1".into()), Some(given));
        access.client(Lane::Renewal).await.unwrap();
        let now = SystemTime::now();
        let left = |expiry| {
            let credentials = Credentials::new("a", "b", None, expiry, "test");
            access.shared.found().credentials = Some(credentials);
            access.shared.client(Lane::Renewal, now).map(|(_, left)| left)
        };
        assert_eq!(left(None), Some(Duration::MAX));
        assert_eq!(left(Some(now + RENEW_BEFORE)), Some(RENEW_BEFORE));
        assert_eq!(left(Some(now - RENEW_BEFORE)), None);
    }

    #[test]
    fn the_clock_follows_a_server_that_is_far_off() {
        let clock = ServerClock::default();
        let year = |clock: &ServerClock| httpdate::fmt_http_date(clock.now())[12..16].to_owned();
        clock.learn(Some("Thu, 01 Jan 2099 12:00:00 GMT"));
        assert_eq!(year(&clock), "2099");
        clock.learn(Some("Sun, 01 Jan 2006 12:00:00 GMT"));
        assert_eq!(year(&clock), "2006");
        clock.learn(Some("yesterday"));
        assert_eq!(year(&clock), "2006");
        clock.learn(Some(&httpdate::fmt_http_date(SystemTime::now())));
        assert_ne!(year(&clock), "2006");
    }
}
