//! A socket that only this user, and root, can reach.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream as Probe;
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

use crate::exit::Failure;

/// The socket; gone when this is dropped.
pub(crate) struct PrivateSocket {
    pub(crate) path: PathBuf,
    pub(crate) listener: UnixListener,
    /// The user whose it is. Somebody else may connect before the permissions are set, and must be refused.
    pub(crate) owner: u32,
    /// Held for as long as the socket is used: the kernel lets go of it when the process dies, so
    /// of two processes that find the socket of a dead one, one replaces it.
    _lock: File,
}

impl PrivateSocket {
    /// Listens at a path; errors begin with `label`, and end with `hint` if another process listens there.
    pub(crate) fn bind(path: &Path, label: &str, hint: &str) -> Result<Self, Failure> {
        let failed =
            |error: &io::Error| Failure::system(&format!("{label} {}", path.display()), error);
        let in_use = || {
            let path = path.display();
            Failure::usage(format!("{label} {path}: a running process listens there; {hint}"))
        };
        let lock = lock(path).map_err(|error| failed(&error))?;
        let Some(lock) = lock else { return Err(in_use()) };
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(&error)),
            Ok(found) if !found.file_type().is_socket() => {
                return Err(Failure::usage(format!(
                    "{label} {}: there is a file that is no socket; choose another path",
                    path.display()
                )));
            }
            Ok(_) if Probe::connect(path).is_ok() => return Err(in_use()),
            // Left by a process that was killed.
            Ok(_) => fs::remove_file(path).map_err(|error| failed(&error))?,
        }
        let listener = UnixListener::bind(path).map_err(|error| failed(&error))?;
        fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(|error| failed(&error))?;
        let owner = fs::metadata(path).map_err(|error| failed(&error))?.uid();
        Ok(Self { path: path.into(), listener, owner, _lock: lock })
    }
}

impl Drop for PrivateSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// `None` if another process has it.
fn lock(path: &Path) -> io::Result<Option<File>> {
    let mut name = OsString::from(path);
    name.push(".lock");
    let file = File::options().create(true).truncate(false).write(true).open(name)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(fs::TryLockError::WouldBlock) => Ok(None),
        Err(fs::TryLockError::Error(error)) => Err(error),
    }
}
