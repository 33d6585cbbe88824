//! The handful of calls to Azure's Blob service, each one request.
//!
//! By hand, because Azure's own client takes no account key, which is all that Azurite takes besides
//! SAS tokens.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::HeaderValue;
use hyper::{Method, Request, StatusCode};

use tenure_lease::backend::{StoreError, StoreErrorKind};
use tenure_lease::{LeaseName, Nonce, OpenError};

use super::auth::{Auth, Signed};
use super::driver;
use super::list::Page;
use super::url::Options;
use crate::date::parse_date;
use crate::generations::Lane;
use crate::http::{Http, Reply, Trust};
use crate::percent;

/// A client of one container, on one lane. Clones share their connections.
#[derive(Clone)]
pub(super) struct Api {
    shared: Arc<ApiShared>,
    lane: Lane,
}

struct ApiShared {
    http: Http,
    auth: Auth,
    /// Scheme and authority of the endpoint.
    origin: String,
    /// The container's path, with what the endpoint has before it.
    path: String,
    prefix: String,
    /// For people: `ACCOUNT/CONTAINER`.
    place: String,
}

/// A blob as Azure shows it.
#[derive(Clone, Debug)]
pub(super) struct Blob {
    /// Changes with every write, and not with what happens to the lease.
    pub(super) etag: String,
    pub(super) state: LeaseState,
    /// When the answer was given, and when the blob was last written: by Azure's clock, in seconds.
    pub(super) date: u64,
    pub(super) modified: u64,
    /// What a foreign tool says about its own record, in the blob's metadata.
    pub(super) ttl: Option<Duration>,
    pub(super) body: Bytes,
}

/// Whether the blob is leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseState {
    /// By somebody, or (breaking) will not be soon.
    Leased,
    /// It was, and nobody renewed it.
    Expired,
    /// Somebody took it away from its holder, and nobody has written since.
    Broken,
    /// It was not since it was last written, or the lease was given back.
    Free,
}

impl LeaseState {
    /// By Azure's name for it.
    pub(super) fn named(name: &str) -> Self {
        match name {
            "leased" | "breaking" => Self::Leased,
            "expired" => Self::Expired,
            "broken" => Self::Broken,
            _ => Self::Free,
        }
    }
}

/// What a write is conditional on.
pub(super) enum When<'a> {
    /// There is no blob.
    Absent,
    /// It is the one with this ETag; if it is leased, by this claim.
    Is { etag: &'a str, leased: Option<Nonce> },
}

/// What to do to the lease of a blob. Its id is the claim's.
pub(super) enum Lease<'a> {
    /// Takes it if nobody has it, or sets its duration anew.
    Acquire {
        claim: Nonce,
        ttl: Duration,
        etag: &'a str,
    },
    /// Prolongs it by the duration that it has.
    Renew {
        claim: Nonce,
    },
    Release {
        claim: Nonce,
    },
    /// Takes it away from whoever has it, now.
    Break {
        etag: &'a str,
    },
}

/// How a change came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    /// The blob or its lease is not as it was expected, and nothing was changed.
    Conflict,
}

impl Blob {
    /// When it was last written, in microseconds.
    pub(super) fn modified_us(&self) -> u64 {
        self.modified.saturating_mul(1_000_000)
    }
}

impl Api {
    pub(super) fn new(options: Options, auth: Auth) -> Result<Self, OpenError> {
        let trust = match (&options.ca, options.is_tls()) {
            (Some(path), _) => Trust::File(path),
            (None, true) => Trust::System,
            (None, false) => Trust::Nothing,
        };
        let http = Http::new(&trust)?;
        let Options { endpoint, account, container, prefix, .. } = options;
        let authority_at = endpoint.find("://").map_or(0, |at| at + 3);
        let path_at = endpoint[authority_at..].find('/').map(|at| authority_at + at);
        let (origin, before) = endpoint.split_at(path_at.unwrap_or(endpoint.len()));
        let path = format!("{before}/{container}");
        let place = format!("{account}/{container}");
        let origin = origin.to_owned();
        let shared = Arc::new(ApiShared { http, auth, origin, path, prefix, place });
        Ok(Self { shared, lane: Lane::Other })
    }

    /// The same client on another lane.
    pub(super) fn on(&self, lane: Lane) -> Self {
        Self { shared: Arc::clone(&self.shared), lane }
    }

    /// The blob as it is.
    pub(super) async fn get(&self, name: &LeaseName) -> Result<Option<Blob>, StoreError> {
        let call = Call { method: Method::GET, ..Call::new(Some(name)) };
        let reply = self.send(call).await?;
        match (reply.status, code(&reply)) {
            (StatusCode::OK, _) => self.blob(reply).map(Some),
            (StatusCode::NOT_FOUND, "BlobNotFound") => Ok(None),
            _ => Err(self.refusal(&reply)),
        }
    }

    /// The blobs of all leases whose names begin so, from a marker on; `None` if we may not.
    pub(super) async fn list(
        &self,
        stem: &str,
        marker: Option<&str>,
    ) -> Result<Option<Page>, StoreError> {
        let prefix = format!("{}{stem}", self.shared.prefix);
        let mut query = vec![("restype", "container"), ("comp", "list"), ("prefix", &*prefix)];
        query.extend(marker.map(|marker| ("marker", marker)));
        let call = Call { method: Method::GET, query: &query, ..Call::new(None) };
        let reply = self.send(call).await?;
        match reply.status {
            StatusCode::OK => {
                let date = reply.headers.get("date").and_then(|date| date.to_str().ok());
                let date = date.and_then(parse_date).ok_or_else(|| self.unclear())?;
                let text = std::str::from_utf8(&reply.body).map_err(|_| self.unclear())?;
                Page::parse(text, &self.shared.prefix, date).map(Some).ok_or_else(|| self.unclear())
            }
            StatusCode::FORBIDDEN => Ok(None),
            _ => Err(self.refusal(&reply)),
        }
    }

    /// Writes the blob; its new ETag, or `None` if it is not as it was expected.
    pub(super) async fn put(
        &self,
        name: &LeaseName,
        body: Vec<u8>,
        when: When<'_>,
    ) -> Result<Option<String>, StoreError> {
        let mut call = Call { body, ..Call::new(Some(name)) };
        call.header("content-type", "application/octet-stream");
        call.header("x-ms-blob-type", "BlockBlob");
        match when {
            When::Absent => call.header("if-none-match", "*"),
            When::Is { etag, leased } => {
                call.header("if-match", etag);
                if let Some(claim) = leased {
                    call.header("x-ms-lease-id", guid(claim));
                }
            }
        }
        let Some(reply) = self.change(call).await? else { return Ok(None) };
        let etag = reply.headers.get("etag").and_then(|etag| etag.to_str().ok());
        etag.map(|etag| Some(etag.to_owned())).ok_or_else(|| self.unclear())
    }

    /// Changes the lease of the blob.
    pub(super) async fn lease(
        &self,
        name: &LeaseName,
        lease: Lease<'_>,
    ) -> Result<Outcome, StoreError> {
        let mut call = Call { query: &[("comp", "lease")], ..Call::new(Some(name)) };
        match lease {
            Lease::Acquire { claim, ttl, etag } => {
                call.header("x-ms-lease-action", "acquire");
                call.header("x-ms-lease-duration", ttl.as_secs().to_string());
                call.header("x-ms-proposed-lease-id", guid(claim));
                call.header("if-match", etag);
            }
            Lease::Renew { claim } => {
                call.header("x-ms-lease-action", "renew");
                call.header("x-ms-lease-id", guid(claim));
            }
            Lease::Release { claim } => {
                call.header("x-ms-lease-action", "release");
                call.header("x-ms-lease-id", guid(claim));
            }
            Lease::Break { etag } => {
                call.header("x-ms-lease-action", "break");
                call.header("x-ms-lease-break-period", "0");
                call.header("if-match", etag);
            }
        }
        let done = self.change(call).await?.is_some();
        Ok(if done { Outcome::Done } else { Outcome::Conflict })
    }

    /// Creates the container if there is none.
    pub(super) async fn create_container(&self) -> Result<(), StoreError> {
        let call = Call { query: &[("restype", "container")], ..Call::new(None) };
        let reply = self.send(call).await?;
        match (reply.status, code(&reply)) {
            (StatusCode::CREATED, _) | (_, "ContainerAlreadyExists") => Ok(()),
            _ => Err(self.refusal(&reply)),
        }
    }

    /// The answer to a change that was made; `None` if things are not as it expects.
    async fn change(&self, call: Call<'_>) -> Result<Option<Reply>, StoreError> {
        let reply = self.send(call).await?;
        let code = code(&reply);
        let conflict = match reply.status {
            StatusCode::CONFLICT | StatusCode::PRECONDITION_FAILED => {
                code.starts_with("Lease")
                    || matches!(
                        code,
                        "BlobAlreadyExists" | "ConditionNotMet" | "TargetConditionNotMet"
                    )
            }
            StatusCode::NOT_FOUND => code == "BlobNotFound",
            _ => false,
        };
        match reply.status {
            status if status.is_success() => Ok(Some(reply)),
            _ if conflict => Ok(None),
            _ => Err(self.refusal(&reply)),
        }
    }

    async fn send(&self, call: Call<'_>) -> Result<Reply, StoreError> {
        let Call { method, name, query, mut headers, body } = call;
        let path = match name {
            Some(name) => format!("{}/{}{name}", self.shared.path, self.shared.prefix),
            None => self.shared.path.clone(),
        };
        headers.push(("x-ms-date", driver::now()));
        headers.push(("x-ms-version", VERSION.to_owned()));
        let signed = Signed {
            method: method.as_str(),
            path: &path,
            query,
            headers: &headers,
            length: body.len(),
        };
        let shown = self.shared.auth.header(&signed).await?;
        let mut pairs: Vec<_> =
            query.iter().map(|(key, value)| format!("{key}={}", percent::encoded(value))).collect();
        pairs.extend(self.shared.auth.query().map(str::to_owned));
        let mark = if pairs.is_empty() { "" } else { "?" };
        let uri = format!("{}{path}{mark}{}", self.shared.origin, pairs.join("&"));
        let mut request = Request::builder().uri(uri);
        for (name, value) in &headers {
            request = request.header(*name, value);
        }
        if let Some(shown) = shown {
            request = request.header("authorization", shown);
        }
        if method == Method::PUT {
            request = request.header("content-length", HeaderValue::from(body.len()));
        }
        let request = request.method(method).body(Full::new(Bytes::from(body)));
        let request = request.map_err(|_| {
            let text = format!("{} is not a container that can be asked", self.shared.place);
            StoreError::new(StoreErrorKind::Unsuitable, text)
        })?;
        let reply = self.shared.http.send(self.lane, request).await.map_err(|error| {
            StoreError::unavailable(format!(
                "Azure Blob at {} did not answer: {error}",
                self.shared.place
            ))
        })?;
        if reply.status == StatusCode::UNAUTHORIZED {
            self.shared.auth.refused();
        }
        Ok(reply)
    }

    fn blob(&self, reply: Reply) -> Result<Blob, StoreError> {
        let header = |name: &str| reply.headers.get(name).and_then(|value| value.to_str().ok());
        let parsed = (|| {
            Some(Blob {
                etag: header("etag")?.to_owned(),
                state: LeaseState::named(header("x-ms-lease-state")?),
                date: parse_date(header("date")?)?,
                modified: parse_date(header("last-modified")?)?,
                ttl: header("x-ms-meta-ttl")
                    .and_then(|ttl| ttl.parse().ok())
                    .map(Duration::from_secs),
                body: reply.body.clone(),
            })
        })();
        parsed.ok_or_else(|| self.unclear())
    }

    fn unclear(&self) -> StoreError {
        StoreError::unavailable(format!(
            "what answers for {} does not speak like Azure Blob",
            self.shared.place
        ))
    }

    /// Never with the body: it may show what was signed.
    fn refusal(&self, reply: &Reply) -> StoreError {
        let (place, status, code) = (&self.shared.place, reply.status, code(reply));
        let (kind, hint) = match status {
            _ if code == "ContainerNotFound" => {
                (StoreErrorKind::Unsuitable, "; create the container first")
            }
            StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => (
                StoreErrorKind::Denied,
                "; it takes the permissions to read, create and write blobs, and a right clock",
            ),
            StatusCode::BAD_REQUEST
            | StatusCode::PAYLOAD_TOO_LARGE
            | StatusCode::METHOD_NOT_ALLOWED => (StoreErrorKind::Unsuitable, ""),
            _ => (StoreErrorKind::Unavailable, ""),
        };
        StoreError::new(kind, format!("Azure Blob at {place}: {status} {code}{hint}"))
    }
}

struct Call<'a> {
    method: Method,
    name: Option<&'a LeaseName>,
    query: &'a [(&'a str, &'a str)],
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl<'a> Call<'a> {
    fn new(name: Option<&'a LeaseName>) -> Self {
        Self { method: Method::PUT, name, query: &[], headers: Vec::new(), body: Vec::new() }
    }

    fn header(&mut self, name: &'static str, value: impl Into<String>) {
        self.headers.push((name, value.into()));
    }
}

/// What went wrong, in Azure's own word.
fn code(reply: &Reply) -> &str {
    let code = reply.headers.get("x-ms-error-code").and_then(|code| code.to_str().ok());
    code.filter(|code| code.len() < 100).unwrap_or("")
}

/// A lease's id, in the form that Azure wants.
fn guid(claim: Nonce) -> String {
    let text = claim.to_string();
    format!("{}-{}-{}-{}-{}", &text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..])
}

/// Of the protocol. It has all that is used here, and emulators know it.
const VERSION: &str = "2021-12-02";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_guids() {
        let claim = Nonce::from_bits(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
        assert_eq!(guid(claim), "01234567-89ab-cdef-0123-456789abcdef");
    }
}
