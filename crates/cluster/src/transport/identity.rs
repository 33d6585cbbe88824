//! A node's certificate, read from a directory and read again when it changes.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::{fs, io};

use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::version::TLS13;
use rustls::{CertificateError, ClientConfig, RootCertStore, ServerConfig};
use webpki::{CertRevocationList, KeyUsage, OwnedCertRevocationList};

use super::Direction;
use super::verify::{self, Validity, Verifier};

/// The files of a node's identity, in one directory:
///
/// | file | what |
/// |---|---|
/// | `ca.pem` | the certificates of the authorities that peers must be signed by: two, while one replaces the other |
/// | `node.pem` | this node's certificate, followed by intermediate ones if there are any |
/// | `node.key` | its private key, readable by nobody else |
/// | `crl.pem` | lists of revoked certificates, of one or several of the authorities; need not be there |
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
    /// The content that was last looked at, good or bad; none if time alone may make it good.
    seen: Mutex<Option<Files>>,
}

/// What connections are made with.
#[derive(Debug)]
pub(crate) struct Tls {
    pub(crate) client: Arc<ClientConfig>,
    pub(crate) server: Arc<ServerConfig>,
    /// This node's own certificate.
    pub(crate) leaf: CertificateDer<'static>,
    pub(crate) expiries: [Expiry; 2],
    verifier: Arc<Verifier>,
}

/// Until when a file of the identity is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expiry {
    /// Its name in the directory: `node.pem`, or `ca.pem` for the authority of `node.pem`.
    pub(crate) file: &'static str,
    pub(crate) validity: Validity,
}

impl Expiry {
    /// Seconds that are left; less than 0 when it is over.
    pub(crate) fn seconds_left(&self, now: UnixTime) -> i64 {
        self.validity.not_after.cast_signed() - now.as_secs().cast_signed()
    }
}

/// What the files hold. Compared as a whole: times of modification do not tell of a change within
/// one tick of a file system's clock, nor of a link that was turned to another file.
#[derive(Clone, Default, PartialEq, Eq)]
struct Files {
    ca: Vec<u8>,
    node: Vec<u8>,
    key: Vec<u8>,
    /// Empty if there is none.
    revoked: Vec<u8>,
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
            seen: Mutex::new(Some(files)),
        })))
    }

    /// Reads the files again, and says whether anything had changed. New connections use what was
    /// read; a [`Transport`](super::Transport) also checks the peers of existing ones again. If the
    /// files are not good, the identity stays as it is.
    pub fn reload(&self) -> Result<bool, IdentityError> {
        let inner = &self.0;
        let files = Files::read(&inner.dir)?;
        let mut seen = inner.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.as_ref() == Some(&files) {
            return Ok(false);
        }
        let read = files.tls(&inner.dir, &inner.cluster, &inner.name);
        // Bad files are judged once, not at every look; but what is not valid yet will be.
        *seen = (!matches!(read, Err(IdentityError::NotYet { .. }))).then_some(files);
        let tls = read?;
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

    /// Says which file is over, if this node's certificate is.
    pub(crate) fn expired(&self, now: UnixTime) -> Option<String> {
        let tls = self.tls();
        let over = tls.expiries.iter().find(|it| it.file == NODE && it.seconds_left(now) < 0)?;
        let path = self.0.dir.join(over.file);
        Some(format!(
            "its certificate {} has expired; renew it (tenure certs renew)",
            path.display()
        ))
    }

    /// Where a file of the identity is.
    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.0.dir.join(file)
    }

    /// Whether the chain that a peer has shown is still accepted for its name.
    pub(crate) fn check_peer(
        &self,
        chain: &[CertificateDer<'static>],
        name: &str,
        direction: Direction,
    ) -> Result<(), String> {
        let Some((leaf, rest)) = chain.split_first() else {
            return Err("it showed no certificate".into());
        };
        let usage = match direction {
            Direction::Incoming => KeyUsage::client_auth(),
            Direction::Outgoing => KeyUsage::server_auth(),
        };
        let names = self.tls().verifier.verify(leaf, rest, UnixTime::now(), usage);
        match names {
            Ok(names) if names.covers(name) => Ok(()),
            Ok(names) => Err(format!("it is for {names}")),
            Err(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
                Err("it is not of an authority in ca.pem".into())
            }
            Err(rustls::Error::InvalidCertificate(CertificateError::Revoked)) => {
                Err("crl.pem revokes it".into())
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

impl Files {
    fn read(dir: &Path) -> Result<Self, IdentityError> {
        let read = |name: &str| {
            let path = dir.join(name);
            fs::read(&path).map_err(|source| IdentityError::Read { path, source })
        };
        let revoked = match read(REVOKED) {
            Err(IdentityError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Vec::new()
            }
            read => read?,
        };
        Ok(Self { ca: read(CA)?, node: read(NODE)?, key: read(KEY)?, revoked })
    }

    /// The lists of revoked certificates.
    fn lists(&self) -> Result<Vec<CertRevocationList<'static>>, String> {
        let parse = |list: CertificateRevocationListDer<'_>| {
            OwnedCertRevocationList::from_der(&list).map(CertRevocationList::from)
        };
        let lists: Vec<_> = CertificateRevocationListDer::pem_slice_iter(&self.revoked)
            .map(|list| parse(list.map_err(|error| error.to_string())?).map_err(|e| e.to_string()))
            .collect::<Result<_, String>>()?;
        match lists.is_empty() && !self.revoked.is_empty() {
            true => Err("it holds no list of revoked certificates in PEM (X509 CRL)".into()),
            false => Ok(lists),
        }
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
        let authorities = parse(CA, &self.ca)?;
        let mut roots = RootCertStore::empty();
        for certificate in &authorities {
            roots.add(certificate.clone()).map_err(|error| bad(CA, error.to_string()))?;
        }
        let chain = parse(NODE, &self.node)?;
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|error| bad(KEY, error.to_string()))?;
        let lists = self.lists().map_err(|why| bad(REVOKED, why))?;

        let provider = Arc::new(ring::default_provider());
        let verifier = Arc::new(Verifier::new(cluster, roots, lists, provider.clone()));
        let not_good = |error: rustls::Error| match error {
            rustls::Error::InvalidCertificate(CertificateError::NotValidYetContext {
                not_before,
                ..
            }) => IdentityError::NotYet { path: dir.join(NODE), not_before: not_before.as_secs() },
            rustls::Error::InvalidCertificate(CertificateError::Revoked) => {
                bad(NODE, "crl.pem revokes it".into())
            }
            error => bad(NODE, error.to_string()),
        };
        // What peers will judge, we judge first. The wall clock is right here: certificates are
        // dated by it.
        let now = UnixTime::now();
        for usage in [KeyUsage::server_auth(), KeyUsage::client_auth()] {
            let names = verifier.verify(&chain[0], &chain[1..], now, usage).map_err(not_good)?;
            if !names.covers(name) {
                let wanted = verify::uri(cluster, name);
                return Err(bad(NODE, format!("it is for {names}; it must name {wanted}")));
            }
        }
        let authority = verifier
            .anchor(&chain[0], &chain[1..], now, KeyUsage::server_auth())
            .map_err(not_good)?;
        let unread = |file| move || bad(file, "its dates cannot be read".into());
        // Of a chain, what ends first.
        let validities = chain.iter().filter_map(Validity::of);
        let own = validities.min_by_key(|it| it.not_after).ok_or_else(unread(NODE))?;
        let of_authority =
            authorities.get(authority).and_then(Validity::of).ok_or_else(unread(CA))?;
        let expiries =
            [Expiry { file: NODE, validity: own }, Expiry { file: CA, validity: of_authority }];

        let mismatch =
            |error: rustls::Error| bad(KEY, format!("it does not fit node.pem: {error}"));
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
            .with_custom_certificate_verifier(verifier.clone())
            .with_client_auth_cert(chain.clone(), key)
            .map_err(mismatch)?;
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        client.alpn_protocols = vec![ALPN.to_vec()];
        let leaf = chain[0].clone();
        Ok(Tls { client: Arc::new(client), server: Arc::new(server), leaf, expiries, verifier })
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
    /// A certificate whose time has not come. It is looked at again.
    #[error(
        "{} is not valid yet, but from {not_before} s after 1970-01-01 on: is this machine's clock \
         right?",
        path.display()
    )]
    NotYet {
        /// Which.
        path: PathBuf,
        /// From when on it is valid, in seconds since 1970.
        not_before: u64,
    },
}

pub(crate) const NODE: &str = "node.pem";
const CA: &str = "ca.pem";
const KEY: &str = "node.key";
const REVOKED: &str = "crl.pem";

/// Keeps connections to other servers with certificates of the same authority from being taken for
/// ours.
const ALPN: &[u8] = b"tenure";
