//! What goes over the wire: etcd's protocol buffers in the JSON of its gateway. Keys and values are
//! base64, numbers of 64 bits are text, and whatever is zero is left out.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A range request for one key.
pub(super) fn range(key: &str) -> Value {
    json!({ "request_range": { "key": encode(key) } })
}

/// A put, attached to an etcd lease unless that is 0.
pub(super) fn put(key: &str, value: &impl Serialize, lease: i64) -> Value {
    // Our own values are maps with text keys, which JSON can always express.
    let value = serde_json::to_vec(value).expect("a record is JSON");
    json!({ "request_put": {
        "key": encode(key), "value": encode(value), "lease": lease.to_string(),
    }})
}

/// A deletion of one key.
pub(super) fn delete(key: &str) -> Value {
    json!({ "request_delete_range": { "key": encode(key) } })
}

/// Holds if the key was last changed at this revision; 0: if there is no such key.
pub(super) fn unchanged(key: &str, mod_revision: i64) -> Value {
    json!({
        "key": encode(key), "target": "MOD", "result": "EQUAL",
        "mod_revision": mod_revision.to_string(),
    })
}

/// Several ranges in one request, read at one revision.
pub(super) fn nested(ops: Vec<Value>) -> Value {
    json!({ "request_txn": { "success": ops } })
}

/// Base64, as the gateway wants it.
pub(super) fn encode(bytes: impl AsRef<[u8]>) -> String {
    STANDARD.encode(bytes)
}

/// The reverse of [`encode`].
pub(super) fn decode(text: &str) -> Result<Vec<u8>, base64::DecodeError> {
    STANDARD.decode(text)
}

/// The answer to a transaction, also to a nested one.
#[derive(Deserialize)]
pub(super) struct Txn {
    #[serde(default)]
    pub(super) header: Header,
    #[serde(default)]
    pub(super) succeeded: bool,
    #[serde(default)]
    pub(super) responses: Vec<Op>,
}

#[derive(Default, Deserialize)]
pub(super) struct Header {
    #[serde(default, deserialize_with = "number")]
    pub(super) revision: i64,
    /// Which leader's time it was.
    #[serde(default, deserialize_with = "number")]
    pub(super) raft_term: i64,
}

#[derive(Deserialize)]
pub(super) struct Op {
    #[serde(default)]
    response_range: Option<Range>,
    #[serde(default)]
    response_txn: Option<Txn>,
}

#[derive(Deserialize)]
struct Range {
    #[serde(default)]
    kvs: Vec<Kv>,
}

/// A key as etcd keeps it.
#[derive(Deserialize)]
pub(super) struct Kv {
    #[serde(default, deserialize_with = "number")]
    pub(super) create_revision: i64,
    #[serde(default, deserialize_with = "number")]
    pub(super) mod_revision: i64,
    #[serde(default, deserialize_with = "number")]
    pub(super) lease: i64,
    #[serde(default, deserialize_with = "bytes")]
    pub(super) value: Vec<u8>,
}

impl Txn {
    /// The keys that its ranges of one key found, in order; nested ones in their place.
    pub(super) fn kvs(self) -> Vec<Option<Kv>> {
        let mut found = Vec::new();
        for op in self.responses {
            if let Some(range) = op.response_range {
                found.push(range.kvs.into_iter().next());
            } else if let Some(txn) = op.response_txn {
                found.extend(txn.kvs());
            }
        }
        found
    }
}

/// The answers about leases: granted, kept alive, asked for.
#[derive(Deserialize)]
pub(super) struct LeaseAnswer {
    #[serde(default)]
    pub(super) header: Header,
    /// What remains, in seconds; 0, below or left out: there is no such lease.
    #[serde(default, rename = "TTL", deserialize_with = "number")]
    pub(super) ttl: i64,
}

/// An answer of which nothing matters.
#[derive(Deserialize)]
pub(super) struct Ignored {}

/// One message of a streaming answer.
#[derive(Deserialize)]
pub(super) struct Streamed<T> {
    #[serde(default = "none")]
    pub(super) result: Option<T>,
    #[serde(default)]
    pub(super) error: Option<Refusal>,
}

fn none<T>() -> Option<T> {
    None
}

/// A message of a watch.
#[derive(Deserialize)]
pub(super) struct Watched {
    #[serde(default)]
    pub(super) created: bool,
    #[serde(default)]
    pub(super) canceled: bool,
    #[serde(default)]
    pub(super) events: Vec<Event>,
}

#[derive(Deserialize)]
pub(super) struct Event {
    /// Left out: a put.
    #[serde(default, rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    kv: Option<Kv>,
}

impl Event {
    /// What was put; `None` if the key was deleted.
    pub(super) fn put(self) -> Option<Kv> {
        self.kv.filter(|_| self.kind.is_none_or(|kind| kind == "PUT"))
    }
}

/// The token that a log-in gives.
#[derive(Deserialize)]
pub(super) struct Authenticated {
    pub(super) token: String,
}

/// An error in etcd's own words.
#[derive(Deserialize)]
pub(super) struct Refusal {
    /// The code of gRPC; older gateways call it so in streams.
    #[serde(default, alias = "grpc_code")]
    pub(super) code: u32,
    #[serde(default, alias = "error")]
    pub(super) message: String,
}

fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Number(i64),
        Text(String),
    }
    match Either::deserialize(deserializer)? {
        Either::Number(number) => Ok(number),
        Either::Text(text) => text.parse().map_err(D::Error::custom),
    }
}

fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    decode(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_as_etcd_writes_them() {
        let text = r#"{"header":{"cluster_id":"1","revision":"7","raft_term":"2"},"responses":[
            {"response_range":{"header":{"revision":"7"},"kvs":[{"key":"YQ==","create_revision":"2",
             "mod_revision":"5","version":"1","value":"YWI=","lease":"77"}],"count":"1"}},
            {"response_txn":{"header":{},"succeeded":true,"responses":[
                {"response_range":{"header":{"revision":"7"}}},
                {"response_range":{"kvs":[{"mod_revision":9}]}}]}}]}"#;
        let txn: Txn = serde_json::from_str(text).unwrap();
        assert!(!txn.succeeded);
        assert_eq!(txn.header.revision, 7);
        let kvs = txn.kvs();
        let revisions: Vec<_> =
            kvs.iter().map(|kv| kv.as_ref().map(|kv| kv.mod_revision)).collect();
        assert_eq!(revisions, [Some(5), None, Some(9)]);
        let kv = kvs.into_iter().next().flatten().unwrap();
        assert_eq!((kv.create_revision, kv.lease, &*kv.value), (2, 77, &b"ab"[..]));
    }

    #[test]
    fn a_lease_that_is_gone_has_no_ttl() {
        let text = r#"{"result":{"header":{"revision":"1"},"ID":"78"}}"#;
        let answer: Streamed<LeaseAnswer> = serde_json::from_str(text).unwrap();
        assert_eq!(answer.result.unwrap().ttl, 0);
        let text = r#"{"error":{"grpc_code":14,"http_code":503,"message":"no leader"}}"#;
        let answer: Streamed<LeaseAnswer> = serde_json::from_str(text).unwrap();
        assert_eq!(answer.error.unwrap().code, 14);
    }
}
