//! The handful of calls to DynamoDB, each one signed request.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4;
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, DATE};
use hyper::{HeaderMap, Method, Request, StatusCode};
use serde_json::{Map, Value, json};

use tenure_lease::backend::{StoreError, StoreErrorKind};

use super::driver::{self, Access, Pass};
use super::item::{Change, Item, KEY, s};
use crate::http::{Http, Lane, Reply};

/// A client of one table.
pub(super) struct Api {
    pub(super) http: Http,
    pub(super) access: Access,
    pub(super) table: String,
    pub(super) create: bool,
    /// What the server's clock is ahead of ours, if that is so much that it refuses our signatures.
    pub(super) ahead_s: AtomicI64,
}

/// What a conditional change came to.
pub(super) enum Outcome {
    /// It is done. The attributes that changed, as they are now.
    Done { changed: Item, date: Option<u64> },
    /// The item is not as it was expected; nothing was done.
    Conflict,
}

/// An answer that is not yes.
struct Fault {
    /// The last part of the exception's name; empty if there is none.
    name: String,
    error: StoreError,
}

impl Api {
    /// The item as it is, and what the server's clock said, in seconds since 1970.
    pub(super) async fn get(&self, key: &str) -> Result<(Option<Item>, Option<u64>), StoreError> {
        let body = json!({
            "TableName": self.table,
            "Key": { KEY: s(key) },
            "ConsistentRead": true,
        });
        let (mut answer, date) = self.call("GetItem", &body).await.map_err(|f| f.error)?;
        let item = match answer.remove("Item") {
            Some(Value::Object(item)) => Some(item),
            Some(_) => return Err(self.unclear()),
            None => None,
        };
        Ok((item, date))
    }

    /// The items of these keys, which are all different; at most [`BATCH_MAX`].
    pub(super) async fn get_all(&self, keys: &[String]) -> Result<Vec<Item>, StoreError> {
        let all: Vec<_> = keys.iter().map(|key| json!({ KEY: s(key) })).collect();
        let asked = json!({ &self.table: { "Keys": all, "ConsistentRead": true } });
        let (mut asked, mut items) = (asked, Vec::new());
        loop {
            let body = json!({ "RequestItems": asked });
            let (mut answer, _) = self.call("BatchGetItem", &body).await.map_err(|f| f.error)?;
            let found = answer.get_mut("Responses").and_then(|r| r.get_mut(&self.table));
            let found = found.and_then(Value::as_array_mut).map(std::mem::take);
            for item in found.unwrap_or_default() {
                let Value::Object(item) = item else { return Err(self.unclear()) };
                items.push(item);
            }
            // What did not fit in one answer, or was throttled.
            let left = answer.remove("UnprocessedKeys").unwrap_or_default();
            let count =
                |asked: &Value| asked.get(&self.table)?.get("Keys")?.as_array().map(Vec::len);
            match (count(&left), count(&asked)) {
                (None | Some(0), _) => return Ok(items),
                (now, before) if now < before => asked = left,
                _ => {
                    let text = format!("DynamoDB is too busy to read from {}", self.table);
                    return Err(StoreError::unavailable(text));
                }
            }
        }
    }

    /// Changes an item, or creates it, if the conditions hold.
    pub(super) async fn update(&self, key: &str, change: Change) -> Result<Outcome, StoreError> {
        let mut body = Map::new();
        body.insert("TableName".into(), self.table.as_str().into());
        body.insert("Key".into(), json!({ KEY: s(key) }));
        body.insert("ReturnValues".into(), "UPDATED_NEW".into());
        change.write_to(&mut body);
        match self.call("UpdateItem", &body.into()).await {
            Ok((mut answer, date)) => {
                let changed = match answer.remove("Attributes") {
                    Some(Value::Object(changed)) => changed,
                    _ => Item::new(),
                };
                Ok(Outcome::Done { changed, date })
            }
            Err(fault) if fault.name == "ConditionalCheckFailedException" => Ok(Outcome::Conflict),
            Err(fault) => Err(fault.error),
        }
    }

    /// Asks; if the table is missing and may be created, sees to that, and leaves it to the keeper
    /// to ask again.
    async fn call(
        &self,
        operation: &str,
        body: &Value,
    ) -> Result<(Map<String, Value>, Option<u64>), Fault> {
        let fault = match self.ask(operation, body).await {
            Err(fault) if self.create && fault.name == NO_TABLE => fault,
            answer => return answer,
        };
        let table = json!({
            "TableName": self.table,
            "BillingMode": "PAY_PER_REQUEST",
            "AttributeDefinitions": [{ "AttributeName": KEY, "AttributeType": "S" }],
            "KeySchema": [{ "AttributeName": KEY, "KeyType": "HASH" }],
        });
        let error = match self.ask("CreateTable", &table).await {
            Err(refused) if refused.name != "ResourceInUseException" => refused.error,
            _ => StoreError::unavailable(format!("table {} is being created", self.table)),
        };
        Err(Fault { error, ..fault })
    }

    async fn ask(
        &self,
        operation: &str,
        body: &Value,
    ) -> Result<(Map<String, Value>, Option<u64>), Fault> {
        let unnamed = |error| Fault { name: String::new(), error };
        let pass = self.access.pass().await.map_err(unnamed)?;
        let time = shifted(driver::now(), self.ahead_s.load(Ordering::Relaxed));
        let request = signed(&pass, operation, body.to_string(), time).map_err(unnamed)?;
        let reply = self.http.send(Lane::Ordinary, request).await.map_err(|error| {
            let text = format!("DynamoDB at {} did not answer: {error}", pass.endpoint);
            unnamed(StoreError::unavailable(text))
        })?;
        let date = date(&reply.headers);
        self.compare_clocks(date);
        if reply.status == StatusCode::OK {
            let answer: Result<Map<_, _>, _> = serde_json::from_slice(&reply.body);
            return Ok((answer.map_err(|_| unnamed(self.unclear()))?, date));
        }
        let fault = self.fault(&pass, &reply);
        if fault.error.kind() == StoreErrorKind::Denied {
            self.access.forget();
        }
        Err(fault)
    }

    /// DynamoDB refuses signatures of five minutes ago, and of a clock that is so far off.
    fn compare_clocks(&self, date: Option<u64>) {
        if let Some(date) = date {
            let ahead = date as i64 - driver::now_s();
            let ahead = if ahead.abs() > SKEW_MAX_S { ahead } else { 0 };
            self.ahead_s.store(ahead, Ordering::Relaxed);
        }
    }

    fn fault(&self, pass: &Pass, reply: &Reply) -> Fault {
        let answer: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
        let name = answer["__type"].as_str().unwrap_or_default();
        let name = name.rsplit('#').next().unwrap_or_default().to_owned();
        let said = answer["message"].as_str().or(answer["Message"].as_str()).unwrap_or_default();
        let said: String = said.chars().take(300).collect();
        let (table, endpoint) = (&self.table, &pass.endpoint);
        let (kind, text) = match name.as_str() {
            NO_TABLE => (
                StoreErrorKind::Unsuitable,
                format!(
                    "there is no table {table} at {endpoint}; create it, with the key {KEY:?} (a \
                     string), or let it be created by create=true"
                ),
            ),
            "AccessDeniedException" => {
                (StoreErrorKind::Denied, format!("DynamoDB at {endpoint} refuses: {said}"))
            }
            // Their texts repeat the request, session token and all.
            "UnrecognizedClientException"
            | "InvalidSignatureException"
            | "IncompleteSignatureException"
            | "MissingAuthenticationTokenException"
            | "InvalidClientTokenId"
            | "ExpiredTokenException" => (
                StoreErrorKind::Denied,
                format!("DynamoDB at {endpoint} refuses our credentials ({name})"),
            ),
            "ValidationException"
            | "SerializationException"
            | "UnknownOperationException"
            | "LimitExceededException" => (
                StoreErrorKind::Unsuitable,
                format!("DynamoDB at {endpoint} refuses the request for table {table}: {said}"),
            ),
            // Throttled, in conflict with a transaction, broken, or something else in between.
            _ => (
                StoreErrorKind::Unavailable,
                format!("DynamoDB at {endpoint} failed: {} {name}", reply.status),
            ),
        };
        Fault { name, error: StoreError::new(kind, text) }
    }

    fn unclear(&self) -> StoreError {
        StoreError::unavailable("what answers does not speak like DynamoDB")
    }
}

/// A request with its signature.
fn signed(
    pass: &Pass,
    operation: &str,
    body: String,
    time: SystemTime,
) -> Result<Request<Full<Bytes>>, StoreError> {
    // None of it quotes what it could not use.
    let unusable = || {
        let text = format!("a request to {} cannot be signed", pass.endpoint);
        StoreError::new(StoreErrorKind::Unsuitable, text)
    };
    let uri = format!("{}/", pass.endpoint);
    let target = format!("DynamoDB_20120810.{operation}");
    let headers = [(CONTENT_TYPE.as_str(), JSON), ("x-amz-target", target.as_str())];
    let identity = pass.credentials.clone().into();
    let params = v4::SigningParams::builder()
        .identity(&identity)
        .region(&pass.region)
        .name("dynamodb")
        .time(time)
        .settings(SigningSettings::default())
        .build()
        .map_err(|_| unusable())?
        .into();
    let content = SignableBody::Bytes(body.as_bytes());
    let signable = SignableRequest::new("POST", uri.as_str(), headers.into_iter(), content);
    let signed = sign(signable.map_err(|_| unusable())?, &params).map_err(|_| unusable())?;
    let (signature, _) = signed.into_parts();
    let mut request = Request::builder().method(Method::POST).uri(&uri);
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let request = request.body(Full::new(Bytes::from(body)));
    let mut request = request.map_err(|_| unusable())?;
    signature.apply_to_request_http1x(&mut request);
    Ok(request)
}

fn shifted(time: SystemTime, ahead_s: i64) -> SystemTime {
    let by = Duration::from_secs(ahead_s.unsigned_abs());
    let shifted = if ahead_s >= 0 { time.checked_add(by) } else { time.checked_sub(by) };
    shifted.unwrap_or(time)
}

/// The `Date` of an answer, in seconds since 1970.
fn date(headers: &HeaderMap) -> Option<u64> {
    parse_date(headers.get(DATE)?.to_str().ok()?)
}

/// `Sun, 06 Nov 1994 08:49:37 GMT`, the only form that servers may send today.
fn parse_date(text: &str) -> Option<u64> {
    let mut words = text.strip_suffix(" GMT")?.split(' ').skip(1);
    let day: u64 = words.next()?.parse().ok()?;
    let month = words.next()?;
    let month = MONTHS.iter().position(|known| *known == month)? as u64 + 1;
    let year: u64 = words.next()?.parse().ok()?;
    let mut clock = words.next()?.split(':').map(|part| part.parse::<u64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    if !(1970..=9999).contains(&year) || !(1..=31).contains(&day) {
        return None;
    }
    // Years begin in March here, so that the day that some have and others do not is the last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year / 4 - year / 100 + year / 400;
    let days = year * 365 + leap_days + (month * 153 + 2) / 5 + day - 1;
    Some((days - DAYS_BEFORE_1970) * 86_400 + hour * 3600 + minute * 60 + second)
}

/// By their keys.
pub(super) fn by_key(items: Vec<Item>) -> HashMap<String, Item> {
    let key = |item: &Item| super::item::string(item, KEY).unwrap_or_default().to_owned();
    items.into_iter().map(|item| (key(&item), item)).collect()
}

/// So many items one request may ask for.
pub(super) const BATCH_MAX: usize = 100;
const NO_TABLE: &str = "ResourceNotFoundException";
const JSON: &str = "application/x-amz-json-1.0";
const SKEW_MAX_S: i64 = 120;
/// From the first of March of the year 0.
const DAYS_BEFORE_1970: u64 = 719_468;
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

#[cfg(test)]
mod tests {
    use aws_credential_types::Credentials;

    use super::*;

    #[test]
    fn dates_are_read() {
        assert_eq!(parse_date("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(parse_date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(parse_date("Thu, 29 Feb 2024 23:59:59 GMT"), Some(1_709_251_199));
        assert_eq!(parse_date("Fri, 01 Mar 2024 00:00:00 GMT"), Some(1_709_251_200));
        assert_eq!(parse_date("Fri, 31 Dec 2100 00:00:00 GMT"), Some(4_133_894_400));
        for none in ["", "GMT", "Sun, 06 Nov 1994 08:49:37", "Sun, 00 Nov 1994 08:49:37 GMT"] {
            assert_eq!(parse_date(none), None, "{none}");
        }
    }

    #[test]
    fn requests_are_signed_and_hide_their_secrets() {
        let pass = Pass {
            region: "eu-west-1".into(),
            endpoint: "http://127.0.0.1:8000".into(),
            credentials: Credentials::new("AKID", "a-secret", Some("a-token".into()), None, "test"),
        };
        let time = shifted(SystemTime::UNIX_EPOCH, 1_709_251_200);
        let request = signed(&pass, "GetItem", "{}".into(), time).unwrap();
        let header = |name: &str| request.headers()[name].to_str().unwrap();
        assert_eq!(header("x-amz-date"), "20240301T000000Z");
        assert_eq!(header("x-amz-security-token"), "a-token");
        let signature = header("authorization");
        let scope = "Credential=AKID/20240301/eu-west-1/dynamodb/aws4_request, \
                     SignedHeaders=content-type;host;x-amz-date;x-amz-security-token;x-amz-target";
        assert!(signature.contains(scope), "{signature}");
        assert!(!format!("{request:?}").contains("a-secret"), "{request:?}");
    }
}
