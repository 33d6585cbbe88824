//! TLS by rustls, for those who ask for it.
//!
//! There is one kind: the server's certificate and name are verified. (libpq's `require` takes any
//! certificate, which keeps out nobody who can redirect a connection; here it verifies.) A password
//! is bound to the TLS channel where the server offers SCRAM-SHA-256-PLUS.

use std::sync::Arc;

use rustls::client::WantsClientCert;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore};
use tenure_lease::OpenError;
use tokio_postgres::Socket;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres_rustls::MakeRustlsConnect;

/// Whether to speak TLS, and how.
#[derive(Clone)]
pub(super) struct Tls {
    /// Trusts nobody if TLS is off; `sslmode` then keeps it from being used.
    pub(super) connector: MakeRustlsConnect,
    is_on: bool,
}

/// What a connection reads and writes, with or without TLS.
pub(super) type Stream = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;

/// PEM files.
pub(super) struct Files<'a> {
    /// Whom to trust; `None`: whom the system trusts.
    pub(super) roots: Option<&'a str>,
    pub(super) certificate: Option<&'a str>,
    pub(super) key: Option<&'a str>,
}

impl Tls {
    pub(super) fn off() -> Result<Self, OpenError> {
        let config = trusting(RootCertStore::empty())?.with_no_client_auth();
        Ok(Self { connector: MakeRustlsConnect::new(config), is_on: false })
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
        let builder = trusting(roots)?;
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
        Ok(Self { connector: MakeRustlsConnect::new(config), is_on: true })
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }
}

fn trusting(
    roots: RootCertStore,
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, OpenError> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| OpenError::Url(format!("TLS cannot be set up: {error}")))?;
    Ok(builder.with_root_certificates(roots))
}

fn certificates(path: &str) -> Result<Vec<CertificateDer<'static>>, OpenError> {
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| unusable(path, &error))
}

fn unusable(path: &str, error: &dyn std::fmt::Display) -> OpenError {
    OpenError::Url(format!("{path:?} cannot be used: {error}"))
}
