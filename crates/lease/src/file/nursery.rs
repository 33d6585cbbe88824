//! Where a lease is prepared before it gets its name.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::register::{Register, is_ours, list};
use super::sys::{Lock, try_lock};
use crate::record::Nonce;

/// A directory that will be a lease's, locked while it is filled. Dropped, it is deleted.
pub(super) struct Nursery {
    pub(super) register: Register,
    _lock: File,
}

impl Nursery {
    /// An empty one; `None` if a collector was quicker.
    pub(super) fn open(root: &Path) -> io::Result<Option<Self>> {
        let path = place(root).join(Nonce::random().to_string());
        fs::create_dir_all(place(root))?;
        fs::create_dir(&path)?;
        let directory = File::open(&path)?;
        let nursery = Self { register: Register::at(path), _lock: directory };
        if !is_ours(&nursery._lock)? {
            return Ok(None);
        }
        nursery.register.make_records()?;
        Ok(Some(nursery))
    }

    /// Gives it its name; `false` if there is a lease of that name.
    pub(super) fn move_to(&self, register: &Register) -> io::Result<bool> {
        match fs::rename(self.register.path(), register.path()) {
            Ok(()) => Ok(true),
            Err(error) => match error.kind() {
                ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists | ErrorKind::NotFound => {
                    Ok(false)
                }
                _ => Err(error),
            },
        }
    }
}

impl Drop for Nursery {
    fn drop(&mut self) {
        // Nothing is there if it was moved; what stays otherwise is swept up later.
        let _ = fs::remove_dir_all(self.register.path());
    }
}

/// Deletes what killed processes left here.
pub(super) fn sweep(root: &Path) {
    for name in list(&place(root)).unwrap_or_default() {
        let path = place(root).join(name);
        let Ok(directory) = File::open(&path) else { continue };
        // Its maker is gone, so nobody will move it any more.
        if matches!(try_lock(&directory, Lock::Shared), Ok(true)) {
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// No lease has a name that begins with a dot.
fn place(root: &Path) -> PathBuf {
    root.join(".new")
}
