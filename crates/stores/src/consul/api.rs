//! The handful of calls to Consul's HTTP API, each one request.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{HOST, HeaderValue};
use hyper::{Method, Request, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::json;

use tenure_lease::backend::{StoreError, StoreErrorKind};
use tenure_lease::{LeaseName, OpenError};

use super::content::{Entry, LOCK_DELAY_MAX};
use super::pool::Pool;
use super::url::Options;
use crate::http::{self, Reply, Trust};

/// A client of one Consul agent or server.
pub(super) struct Api {
    pool: Arc<Pool>,
    /// For people: `host:port`.
    place: String,
    prefix: String,
    token: Option<HeaderValue>,
}

/// One step of a transaction.
pub(super) enum Op<'a> {
    /// The key's last write has this number.
    IsAt(u64),
    /// Writes the value, if the key's last write has this number (0: there is no key).
    Set { value: &'a [u8], at: u64 },
    /// Writes the value and locks the key, if no other session has it locked.
    Lock { value: &'a [u8], session: &'a str },
    /// Writes the value and unlocks the key, if this session has it locked.
    Unlock { value: &'a [u8], session: &'a str },
}

/// How a transaction came out. Consul does all of it or nothing.
#[derive(Debug, PartialEq)]
pub(super) enum Outcome {
    /// It is done; the write has this number.
    Done(u64),
    /// The key is not as it was expected.
    Conflict,
    /// The key must not be locked yet: the session that had it locked was ended by Consul, or by
    /// an operator, less than its lock-delay ago.
    LockDelay,
}

impl Api {
    pub(super) fn new(options: Options) -> Result<Self, OpenError> {
        let trust = match (&options.ca, options.tls) {
            (Some(path), _) => Trust::File(path),
            (None, true) => Trust::System,
            (None, false) => Trust::Nothing,
        };
        let token = options.token.as_deref().map(|token| {
            let mut token = HeaderValue::from_str(token)
                .map_err(|_| OpenError::Url("the token has characters that no token has".into()))?;
            token.set_sensitive(true);
            Ok::<_, OpenError>(token)
        });
        let (connector, token) = (http::connector(&trust)?, token.transpose()?);
        let pool = Pool::new(connector, options.server()?);
        Ok(Self { pool, place: options.authority, prefix: options.prefix, token })
    }

    pub(super) fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// The key as it is, by the word of a leader that has just made sure that it is one.
    pub(super) async fn get(&self, name: &LeaseName) -> Result<Entry, StoreError> {
        let path = format!("/kv/{}?consistent", self.key(name.as_str()));
        let reply = self.call(Method::GET, &path, None).await?;
        Ok(self.entries(&reply)?.pop().map(|(_, entry)| entry).unwrap_or_default())
    }

    /// All keys whose lease names begin so, by their names.
    pub(super) async fn get_all(&self, stem: &str) -> Result<Vec<(String, Entry)>, StoreError> {
        let path = format!("/kv/{}?recurse&consistent", self.key(stem));
        let reply = self.call(Method::GET, &path, None).await?;
        self.entries(&reply)
    }

    /// Waits until the key has changed since `index` (0: does not wait), at most `wait`; the index
    /// to go on from, and the key.
    pub(super) async fn await_change(
        &self,
        name: &LeaseName,
        index: u64,
        wait: Duration,
    ) -> Result<(u64, Entry), StoreError> {
        let (index, mut entries) = self.await_index(name.as_str(), "", index, wait).await?;
        Ok((index, entries.pop().map(|(_, entry)| entry).unwrap_or_default()))
    }

    /// The same with all keys, by the names of their leases.
    pub(super) async fn await_any_change(
        &self,
        index: u64,
        wait: Duration,
    ) -> Result<(u64, Vec<(String, Entry)>), StoreError> {
        self.await_index("", "recurse&", index, wait).await
    }

    async fn await_index(
        &self,
        name: &str,
        how: &str,
        index: u64,
        wait: Duration,
    ) -> Result<(u64, Vec<(String, Entry)>), StoreError> {
        let (key, wait) = (self.key(name), wait.as_millis());
        let path = format!("/kv/{key}?{how}index={index}&wait={wait}ms");
        let reply = self.call(Method::GET, &path, None).await?;
        let index = reply.headers.get("x-consul-index");
        let index = index.and_then(|index| index.to_str().ok()?.parse().ok()).unwrap_or(0);
        Ok((index, self.entries(&reply)?))
    }

    /// Does all of it or nothing.
    pub(super) async fn transact(
        &self,
        name: &LeaseName,
        ops: &[Op<'_>],
    ) -> Result<Outcome, StoreError> {
        let key = self.key(name.as_str());
        let steps: Vec<_> = ops.iter().map(|op| json!({ "KV": op.step(&key) })).collect();
        let body = json!(steps).to_string();
        let reply = self.send(Method::PUT, "/txn", Some(body)).await?;
        match reply.status {
            StatusCode::OK => {
                let done: TxnReply = self.parse(&reply)?;
                let written = done.results.and_then(|results| results.into_iter().last());
                let Some(TxnResult { kv: Some(written) }) = written else {
                    return Err(self.unclear(&reply));
                };
                Ok(Outcome::Done(written.modify_index))
            }
            StatusCode::CONFLICT => {
                let refused: TxnReply = self.parse(&reply)?;
                let errors = refused.errors.unwrap_or_default();
                let says = |what: &str| errors.iter().any(|error| error.what.contains(what));
                if errors.is_empty() {
                    Err(self.unclear(&reply))
                } else if says("ermission denied") {
                    Err(self.denied("write keys"))
                } else if says("lock delay") {
                    Ok(Outcome::LockDelay)
                } else {
                    Ok(Outcome::Conflict)
                }
            }
            _ => Err(self.refusal(&reply)),
        }
    }

    /// A new session that ends by time only: without the health checks of its node, which would
    /// end it, and so the lease, by somebody's failed ping.
    pub(super) async fn create_session(
        &self,
        name: &LeaseName,
        ttl: Duration,
    ) -> Result<String, StoreError> {
        let body = json!({
            "Name": format!("tenure {name}"),
            "TTL": format!("{}ms", ttl.as_millis()),
            // For other electors: longer than our holder takes to notice that its session was
            // destroyed and to stop, since renew interval, operation time-out and stop budget
            // together are less than the ttl.
            "LockDelay": format!("{}ms", ttl.min(LOCK_DELAY_MAX).as_millis()),
            "Behavior": "release",
            "NodeChecks": [],
            "Checks": [],
        });
        let reply = self.call(Method::PUT, "/session/create", Some(body.to_string())).await?;
        let created: Created = self.parse(&reply)?;
        Ok(created.id)
    }

    /// Prolongs a session; `false`: there is none.
    pub(super) async fn renew_session(&self, session: &str) -> Result<bool, StoreError> {
        let path = format!("/session/renew/{session}");
        let reply = self.call(Method::PUT, &path, None).await?;
        Ok(reply.status == StatusCode::OK)
    }

    pub(super) async fn destroy_session(&self, session: &str) -> Result<(), StoreError> {
        let path = format!("/session/destroy/{session}");
        self.call(Method::PUT, &path, None).await.map(drop)
    }

    /// The ttl of a session; `None`: it has none, or is gone.
    pub(super) async fn session_ttl(&self, session: &str) -> Result<Option<Duration>, StoreError> {
        let path = format!("/session/info/{session}?consistent");
        let reply = self.call(Method::GET, &path, None).await?;
        let found: Vec<SessionInfo> = self.parse(&reply)?;
        Ok(found.first().and_then(|session| go_duration(&session.ttl)))
    }

    /// Sends a request; an answer that is neither yes nor "not found" is an error.
    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
    ) -> Result<Reply, StoreError> {
        let reply = self.send(method, path, body).await?;
        match reply.status {
            StatusCode::OK | StatusCode::NOT_FOUND => Ok(reply),
            _ => Err(self.refusal(&reply)),
        }
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
    ) -> Result<Reply, StoreError> {
        let mut request = Request::builder().method(method).uri(format!("/v1{path}"));
        request = request.header(HOST, &self.place);
        if let Some(token) = &self.token {
            request = request.header("x-consul-token", token);
        }
        let request = request.body(Full::new(Bytes::from(body.unwrap_or_default())));
        let request = request.map_err(|_| {
            let text = format!("{} is not an address that can be asked", self.place);
            StoreError::new(StoreErrorKind::Unsuitable, text)
        })?;
        self.pool.send(request).await.map_err(|error| {
            StoreError::unavailable(format!("Consul at {} did not answer: {error}", self.place))
        })
    }

    fn entries(&self, reply: &Reply) -> Result<Vec<(String, Entry)>, StoreError> {
        if reply.status == StatusCode::NOT_FOUND {
            return Ok(Vec::new());
        }
        let pairs: Vec<Pair> = self.parse(reply)?;
        let entry = |pair: Pair| {
            let value = BASE64.decode(pair.value.unwrap_or_default());
            let value = value.map_err(|_| self.unclear(reply))?;
            let name = pair.key.strip_prefix(&self.prefix).unwrap_or(&pair.key).to_owned();
            let entry = Entry {
                value,
                session: pair.session.unwrap_or_default(),
                lock_index: pair.lock_index,
                modify_index: pair.modify_index,
            };
            Ok((name, entry))
        };
        pairs.into_iter().map(entry).collect()
    }

    fn parse<'a, T: Deserialize<'a>>(&self, reply: &'a Reply) -> Result<T, StoreError> {
        serde_json::from_slice(&reply.body).map_err(|_| self.unclear(reply))
    }

    fn unclear(&self, reply: &Reply) -> StoreError {
        StoreError::unavailable(format!(
            "what answers at {} does not speak like Consul ({})",
            self.place, reply.status
        ))
    }

    fn denied(&self, what: &str) -> StoreError {
        let text = format!(
            "Consul at {} refuses to let this token {what}; it needs write on the keys below {:?} \
             and on sessions",
            self.place, self.prefix
        );
        StoreError::new(StoreErrorKind::Denied, text)
    }

    fn refusal(&self, reply: &Reply) -> StoreError {
        let text = String::from_utf8_lossy(&reply.body);
        let text: String = text.trim().chars().take(200).collect();
        let kind = match reply.status {
            StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => return self.denied("do this"),
            StatusCode::BAD_REQUEST
            | StatusCode::PAYLOAD_TOO_LARGE
            | StatusCode::METHOD_NOT_ALLOWED => StoreErrorKind::Unsuitable,
            _ => StoreErrorKind::Unavailable,
        };
        StoreError::new(kind, format!("Consul at {}: {} ({text})", self.place, reply.status))
    }
}

impl Op<'_> {
    fn step<'a>(&'a self, key: &'a str) -> Step<'a> {
        let step = Step { verb: "", key, value: None, index: None, session: None };
        match *self {
            Op::IsAt(index) => Step { verb: "check-index", index: Some(index), ..step },
            Op::Set { value, at } => {
                Step { verb: "cas", value: Some(BASE64.encode(value)), index: Some(at), ..step }
            }
            Op::Lock { value, session } => {
                let value = Some(BASE64.encode(value));
                Step { verb: "lock", value, session: Some(session), ..step }
            }
            Op::Unlock { value, session } => {
                let value = Some(BASE64.encode(value));
                Step { verb: "unlock", value, session: Some(session), ..step }
            }
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Step<'a> {
    verb: &'a str,
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<&'a str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Pair {
    key: String,
    value: Option<String>,
    session: Option<String>,
    #[serde(default)]
    lock_index: u64,
    modify_index: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct TxnReply {
    results: Option<Vec<TxnResult>>,
    errors: Option<Vec<TxnError>>,
}

#[derive(Deserialize)]
struct TxnResult {
    #[serde(rename = "KV")]
    kv: Option<Pair>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct TxnError {
    what: String,
}

#[derive(Deserialize)]
struct Created {
    #[serde(rename = "ID")]
    id: String,
}

#[derive(Deserialize)]
struct SessionInfo {
    #[serde(rename = "TTL", default)]
    ttl: String,
}

/// A duration as Go writes it: `10s`, `1m30s`, `10.5s`.
fn go_duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut sum = Duration::ZERO;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..end].parse().ok()?;
        rest = &rest[end..];
        let end = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let unit = match &rest[..end] {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            _ => return None,
        };
        rest = &rest[end..];
        sum += Duration::try_from_secs_f64(number * unit).ok()?;
    }
    Some(sum).filter(|sum| !sum.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_durations_are_read() {
        assert_eq!(go_duration("10s"), Some(Duration::from_secs(10)));
        assert_eq!(go_duration("1h1m30s"), Some(Duration::from_secs(3690)));
        assert_eq!(go_duration("10.5s"), Some(Duration::from_millis(10_500)));
        assert_eq!(go_duration("10500ms"), Some(Duration::from_millis(10_500)));
        for none in ["", "0s", "10", "s", "1x"] {
            assert_eq!(go_duration(none), None, "{none}");
        }
    }
}
