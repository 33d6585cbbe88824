//! Who a certificate stands for: chains are checked as everywhere, names are not.
//!
//! Nodes move between machines and are dialed by whatever address is known, so host names prove
//! nothing here. What counts is the URI `tenure://CLUSTER/NAME` among the certificate's subject
//! alternative names: signed by the cluster's authority, it says which cluster the bearer belongs
//! to and what it is called. `tenure://CLUSTER/*` is for a certificate that all replicas share.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore,
    SignatureScheme,
};
use webpki::{EndEntityCert, KeyUsage};

use super::handshake::{Names, is_name};
use super::refusal::Refusal;

/// Checks the certificates of peers, whichever side dialed.
#[derive(Debug)]
pub(crate) struct Verifier {
    cluster: String,
    roots: Vec<TrustAnchor<'static>>,
    hints: Vec<DistinguishedName>,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    pub(crate) fn new(cluster: &str, roots: RootCertStore, provider: Arc<CryptoProvider>) -> Self {
        let hints = roots.subjects();
        Self { cluster: cluster.into(), roots: roots.roots, hints, provider }
    }

    /// The names that a certificate is good for, if its chain and its cluster are right at `now`.
    pub(crate) fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
        usage: KeyUsage,
    ) -> Result<Names, Error> {
        let algorithms = self.provider.signature_verification_algorithms.all;
        let parsed = EndEntityCert::try_from(leaf).map_err(invalid)?;
        parsed
            .verify_for_usage(algorithms, &self.roots, chain, now, usage, None, None)
            .map_err(invalid)?;
        names(leaf, &self.cluster).map_err(|refusal| {
            Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(refusal))))
        })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.verify(leaf, chain, now, KeyUsage::server_auth())?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(only_tls13())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, leaf, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.verify(leaf, chain, now, KeyUsage::client_auth())?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(only_tls13())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        ServerCertVerifier::verify_tls13_signature(self, message, leaf, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ServerCertVerifier::supported_verify_schemes(self)
    }
}

/// The URI that stands for a node.
pub(crate) fn uri(cluster: &str, name: &str) -> String {
    format!("{SCHEME}{cluster}/{name}")
}

/// The names that a certificate is good for in a cluster. Its chain must have been checked.
pub(crate) fn names(leaf: &CertificateDer<'_>, cluster: &str) -> Result<Names, Refusal> {
    let parsed = EndEntityCert::try_from(leaf).map_err(|error| Refusal::Tls(error.to_string()))?;
    let mut names = Vec::new();
    for uri in parsed.valid_uri_names() {
        let path = uri.strip_prefix(SCHEME).and_then(|rest| rest.split_once('/'));
        match path {
            Some((of, "*")) if of == cluster => return Ok(Names::Any),
            Some((of, name)) if of == cluster && is_name(name) => names.push(name.into()),
            _ => {}
        }
    }
    if names.is_empty() {
        let all: Vec<&str> = parsed.valid_uri_names().take(4).collect();
        let named = if all.is_empty() { "no URI".into() } else { format!("{all:?}") };
        return Err(Refusal::Certificate { cluster: cluster.into(), named });
    }
    Ok(Names::Only(names))
}

fn invalid(error: webpki::Error) -> Error {
    let certificate = match error {
        webpki::Error::CertExpired { time, not_after } => {
            CertificateError::ExpiredContext { time, not_after }
        }
        webpki::Error::CertNotValidYet { time, not_before } => {
            CertificateError::NotValidYetContext { time, not_before }
        }
        // Another authority of the same name is another authority.
        webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey => {
            CertificateError::UnknownIssuer
        }
        webpki::Error::BadDer | webpki::Error::BadDerTime => CertificateError::BadEncoding,
        other => CertificateError::Other(OtherError(Arc::new(other))),
    };
    Error::InvalidCertificate(certificate)
}

fn only_tls13() -> Error {
    Error::General("only TLS 1.3 is spoken here".into())
}

const SCHEME: &str = "tenure://";
