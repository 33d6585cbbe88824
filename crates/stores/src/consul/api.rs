//! The handful of calls to Consul's HTTP API, each one request.

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
use super::go_duration::go_duration;
use super::pool::Pool;
use super::url::Options;
use crate::generations::Lane;
use crate::http::{self, Reply, Trust};

/// A client of one Consul agent or server.
pub(super) struct Api {
    pool: Pool,
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
        let (connector, token) = (http::connector(&trust, None)?, token.transpose()?);
        let pool = Pool::new(connector, options.server()?);
        Ok(Self { pool, place: options.authority, prefix: options.prefix, token })
    }

    pub(super) fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// The key as it is, by the word of a leader that has just made sure that it is one.
    pub(super) async fn get(&self, lane: Lane, name: &LeaseName) -> Result<Entry, StoreError> {
        let path = format!("/kv/{}?consistent", self.key(name.as_str()));
        let reply = self.send(lane, Method::GET, &path, None).await?;
        Ok(self.entries(&reply)?.pop().map(|(_, entry)| entry).unwrap_or_default())
    }

    /// These keys, [`BATCH`] at most, by the names of their leases.
    pub(super) async fn read_batch(
        &self,
        names: &[LeaseName],
    ) -> Result<Vec<(String, Entry)>, StoreError> {
        match names {
            [name] => Ok(vec![(name.to_string(), self.get(Lane::Other, name).await?)]),
            names => self.get_batch(names).await,
        }
    }

    /// These keys, [`BATCH`] at most, as they are at one moment, by the names of their leases.
    async fn get_batch(&self, names: &[LeaseName]) -> Result<Vec<(String, Entry)>, StoreError> {
        let mut present: Vec<&LeaseName> = names.iter().collect();
        for _ in 0..BATCH_ATTEMPTS {
            let keys: Vec<String> = present.iter().map(|name| self.key(name.as_str())).collect();
            let steps: Vec<_> =
                keys.iter().map(|key| json!({ "KV": { "Verb": "get", "Key": key } })).collect();
            let body = Some(json!(steps).to_string());
            let reply = self.send(Lane::Other, Method::PUT, "/txn?consistent", body).await?;
            match reply.status {
                StatusCode::OK => {
                    let found: TxnReply = self.parse(&reply)?;
                    let found = found.results.unwrap_or_default();
                    if found.len() != present.len() {
                        return Err(self.unclear(&reply));
                    }
                    let pair = |result: TxnResult| {
                        let pair = result.kv.ok_or_else(|| self.unclear(&reply))?;
                        self.entry(&reply, pair)
                    };
                    return found.into_iter().map(pair).collect();
                }
                // One that is not there fails them all; the others are read again without it.
                StatusCode::CONFLICT => {
                    let refused: TxnReply = self.parse(&reply)?;
                    let errors = refused.errors.unwrap_or_default();
                    if errors.iter().any(|error| error.what.contains("ermission denied")) {
                        return Err(self.denied("read keys"));
                    }
                    if errors.is_empty() || errors.iter().any(|error| !error.says_absent()) {
                        return Err(self.unclear(&reply));
                    }
                    let mut index = 0..;
                    present.retain(|_| {
                        let index = index.next();
                        !errors.iter().any(|error| Some(error.op_index) == index)
                    });
                    if present.is_empty() {
                        return Ok(Vec::new());
                    }
                }
                _ => return Err(self.refusal(&reply)),
            }
        }
        let text = format!("Consul at {}: keys are deleted faster than they are read", self.place);
        Err(StoreError::unavailable(text))
    }

    /// All keys below the prefix whose lease names begin so, by their names.
    pub(super) async fn get_all(&self, stem: &str) -> Result<Vec<(String, Entry)>, StoreError> {
        let path = format!("/kv/{}?recurse&consistent", self.key(stem));
        let reply = self.send(Lane::Other, Method::GET, &path, None).await?;
        self.entries(&reply)
    }

    /// The names of all keys below the prefix, without it.
    pub(super) async fn names(&self) -> Result<Vec<String>, StoreError> {
        let path = format!("/kv/{}?keys&consistent", self.prefix);
        let reply = self.send(Lane::Other, Method::GET, &path, None).await?;
        if self.is_absent(&reply)? {
            return Ok(Vec::new());
        }
        let keys: Vec<String> = self.parse(&reply)?;
        let name = |key: String| key.strip_prefix(&self.prefix).map(str::to_owned);
        Ok(keys.into_iter().filter_map(name).collect())
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
        let reply = self.send(Lane::Other, Method::GET, &path, None).await?;
        let index = reply.headers.get(INDEX);
        let index = index.and_then(|index| index.to_str().ok()?.parse().ok()).unwrap_or(0);
        Ok((index, self.entries(&reply)?))
    }

    /// Does all of it or nothing.
    pub(super) async fn transact(
        &self,
        lane: Lane,
        name: &LeaseName,
        ops: &[Op<'_>],
    ) -> Result<Outcome, StoreError> {
        let key = self.key(name.as_str());
        let steps: Vec<_> = ops.iter().map(|op| json!({ "KV": op.step(&key) })).collect();
        let body = json!(steps).to_string();
        let reply = self.send(lane, Method::PUT, "/txn", Some(body)).await?;
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
        let body = Some(body.to_string());
        let reply = self.send(Lane::Other, Method::PUT, "/session/create", body).await?;
        self.check(&reply)?;
        let created: Created = self.parse(&reply)?;
        Ok(created.id)
    }

    /// Prolongs a session; `false`: there is none.
    pub(super) async fn renew_session(
        &self,
        lane: Lane,
        session: &str,
    ) -> Result<bool, StoreError> {
        let path = format!("/session/renew/{session}");
        let reply = self.send(lane, Method::PUT, &path, None).await?;
        // Not any 404: a proxy in between has its own.
        if reply.status == StatusCode::NOT_FOUND
            && String::from_utf8_lossy(&reply.body).contains(session)
        {
            return Ok(false);
        }
        self.check(&reply)?;
        Ok(true)
    }

    pub(super) async fn destroy_session(&self, session: &str) -> Result<(), StoreError> {
        let path = format!("/session/destroy/{session}");
        self.send(Lane::Other, Method::PUT, &path, None).await.map(drop)
    }

    /// The ttl of a session; `None`: it has none, or is gone.
    pub(super) async fn session_ttl(&self, session: &str) -> Result<Option<Duration>, StoreError> {
        let path = format!("/session/info/{session}?consistent");
        let reply = self.send(Lane::Other, Method::GET, &path, None).await?;
        self.check(&reply)?;
        let found: Vec<SessionInfo> = self.parse(&reply)?;
        Ok(found.first().and_then(|session| go_duration(&session.ttl)))
    }

    /// Sends a request; the answer, whatever its status.
    async fn send(
        &self,
        lane: Lane,
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
        self.pool.send(lane, request).await.map_err(|error| {
            StoreError::unavailable(format!("Consul at {} did not answer: {error}", self.place))
        })
    }

    fn entries(&self, reply: &Reply) -> Result<Vec<(String, Entry)>, StoreError> {
        if self.is_absent(reply)? {
            return Ok(Vec::new());
        }
        let pairs: Vec<Pair> = self.parse(reply)?;
        pairs.into_iter().map(|pair| self.entry(reply, pair)).collect()
    }

    fn entry(&self, reply: &Reply, pair: Pair) -> Result<(String, Entry), StoreError> {
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
    }

    /// Whether Consul says that there is no such key. A holder that hears so stops, so a 404 must be
    /// Consul's own, which has an index and no body: a proxy without a backend says 404, too.
    fn is_absent(&self, reply: &Reply) -> Result<bool, StoreError> {
        let is_own = reply.headers.contains_key(INDEX) && reply.body.is_empty();
        match reply.status {
            StatusCode::OK => Ok(false),
            StatusCode::NOT_FOUND if is_own => Ok(true),
            StatusCode::NOT_FOUND => Err(self.unclear(reply)),
            _ => Err(self.refusal(reply)),
        }
    }

    fn check(&self, reply: &Reply) -> Result<(), StoreError> {
        if reply.status == StatusCode::OK { Ok(()) } else { Err(self.refusal(reply)) }
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
    #[serde(default)]
    op_index: usize,
    what: String,
}

impl TxnError {
    /// Whether it says that there is no such key to get.
    fn says_absent(&self) -> bool {
        self.what.contains("doesn't exist")
    }
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

/// How many keys one transaction may read: Consul takes 64 operations.
pub(super) const BATCH: usize = 64;
/// How often a transaction is put again without the keys that are not there.
const BATCH_ATTEMPTS: usize = 4;
/// The header that every answer of Consul's about keys has.
const INDEX: &str = "x-consul-index";
