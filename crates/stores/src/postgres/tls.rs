//! TLS by rustls, for those who ask for it.
//!
//! There is one kind: the server's certificate and name are verified. (libpq's `require` takes any
//! certificate, which keeps out nobody who can redirect a connection; here it verifies.)

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tenure_lease::OpenError;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_rustls::{TlsConnector, client};

/// Makes TLS streams, or refuses to.
#[derive(Clone)]
pub(super) struct Tls(Option<Arc<ClientConfig>>);

/// PEM files.
pub(super) struct Files<'a> {
    /// Whom to trust; `None`: whom the system trusts.
    pub(super) roots: Option<&'a str>,
    pub(super) certificate: Option<&'a str>,
    pub(super) key: Option<&'a str>,
}

impl Tls {
    pub(super) fn off() -> Self {
        Self(None)
    }

    pub(super) fn on(files: Files<'_>) -> Result<Self, OpenError> {
        let mut roots = RootCertStore::empty();
        match files.roots {
            Some(path) => {
                for certificate in certificates(path)? {
                    roots.add(certificate).map_err(|error| unusable(path, &error))?;
                }
            }
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        if roots.is_empty() {
            return Err(OpenError::Url(
                "no certificate to trust was found; name sslrootcert".into(),
            ));
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| OpenError::Url(format!("TLS cannot be set up: {error}")))?
            .with_root_certificates(roots);
        let config = match (files.certificate, files.key) {
            (None, None) => builder.with_no_client_auth(),
            (Some(certificate), Some(key)) => {
                let secret =
                    PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key, &error))?;
                builder
                    .with_client_auth_cert(certificates(certificate)?, secret)
                    .map_err(|error| unusable(certificate, &error))?
            }
            _ => return Err(OpenError::Url("sslcert and sslkey belong together".into())),
        };
        Ok(Self(Some(Arc::new(config))))
    }

    pub(super) fn is_on(&self) -> bool {
        self.0.is_some()
    }
}

fn certificates(path: &str) -> Result<Vec<CertificateDer<'static>>, OpenError> {
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| unusable(path, &error))
}

fn unusable(path: &str, error: &dyn std::fmt::Display) -> OpenError {
    OpenError::Url(format!("{path:?} cannot be used: {error}"))
}

impl<S> MakeTlsConnect<S> for Tls
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Stream<S>;
    type TlsConnect = Connect;
    type Error = io::Error;

    fn make_tls_connect(&mut self, domain: &str) -> Result<Connect, io::Error> {
        let Some(config) = &self.0 else { return Ok(Connect(None)) };
        let name = ServerName::try_from(domain.to_owned())
            .map_err(|_| io::Error::other("the host has no name that a certificate could carry"))?;
        Ok(Connect(Some((TlsConnector::from(Arc::clone(config)), name))))
    }
}

/// One TLS handshake to come.
pub(super) struct Connect(Option<(TlsConnector, ServerName<'static>)>);

impl<S> TlsConnect<S> for Connect
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Stream<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let Some((connector, name)) = self.0 else {
                return Err(io::Error::other("TLS was not asked for"));
            };
            Ok(Stream(Box::new(connector.connect(name, stream).await?)))
        })
    }
}

/// A stream inside TLS.
pub(super) struct Stream<S>(Box<client::TlsStream<S>>);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Stream<S> {
    /// None: whoever could stand in the middle would need a certificate that we trust.
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Stream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
