//! The embedded store: leases in a directory of one machine.
//!
//! Any number of processes of one machine share a directory. Nothing runs in the background, and
//! nobody is ever locked out: with a lock (SQLite's too) a process that is *stopped* inside the
//! critical section would stop everybody. So there is none. The whole state of a lease is the
//! **name** of one file, and every change is one `rename` of it.
//!
//! ```text
//! DIR/nightly/lease1-held-000000002a-CLAIM-RECORD-NONCE-EXPIRES   the head: an empty file
//! DIR/nightly/records/RECORD                                      term, owner, ttl, note, …
//! DIR/nightly/alive.CLAIM.RECORD                                  locked by the holder
//! DIR/.new/…                                                      leases being created
//! ```
//!
//! # Why it is a compare-and-set
//!
//! `rename(old, new)` in one directory succeeds only if `old` is there, and then `old` is gone. An
//! `old` name carries a number that rises and random parts drawn for this very write, so it never
//! comes back. Hence of all who rename the same head exactly one succeeds, and one who read the
//! head an hour ago, slept (stopped, swapped out) and then goes on meets `ENOENT`, however many
//! changes have been made and cleaned up meanwhile. There is no second step to be stopped in: it has
//! happened or it has not, and either way the lease has exactly one head.
//!
//! * *Renewal, release*: only the rename. They write no data, so they also work on a full disk.
//! * *Acquisition, note*: the new record is written under a random name and synced *before* the
//!   rename that makes the head point to it, so a head never names a torn record; then the
//!   directory is synced, so that a token or a note that was answered survives a power cut. A
//!   renewal or release that a power cut undoes costs a wait and nothing else: it leaves an older
//!   head of another boot, which must be watched for its ttl.
//! * *Creation*: a whole directory is prepared in `DIR/.new` and renamed to its name, which the
//!   kernel refuses if there is a directory with anything in it.
//!
//! A reader lists the directory, reads the record, and then looks whether the head is still there.
//! If it is, then it was the head all that time, and what was read was current; if not, somebody
//! made progress, and it looks again. (So nothing rests on a listing being a snapshot, though for
//! a directory this small it is one.)
//!
//! # Who may delete what
//!
//! Names are never used twice, so a clean-up that is carried out late, by a process that slept,
//! meets nothing. The winner of a rename deletes the record and the alive file that it replaced.
//! What killed processes left is deleted by later winners, who must not meet a record that is about
//! to be renamed in: its writer holds a lock (`flock`) on it from before the first byte until after
//! the rename. Who gets that lock, and *then* sees a head that names another record, knows that
//! this one will never be named. A file that was deleted in the moment between its creation and its
//! lock has no links left, which its writer checks, and starts over.
//!
//! # When a tenure ends
//!
//! *By time*, on the boot clock of the machine, which neither jumps nor stops in sleep: the head
//! carries the moment. Moments compare only in one boot and one time namespace; a record from
//! another one is [`Expiry::ByObservation`].
//!
//! *By death*: the holder keeps an exclusive lock on its alive file, taken before the head names
//! it. If the lock can be had, on the very file (device and inode) that the record names and in the
//! same boot, then the kernel has closed the last descriptor: the holder, and all that inherited it,
//! are gone. A stopped process keeps its locks, so it is succeeded by time alone. An alive file that
//! is missing or another one proves nothing.
//!
//! # What people may do to the files
//!
//! A record that is damaged or gone while the head names it is an error that says so, never a free
//! lease. A head that was deleted is a deleted lease: its holder's next renewal is refused, the next
//! term is above every term still to be read and at least the wall clock in microseconds, and as
//! long as somebody holds a lock on an alive file there, a newcomer waits for the ttl.

mod content;
mod disk;
mod domain;
mod driver;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod head;
mod holdings;
mod nursery;
mod register;
mod suitable;
mod sys;
#[cfg(test)]
mod tests;
mod trouble;
#[cfg(target_os = "linux")]
mod watch;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use disk::Disk;
use domain::Domain;

use crate::LeaseName;
use crate::backend::{
    Acquire, Acquired, Backend, Boxed, Promise, Release, Released, Renew, Renewed, StoreError,
    StoreInfo,
};
#[cfg(doc)]
use crate::record::Expiry;
use crate::record::{Nonce, Record};

/// Leases in a directory, for the processes of one machine. Clones share it.
///
/// A successor starts within milliseconds of a release or of the holder's death, and after the ttl
/// if the holder is stopped. Network file systems are refused.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tenure_lease::{FileStore, Store};
/// # let directory = std::env::temp_dir().join(format!("tenure-doc-file-{}", std::process::id()));
/// let store = Store::new(FileStore::open(&directory)?);
/// let tenure = store.lease("nightly").acquire().await?;
/// assert!(tenure.is_held());
/// # tenure.release().await;
/// # let _ = std::fs::remove_dir_all(directory);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct FileStore {
    disk: Arc<Disk>,
    #[cfg(target_os = "linux")]
    hub: Arc<watch::LazyHub>,
}

impl std::fmt::Debug for FileStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileStore").finish_non_exhaustive()
    }
}

impl FileStore {
    /// Opens the directory, and creates it if it is not there. Blocks.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self, StoreError> {
        let directory = directory.as_ref();
        std::fs::create_dir_all(directory)
            .map_err(|error| trouble::failed("create", directory, &error))?;
        Self::look(directory)
    }

    /// Opens the directory as it is: one that is not there has no leases, until the first is
    /// acquired. Blocks.
    pub(crate) fn look(directory: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::with_domain(directory.as_ref(), Domain::of_this_process())
    }

    fn with_domain(directory: &Path, domain: Domain) -> Result<Self, StoreError> {
        let root = std::path::absolute(directory)
            .map_err(|error| trouble::failed("find", directory, &error))?;
        // What is to be created will be where the last directory above it is.
        let there = root.ancestors().find(|path| path.try_exists().unwrap_or(true));
        suitable::check(there.unwrap_or(&root))?;
        Ok(Self {
            #[cfg(target_os = "linux")]
            hub: Arc::new(watch::LazyHub::new(root.clone())),
            disk: Arc::new(Disk::new(root, domain)),
        })
    }

    /// As one of these, without blocking the caller's runtime.
    pub(crate) async fn aside(
        open: impl FnOnce() -> Result<Self, StoreError> + Send + 'static,
    ) -> Result<Self, StoreError> {
        driver::on_disk(open).await
    }

    fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Disk) -> Result<T, StoreError> + Send + 'static,
    ) -> Boxed<'_, Result<T, StoreError>> {
        let disk = Arc::clone(&self.disk);
        Box::pin(driver::on_disk(move || work(&disk)))
    }
}

impl Backend for FileStore {
    fn info(&self) -> StoreInfo {
        StoreInfo {
            kind: "file",
            promise: Promise::Safe,
            ttl_min: Duration::from_millis(100),
            ttl_max: Duration::from_secs(24 * 3600),
            ttl_step: Duration::ZERO,
            frees_after_ttls: 1,
            pushes: cfg!(target_os = "linux"),
            // Not renewals, but what they are for: the death of the holder shows at once.
            pushes_renewals: cfg!(target_os = "linux"),
            reads_everything: false,
        }
    }

    fn acquire(&self, request: Acquire) -> Boxed<'_, Result<Acquired, StoreError>> {
        Box::pin(async move {
            // A caller that stops waiting does not stop the work: a release of this claim must not
            // be answered before it is known how it came out.
            let flight = self.disk.holdings.begin(request.claim);
            let disk = Arc::clone(&self.disk);
            driver::on_disk(move || {
                let answered = disk.acquire(&request);
                drop(flight);
                answered.map(|(answer, tidy)| {
                    driver::aside(tidy);
                    answer
                })
            })
            .await
        })
    }

    fn renew(&self, request: Renew) -> Boxed<'_, Result<Renewed, StoreError>> {
        self.run(move |disk| disk.renew(&request))
    }

    fn release(&self, request: Release) -> Boxed<'_, Result<Released, StoreError>> {
        self.run(move |disk| disk.release(&request))
    }

    fn read(&self, names: Vec<LeaseName>) -> Boxed<'_, Result<Vec<Option<Record>>, StoreError>> {
        self.run(move |disk| names.iter().map(|name| disk.read(name)).collect())
    }

    fn list(&self) -> Option<Boxed<'_, Result<Vec<LeaseName>, StoreError>>> {
        Some(self.run(Disk::list))
    }

    #[cfg(target_os = "linux")]
    fn watch(&self, name: &LeaseName) -> Option<Box<dyn crate::backend::Watch>> {
        self.hub.watch(name)
    }

    fn lifeline(&self, claim: Nonce) -> Option<OwnedFd> {
        self.disk.holdings.lifeline(claim)
    }
}
