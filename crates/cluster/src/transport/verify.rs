//! Who a certificate stands for: chains are checked as everywhere, names are not.
//!
//! Nodes move between machines and are dialed by whatever address is known, so host names prove
//! nothing here. What counts is the URI `tenure://CLUSTER/NAME` among the certificate's subject
//! alternative names: signed by the cluster's authority, it says which cluster the bearer belongs
//! to and what it is called. `tenure://CLUSTER/*` is for a certificate that all replicas share, and
//! `tenure://CLUSTER/client/NAME` for a client, which is no node: no node's name has a slash.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore,
    SignatureScheme,
};
use webpki::{
    CertRevocationList, EndEntityCert, ExpirationPolicy, KeyUsage, RevocationOptionsBuilder,
    UnknownStatusPolicy,
};

use super::handshake::{Names, is_client_name, is_name};
use super::refusal::Refusal;

/// Checks the certificates of peers, whichever side dialed.
#[derive(Debug)]
pub(crate) struct Verifier {
    cluster: String,
    roots: Vec<TrustAnchor<'static>>,
    hints: Vec<DistinguishedName>,
    revoked: Vec<CertRevocationList<'static>>,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    pub(crate) fn new(
        cluster: &str,
        roots: RootCertStore,
        revoked: Vec<CertRevocationList<'static>>,
        provider: Arc<CryptoProvider>,
    ) -> Self {
        let hints = roots.subjects();
        Self { cluster: cluster.into(), roots: roots.roots, hints, revoked, provider }
    }

    /// The names that a certificate is good for, if its chain and its cluster are right at `now`.
    pub(crate) fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
        usage: KeyUsage,
    ) -> Result<Names, Error> {
        self.anchor(leaf, chain, now, usage)?;
        names(leaf, &self.cluster).map_err(|refusal| {
            Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(refusal))))
        })
    }

    /// Which of the authorities, counted from 0, a certificate is of, if its chain is right at `now`.
    pub(crate) fn anchor(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
        usage: KeyUsage,
    ) -> Result<usize, Error> {
        let algorithms = self.provider.signature_verification_algorithms.all;
        let parsed = EndEntityCert::try_from(leaf).map_err(invalid)?;
        let lists: Vec<&CertRevocationList<'_>> = self.revoked.iter().collect();
        // An authority without a list revokes nothing, and what an old list revokes stays revoked.
        let revocation = RevocationOptionsBuilder::new(&lists).ok().map(|options| {
            options
                .with_status_policy(UnknownStatusPolicy::Allow)
                .with_expiration_policy(ExpirationPolicy::Ignore)
                .build()
        });
        let path = parsed
            .verify_for_usage(algorithms, &self.roots, chain, now, usage, revocation, None)
            .map_err(invalid)?;
        let found = self.roots.iter().position(|root| root == path.anchor());
        Ok(found.unwrap_or_default()) // Always found: the path ends in one of them.
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
            Some((of, name)) if of == cluster && (is_name(name) || is_client_name(name)) => {
                names.push(name.into());
            }
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

/// From when to when a certificate is good, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) not_before: u64,
    pub(crate) not_after: u64,
}

impl Validity {
    /// Reads it. webpki tells dates only where it refuses them, before it looks at anything else; so
    /// it is asked for the first moment and for one that no certificate reaches.
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let parsed = EndEntityCert::try_from(certificate).ok()?;
        let refusal = |seconds| {
            let at = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
            let usage = KeyUsage::server_auth();
            parsed.verify_for_usage(&[], &[], &[], at, usage, None, None).err()
        };
        let not_before = match refusal(0) {
            Some(webpki::Error::CertNotValidYet { not_before, .. }) => not_before.as_secs(),
            _ => 0,
        };
        let not_after = match refusal(YEAR_10000) {
            Some(webpki::Error::CertExpired { not_after, .. }) => not_after.as_secs(),
            _ => YEAR_10000,
        };
        Some(Self { not_before, not_after })
    }
}

fn invalid(error: webpki::Error) -> Error {
    let certificate = match error {
        webpki::Error::CertRevoked => CertificateError::Revoked,
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
/// Later than any date in a certificate, in seconds since 1970.
const YEAR_10000: u64 = 253_402_300_800;
