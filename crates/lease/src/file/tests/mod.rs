//! The store's promises, within one process. What several processes do to each other is tested from
//! outside, and so is all that starts programs: a fresh child has, for a moment, every lock that is
//! held here.

mod damage;
mod races;
mod tenures;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::FileStore;
use super::disk::Disk;
use super::domain::Domain;
use super::head::Head;
use super::register::{Register, Sight, Snapshot, list};
use crate::backend::{Acquire, Acquired, Release, Released, Renew, Renewed, StoreError};
use crate::record::{Nonce, Owner, Record, Token};
use crate::{LeaseName, Moment};

/// A directory that is deleted in the end.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("tenure-file-{}", Nonce::random()));
        fs::create_dir(&path).unwrap();
        Self { path }
    }

    fn disk(&self) -> Disk {
        Disk::new(self.path.clone(), Domain::of_this_process())
    }

    fn store(&self) -> FileStore {
        FileStore::open(&self.path).unwrap()
    }

    fn lease(&self) -> PathBuf {
        self.path.join(NAME)
    }

    /// The one head, and its record's file.
    fn head(&self) -> (PathBuf, PathBuf) {
        let heads: Vec<_> =
            list(&self.lease()).unwrap().into_iter().filter(|n| Head::parse(n).is_ok()).collect();
        let [head] = heads.as_slice() else { panic!("{heads:?}") };
        let record = Head::parse(head).unwrap().record.to_string();
        (self.lease().join(head), self.lease().join("records").join(record))
    }

    /// All files, sorted.
    fn files(&self) -> Vec<PathBuf> {
        fn walk(path: &Path, files: &mut Vec<PathBuf>) {
            for name in list(path).unwrap() {
                let path = path.join(name);
                if path.is_dir() { walk(&path, files) } else { files.push(path) }
            }
        }
        let mut files = Vec::new();
        walk(&self.path, &mut files);
        files.sort();
        files
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

impl Disk {
    /// As [`Disk::acquire`], and tidied up.
    fn take_at_once(&self, request: &Acquire) -> Result<Acquired, StoreError> {
        let (answer, tidy) = self.acquire(request)?;
        tidy();
        Ok(answer)
    }
}

fn name() -> LeaseName {
    LeaseName::new(NAME).unwrap()
}

fn acquire(claim: u128) -> Acquire {
    Acquire {
        name: name(),
        claim: Nonce::from_bits(claim),
        owner: Owner { name: format!("owner-{claim}"), incarnation: 1 },
        ttl: LONG,
        session: None,
        note: None,
        create: true,
        takeover: None,
        expected: None,
        above: 0,
        unattended: false,
    }
}

fn renew(claim: u128, token: Token, known: u128, nonce: u128) -> Renew {
    Renew {
        name: name(),
        claim: Nonce::from_bits(claim),
        token,
        known: vec![Nonce::from_bits(known)],
        nonce: Nonce::from_bits(nonce),
        ttl: LONG,
        note: None,
        fresh_connection: false,
    }
}

fn release(claim: u128, known: u128) -> Release {
    let (claim, known) = (Nonce::from_bits(claim), vec![Nonce::from_bits(known)]);
    Release { name: name(), claim, known }
}

fn won(answer: Result<Acquired, StoreError>) -> Token {
    match answer {
        Ok(Acquired::Won { token, .. }) => token,
        other => panic!("{other:?}"),
    }
}

fn lost(answer: Result<Acquired, StoreError>) -> Option<Record> {
    match answer {
        Ok(Acquired::Lost(record)) => record,
        other => panic!("{other:?}"),
    }
}

fn snapshot(register: &Register) -> Snapshot {
    match register.sight().unwrap() {
        Sight::Current(snapshot) => *snapshot,
        Sight::Absent => panic!("absent"),
        Sight::Headless => panic!("headless"),
    }
}

fn wait_until(moment: Moment) {
    while Moment::now() < moment {
        super::driver::pause(Duration::from_millis(1));
    }
}

const NAME: &str = "nightly";
const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(500);
