//! What `tenure certs` keeps in its directory.
//!
//! ```text
//! DIR/ca/ca.pem, ca.key       the authority
//! DIR/ca/former/              the one before it, while one replaces the other
//! DIR/ca/issued               a line for each certificate: serial number, node, hosts
//! DIR/ca/revoked              a line for each serial number
//! DIR/NODE/                   what a node needs: ca.pem, node.pem, node.key, perhaps crl.pem
//! DIR/client/CLIENT/          what a client needs: the same; it is called client/CLIENT here
//! ```

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use tenure_cluster::certs::{Authority, NodeFiles, serial, write_public};

use crate::exit::{self, Failure};

pub(super) struct CertsDirectory {
    dir: PathBuf,
    authority: Authority,
    /// The one before it, if nodes still have certificates of it.
    former: Option<Authority>,
}

/// A certificate that was made.
struct Issued {
    serial: String,
    node: String,
    hosts: Vec<String>,
}

impl CertsDirectory {
    /// A directory that `tenure certs new` has made.
    pub(super) fn open(dir: &Path) -> Result<Self, Failure> {
        let (ca, former) = (dir.join(AUTHORITY), dir.join(AUTHORITY).join(FORMER));
        if !ca.join("ca.key").exists() {
            return Err(Failure::usage(format!(
                "{} holds no authority; tenure certs new makes one, --dir says where it is",
                dir.display()
            )));
        }
        let authority = Authority::load(&ca)?;
        let former = match former.join("ca.key").exists() {
            true => Some(Authority::load(former)?),
            false => None,
        };
        Ok(Self { dir: dir.into(), authority, former })
    }

    /// The same, with a new authority for `cluster` if there is none.
    pub(super) fn open_or_make(dir: &Path, cluster: &str) -> Result<Self, Failure> {
        let ca = dir.join(AUTHORITY);
        if !ca.join("ca.key").exists() && !ca.join("ca.pem").exists() {
            let authority = Authority::new(cluster)?;
            authority.save(&ca)?;
            return Ok(Self { dir: dir.into(), authority, former: None });
        }
        let opened = Self::open(dir)?;
        if opened.authority.cluster() != cluster {
            return Err(Failure::usage(format!(
                "{} is the authority of the cluster {:?}; choose another --dir for {cluster:?}",
                ca.display(),
                opened.authority.cluster(),
            )));
        }
        Ok(opened)
    }

    /// Names become directories, beside the authority's.
    pub(super) fn check_name(node: &str) -> Result<(), Failure> {
        let fits = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        let client = node.strip_prefix(CLIENTS).and_then(|rest| rest.strip_prefix('/'));
        let name = client.unwrap_or(node);
        let plain = !name.starts_with('.') && name.chars().all(fits) && !name.is_empty();
        let is_free = client.is_some() || ![AUTHORITY, SHARED, CLIENTS].contains(&name);
        if node == "*" || plain && is_free {
            return Ok(());
        }
        Err(Failure::usage(format!(
            "{node:?} cannot name a node or a client here: letters, digits, '-', '.' and '_', not \
             beginning with '.', and none of \"{AUTHORITY}\", \"{SHARED}\" and \"{CLIENTS}\"; or \
             '*' for all nodes"
        )))
    }

    /// Nodes and clients that have a certificate.
    pub(super) fn nodes(&self) -> Result<Vec<String>, Failure> {
        let mut nodes = certified(&self.dir)?;
        for name in nodes.iter_mut().filter(|name| *name == SHARED) {
            *name = "*".into();
        }
        let clients = self.dir.join(CLIENTS);
        if clients.exists() {
            nodes.extend(certified(&clients)?.into_iter().map(|name| client(&name)));
        }
        nodes.sort();
        Ok(nodes)
    }

    /// The named ones, which must have a certificate; all of them if none is named.
    pub(super) fn select(&self, named: &[String]) -> Result<Vec<String>, Failure> {
        let nodes = self.nodes()?;
        if named.is_empty() {
            return Ok(nodes);
        }
        match named.iter().find(|name| !nodes.contains(name)) {
            Some(unknown) => Err(Failure::usage(format!(
                "there is no certificate for {unknown:?} in {}; tenure certs new makes one",
                self.dir.display()
            ))),
            None => Ok(named.to_vec()),
        }
    }

    /// The directories of these nodes, one in a line.
    pub(super) fn list(&self, nodes: &[String]) -> String {
        let shown = |node: &String| format!("  {}", self.dir.join(place(node)).display());
        nodes.iter().map(shown).collect::<Vec<_>>().join("\n")
    }

    /// Makes a certificate for a node.
    pub(super) fn issue(&self, node: &str, hosts: &[String]) -> Result<(), Failure> {
        let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
        let made = self.authority.issue(node, &hosts)?;
        // Noted first: one that is not known cannot be revoked.
        let line = format!("{} {node} {}", hex(&serial(&made.certificate)?), hosts.join(","));
        self.append(ISSUED, &[line])?;
        let files = NodeFiles { authority: self.trusted(), ..made };
        files.save(self.dir.join(place(node)))?;
        self.publish_revoked(&[node.to_owned()])
    }

    /// Makes another certificate for a node, for the same hosts if none are given.
    pub(super) fn renew(&self, node: &str, hosts: &[String]) -> Result<(), Failure> {
        let before = self.issued()?.into_iter().rfind(|it| it.node == node);
        match before {
            Some(before) if hosts.is_empty() => self.issue(node, &before.hosts),
            _ => self.issue(node, hosts),
        }
    }

    /// Revokes what was made for these nodes so far; says how many certificates that are.
    pub(super) fn revoke(&self, nodes: &[String]) -> Result<usize, Failure> {
        let mut serials = Vec::new();
        for node in nodes {
            Self::check_name(node)?;
            let issued = self.issued()?;
            serials.extend(issued.into_iter().filter(|it| it.node == *node).map(|it| it.serial));
            // One of a time when nothing was noted.
            if let Some(pem) = self.read(&self.dir.join(place(node)).join("node.pem"))? {
                serials.push(hex(&serial(&pem)?));
            }
        }
        serials.sort();
        serials.dedup();
        if serials.is_empty() {
            return Err(Failure::usage(format!(
                "no certificate was made for {nodes:?} in {}",
                self.dir.display()
            )));
        }
        let before = self.revoked()?;
        serials.retain(|serial| !before.contains(serial));
        self.append(REVOKED, &serials)?;
        self.publish_revoked(&self.nodes()?)?;
        Ok(serials.len())
    }

    /// Makes another authority, and lets nodes trust both.
    pub(super) fn roll(&self) -> Result<(), Failure> {
        if self.former.is_some() {
            return Err(Failure::usage(
                "the authority is being replaced already: tenure certs renew, copy the files, and \
                 tenure certs roll --finish",
            ));
        }
        let next = self.authority.successor()?;
        let ca = self.dir.join(AUTHORITY);
        let (former, fresh) = (ca.join(FORMER), ca.join("next"));
        let failed = |path: &Path| {
            let path = path.display().to_string();
            move |error| Failure::system(&path, &error)
        };
        next.save(&fresh)?;
        fs::create_dir_all(&former).map_err(failed(&former))?;
        for (from, to) in [(&ca, &former), (&fresh, &ca)] {
            for file in ["ca.key", "ca.pem"] {
                fs::rename(from.join(file), to.join(file)).map_err(failed(&from.join(file)))?;
            }
        }
        fs::remove_dir(&fresh).map_err(failed(&fresh))?;
        Self::open(&self.dir)?.publish_trusted()
    }

    /// Lets nodes trust the present authority alone.
    pub(super) fn finish_roll(&self) -> Result<(), Failure> {
        if self.former.is_none() {
            return Err(Failure::usage("there is no former authority; tenure certs roll first"));
        }
        for node in self.nodes()? {
            let dir = self.dir.join(place(&node));
            let pem = self.read(&dir.join("node.pem"))?.unwrap_or_default();
            if !self.authority.has_issued(&pem) {
                return Err(Failure::usage(format!(
                    "{} is of the former authority: tenure certs renew, and copy the files, before \
                     that is taken out",
                    dir.join("node.pem").display()
                )));
            }
        }
        let former = self.dir.join(AUTHORITY).join(FORMER);
        fs::remove_dir_all(&former)
            .map_err(|error| Failure::system(&former.display().to_string(), &error))?;
        Self::open(&self.dir)?.publish_trusted()
    }

    /// What nodes have as ca.pem.
    fn trusted(&self) -> String {
        let former = self.former.as_ref().map_or("", Authority::certificate);
        format!("{}{former}", self.authority.certificate())
    }

    fn publish_trusted(&self) -> Result<(), Failure> {
        let nodes = self.nodes()?;
        for node in &nodes {
            write_public(&self.dir.join(place(node)).join("ca.pem"), &self.trusted())?;
        }
        self.publish_revoked(&nodes)
    }

    /// Writes crl.pem for these nodes, if anything was ever revoked. A serial number follows from its
    /// certificate's key and is of no other one, so the list of each authority can name all.
    fn publish_revoked(&self, nodes: &[String]) -> Result<(), Failure> {
        let serials: Vec<Vec<u8>> = self.revoked()?.iter().filter_map(|it| unhex(it)).collect();
        if serials.is_empty() {
            return Ok(());
        }
        let mut lists = self.authority.revoke(&serials)?;
        if let Some(former) = &self.former {
            lists.push_str(&former.revoke(&serials)?);
        }
        for node in nodes {
            write_public(&self.dir.join(place(node)).join("crl.pem"), &lists)?;
        }
        Ok(())
    }

    fn issued(&self) -> Result<Vec<Issued>, Failure> {
        let text = self.read(&self.dir.join(AUTHORITY).join(ISSUED))?.unwrap_or_default();
        let parse = |line: &str| {
            let mut words = line.split(' ');
            let (serial, node) = (words.next()?.to_owned(), words.next()?.to_owned());
            let hosts = words.next().unwrap_or_default().split(',').filter(|it| !it.is_empty());
            Some(Issued { serial, node, hosts: hosts.map(str::to_owned).collect() })
        };
        Ok(text.lines().filter_map(parse).collect())
    }

    fn revoked(&self) -> Result<Vec<String>, Failure> {
        let text = self.read(&self.dir.join(AUTHORITY).join(REVOKED))?.unwrap_or_default();
        Ok(text.lines().map(str::to_owned).collect())
    }

    fn append(&self, file: &str, lines: &[String]) -> Result<(), Failure> {
        let path = self.dir.join(AUTHORITY).join(file);
        let mut text = self.read(&path)?.unwrap_or_default();
        for line in lines {
            text.push_str(line.trim_end());
            text.push('\n');
        }
        write_public(&path, &text)?;
        Ok(())
    }

    /// What a file holds, if it is there.
    fn read(&self, path: &Path) -> Result<Option<String>, Failure> {
        match fs::read_to_string(path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Failure::new(exit::SYSTEM, format!("{}: {error}", path.display()))),
        }
    }
}

/// What a client is called here.
pub(super) fn client(name: &str) -> String {
    format!("{CLIENTS}/{name}")
}

/// The directories in this one that have a certificate.
fn certified(dir: &Path) -> Result<Vec<String>, Failure> {
    let failed = |error| Failure::system(&dir.display().to_string(), &error);
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.path().join("node.pem").exists()
            && let Ok(name) = entry.file_name().into_string()
        {
            names.push(name);
        }
    }
    Ok(names)
}

/// Where a node's files are.
pub(super) fn place(node: &str) -> &str {
    if node == "*" { SHARED } else { node }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
    digits.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect()
}

const AUTHORITY: &str = "ca";
const FORMER: &str = "former";
const ISSUED: &str = "issued";
const REVOKED: &str = "revoked";
/// The directory of the clients.
const CLIENTS: &str = "client";
/// The directory of a certificate that is for all nodes.
const SHARED: &str = "all";
