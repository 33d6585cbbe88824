//! The few messages of etcd's gRPC API that the store uses, with only the fields that it uses.
//!
//! They are written by hand from the field numbers of etcd's API, so that nobody needs a protocol
//! compiler to build this crate.

use prost::{Message, Oneof};

pub(super) const RANGE: &str = "/etcdserverpb.KV/Range";
pub(super) const TXN: &str = "/etcdserverpb.KV/Txn";
pub(super) const WATCH: &str = "/etcdserverpb.Watch/Watch";
pub(super) const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResponseHeader {
    #[prost(int64, tag = "3")]
    pub(super) revision: i64,
}

/// Without `serializable`, which is left out here, etcd answers it linearizably.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) limit: i64,
    #[prost(bool, tag = "8")]
    pub(super) keys_only: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RangeResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub(super) kvs: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(int64, tag = "2")]
    pub(super) create_revision: i64,
    #[prost(int64, tag = "3")]
    pub(super) mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub(super) value: Vec<u8>,
    /// The etcd lease that the key is attached to; 0: none.
    #[prost(int64, tag = "6")]
    pub(super) lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Compare {
    /// 0: equal.
    #[prost(int32, tag = "1")]
    result: i32,
    /// 2: the revision of the last change.
    #[prost(int32, tag = "2")]
    target: i32,
    #[prost(bytes = "vec", tag = "3")]
    key: Vec<u8>,
    #[prost(oneof = "CompareValue", tags = "6")]
    value: Option<CompareValue>,
}

/// A oneof, because etcd wants to see it also if it is 0.
#[derive(Clone, PartialEq, Oneof)]
enum CompareValue {
    #[prost(int64, tag = "6")]
    ModRevision(i64),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RequestOp {
    #[prost(oneof = "Request", tags = "1, 2")]
    request: Option<Request>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Request {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(super) success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub(super) failure: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<ResponseHeader>,
    #[prost(bool, tag = "2")]
    pub(super) succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    responses: Vec<ResponseOp>,
}

#[derive(Clone, PartialEq, Message)]
struct ResponseOp {
    /// Absent: the answer to a put.
    #[prost(message, optional, tag = "1")]
    range: Option<RangeResponse>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchRequest {
    #[prost(oneof = "WatchAction", tags = "1, 2")]
    action: Option<WatchAction>,
}

#[derive(Clone, PartialEq, Oneof)]
enum WatchAction {
    #[prost(message, tag = "1")]
    Create(WatchCreateRequest),
    #[prost(message, tag = "2")]
    Cancel(WatchCancelRequest),
}

#[derive(Clone, PartialEq, Message)]
struct WatchCreateRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    range_end: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct WatchCancelRequest {
    #[prost(int64, tag = "1")]
    watch_id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchResponse {
    #[prost(int64, tag = "2")]
    pub(super) watch_id: i64,
    #[prost(bool, tag = "3")]
    pub(super) created: bool,
    #[prost(bool, tag = "4")]
    pub(super) canceled: bool,
    #[prost(string, tag = "6")]
    pub(super) cancel_reason: String,
    #[prost(message, repeated, tag = "11")]
    pub(super) events: Vec<WatchEvent>,
}

/// Of an event it matters only that there is one.
#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchEvent {}

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)] // It carries a password.
pub(super) struct AuthenticateRequest {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) password: String,
}

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)] // It carries a token.
pub(super) struct AuthenticateResponse {
    #[prost(string, tag = "2")]
    pub(super) token: String,
}

impl Compare {
    /// Holds if the key was last changed at this revision; 0: if there is no such key.
    pub(super) fn unchanged(key: &str, mod_revision: i64) -> Self {
        let value = Some(CompareValue::ModRevision(mod_revision));
        Self { result: 0, target: 2, key: key.into(), value }
    }
}

impl From<RangeRequest> for RequestOp {
    fn from(range: RangeRequest) -> Self {
        Self { request: Some(Request::Range(range)) }
    }
}

impl RequestOp {
    pub(super) fn put(key: &str, value: Vec<u8>) -> Self {
        Self { request: Some(Request::Put(PutRequest { key: key.into(), value })) }
    }
}

impl TxnResponse {
    /// etcd's revision after the transaction.
    pub(super) fn revision(&self) -> i64 {
        self.header.as_ref().map_or(0, |header| header.revision)
    }

    /// The answers to its ranges, in order.
    pub(super) fn ranges(self) -> impl Iterator<Item = Vec<KeyValue>> {
        self.responses.into_iter().filter_map(|op| op.range).map(|range| range.kvs)
    }
}

impl WatchRequest {
    /// Begins to watch all keys from the first to before the second.
    pub(super) fn create(key: &str, range_end: &str) -> Self {
        let create = WatchCreateRequest { key: key.into(), range_end: range_end.into() };
        Self { action: Some(WatchAction::Create(create)) }
    }

    pub(super) fn cancel(watch_id: i64) -> Self {
        Self { action: Some(WatchAction::Cancel(WatchCancelRequest { watch_id })) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Field by field as the protocol buffer encoding prescribes.
    #[test]
    fn messages_are_encoded_as_etcd_reads_them() {
        let txn = TxnRequest {
            compare: vec![Compare::unchanged("k", 0)],
            success: vec![RequestOp::put("k", b"v".to_vec())],
            failure: vec![RangeRequest { key: b"k".to_vec(), ..Default::default() }.into()],
        };
        let expected: &[u8] = &[
            0x0a, 7, 0x10, 2, 0x1a, 1, b'k', 0x30, 0, // compare: target, key, mod_revision 0
            0x12, 8, 0x12, 6, 0x0a, 1, b'k', 0x12, 1, b'v', // put
            0x1a, 5, 0x0a, 3, 0x0a, 1, b'k', // range
        ];
        assert_eq!(txn.encode_to_vec(), expected);
    }
}
