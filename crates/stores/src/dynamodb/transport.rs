//! How the SDK's requests travel: by this crate's own HTTP client, which leaves hanging connections
//! behind, gives a renewal a fresh one, and lets renewals pass; the SDK's own pool does none of it.

use std::fmt;
use std::time::Duration;

use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;
use bytes::Bytes;
use http_body_util::Full;
use hyper::Response;

use super::driver::{self, ServerClock};
use crate::generations::Lane;
use crate::http::Http;

/// Carries requests on one lane.
#[derive(Clone)]
pub(super) struct SdkTransport {
    pub(super) http: Http,
    pub(super) lane: Lane,
    /// Learns from the answers, if the server is DynamoDB.
    pub(super) clock: Option<ServerClock>,
    /// For one request. `None`: until its future is dropped.
    pub(super) limit: Option<Duration>,
}

impl SdkTransport {
    async fn exchange(self, request: HttpRequest) -> Result<HttpResponse, ConnectorError> {
        let request = request.try_into_http1x().map_err(|error| user(error.into()))?;
        let (head, body) = request.into_parts();
        let body = body.bytes().ok_or_else(|| user("a body that is a stream".into()))?;
        let request = hyper::Request::from_parts(head, Full::new(Bytes::copy_from_slice(body)));
        let sent = self.http.send(self.lane, request);
        let reply = match self.limit {
            Some(limit) => driver::within(limit, sent).await.ok_or_else(|| {
                ConnectorError::timeout(format!("no answer within {limit:?}").into())
            })?,
            None => sent.await,
        };
        let reply = reply.map_err(|error| ConnectorError::io(error.into()))?;
        if let Some(clock) = &self.clock {
            clock.learn(reply.headers.get("date").and_then(|date| date.to_str().ok()));
        }
        let mut response = Response::new(SdkBody::from(reply.body));
        *response.status_mut() = reply.status;
        *response.headers_mut() = reply.headers;
        response.try_into().map_err(|error| ConnectorError::other(BoxError::from(error), None))
    }
}

impl HttpConnector for SdkTransport {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        HttpConnectorFuture::new(self.clone().exchange(request))
    }
}

impl HttpClient for SdkTransport {
    fn http_connector(
        &self,
        settings: &HttpConnectorSettings,
        _: &RuntimeComponents,
    ) -> SharedHttpConnector {
        let limits = [settings.connect_timeout(), settings.read_timeout()];
        let limit = limits.into_iter().flatten().reduce(|a, b| a + b);
        SharedHttpConnector::new(Self { limit, ..self.clone() })
    }
}

impl fmt::Debug for SdkTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SdkTransport").field("lane", &self.lane).finish_non_exhaustive()
    }
}

fn user(error: BoxError) -> ConnectorError {
    ConnectorError::user(error)
}
