//! The server's certificate, and what a client's lets it do.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig};
use webpki::EndEntityCert;

use crate::access::Needs;
use crate::manage::ManageError;
use crate::settings::Settings;

/// What connections are accepted with; none without a certificate.
pub(super) fn load(settings: &Settings) -> Result<Option<Arc<ServerConfig>>, ManageError> {
    let (Some(certificate), Some(key_file)) = (&settings.certificate, &settings.key) else {
        return Ok(None);
    };
    let bad = |path: &Path, why: String| ManageError::Certificate { path: path.into(), why };
    let (chain, key) = pair(certificate, key_file)?;
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(|error| bad(certificate, error.to_string()))?;
    let builder = match &settings.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| bad(path, error.to_string()))?;
            }
            // Probes have none; what they may see needs none.
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .allow_unauthenticated()
                .build()
                .map_err(|error| bad(path, error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|error| bad(key_file, format!("it does not fit the certificate: {error}")))?;
    // Every connection proves its certificate anew: none outlives its expiry by resumption.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Some(Arc::new(config)))
}

/// A chain of certificates, and the key that goes with it.
pub(super) fn pair(
    certificate: &Path,
    key: &Path,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), ManageError> {
    let chain = certificates(certificate)?;
    let bad = |why: String| ManageError::Certificate { path: key.into(), why };
    let pem = fs::read(key).map_err(|error| bad(error.to_string()))?;
    let key = PrivateKeyDer::from_pem_slice(&pem).map_err(|error| bad(error.to_string()))?;
    Ok((chain, key))
}

pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ManageError> {
    let bad = |why: String| ManageError::Certificate { path: path.into(), why };
    let pem = fs::read(path).map_err(|error| bad(error.to_string()))?;
    let all: Vec<_> = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|error| bad(error.to_string()))?;
    if all.is_empty() {
        return Err(bad("it holds no certificate in PEM".into()));
    }
    Ok(all)
}

/// What this certificate, which was verified, lets its owner do.
pub(super) fn grants(certificate: &CertificateDer<'_>, writers: &[String]) -> Needs {
    let named = |name: &String| {
        let Ok(name) = ServerName::try_from(name.as_str()) else { return false };
        EndEntityCert::try_from(certificate)
            .is_ok_and(|certificate| certificate.verify_is_valid_for_subject_name(&name).is_ok())
    };
    if writers.iter().any(named) { Needs::Writing } else { Needs::Reading }
}
