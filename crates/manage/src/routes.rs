//! Every route, what it takes, and what it does. One function asks who may, for all of them.

use std::sync::{Arc, PoisonError, RwLock};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::routing::{MethodFilter, on};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::Recorder;
use crate::access::{Caller, Denied, Needs, Rules};
use crate::board::{Board, Note};
use crate::document::EntryKind;
use crate::driver::{self, Peer};
use crate::manage::{Change, Managed, Refused};

/// One route.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// GET or POST.
    pub post: bool,
    /// The path.
    pub path: &'static str,
    /// What it takes.
    pub access: Needs,
    /// It is there only in a demonstration.
    pub demo: bool,
    endpoint: Endpoint,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Endpoint {
    Alive,
    Ready,
    Metrics,
    OpenApi,
    Page(&'static str, &'static str),
    Cluster,
    Leases,
    Singletons,
    Shards,
    Regions,
    Events,
    Leave,
    Down,
    HandOver,
    Rebalance,
    /// A fault, or its end, as scripts call it.
    Demo(&'static str),
}

/// Every route there is.
pub const ROUTES: &[Route] = &[
    public("/alive", Endpoint::Alive),
    public("/ready", Endpoint::Ready),
    public("/openapi.json", Endpoint::OpenApi),
    public("/", Endpoint::Page(HTML, include_str!("../page/index.html"))),
    public("/style.css", Endpoint::Page(CSS, include_str!("../page/style.css"))),
    public("/app.js", Endpoint::Page(JS, include_str!("../page/app.js"))),
    public("/common.js", Endpoint::Page(JS, include_str!("../page/common.js"))),
    public("/demo.js", Endpoint::Page(JS, include_str!("../page/demo.js"))),
    public("/feed.js", Endpoint::Page(JS, include_str!("../page/feed.js"))),
    public("/lists.js", Endpoint::Page(JS, include_str!("../page/lists.js"))),
    public("/nodes.js", Endpoint::Page(JS, include_str!("../page/nodes.js"))),
    public("/shards.js", Endpoint::Page(JS, include_str!("../page/shards.js"))),
    public("/timeline.js", Endpoint::Page(JS, include_str!("../page/timeline.js"))),
    get("/metrics", Endpoint::Metrics),
    get("/api/cluster", Endpoint::Cluster),
    get("/api/leases", Endpoint::Leases),
    get("/api/singletons", Endpoint::Singletons),
    get("/api/shards", Endpoint::Shards),
    get("/api/regions", Endpoint::Regions),
    get("/api/events", Endpoint::Events),
    post("/api/leave", Endpoint::Leave),
    post("/api/down", Endpoint::Down),
    post("/api/hand-over", Endpoint::HandOver),
    post("/api/rebalance", Endpoint::Rebalance),
    demo("/api/demo/cut", "cut"),
    demo("/api/demo/heal", "heal"),
    demo("/api/demo/kill", "kill"),
    demo("/api/demo/pause", "pause"),
    demo("/api/demo/leave", "leave"),
    demo("/api/demo/restart", "restart"),
    demo("/api/demo/store-away", "store away"),
    demo("/api/demo/store-back", "store back"),
];

const fn public(path: &'static str, endpoint: Endpoint) -> Route {
    Route { post: false, path, access: Needs::Nothing, demo: false, endpoint }
}

const fn get(path: &'static str, endpoint: Endpoint) -> Route {
    Route { post: false, path, access: Needs::Reading, demo: false, endpoint }
}

const fn post(path: &'static str, endpoint: Endpoint) -> Route {
    Route { post: true, path, access: Needs::Writing, demo: false, endpoint }
}

const fn demo(path: &'static str, verb: &'static str) -> Route {
    let endpoint = Endpoint::Demo(verb);
    Route { post: true, path, access: Needs::Writing, demo: true, endpoint }
}

/// What all of them share.
#[derive(Clone)]
pub(crate) struct Shared {
    /// Who may; replaced when a file with a token changes.
    pub(crate) rules: Arc<RwLock<Arc<Rules>>>,
    pub(crate) board: Arc<Board>,
    pub(crate) managed: Arc<dyn Managed>,
    pub(crate) metrics: Option<Recorder>,
    /// The document at `/openapi.json`: strangers ask for it, so it is not made for each.
    pub(crate) openapi: Bytes,
    pub(crate) streams: Arc<tokio::sync::Semaphore>,
    pub(crate) asking: Arc<tokio::sync::Semaphore>,
    pub(crate) looked: driver::Looked,
}

/// What comes back; an error is a status and a sentence.
type Outcome = Result<Response, (StatusCode, String)>;

pub(crate) fn router(shared: Shared) -> Router {
    let is_demo = shared.managed.is_demo();
    let mut router = Router::new();
    for route in ROUTES.iter().filter(|route| is_demo || !route.demo) {
        let filter = if route.post { MethodFilter::POST } else { MethodFilter::GET };
        let handler = move |State(shared): State<Shared>, request: Request| async move {
            answer(*route, &shared, request).await
        };
        router = router.route(route.path, on(filter, handler));
    }
    router
        .fallback(|| async {
            failed(
                StatusCode::NOT_FOUND,
                "there is nothing at this path; /openapi.json says what there is",
            )
        })
        .method_not_allowed_fallback(|| async {
            failed(
                StatusCode::METHOD_NOT_ALLOWED,
                "this path takes another method; /openapi.json says which",
            )
        })
        .with_state(shared)
}

/// `/metrics` and `/alive`, without the rest.
pub(crate) fn metrics_router(recorder: Recorder) -> Router {
    let render = move || async move { rendered(&recorder) };
    let alive = || async { json_of(&json!({"alive": true})) };
    Router::new()
        .route("/metrics", on(MethodFilter::GET, render))
        .route("/alive", on(MethodFilter::GET, alive))
        .fallback(|| async {
            failed(
                StatusCode::NOT_FOUND,
                "there is nothing at this path, but at /metrics and /alive",
            )
        })
}

async fn answer(route: Route, shared: &Shared, request: Request) -> Response {
    let Some(peer) = request.extensions().get::<Peer>().cloned() else {
        return failed(StatusCode::INTERNAL_SERVER_ERROR, "it is not known who asks");
    };
    let outcome = match may(route.access, shared, &peer, request.headers()) {
        Ok(()) => {
            if route.access != Needs::Nothing {
                peer.place.let_in();
            }
            driver::in_time(dispatch(route.endpoint, shared, &peer, request)).await.unwrap_or_else(
                || {
                    let why = format!("it was not done within {:?}", driver::REQUEST);
                    Err((StatusCode::SERVICE_UNAVAILABLE, why))
                },
            )
        }
        Err(denied) => Err(denied),
    };
    outcome.unwrap_or_else(|(status, sentence)| failed(status, &sentence))
}

fn may(
    needs: Needs,
    shared: &Shared,
    peer: &Peer,
    headers: &HeaderMap,
) -> Result<(), (StatusCode, String)> {
    let certificate = peer.certificate.as_ref().map(|shown| match shown.writer {
        Some(_) => Needs::Writing,
        None => Needs::Reading,
    });
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let caller = Caller {
        authorization: text(header::AUTHORIZATION),
        host: text(header::HOST),
        origin: text(header::ORIGIN),
        certificate,
    };
    let rules = shared.rules.read().unwrap_or_else(PoisonError::into_inner).clone();
    rules.allow(needs, caller).map_err(|denied| match denied {
        Denied::Unknown(why) => (StatusCode::UNAUTHORIZED, why.into()),
        Denied::Forbidden(why) => (StatusCode::FORBIDDEN, why.into()),
    })
}

/// What a probe is told. Strangers are not told why: leases and stores have names.
fn probed(
    word: &str,
    is: Result<(), String>,
    shared: &Shared,
    peer: &Peer,
    request: &Request,
) -> Outcome {
    let Err(why) = is else { return Ok(json_of(&json!({word: true}))) };
    let may_read = may(Needs::Reading, shared, peer, request.headers()).is_ok();
    let why = if may_read { why } else { format!("not {word}; with a token, /{word} says why") };
    Err((StatusCode::SERVICE_UNAVAILABLE, why))
}

async fn dispatch(endpoint: Endpoint, shared: &Shared, peer: &Peer, request: Request) -> Outcome {
    let now = driver::now();
    match endpoint {
        Endpoint::Alive => probed("alive", shared.managed.alive(), shared, peer, &request),
        Endpoint::Ready => probed("ready", shared.managed.ready(), shared, peer, &request),
        Endpoint::OpenApi => Ok(typed(JSON, Body::from(shared.openapi.clone()))),
        Endpoint::Page(kind, text) => Ok(typed(kind, Body::from(text))),
        Endpoint::Metrics => match &shared.metrics {
            Some(recorder) => Ok(rendered(recorder)),
            None => Err((
                StatusCode::NOT_FOUND,
                "this process has another exporter of its metrics, or none".into(),
            )),
        },
        Endpoint::Cluster => Ok(json_of(&shared.board.cluster_json(now.ms))),
        Endpoint::Leases => {
            shared.looked.now();
            Ok(json_of(&shared.board.leases_json(now.ms, now.moment)))
        }
        Endpoint::Singletons => Ok(json_of(&shared.board.singletons_json(now.ms))),
        Endpoint::Shards => Ok(json_of(&shared.board.shards_json(now.ms))),
        Endpoint::Regions => {
            let Ok(_place) = shared.asking.try_acquire() else {
                let why = "too many ask other nodes already; ask again in a moment".to_owned();
                return Err((StatusCode::SERVICE_UNAVAILABLE, why));
            };
            let kinds = shared.managed.regions().await;
            Ok(json_of(&json!({"time_ms": now.ms, "kinds": kinds})))
        }
        Endpoint::Events => events(shared, &request),
        Endpoint::Leave => {
            let Leave { node } = body(request).await?;
            change(shared, peer, Change::Leave(node)).await
        }
        Endpoint::Down => {
            let Down { node } = body(request).await?;
            change(shared, peer, Change::Down(node)).await
        }
        Endpoint::HandOver => {
            let HandOver { singleton } = body(request).await?;
            change(shared, peer, Change::HandOver(singleton)).await
        }
        Endpoint::Rebalance => {
            let Rebalance { kind } = body(request).await?;
            change(shared, peer, Change::Rebalance(kind)).await
        }
        Endpoint::Demo(verb) => {
            let step = match verb {
                "cut" => {
                    let Cut { sides } = body(request).await?;
                    format!("{verb} {sides}")
                }
                "kill" | "leave" => {
                    let Whom { whom } = body(request).await?;
                    format!("{verb} {whom}")
                }
                "pause" => {
                    let Pause { whom, length } = body(request).await?;
                    format!("{verb} {whom} {length}")
                }
                "restart" | "store away" => {
                    let Maybe { whom } = body(request).await?;
                    format!("{verb} {}", whom.unwrap_or_default())
                }
                _ => {
                    let Nothing {} = body(request).await?;
                    verb.to_owned()
                }
            };
            change(shared, peer, Change::Demo(step.trim().to_owned())).await
        }
    }
}

async fn change(shared: &Shared, peer: &Peer, change: Change) -> Outcome {
    let changed = shared.managed.change(change).await.map_err(|refused| match refused {
        Refused::Unclear(why) => (StatusCode::BAD_REQUEST, why),
        Refused::NotFound(why) => (StatusCode::NOT_FOUND, why),
        Refused::NotNow(why) => (StatusCode::CONFLICT, why),
        Refused::Over(why) => (StatusCode::SERVICE_UNAVAILABLE, why),
    })?;
    let with = match peer.certificate.as_ref().and_then(|shown| shown.writer.as_deref()) {
        Some(name) => format!("the certificate of {name}"),
        None => "the write token".to_owned(),
    };
    let text = format!("an operator at {} with {with}: {}", peer.place.from(), changed.text);
    tracing::info!("{text}");
    let note = Note::new(EntryKind::Operator, text);
    shared.board.note(driver::now().ms, Note { node: changed.node.clone(), ..note });
    let mut response = json_of(&serde_json::to_value(&changed).unwrap_or(Value::Null));
    *response.status_mut() = StatusCode::ACCEPTED;
    Ok(response)
}

fn events(shared: &Shared, request: &Request) -> Outcome {
    let query = request.uri().query().unwrap_or_default();
    let asked = query.split('&').find_map(|part| part.strip_prefix("after="));
    let header = request.headers().get("last-event-id").and_then(|value| value.to_str().ok());
    let after = match asked.or(header) {
        Some(text) => Some(text.parse().map_err(|_| {
            (StatusCode::BAD_REQUEST, "after is the id of an event: a number".to_owned())
        })?),
        None => None,
    };
    let Ok(place) = shared.streams.clone().try_acquire_owned() else {
        let why = "too many listen already; close one of them".to_owned();
        return Err((StatusCode::SERVICE_UNAVAILABLE, why));
    };
    let feed = driver::feed(shared.board.clone(), shared.looked.clone(), after, place);
    Ok(typed("text/event-stream", Body::from_stream(feed)))
}

/// The body of a request, as JSON of this shape.
async fn body<T: DeserializeOwned>(request: Request) -> Result<T, (StatusCode, String)> {
    let (parts, body) = request.into_parts();
    let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
    // Also because a browser sends it to another origin only after asking that one.
    if !kind.is_some_and(|kind| kind.eq_ignore_ascii_case("application/json")) {
        let why = "send JSON, and say so: Content-Type: application/json";
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, why.into()));
    }
    let bytes: Bytes = driver::read(body, BODY_MAX).await.map_err(|why| {
        (StatusCode::PAYLOAD_TOO_LARGE, format!("{why}; {BODY_MAX} bytes are the most"))
    })?;
    serde_json::from_slice(&bytes).map_err(|error| (StatusCode::BAD_REQUEST, error.to_string()))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Leave {
    node: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Down {
    node: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HandOver {
    singleton: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rebalance {
    kind: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cut {
    sides: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Whom {
    whom: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pause {
    whom: String,
    #[serde(rename = "for")]
    length: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Maybe {
    whom: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

fn rendered(recorder: &Recorder) -> Response {
    typed("text/plain; version=0.0.4; charset=utf-8", Body::from(recorder.render()))
}

fn json_of(value: &Value) -> Response {
    typed(JSON, Body::from(value.to_string()))
}

fn failed(status: StatusCode, sentence: &str) -> Response {
    let mut response = json_of(&json!({"error": sentence}));
    *response.status_mut() = status;
    if status == StatusCode::UNAUTHORIZED {
        let bearer = HeaderValue::from_static("Bearer");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, bearer);
    }
    response
}

fn typed(kind: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        // The page has no network but its own server, and nothing of others runs in it.
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
        ),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

const JSON: &str = "application/json";
const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
/// The longest body.
const BODY_MAX: usize = 4096;
