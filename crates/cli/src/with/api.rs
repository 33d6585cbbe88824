//! The API: which requests there are, and what they answer. docs/with.md and openapi.json describe it.
#![allow(clippy::disallowed_methods, reason = "it waits for bodies and readers, and not for ever")]

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Either, Full, Limited};
use hyper::body::{Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tenure_lease::LeaseName;
use tenure_lease::record::Expiry;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::holder::{LeaseHolder, LeaseRequest, LeaseState, LeaseView};
use super::peer::Peer;
use super::refusal::Refusal;
use super::table::{LEASES_MAX, LEASES_PER_PROCESS_MAX};
use crate::lease::View;

/// An answer: a document, or events for as long as somebody reads them.
pub(super) type Answer = Response<Either<Full<Bytes>, EventBody>>;

/// What is asked.
#[derive(Debug, PartialEq)]
enum Route<'a> {
    About,
    OpenApi,
    Acquire,
    List,
    Show(&'a str),
    Events(&'a str),
    WriteNote(&'a str),
    Release(&'a str),
    Leader(&'a str),
    Record(&'a str),
}

fn route<'a>(method: &Method, path: &'a str) -> Result<Route<'a>, Refusal> {
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let (routes, allowed): (Option<Route<'a>>, &str) = match (parts.as_slice(), method.as_str()) {
        (["v1"], "GET") => (Some(Route::About), ""),
        (["v1"], _) => (None, "GET"),
        (["v1", "openapi.json"], "GET") => (Some(Route::OpenApi), ""),
        (["v1", "openapi.json"], _) => (None, "GET"),
        (["v1", "leases"], "GET") => (Some(Route::List), ""),
        (["v1", "leases"], "POST") => (Some(Route::Acquire), ""),
        (["v1", "leases"], _) => (None, "GET, POST"),
        (["v1", "leases", id], "GET") => (Some(Route::Show(id)), ""),
        (["v1", "leases", id], "DELETE") => (Some(Route::Release(id)), ""),
        (["v1", "leases", _], _) => (None, "GET, DELETE"),
        (["v1", "leases", id, "events"], "GET") => (Some(Route::Events(id)), ""),
        (["v1", "leases", _, "events"], _) => (None, "GET"),
        (["v1", "leases", id, "note"], "PUT") => (Some(Route::WriteNote(id)), ""),
        (["v1", "leases", _, "note"], _) => (None, "PUT"),
        (["v1", "leader", name], "GET") => (Some(Route::Leader(name)), ""),
        (["v1", "leader", _], _) => (None, "GET"),
        (["v1", "records", name], "GET") => (Some(Route::Record(name)), ""),
        (["v1", "records", _], _) => (None, "GET"),
        _ => {
            let message =
                format!("there is no {path:?} here; GET /v1/openapi.json lists what there is");
            return Err(Refusal::new(StatusCode::NOT_FOUND, "no_route", message));
        }
    };
    routes.ok_or_else(|| {
        let message = format!("{path} cannot be asked by {method}, only by {allowed}");
        Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method", message)
    })
}

/// Answers one request.
pub(super) async fn answer(
    holder: &Arc<LeaseHolder>,
    peer: &Arc<Peer>,
    request: Request<Incoming>,
) -> Answer {
    let path = request.uri().path().to_owned();
    let answered = match route(request.method(), &path) {
        Ok(route) => carry_out(holder, peer, route, request.into_body()).await,
        Err(refusal) => Err(refusal),
    };
    answered.unwrap_or_else(|refusal| document(refusal.status, &refusal.body()))
}

async fn carry_out(
    holder: &Arc<LeaseHolder>,
    peer: &Arc<Peer>,
    route: Route<'_>,
    body: Incoming,
) -> Result<Answer, Refusal> {
    let found = |value: &Value| Ok(document(StatusCode::OK, value));
    match route {
        Route::About => found(&about(holder)),
        Route::OpenApi => Ok(text(StatusCode::OK, OPENAPI.into())),
        Route::List => found(&json!({ "leases": holder.list(peer)? })),
        Route::Acquire => {
            let AskBody { name, wait_ms, key, note } = read(body).await?;
            if key.as_ref().is_some_and(|key| key.len() > KEY_MAX) {
                return Err(Refusal::bad_request(format!("a key is at most {KEY_MAX} bytes long")));
            }
            let request = LeaseRequest { name, wait_ms, key, note };
            let lease = holder.acquire(peer, request).await?;
            Ok(document(StatusCode::CREATED, &json!(lease)))
        }
        Route::Show(id) => {
            let lease = holder.view(holder.find(peer, id)?).ok_or_else(|| Refusal::no_lease(id))?;
            found(&json!(lease))
        }
        Route::Events(id) => {
            let news = holder.news(holder.find(peer, id)?).ok_or_else(|| Refusal::no_lease(id))?;
            let mut response = Response::new(Either::Right(EventBody::begin(news)));
            response
                .headers_mut()
                .insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
            Ok(response)
        }
        Route::WriteNote(id) => {
            let number = holder.find(peer, id)?;
            let NoteBody { note } = read(body).await?;
            holder.write_note(number, note).await?;
            found(&json!({ "written": true }))
        }
        Route::Release(id) => {
            let is_confirmed = holder.release(holder.find(peer, id)?).await?;
            found(&json!({ "state": LeaseState::Released, "confirmed": is_confirmed }))
        }
        Route::Leader(name) => found(&leader(holder, &parse_name(name)?).await?),
        Route::Record(name) => {
            let name = parse_name(name)?;
            let record = holder.store.inspect(name.as_str()).await?;
            found(&json!(View::new(&name, &holder.store.info(), record.as_ref())))
        }
    }
}

fn about(holder: &LeaseHolder) -> Value {
    json!({
        "api": 1,
        "version": env!("CARGO_PKG_VERSION"),
        "store": holder.store.info().kind,
        "ttl_ms": millis(holder.settings.ttl),
        "stop_budget_ms": millis(holder.settings.stop_budget),
        "leases_max": LEASES_MAX,
        "leases_per_process_max": LEASES_PER_PROCESS_MAX,
    })
}

/// Who holds a lease, as its record says.
async fn leader(holder: &LeaseHolder, name: &LeaseName) -> Result<Value, Refusal> {
    let nobody = || {
        let message = format!("nobody holds the lease {name}");
        Refusal::new(StatusCode::NOT_FOUND, "nobody", message)
    };
    let record = holder.store.inspect(name.as_str()).await?.ok_or_else(nobody)?;
    let owner = record.owner().ok_or_else(nobody)?;
    let remaining = match record.expiry {
        Expiry::ByStore(left) if left.is_zero() => return Err(nobody()),
        Expiry::ByStore(left) => Some(millis(left)),
        _ => None,
    };
    Ok(json!({
        "name": name,
        "owner": owner.name,
        "incarnation": format!("{:016x}", owner.incarnation),
        "token": record.token,
        "ttl_ms": millis(record.ttl),
        "remaining_ms": remaining,
        "pid": holder.holder_of(name, record.token),
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AskBody {
    name: LeaseName,
    #[serde(default)]
    wait_ms: Option<u64>,
    #[serde(default)]
    key: Option<String>,
    #[serde(default)]
    note: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoteBody {
    note: String,
}

async fn read<T: serde::de::DeserializeOwned>(body: Incoming) -> Result<T, Refusal> {
    let read = timeout(PATIENCE, Limited::new(body, BODY_MAX).collect()).await;
    let read = read.map_err(|_| {
        let message = format!("the body did not come within {PATIENCE:?}");
        Refusal::new(StatusCode::REQUEST_TIMEOUT, "slow_body", message)
    })?;
    let bytes = read.map_err(|error| match error.is::<http_body_util::LengthLimitError>() {
        true => {
            let message = format!("a body is at most {BODY_MAX} bytes long");
            Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_long", message)
        }
        false => Refusal::bad_request(format!("the body broke off: {error}")),
    })?;
    serde_json::from_slice(&bytes.to_bytes())
        .map_err(|error| Refusal::bad_request(format!("the body is not what is expected: {error}")))
}

fn parse_name(text: &str) -> Result<LeaseName, Refusal> {
    LeaseName::new(text).map_err(|error| Refusal::bad_request(error.to_string()))
}

fn document(status: StatusCode, value: &Value) -> Answer {
    text(status, value.to_string().into())
}

fn text(status: StatusCode, bytes: Bytes) -> Answer {
    let mut response = Response::new(Either::Left(Full::new(bytes)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Lines of JSON about one lease. Whoever reads slowly misses renewals, never the end, and holds up nobody.
pub(super) struct EventBody(mpsc::Receiver<Bytes>);

impl EventBody {
    fn begin(news: watch::Receiver<LeaseView>) -> Self {
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(send_events(news, sender));
        Self(receiver)
    }
}

impl hyper::body::Body for EventBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

async fn send_events(mut news: watch::Receiver<LeaseView>, sender: mpsc::Sender<Bytes>) {
    let mut is_first = true;
    loop {
        let view = news.borrow_and_update().clone();
        let event = match view.state {
            LeaseState::Held if is_first => "held",
            LeaseState::Held => "renewed",
            LeaseState::Lost => "lost",
            LeaseState::Released => "released",
        };
        is_first = false;
        let mut line = json!({ "event": event, "lease": view }).to_string();
        line.push('\n');
        // Whoever takes nothing for so long is hung up on; it can ask again.
        if !matches!(timeout(PATIENCE, sender.send(line.into())).await, Ok(Ok(()))) {
            return;
        }
        if view.state == LeaseState::Released {
            return;
        }
        tokio::select! {
            () = sender.closed() => return,
            changed = news.changed() => if changed.is_err() { return },
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The description of all this, for programs.
const OPENAPI: &str = include_str!("openapi.json");
/// Twice what the longest note takes, which leaves room to escape it.
pub(super) const BODY_MAX: usize = 128 << 10;
const KEY_MAX: usize = 128;
/// How long to wait for a body, and for a reader.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_found() {
        assert_eq!(route(&Method::GET, "/v1/leases/7"), Ok(Route::Show("7")));
        assert_eq!(route(&Method::PUT, "/v1/leases/7/note"), Ok(Route::WriteNote("7")));
        assert_eq!(route(&Method::GET, "/v1/leader/a.b"), Ok(Route::Leader("a.b")));
        let refused = |method: Method, path| route(&method, path).unwrap_err();
        assert_eq!(refused(Method::GET, "/v2").code, "no_route");
        assert_eq!(refused(Method::GET, "/v1/leases/7/").code, "no_route");
        assert_eq!(refused(Method::PATCH, "/v1/leases/7").code, "method");
    }

    /// Every operation of the document is a route; and as many as there are.
    #[test]
    fn the_document_describes_the_routes() {
        let document: Value = serde_json::from_str(OPENAPI).unwrap();
        let mut count = 0;
        for (path, operations) in document["paths"].as_object().unwrap() {
            let path = path.replace("{id}", "7").replace("{name}", "x");
            for method in operations.as_object().unwrap().keys() {
                if method == "parameters" {
                    continue;
                }
                let method = method.to_uppercase().parse().unwrap();
                assert!(route(&method, &path).is_ok(), "{method} {path}");
                count += 1;
            }
        }
        assert_eq!(count, 10);
    }
}
