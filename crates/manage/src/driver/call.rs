//! One request to another node, over TCP or TLS.

use std::path::Path;
use std::sync::Arc;

use axum::body::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::version::{TLS12, TLS13};
use rustls::{CertificateError, ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::{PATIENCE, tls};
use crate::client::ClientError;

/// What a server's certificate is held against, and the certificate and key that are shown to it.
pub(crate) fn client_tls(
    ca: &Path,
    own: Option<(&Path, &Path)>,
) -> Result<Arc<ClientConfig>, ClientError> {
    let usage = |error: &dyn std::fmt::Display| ClientError::Usage(error.to_string());
    let mut roots = RootCertStore::empty();
    for certificate in tls::certificates(ca).map_err(|error| usage(&error))? {
        roots.add(certificate).map_err(|error| usage(&error))?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(|error| usage(&error))?
        .with_root_certificates(roots);
    let config = match own {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => {
            let (chain, key) = tls::pair(certificate, key).map_err(|error| usage(&error))?;
            config.with_client_auth_cert(chain, key).map_err(|error| usage(&error))?
        }
    };
    Ok(Arc::new(config))
}

/// The answer, whole; or why there is none.
pub(crate) async fn exchange(
    to: (&str, u16),
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, Bytes), String> {
    let whole = async {
        let stream = TcpStream::connect(to).await.map_err(|error| error.to_string())?;
        match tls {
            None => send(stream, request).await,
            Some((config, name)) => {
                let stream = TlsConnector::from(config).connect(name.clone(), stream).await;
                send(stream.map_err(|error| refused(&error, &name))?, request).await
            }
        }
    };
    timeout(PATIENCE, whole).await.unwrap_or_else(|_| Err(format!("nothing within {PATIENCE:?}")))
}

/// Why TLS failed, with what to do about the two most usual reasons.
fn refused(error: &std::io::Error, name: &ServerName<'_>) -> String {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => {
            let host = name.to_str();
            format!("its certificate does not name the host {host} (tenure certs --host {host})")
        }
        Some(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
            "its certificate is not of the authority in --ca".into()
        }
        _ => error.to_string(),
    }
}

async fn send(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, Bytes), String> {
    let said = |error: hyper::Error| error.to_string();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(said)?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(said)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_MAX).collect().await;
        Ok((status, body.map_err(|error| error.to_string())?.to_bytes()))
    };
    tokio::pin!(connection, answer);
    tokio::select! {
        answer = &mut answer => answer,
        // It ends when the answer is whole, at the earliest.
        _ = &mut connection => answer.await,
    }
}

/// More than ten thousand members take.
const ANSWER_MAX: usize = 64 << 20;
