//! A small HTTP/1.1 client: hyper, and rustls with the `ring` provider.
//!
//! It carries the requests of the stores that speak HTTP, whether they are their own or an SDK's. It
//! has no retries and no redirects (the keeper retries); a request goes out once, except that hyper
//! sends it on a second connection if the first was closed before a byte of it was written.
//! Connections are opened on the runtime that the request is made on, and kept for the next one,
//! unless the server says that it would close them meanwhile, or one of them failed: see
//! [`generations`](crate::generations).
//!
//! One HTTP/1.1 connection carries one request at a time, so there are as many connections as
//! requests under way. Whoever sends says by a [`Lane`] whether the request may wait for others.

mod proxy;

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::capture_connection;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use tenure_lease::OpenError;

use crate::connections;
use crate::generations::{Generations, Lane, Places};
use proxy::ProxiedTcp;

/// The client. Clones share their connections.
#[derive(Clone)]
pub(crate) struct Http {
    shared: Arc<HttpShared>,
}

struct HttpShared {
    connector: Connector,
    generations: Generations<Pool>,
}

type Pool = Client<Connector, Full<Bytes>>;

/// Opens a connection, with TLS if the address says so.
pub(crate) type Connector = HttpsConnector<ProxiedTcp>;

/// An answer, whatever its status.
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// Whom to trust when the server shows its certificate.
pub(crate) enum Trust<'a> {
    /// There is no TLS.
    Nothing,
    /// The authorities of this machine.
    System,
    /// The authorities in this PEM file, and no other.
    File(&'a Path),
}

impl Http {
    /// A client; it connects when it is asked something.
    pub(crate) fn new(trust: &Trust<'_>) -> Result<Self, OpenError> {
        let connector = connector(trust)?;
        let generations = Generations::new(PLACES);
        Ok(Self { shared: Arc::new(HttpShared { connector, generations }) })
    }

    /// Sends a request and takes the whole answer in. An error says that no answer came, and
    /// contains neither headers nor the URL's query, where secrets are.
    pub(crate) async fn send(
        &self,
        lane: Lane,
        request: Request<Full<Bytes>>,
    ) -> Result<Reply, String> {
        let HttpShared { connector, generations } = &*self.shared;
        let make = || connections::pool().build(connector.clone());
        let passage = generations.enter(lane, make).await;
        let reply = match exchange(passage.pool(), request).await {
            Ok(reply) => {
                let (head, body) = reply.into_parts();
                let body = Self::rest(body).await;
                body.map(|body| Reply { status: head.status, headers: head.headers, body })
            }
            Err(error) => Err(error),
        };
        match &reply {
            Ok(_) => passage.answered(),
            Err(_) => passage.failed(),
        }
        reply
    }

    /// Takes in the rest of an answer.
    pub(crate) async fn rest(body: Incoming) -> Result<Bytes, String> {
        let body = Limited::new(body, BODY_MAX).collect().await;
        Ok(body.map_err(|error| format!("its answer broke off: {error}"))?.to_bytes())
    }
}

/// Sends a request; the head of its answer.
async fn exchange(
    pool: &Pool,
    mut request: Request<Full<Bytes>>,
) -> Result<Response<Incoming>, String> {
    let connection = capture_connection(&mut request);
    let sent = pool.request(request).await;
    let reply = sent.map_err(|error| causes(&error))?;
    if closes_early(reply.headers())
        && let Some(connection) = &*connection.connection_metadata()
    {
        connection.poison();
    }
    Ok(reply)
}

/// Whether the server says that it closes idle connections earlier than we stop using them. A
/// request that it crosses on the way has no answer, and nobody knows whether it counts: a renewal
/// is better sent on a new connection.
fn closes_early(headers: &HeaderMap) -> bool {
    let said = headers.get("keep-alive").and_then(|value| value.to_str().ok());
    let timeout = said.and_then(|said| {
        let mut parts = said.split(',').filter_map(|part| part.trim().strip_prefix("timeout="));
        parts.next()?.parse().ok()
    });
    timeout.is_some_and(|seconds| Duration::from_secs(seconds) <= connections::IDLE_TIMEOUT)
}

/// What opens connections.
pub(crate) fn connector(trust: &Trust<'_>) -> Result<Connector, OpenError> {
    let roots = match trust {
        Trust::Nothing => RootCertStore::empty(),
        Trust::System => system_roots()?,
        Trust::File(path) => roots_from(path)?,
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| OpenError::Url(format!("TLS cannot be set up: {error}")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_http1()
        .wrap_connector(ProxiedTcp::from_environment()))
}

fn system_roots() -> Result<RootCertStore, OpenError> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err(OpenError::Url(
            "this machine has no certificate authorities to trust; name a PEM file (ca=…)".into(),
        ));
    }
    Ok(roots)
}

fn roots_from(path: &Path) -> Result<RootCertStore, OpenError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates_in(path)? {
        roots
            .add(certificate)
            .map_err(|error| OpenError::Url(format!("{}: {error}", path.display())))?;
    }
    Ok(roots)
}

fn certificates_in(path: &Path) -> Result<Vec<CertificateDer<'static>>, OpenError> {
    let refuse = |why: String| OpenError::Url(format!("{}: {why}", path.display()));
    let certificates: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| refuse(error.to_string()))?;
    if certificates.is_empty() {
        return Err(refuse("there is no certificate in it".into()));
    }
    Ok(certificates)
}

/// An error with all that caused it; hyper's own texts say little.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // Writing to a String cannot fail.
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}

/// No answer is longer: thousands of records with a note each.
const BODY_MAX: usize = 512 * 1024 * 1024;
/// Thousands of leases may be attached at the same moment, and their connections would use up the
/// process's descriptors; renewals and releases wait for nobody.
const PLACES: Places = Places { fresh: 16, renewals: 1024, others: 64 };

#[cfg(test)]
mod tests;
