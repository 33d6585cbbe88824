//! The system calls that the standard library does not have.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Who else may have a lock at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lock {
    /// Nobody.
    Exclusive,
    /// Those who also want it shared.
    Shared,
}

/// Takes a lock on an open file, if it can be had at once. The kernel frees it when the last
/// descriptor that was duplicated or inherited from this one is closed.
///
/// Not the standard library's lock: all releases of this one must use the same kind, whatever
/// version they are compiled with.
pub(super) fn try_lock(file: &File, lock: Lock) -> io::Result<bool> {
    let kind = match lock {
        Lock::Exclusive => libc::LOCK_EX,
        Lock::Shared => libc::LOCK_SH,
    };
    loop {
        // SAFETY: the descriptor is open for the duration of the call.
        if unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) } == 0 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::WouldBlock => return Ok(false),
            io::ErrorKind::Interrupted => {}
            _ => return Err(error),
        }
    }
}

/// What kind of file system an open file is on.
#[cfg(target_os = "linux")]
pub(super) fn file_system(file: &File) -> io::Result<u32> {
    let mut stat = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the descriptor is open, and the buffer is as large as the kernel expects.
    if unsafe { libc::fstatfs(file.as_raw_fd(), stat.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so the kernel has filled it in.
    let stat = unsafe { stat.assume_init() };
    // Magic numbers have 32 bits; the field's width and sign differ between architectures.
    Ok(stat.f_type as u32)
}

#[cfg(target_os = "linux")]
pub(super) use inotify::{Event, Inotify};

#[cfg(target_os = "linux")]
mod inotify {
    use std::ffi::CString;
    use std::fs::File;
    use std::io::{self, Read as _};
    use std::os::fd::{AsRawFd, FromRawFd as _, OwnedFd, RawFd};
    use std::os::unix::ffi::OsStrExt as _;
    use std::path::Path;

    /// A queue of file system events.
    pub(in crate::file) struct Inotify(File);

    /// One of them.
    pub(in crate::file) struct Event {
        pub(in crate::file) watch: i32,
        pub(in crate::file) mask: u32,
        /// Empty if it is about the watched directory itself, or not UTF-8.
        pub(in crate::file) name: String,
    }

    impl Inotify {
        /// A queue that never blocks.
        pub(in crate::file) fn new() -> io::Result<Self> {
            // SAFETY: takes no pointers.
            let fd = unsafe { libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC) };
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: the descriptor is fresh and nobody else's.
            Ok(Self(File::from(unsafe { OwnedFd::from_raw_fd(fd) })))
        }

        /// Watches a directory.
        pub(in crate::file) fn add(&self, path: &Path, mask: u32) -> io::Result<i32> {
            let path = CString::new(path.as_os_str().as_bytes())?;
            let fd = self.0.as_raw_fd();
            // SAFETY: the descriptor is open and the path is a C string that outlives the call.
            let watch = unsafe { libc::inotify_add_watch(fd, path.as_ptr(), mask) };
            if watch < 0 { Err(io::Error::last_os_error()) } else { Ok(watch) }
        }

        /// Watches it no more. One that is gone already is fine.
        pub(in crate::file) fn remove(&self, watch: i32) {
            // SAFETY: takes no pointers; the kernel refuses a number that it does not know.
            unsafe { libc::inotify_rm_watch(self.0.as_raw_fd(), watch) };
        }

        /// The events that wait, or `WouldBlock`.
        pub(in crate::file) fn read(&self) -> io::Result<Vec<Event>> {
            let mut buffer = [0; 16 * 1024];
            let length = (&self.0).read(&mut buffer)?;
            Ok(parse(&buffer[..length]))
        }
    }

    impl AsRawFd for Inotify {
        fn as_raw_fd(&self) -> RawFd {
            self.0.as_raw_fd()
        }
    }

    /// `struct inotify_event`: watch, mask, cookie, length of the name, name padded with NULs.
    fn parse(mut bytes: &[u8]) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some((header, rest)) = bytes.split_first_chunk::<16>() {
            let field = |at: usize| [header[at], header[at + 1], header[at + 2], header[at + 3]];
            let length = u32::from_ne_bytes(field(12)) as usize;
            let Some((name, rest)) = rest.split_at_checked(length) else { break };
            let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
            events.push(Event {
                watch: i32::from_ne_bytes(field(0)),
                mask: u32::from_ne_bytes(field(4)),
                name: std::str::from_utf8(&name[..end]).unwrap_or_default().to_owned(),
            });
            bytes = rest;
        }
        events
    }
}
