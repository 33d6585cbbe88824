//! A small certificate authority, to start with: one for each cluster, and for nothing else.
//!
//! Whoever has an authority's key can make members of its cluster. Keep it where the nodes are not;
//! they need `ca.pem`, `node.pem` and `node.key` alone, and `crl.pem` once a certificate was revoked
//! (see [`Identity`](crate::transport::Identity)).

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SanType, SerialNumber, date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use webpki::EndEntityCert;

use crate::transport::handshake::is_client_name;
use crate::transport::is_name;
use crate::transport::verify::uri;

/// A cluster's certificate authority.
pub struct Authority {
    cluster: String,
    /// 1 for a cluster's first authority, and one more for each that succeeds another. Part of its
    /// name, since a list of revoked certificates is found by the name of its authority.
    generation: u32,
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
        Self::generate(cluster, 1, days)
    }

    /// Makes the authority that is to take the place of this one, with a key of its own.
    ///
    /// ```
    /// use tenure_cluster::certs::Authority;
    /// let first = Authority::new("shop")?;
    /// let second = first.successor()?;
    /// // While nodes have certificates of both, each has both in its ca.pem.
    /// let both = format!("{}{}", second.certificate(), first.certificate());
    /// assert_eq!(both.matches("BEGIN CERTIFICATE").count(), 2);
    /// # Ok::<(), tenure_cluster::certs::CertsError>(())
    /// ```
    pub fn successor(&self) -> Result<Self, CertsError> {
        Self::generate(&self.cluster, self.generation + 1, AUTHORITY_DAYS)
    }

    fn generate(cluster: &str, generation: u32, days: u32) -> Result<Self, CertsError> {
        let key = KeyPair::generate()?;
        let params = Self::params(cluster, generation, days)?;
        let certificate = params.self_signed(&key)?.pem();
        let issuer = Issuer::new(params, key);
        Ok(Self { cluster: cluster.into(), generation, certificate, issuer })
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
        let (cluster, generation) = parsed
            .valid_uri_names()
            .find_map(|uri| {
                let (cluster, rest) = uri.strip_prefix("tenure://")?.split_once('/')?;
                let generation =
                    if rest.is_empty() { 1 } else { rest.strip_prefix('#')?.parse().ok()? };
                Some((cluster.to_owned(), generation))
            })
            .ok_or_else(damaged)?;
        // What certificates say of their issuer follows from its name and its key alone.
        let params = Self::params(&cluster, generation, 0)?;
        let issuer = Issuer::new(params, KeyPair::from_pem(&key)?);
        Ok(Self { cluster, generation, certificate, issuer })
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

    /// Makes a certificate for the node `name`, for every node if `name` is `*`, or for a client if it
    /// is `client/NAME`, valid for a year. `hosts` are names and addresses that other programs may check; nodes do not.
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
        if name != "*" && !is_name(name) && !is_client_name(name) {
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

    /// Whether a certificate in PEM is signed by this authority, and not by another one of the
    /// cluster.
    pub fn has_issued(&self, certificate: &str) -> bool {
        let parse = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).ok();
        let (Some(own), Some(der)) = (parse(&self.certificate), parse(certificate)) else {
            return false;
        };
        let (Ok(own), Ok(parsed)) = (EndEntityCert::try_from(&own), EndEntityCert::try_from(&der))
        else {
            return false;
        };
        // Each generation has a name of its own.
        own.subject() == parsed.issuer()
    }

    /// Makes the list that revokes these serial numbers, as PEM: what nodes have as `crl.pem`. It
    /// takes the place of a former list of this authority, so it names all that are revoked. Lists
    /// of several authorities follow each other in one file.
    pub fn revoke(&self, serials: &[Vec<u8>]) -> Result<String, CertsError> {
        let now = UnixTime::now().as_secs();
        let at = |seconds: u64| date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds);
        let revoked = |serial: &Vec<u8>| RevokedCertParams {
            serial_number: SerialNumber::from(serial.clone()),
            revocation_time: at(now),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: at(now - MINUTES_5),
            // Nodes do not look at it: what was revoked stays so.
            next_update: at(now + u64::from(AUTHORITY_DAYS) * DAY),
            crl_number: SerialNumber::from(now),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        Ok(list.signed_by(&self.issuer)?.pem()?)
    }

    fn params(cluster: &str, generation: u32, days: u32) -> Result<CertificateParams, CertsError> {
        if !is_name(cluster) {
            return Err(CertsError::Name(cluster.into()));
        }
        let mut params = CertificateParams::default();
        let (name, path) = match generation {
            1 => (format!("authority of {cluster}"), String::new()),
            later => (format!("authority {later} of {cluster}"), format!("#{later}")),
        };
        params.distinguished_name = named(&name);
        params.subject_alt_names.push(uri_name(uri(cluster, &path))?);
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

/// The serial number of a certificate in PEM: what [`Authority::revoke`] takes.
pub fn serial(certificate: &str) -> Result<Vec<u8>, CertsError> {
    let der = CertificateDer::from_pem_slice(certificate.as_bytes())
        .map_err(|error| CertsError::NoCertificate(error.to_string()))?;
    let parsed = EndEntityCert::try_from(&der)
        .map_err(|error| CertsError::NoCertificate(error.to_string()))?;
    Ok(parsed.serial().to_vec())
}

/// Writes a file that nodes read, in place of an older one. It appears whole.
pub fn write_public(path: &Path, text: &str) -> Result<(), CertsError> {
    write(path, text, PUBLIC, Existing::Replaced)
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
    /// Not a certificate.
    #[error("it holds no certificate in PEM: {0}")]
    NoCertificate(String),
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
