//! TCP connections, through a proxy where `HTTPS_PROXY` and `NO_PROXY` say so.
//!
//! Only to `https:` addresses, by CONNECT: TLS is then spoken with the server itself. Metadata
//! services and emulators, which are `http:`, are on this machine or beside it.

use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::proxy::matcher::Matcher;
use tower_service::Service;

use tenure_lease::backend::Boxed;

use crate::connections;

/// Opens TCP connections.
#[derive(Clone)]
pub(crate) struct ProxiedTcp {
    tcp: HttpConnector,
    proxies: Arc<Matcher>,
}

impl ProxiedTcp {
    /// As the environment says.
    pub(super) fn from_environment() -> Self {
        Self { tcp: connections::tcp(), proxies: Arc::new(Matcher::from_env()) }
    }
}

impl Service<Uri> for ProxiedTcp {
    type Response = <HttpConnector as Service<Uri>>::Response;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = Boxed<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.tcp.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        let is_tls = server.scheme_str() == Some("https");
        let proxy = self.proxies.intercept(&server).filter(|_| is_tls);
        let Some(proxy) = proxy else {
            let connecting = self.tcp.call(server);
            return Box::pin(async { connecting.await.map_err(Into::into) });
        };
        if proxy.uri().scheme_str() != Some("http") {
            return Box::pin(async { Err("HTTPS_PROXY is not \"http://host:port\"".into()) });
        }
        let mut tunnel = Tunnel::new(proxy.uri().clone(), self.tcp.clone());
        if let Some(credentials) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(credentials.clone());
        }
        let connecting = tunnel.call(server);
        Box::pin(async { connecting.await.map_err(Into::into) })
    }
}
