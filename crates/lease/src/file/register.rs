//! One lease's directory: a register that is read whole and changed by compare-and-set.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::content::{Alive, Content, Undecodable};
use super::head::{Head, NoHead, alive_claim, alive_name};
use super::sys::{Lock, try_lock};
use super::trouble;
use crate::backend::StoreError;
use crate::record::Nonce;

/// The directory of one lease.
#[derive(Clone)]
pub(super) struct Register {
    path: PathBuf,
}

/// What is there.
pub(super) enum Sight {
    /// No directory.
    Absent,
    /// A directory without a head: somebody deleted it.
    Headless,
    /// A lease.
    Current(Box<Snapshot>),
}

/// A lease as it was at one moment.
pub(super) struct Snapshot {
    pub(super) head: Head,
    pub(super) content: Content,
}

impl Register {
    pub(super) fn at(path: PathBuf) -> Self {
        Self { path }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn head_path(&self, head: &Head) -> PathBuf {
        self.path.join(head.to_string())
    }

    fn record_path(&self, id: Nonce) -> PathBuf {
        self.path.join(RECORDS).join(id.to_string())
    }

    fn alive_path(&self, claim: Nonce, id: Nonce) -> PathBuf {
        self.path.join(alive_name(claim, id))
    }

    /// What is there now.
    pub(super) fn sight(&self) -> Result<Sight, StoreError> {
        let mut odd = 0;
        for _ in 0..SIGHTS_MAX {
            let Some(heads) = self.heads()? else { return Ok(Sight::Absent) };
            match heads.as_slice() {
                [head] => {
                    if let Some(content) = self.content(head)? {
                        let head = head.clone();
                        return Ok(Sight::Current(Box::new(Snapshot { head, content })));
                    }
                    odd = 0;
                }
                // A listing may meet a rename half way; but not again and again.
                _ if odd < ODD_MAX => {
                    odd += 1;
                    std::thread::yield_now();
                }
                [] => return Ok(Sight::Headless),
                [head, ..] => {
                    let what = "there is another one beside it";
                    return Err(trouble::damaged(&self.path, &self.head_path(head), what));
                }
            }
        }
        Err(trouble::busy(&self.path))
    }

    fn heads(&self) -> Result<Option<Vec<Head>>, StoreError> {
        let Some(names) = self.names(&self.path)? else { return Ok(None) };
        let mut heads = Vec::new();
        for name in names {
            match Head::parse(&name) {
                Ok(head) => heads.push(head),
                Err(NoHead::Other) => {}
                Err(NoHead::Newer(format)) => {
                    return Err(trouble::newer(&self.path.join(name), format));
                }
                Err(NoHead::Damaged) => {
                    let what = "its name makes no sense";
                    return Err(trouble::damaged(&self.path, &self.path.join(name), what));
                }
            }
        }
        Ok(Some(heads))
    }

    fn names(&self, path: &Path) -> Result<Option<Vec<String>>, StoreError> {
        match list(path) {
            Ok(names) => Ok(Some(names)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(trouble::failed("list", path, &error)),
        }
    }

    /// The record that a head names; `None` if it is not the head any more.
    fn content(&self, head: &Head) -> Result<Option<Content>, StoreError> {
        let path = self.record_path(head.record);
        let read = fs::read(&path);
        // Looked at after the reading: a head that is there now was the head all the time.
        if !self.is_current(head)? {
            return Ok(None);
        }
        let damaged = |what| Err(trouble::damaged(&self.path, &path, what));
        match read {
            Ok(bytes) => match Content::decode(&bytes) {
                Ok(content) if content.claim == head.claim => Ok(Some(content)),
                Ok(_) => damaged("it is the record of another claim than its head's"),
                Err(Undecodable::Damaged(what)) => damaged(what),
                Err(Undecodable::Newer(format)) => Err(trouble::newer(&path, format)),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => damaged("it is missing"),
            Err(error) => Err(trouble::failed("read", &path, &error)),
        }
    }

    /// Whether this is the head now.
    pub(super) fn is_current(&self, head: &Head) -> Result<bool, StoreError> {
        let path = self.head_path(head);
        match fs::symlink_metadata(&path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(trouble::failed("look at", &path, &error)),
        }
    }

    /// Compare-and-set: `old` becomes `new`, if `old` is the head.
    pub(super) fn swap(&self, old: &Head, new: &Head) -> Result<bool, StoreError> {
        assert!(new.number > old.number, "a head never comes back");
        let path = self.head_path(old);
        match fs::rename(&path, self.head_path(new)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(trouble::failed("rename", &path, &error)),
        }
    }

    /// Writes the first head of a directory that nobody else knows of.
    pub(super) fn begin(&self, head: &Head) -> io::Result<()> {
        File::create_new(self.head_path(head))?.sync_all()
    }

    /// Writes a record that no head names yet; `None` if a collector was quicker.
    pub(super) fn draft(&self, id: Nonce, content: &Content) -> io::Result<Option<Draft>> {
        let Some(mut draft) = Draft::create(self.record_path(id))? else { return Ok(None) };
        draft.file.write_all(&content.encode())?;
        Ok(Some(draft))
    }

    /// Creates and locks the alive file of a claim; `None` if a collector was quicker.
    pub(super) fn draft_alive(&self, claim: Nonce, id: Nonce) -> io::Result<Option<Draft>> {
        Draft::create(self.alive_path(claim, id))
    }

    /// Makes the directory for the records.
    pub(super) fn make_records(&self) -> io::Result<()> {
        fs::create_dir(self.path.join(RECORDS))
    }

    /// Brings all renames and new files to the disk.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        sync_directory(&self.path)
    }

    /// Brings the new records to the disk.
    pub(super) fn sync_records(&self) -> Result<(), StoreError> {
        sync_directory(&self.path.join(RECORDS))
    }

    /// Whether the holder has died: the lock on its very alive file can be had.
    pub(super) fn is_dead(&self, claim: Nonce, alive: Alive) -> bool {
        File::open(self.alive_path(claim, alive.id)).is_ok_and(|file| {
            let same = file.metadata().is_ok_and(|metadata| {
                (metadata.dev(), metadata.ino()) == (alive.device, alive.inode)
            });
            same && matches!(try_lock(&file, Lock::Shared), Ok(true))
        })
    }

    /// Whether anybody has a lock on an alive file here.
    pub(super) fn is_anyone_alive(&self) -> Result<bool, StoreError> {
        let names = self.names(&self.path)?.unwrap_or_default();
        Ok(names.iter().filter(|name| alive_claim(name).is_some()).any(|name| {
            File::open(self.path.join(name))
                .is_ok_and(|file| matches!(try_lock(&file, Lock::Shared), Ok(false)))
        }))
    }

    /// Whatever records can be read, named by a head or not.
    pub(super) fn leftovers(&self) -> Result<Vec<Content>, StoreError> {
        let records = self.path.join(RECORDS);
        let names = self.names(&records)?.unwrap_or_default();
        Ok(names
            .iter()
            .filter_map(|name| Content::decode(&fs::read(records.join(name)).ok()?).ok())
            .collect())
    }

    /// Deletes the record that a former head named.
    pub(super) fn discard_record(&self, former: &Snapshot) {
        let _ = fs::remove_file(self.record_path(former.head.record));
    }

    /// Deletes the alive file of a former tenure.
    pub(super) fn discard_alive(&self, former: &Snapshot) {
        if let Some(alive) = former.content.alive {
            let _ = fs::remove_file(self.alive_path(former.head.claim, alive.id));
        }
    }

    /// Deletes what killed processes left behind, as long as this is the head.
    pub(super) fn sweep(&self, head: &Head, content: &Content) {
        let records = self.path.join(RECORDS);
        let current = self.record_path(head.record);
        let alive = content.alive.map(|alive| self.alive_path(head.claim, alive.id));
        let in_records = list(&records).unwrap_or_default().into_iter();
        let here = list(&self.path).unwrap_or_default().into_iter();
        let candidates = in_records
            .map(|name| records.join(name))
            .chain(here.filter(|name| alive_claim(name).is_some()).map(|n| self.path.join(n)));
        for path in candidates.filter(|path| *path != current && Some(path) != alive.as_ref()) {
            let Ok(file) = File::open(&path) else { continue };
            // Its writer is gone, or has long renamed what it had to rename. Only then is a head
            // that names another one the last word.
            if !matches!(try_lock(&file, Lock::Shared), Ok(true)) {
                continue;
            }
            if !matches!(self.is_current(head), Ok(true)) {
                return;
            }
            let _ = fs::remove_file(&path);
        }
    }

    /// Deletes all that a deleted head left behind, so that the directory is empty.
    pub(super) fn clear(&self) {
        let records = self.path.join(RECORDS);
        let in_records = list(&records).unwrap_or_default();
        let here = list(&self.path).unwrap_or_default();
        // What was listed before there was no head belongs to no lease, now or ever; what is
        // created here later has other names.
        if !matches!(self.sight(), Ok(Sight::Headless)) {
            return;
        }
        for path in in_records.iter().map(|name| records.join(name)) {
            let _ = fs::remove_file(path);
        }
        for path in here.iter().map(|name| self.path.join(name)) {
            let _ = fs::remove_file(path);
        }
        let _ = fs::remove_dir(records);
    }
}

/// A locked file that nobody needs before it is kept: dropped, it is deleted.
pub(super) struct Draft {
    cleanup: Cleanup,
    file: File,
}

impl Draft {
    fn create(path: PathBuf) -> io::Result<Option<Self>> {
        let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        let draft = Self { cleanup: Cleanup(Some(path)), file };
        Ok(is_ours(&draft.file)?.then_some(draft))
    }

    /// Which very file it is.
    pub(super) fn identity(&self, id: Nonce) -> io::Result<Alive> {
        let metadata = self.file.metadata()?;
        Ok(Alive { id, device: metadata.dev(), inode: metadata.ino() })
    }

    /// Brings it to the disk.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// It stays, and so does its lock while the file is open.
    pub(super) fn keep(mut self) -> File {
        self.cleanup.0 = None;
        self.file
    }
}

struct Cleanup(Option<PathBuf>);

impl Drop for Cleanup {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // What stays is swept up later.
            let _ = fs::remove_file(path);
        }
    }
}

/// Locks a fresh file or directory; `false` if a collector met it before it was locked.
pub(super) fn is_ours(file: &File) -> io::Result<bool> {
    Ok(try_lock(file, Lock::Exclusive)? && file.metadata()?.nlink() > 0)
}

/// The names in a directory, without those that are not UTF-8.
pub(super) fn list(path: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        names.extend(entry?.file_name().into_string());
    }
    Ok(names)
}

pub(super) fn sync_directory(path: &Path) -> Result<(), StoreError> {
    File::open(path)
        .and_then(|directory| directory.sync_all())
        .map_err(|error| trouble::failed("sync", path, &error))
}

const RECORDS: &str = "records";
/// Each look that fails means that somebody changed the lease meanwhile.
const SIGHTS_MAX: usize = 1000;
/// How often a listing must show no head, or two, before it is believed.
const ODD_MAX: usize = 20;
