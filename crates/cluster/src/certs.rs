//! A small certificate authority, to start with: one for each cluster, and for nothing else.
//!
//! Whoever has an authority's key can make members of its cluster. Keep it where the nodes are not;
//! they need `ca.pem`, `node.pem` and `node.key` alone (see
//! [`Identity`](crate::transport::Identity)).

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType, date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use webpki::EndEntityCert;

use crate::transport::is_name;
use crate::transport::verify::uri;

/// A cluster's certificate authority.
pub struct Authority {
    cluster: String,
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Makes a new authority for a cluster, valid for ten years.
    pub fn new(cluster: &str) -> Result<Self, CertsError> {
        Self::valid_for(cluster, AUTHORITY_DAYS)
    }

    /// Makes a new authority that is valid for that many days.
    pub fn valid_for(cluster: &str, days: u32) -> Result<Self, CertsError> {
        let key = KeyPair::generate()?;
        let params = Self::params(cluster, days)?;
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self { cluster: cluster.into(), certificate, issuer: Issuer::new(params, key) })
    }

    /// Reads an authority that [`Authority::save`] wrote.
    pub fn load(dir: impl AsRef<Path>) -> Result<Self, CertsError> {
        let read = |name: &str| {
            let path = dir.as_ref().join(name);
            fs::read_to_string(&path).map_err(|source| CertsError::File { path, source })
        };
        let (certificate, key) = (read("ca.pem")?, read("ca.key")?);
        let damaged = || CertsError::NoAuthority(dir.as_ref().join("ca.pem"));
        let der = CertificateDer::from_pem_slice(certificate.as_bytes()).map_err(|_| damaged())?;
        let parsed = EndEntityCert::try_from(&der).map_err(|_| damaged())?;
        let cluster = parsed
            .valid_uri_names()
            .find_map(|uri| uri.strip_prefix("tenure://")?.strip_suffix('/'))
            .ok_or_else(damaged)?
            .to_owned();
        // What certificates say of their issuer follows from its name and its key alone.
        let issuer = Issuer::new(Self::params(&cluster, 0)?, KeyPair::from_pem(&key)?);
        Ok(Self { cluster, certificate, issuer })
    }

    /// Writes `ca.pem` and `ca.key`. An authority that is there already is not overwritten.
    pub fn save(&self, dir: impl AsRef<Path>) -> Result<(), CertsError> {
        let dir = dir.as_ref();
        make_dir(dir)?;
        // The key first: without it the certificate is of no use.
        let key = self.issuer.key().serialize_pem();
        write(&dir.join("ca.key"), &key, SECRET, Existing::Refused)?;
        write(&dir.join("ca.pem"), &self.certificate, PUBLIC, Existing::Refused)
    }

    /// The name of its cluster.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Its certificate, as PEM: what nodes have as `ca.pem`.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Makes a certificate for the node `name`, or for every node if `name` is `*`, valid for a
    /// year. `hosts` are names and addresses that other programs may check; nodes do not.
    pub fn issue(&self, name: &str, hosts: &[&str]) -> Result<NodeFiles, CertsError> {
        self.issue_for(name, hosts, NODE_DAYS)
    }

    /// Makes a certificate that is valid for that many days.
    pub fn issue_for(
        &self,
        name: &str,
        hosts: &[&str],
        days: u32,
    ) -> Result<NodeFiles, CertsError> {
        let now = UnixTime::now().as_secs();
        self.issue_between(name, hosts, now - MINUTES_5..now + u64::from(days) * DAY)
    }

    /// Makes a certificate that is valid within `seconds`, counted from 1970.
    pub fn issue_between(
        &self,
        name: &str,
        hosts: &[&str],
        seconds: Range<u64>,
    ) -> Result<NodeFiles, CertsError> {
        if name != "*" && !is_name(name) {
            return Err(CertsError::Name(name.into()));
        }
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = named(&format!("{name} of {}", self.cluster));
        params.subject_alt_names.push(uri_name(uri(&self.cluster, name))?);
        for host in hosts {
            params.subject_alt_names.push(match host.parse::<IpAddr>() {
                Ok(ip) => SanType::IpAddress(ip),
                Err(_) => SanType::DnsName((*host).try_into()?),
            });
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.not_before = date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds.start);
        params.not_after = date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds.end);
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(NodeFiles { authority: self.certificate.clone(), certificate, key: key.serialize_pem() })
    }

    fn params(cluster: &str, days: u32) -> Result<CertificateParams, CertsError> {
        if !is_name(cluster) {
            return Err(CertsError::Name(cluster.into()));
        }
        let mut params = CertificateParams::default();
        params.distinguished_name = named(&format!("authority of {cluster}"));
        params.subject_alt_names.push(uri_name(uri(cluster, ""))?);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let now = UnixTime::now().as_secs();
        params.not_before = date_time_ymd(1970, 1, 1) + Duration::from_secs(now - MINUTES_5);
        let end = now + u64::from(days) * DAY;
        params.not_after = date_time_ymd(1970, 1, 1) + Duration::from_secs(end);
        Ok(params)
    }
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

/// What a node needs, as PEM.
#[derive(Clone)]
pub struct NodeFiles {
    /// `ca.pem`
    pub authority: String,
    /// `node.pem`
    pub certificate: String,
    /// `node.key`
    pub key: String,
}

impl NodeFiles {
    /// Writes `ca.pem`, `node.pem` and `node.key`, in place of older ones. Each appears whole, the
    /// key with permissions for its owner alone; a node that looks meanwhile and finds a pair that
    /// does not fit keeps what it has until it looks again.
    pub fn save(&self, dir: impl AsRef<Path>) -> Result<(), CertsError> {
        let dir = dir.as_ref();
        make_dir(dir)?;
        write(&dir.join("ca.pem"), &self.authority, PUBLIC, Existing::Replaced)?;
        write(&dir.join("node.key"), &self.key, SECRET, Existing::Replaced)?;
        write(&dir.join("node.pem"), &self.certificate, PUBLIC, Existing::Replaced)
    }
}

impl std::fmt::Debug for NodeFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NodeFiles(…)") // A key is among them.
    }
}

/// Why a certificate could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CertsError {
    /// Not a name.
    #[error("{0:?} is no name: 1 to 128 letters, digits, '-', '.' or '_'")]
    Name(String),
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Not a certificate of one of our authorities.
    #[error("{} is not the certificate of an authority that was made here", .0.display())]
    NoAuthority(PathBuf),
    /// A key or certificate could not be made or read.
    #[error(transparent)]
    Crypto(#[from] rcgen::Error),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Existing {
    Refused,
    Replaced,
}

fn write(path: &Path, text: &str, mode: u32, existing: Existing) -> Result<(), CertsError> {
    let failed = |source| CertsError::File { path: path.into(), source };
    if existing == Existing::Refused && path.exists() {
        return Err(failed(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "it is there already; move it away first if you mean to replace it",
        )));
    }
    let temporary = path.with_extension("new");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
    #[cfg(not(unix))]
    let _ = mode;
    // One that was left behind may have looser permissions.
    let _ = fs::remove_file(&temporary);
    let mut file = options.open(&temporary).map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
    fs::rename(&temporary, path).map_err(failed)
}

fn make_dir(dir: &Path) -> Result<(), CertsError> {
    fs::create_dir_all(dir).map_err(|source| CertsError::File { path: dir.into(), source })
}

fn named(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

fn uri_name(uri: String) -> Result<SanType, CertsError> {
    Ok(SanType::URI(uri.try_into()?))
}

const AUTHORITY_DAYS: u32 = 3650;
const NODE_DAYS: u32 = 365;
const DAY: u64 = 24 * 3600;
/// Clocks differ; a certificate is to be good on a machine that is a little late.
const MINUTES_5: u64 = 300;
const SECRET: u32 = 0o600;
const PUBLIC: u32 = 0o644;
