//! A node's certificate, read from a directory and read again when it changes.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::{fs, io};

use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use webpki::KeyUsage;

use super::verify::{self, Verifier};

/// The files of a node's identity, in one directory:
///
/// | file | what |
/// |---|---|
/// | `ca.pem` | the certificates of the authorities that peers must be signed by: two, while one replaces the other |
/// | `node.pem` | this node's certificate, followed by intermediate ones if there are any |
/// | `node.key` | its private key, readable by nobody else |
///
/// The node's certificate carries the URI `tenure://CLUSTER/NAME` as a subject alternative name, or
/// `tenure://CLUSTER/*` if all nodes share one. Take an authority that signs for nothing else.
#[derive(Clone, Debug)]
pub struct Identity(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    dir: PathBuf,
    cluster: String,
    name: String,
    current: RwLock<Arc<Tls>>,
    /// The content that was last looked at, good or bad.
    seen: Mutex<Files>,
}

/// What connections are made with.
#[derive(Debug)]
pub(crate) struct Tls {
    pub(crate) client: Arc<ClientConfig>,
    pub(crate) server: Arc<ServerConfig>,
}

/// What the files hold. Compared as a whole: times of modification do not tell of a change within
/// one tick of a file system's clock, nor of a link that was turned to another file.
#[derive(Clone, Default, PartialEq, Eq)]
struct Files {
    ca: Vec<u8>,
    node: Vec<u8>,
    key: Vec<u8>,
}

impl Identity {
    /// Reads the identity of the node `name` of `cluster`, and checks that peers will accept it.
    pub fn load(dir: impl Into<PathBuf>, cluster: &str, name: &str) -> Result<Self, IdentityError> {
        let dir = dir.into();
        let files = Files::read(&dir)?;
        let tls = files.tls(&dir, cluster, name)?;
        Ok(Self(Arc::new(Inner {
            dir,
            cluster: cluster.into(),
            name: name.into(),
            current: RwLock::new(Arc::new(tls)),
            seen: Mutex::new(files),
        })))
    }

    /// Reads the files again, and says whether anything had changed. New connections use what was
    /// read; existing ones stay. If the files are not good, the identity stays as it is.
    pub fn reload(&self) -> Result<bool, IdentityError> {
        let inner = &self.0;
        let files = Files::read(&inner.dir)?;
        let mut seen = inner.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if *seen == files {
            return Ok(false);
        }
        // Remembered before it is judged: bad files are complained of once, not at every look.
        seen.clone_from(&files);
        let tls = files.tls(&inner.dir, &inner.cluster, &inner.name)?;
        *inner.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(tls);
        Ok(true)
    }

    /// The cluster whose certificates it accepts.
    pub fn cluster(&self) -> &str {
        &self.0.cluster
    }

    /// The node's name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    pub(crate) fn tls(&self) -> Arc<Tls> {
        self.0.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Files {
    fn read(dir: &Path) -> Result<Self, IdentityError> {
        let read = |name: &str| {
            let path = dir.join(name);
            fs::read(&path).map_err(|source| IdentityError::Read { path, source })
        };
        Ok(Self { ca: read("ca.pem")?, node: read("node.pem")?, key: read("node.key")? })
    }

    fn tls(&self, dir: &Path, cluster: &str, name: &str) -> Result<Tls, IdentityError> {
        let bad = |file: &str, why: String| IdentityError::Bad { path: dir.join(file), why };
        let parse = |file: &str, pem: &[u8]| {
            let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(pem)
                .collect::<Result<_, _>>()
                .map_err(|error| bad(file, error.to_string()))?;
            match certificates.is_empty() {
                true => Err(bad(file, "it holds no certificate in PEM".into())),
                false => Ok(certificates),
            }
        };
        let mut roots = RootCertStore::empty();
        for certificate in parse("ca.pem", &self.ca)? {
            roots.add(certificate).map_err(|error| bad("ca.pem", error.to_string()))?;
        }
        let chain = parse("node.pem", &self.node)?;
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|error| bad("node.key", error.to_string()))?;

        let provider = Arc::new(ring::default_provider());
        let verifier = Arc::new(Verifier::new(cluster, roots, provider.clone()));
        // What peers will judge, we judge first. The wall clock is right here: certificates are
        // dated by it.
        for usage in [KeyUsage::server_auth(), KeyUsage::client_auth()] {
            let names = verifier
                .verify(&chain[0], &chain[1..], UnixTime::now(), usage)
                .map_err(|error| bad("node.pem", error.to_string()))?;
            if !names.covers(name) {
                let wanted = verify::uri(cluster, name);
                return Err(bad("node.pem", format!("it is for {names}; it must name {wanted}")));
            }
        }

        let mismatch =
            |error: rustls::Error| bad("node.key", format!("it does not fit node.pem: {error}"));
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(mismatch)?
            .with_client_cert_verifier(verifier.clone())
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(mismatch)?;
        // Every connection proves its certificate anew: none outlives its expiry by resumption.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        server.alpn_protocols = vec![ALPN.to_vec()];

        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(mismatch)?
            .dangerous() // As in "own verifier": chain and URI, see there.
            .with_custom_certificate_verifier(verifier)
            .with_client_auth_cert(chain, key)
            .map_err(mismatch)?;
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        client.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Tls { client: Arc::new(client), server: Arc::new(server) })
    }
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Files(…)") // A key is among them.
    }
}

/// Why there is no identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file cannot be used.
    #[error("{} cannot be used: {why}", path.display())]
    Bad {
        /// Which.
        path: PathBuf,
        /// Why.
        why: String,
    },
}

/// Keeps connections to other servers with certificates of the same authority from being taken for
/// ours.
const ALPN: &[u8] = b"tenure";
