//! What is asked of the operating system without a safe interface in the standard library.
#![allow(unsafe_code)]

use std::os::fd::OwnedFd;

use tenure_lease::{Store, Tenure};

/// The descriptor whose closing frees the tenure, if the store has one.
pub(crate) fn lifeline(store: &Store, tenure: &Tenure) -> Option<OwnedFd> {
    store.backend().lifeline(tenure.claim())
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn check_requirements() -> std::io::Result<()> {
    Ok(())
}

/// Sends a signal; a process that is gone is no matter.
pub(super) fn kill(pid: i32, signal: i32) {
    // SAFETY: takes two numbers.
    unsafe { libc::kill(pid, signal) };
}

#[cfg(target_os = "linux")]
pub(crate) use linux::*;

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::File;
    use std::io::{self, Seek as _, Write as _};
    use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
    use std::os::unix::net::UnixStream;
    use std::os::unix::process::CommandExt;
    use std::process::Command;
    use std::time::Duration;

    use tenure_lease::Moment;
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
        if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
    }

    /// Descendants are found in /proc, and orphans among them must come to us.
    pub(crate) fn check_requirements() -> io::Result<()> {
        std::fs::read("/proc/self/stat").map_err(|error| {
            io::Error::new(error.kind(), format!("/proc, by which processes are found ({error})"))
        })?;
        become_subreaper()
    }

    /// Orphaned descendants become children of this process.
    pub(crate) fn become_subreaper() -> io::Result<()> {
        // SAFETY: takes numbers only.
        checked(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }).map(drop)
    }

    /// Names this process for `ps`; at most 15 bytes count.
    pub(crate) fn set_name(name: &std::ffi::CStr) {
        // SAFETY: the name is a valid C string; the kernel copies it.
        unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0) };
    }

    /// A file in memory with these bytes, to be read from its beginning.
    pub(crate) fn in_memory(bytes: &[u8]) -> io::Result<File> {
        // SAFETY: the name is a valid C string; the kernel copies it.
        let made = unsafe { libc::memfd_create(c"command".as_ptr(), libc::MFD_CLOEXEC) };
        // SAFETY: it was just made, for us.
        let mut file = File::from(unsafe { OwnedFd::from_raw_fd(checked(made)?) });
        file.write_all(bytes)?;
        file.rewind()?;
        Ok(file)
    }

    pub(crate) fn parent() -> i32 {
        // SAFETY: takes nothing and cannot fail.
        unsafe { libc::getppid() }
    }

    /// Asks for a signal when the thread that started this process ends.
    pub(crate) fn signal_at_parents_death(signal: i32) -> io::Result<()> {
        // SAFETY: takes numbers only.
        checked(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal, 0, 0, 0) }).map(drop)
    }

    /// The descriptors stay open in what this command starts.
    pub(crate) fn inherit(command: &mut Command, descriptors: Vec<RawFd>) {
        let keep_open = move || {
            for &descriptor in &descriptors {
                // SAFETY: takes numbers only; safe to call between fork and exec.
                checked(unsafe { libc::fcntl(descriptor, libc::F_SETFD, 0) })?;
            }
            Ok(())
        };
        // SAFETY: the closure only makes a system call, and reads memory that fork has copied.
        unsafe { command.pre_exec(keep_open) };
    }

    /// Takes over a descriptor that was inherited under a number that its parent told; it is not
    /// inherited further.
    pub(crate) fn adopt(descriptor: RawFd) -> io::Result<OwnedFd> {
        // SAFETY: takes numbers only.
        checked(unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) })?;
        // SAFETY: it is open, as fcntl has just shown, and the parent left it open for us alone.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    /// Every signal that can be blocked is, from here on.
    pub(crate) fn block_signals() -> io::Result<()> {
        set_mask(&full_set())
    }

    fn full_set() -> libc::sigset_t {
        let mut set = std::mem::MaybeUninit::uninit();
        // SAFETY: sigfillset initialises the set that it is given, and cannot fail on a valid one.
        unsafe {
            libc::sigfillset(set.as_mut_ptr());
            set.assume_init()
        }
    }

    fn set_of(signals: &[i32]) -> libc::sigset_t {
        let mut set = std::mem::MaybeUninit::uninit();
        // SAFETY: sigemptyset initialises the set; the signals are constants that exist.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            let mut set = set.assume_init();
            for &signal in signals {
                libc::sigaddset(&raw mut set, signal);
            }
            set
        }
    }

    fn set_mask(set: &libc::sigset_t) -> io::Result<()> {
        // SAFETY: the set is initialised, and outlives the call.
        checked(unsafe { libc::sigprocmask(libc::SIG_SETMASK, set, std::ptr::null_mut()) })
            .map(drop)
    }

    /// What this command starts dies with this process, and begins with no signal blocked.
    pub(crate) fn tie_to_us(command: &mut Command) {
        let us = i32::try_from(std::process::id()).unwrap_or(0);
        let none = set_of(&[]);
        let tie = move || {
            signal_at_parents_death(libc::SIGKILL)?;
            if parent() != us {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            set_mask(&none)
        };
        // SAFETY: the closure makes system calls that are safe between fork and exec, only.
        unsafe { command.pre_exec(tie) };
    }

    /// Signals as something to read.
    pub(crate) struct SignalFd(OwnedFd);

    impl SignalFd {
        /// The signals must be blocked.
        pub(crate) fn new(signals: &[i32]) -> io::Result<Self> {
            let set = set_of(signals);
            // SAFETY: the set is initialised, and outlives the call.
            let descriptor = checked(unsafe {
                libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
            })?;
            // SAFETY: it was just made, for us.
            Ok(Self(unsafe { OwnedFd::from_raw_fd(descriptor) }))
        }

        /// The next one that is pending.
        pub(crate) fn next(&self) -> Option<i32> {
            let mut info = std::mem::MaybeUninit::<libc::signalfd_siginfo>::uninit();
            let size = size_of::<libc::signalfd_siginfo>();
            // SAFETY: the place is writable for that many bytes.
            let read = unsafe { libc::read(self.0.as_raw_fd(), info.as_mut_ptr().cast(), size) };
            if usize::try_from(read) != Ok(size) {
                return None;
            }
            // SAFETY: the kernel has filled all of it.
            i32::try_from(unsafe { info.assume_init() }.ssi_signo).ok()
        }
    }

    impl AsRawFd for SignalFd {
        fn as_raw_fd(&self) -> RawFd {
            self.0.as_raw_fd()
        }
    }

    /// A timer on the boot clock, as something to wait for.
    pub(crate) struct BootTimer(OwnedFd);

    impl BootTimer {
        pub(crate) fn new() -> io::Result<Self> {
            // SAFETY: takes numbers only.
            let descriptor = checked(unsafe {
                libc::timerfd_create(libc::CLOCK_BOOTTIME, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK)
            })?;
            // SAFETY: it was just made, for us.
            Ok(Self(unsafe { OwnedFd::from_raw_fd(descriptor) }))
        }

        /// It becomes readable at that moment, and is not before.
        pub(crate) fn set(&self, at: Moment) -> io::Result<()> {
            // An all-zero time would disarm it.
            let nanos = at.as_nanos().clamp(1, i64::MAX as u64);
            let time = libc::itimerspec {
                it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
                it_value: libc::timespec {
                    tv_sec: (nanos / 1_000_000_000) as libc::time_t,
                    tv_nsec: (nanos % 1_000_000_000) as libc::c_long,
                },
            };
            // SAFETY: the setting outlives the call.
            checked(unsafe {
                libc::timerfd_settime(
                    self.0.as_raw_fd(),
                    libc::TFD_TIMER_ABSTIME,
                    &raw const time,
                    std::ptr::null_mut(),
                )
            })
            .map(drop)
        }
    }

    impl AsRawFd for BootTimer {
        fn as_raw_fd(&self) -> RawFd {
            self.0.as_raw_fd()
        }
    }

    /// Waits until one of them can be read or has ended.
    pub(crate) fn wait_readable<const N: usize>(descriptors: [RawFd; N]) {
        poll(descriptors, libc::POLLIN, -1);
    }

    /// Whether a short write would return at once.
    pub(crate) fn is_writable(descriptor: BorrowedFd<'_>) -> bool {
        poll([descriptor.as_raw_fd()], libc::POLLOUT, 0)
    }

    fn poll<const N: usize>(descriptors: [RawFd; N], events: i16, timeout: i32) -> bool {
        let mut polled = descriptors.map(|fd| libc::pollfd { fd, events, revents: 0 });
        // SAFETY: the array is valid for its own length. An error (EINTR) is a wake-up like any
        // other: the caller looks what there is.
        let ready = unsafe { libc::poll(polled.as_mut_ptr(), N as libc::nfds_t, timeout) };
        ready > 0 && polled.iter().any(|polled| polled.revents & events != 0)
    }

    /// What became of the children.
    pub(crate) enum Reaped {
        /// This one ended, with this wait status.
        Ended(i32, i32),
        /// None has, yet.
        Nothing,
        /// There are no children, hence no descendants.
        NoneLeft,
    }

    /// Takes note of one child that has ended.
    pub(crate) fn reap() -> Reaped {
        let mut status = 0;
        // SAFETY: `status` is writable.
        match unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) } {
            0 => Reaped::Nothing,
            -1 if io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD) => {
                Reaped::NoneLeft
            }
            -1 => Reaped::Nothing,
            pid => Reaped::Ended(pid, status),
        }
    }

    /// Takes note of this child, if it has ended.
    pub(crate) fn reap_child(pid: i32) {
        // SAFETY: without a place for the status it takes numbers only.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG) };
    }

    /// A process that a number cannot be confused with, once it was seen to be the right one.
    pub(crate) struct PidFd(OwnedFd);

    impl PidFd {
        /// The process at the other end of a socket, as the kernel knows it: also if its number is another's
        /// by now. An old kernel (before 6.5) cannot tell.
        pub(crate) fn of_peer(socket: BorrowedFd<'_>) -> io::Result<Self> {
            let mut descriptor: RawFd = -1;
            let mut size = DESCRIPTOR_SIZE;
            // SAFETY: both places are writable, and the second says how large the first is.
            checked(unsafe {
                libc::getsockopt(
                    socket.as_raw_fd(),
                    libc::SOL_SOCKET,
                    SO_PEERPIDFD,
                    (&raw mut descriptor).cast(),
                    &raw mut size,
                )
            })?;
            // SAFETY: it was just made, for us.
            Ok(Self(unsafe { OwnedFd::from_raw_fd(descriptor) }))
        }

        /// Whether this process may be sent signals, and has not ended.
        pub(crate) fn can_be_signalled(&self) -> io::Result<()> {
            self.send(0)
        }

        fn send(&self, signal: i32) -> io::Result<()> {
            // SAFETY: without siginfo it takes numbers only.
            let sent = unsafe {
                libc::syscall(
                    libc::SYS_pidfd_send_signal,
                    self.0.as_raw_fd(),
                    signal,
                    std::ptr::null::<libc::siginfo_t>(),
                    0,
                )
            };
            checked(i32::try_from(sent).unwrap_or(-1)).map(drop)
        }

        pub(crate) fn open(pid: i32) -> io::Result<Self> {
            // SAFETY: takes numbers only; the result is a new descriptor or -1.
            let result = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
            let descriptor = checked(i32::try_from(result).unwrap_or(-1))?;
            // SAFETY: it was just made, for us.
            Ok(Self(unsafe { OwnedFd::from_raw_fd(descriptor) }))
        }

        /// Sends a signal; a process that is gone is no matter.
        pub(crate) fn signal(&self, signal: i32) {
            let _ = self.send(signal);
        }
    }

    /// It can be read once the process has ended.
    impl AsRawFd for PidFd {
        fn as_raw_fd(&self) -> RawFd {
            self.0.as_raw_fd()
        }
    }

    /// What keeps one descriptor open, and the same, for as long as it exists.
    pub(crate) trait OwnsDescriptor: AsRawFd {}

    impl OwnsDescriptor for PidFd {}
    impl OwnsDescriptor for BootTimer {}
    impl OwnsDescriptor for UnixStream {}

    /// Something to wait for until it can be read. To be called within a tokio runtime.
    pub(crate) fn watch<T: OwnsDescriptor>(inner: T) -> io::Result<AsyncFd<T>> {
        // SAFETY: its descriptor stays open and the same until it is dropped.
        let watched = unsafe { AsyncFd::register_with_interest(inner, Interest::READABLE) };
        watched.map_err(|error| error.into_parts().1)
    }

    /// Of Linux 6.5.
    const SO_PEERPIDFD: libc::c_int = 77;

    /// Sends a message, and a descriptor along with it; never waits.
    pub(crate) fn send(
        to: &UnixStream,
        bytes: &[u8],
        descriptor: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let mut part =
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut ancillary = Ancillary::default();
        let mut message = ancillary.message(&mut part);
        // SAFETY: the message has room for one header with one descriptor, which is all that is written.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(DESCRIPTOR_SIZE) as _;
            libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(descriptor.as_raw_fd());
            message.msg_controllen = libc::CMSG_SPACE(DESCRIPTOR_SIZE) as _;
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: everything that the message points to outlives the call.
        let sent = unsafe { libc::sendmsg(to.as_raw_fd(), &raw const message, flags) };
        match usize::try_from(sent) {
            Ok(sent) if sent == bytes.len() => Ok(()),
            Ok(_) => Err(io::ErrorKind::WriteZero.into()),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }

    /// Sends as much as goes at once; never waits.
    pub(crate) fn send_now(to: &impl AsRawFd, bytes: &[u8]) -> io::Result<usize> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the bytes are readable for their length.
        let sent = unsafe { libc::send(to.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Receives bytes, and the descriptor that was sent along with them, if one was.
    pub(crate) fn receive(
        from: &UnixStream,
        bytes: &mut [u8],
    ) -> io::Result<(usize, Option<OwnedFd>)> {
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let mut ancillary = Ancillary::default();
        let mut message = ancillary.message(&mut part);
        // SAFETY: everything that the message points to is writable and outlives the call.
        let received =
            unsafe { libc::recvmsg(from.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        // SAFETY: the kernel has filled the message, and with it the length of its headers.
        let descriptor = unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            let is_one = !header.is_null()
                && (*header).cmsg_level == libc::SOL_SOCKET
                && (*header).cmsg_type == libc::SCM_RIGHTS;
            is_one.then(|| {
                OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned())
            })
        };
        Ok((received, descriptor))
    }

    /// Room for a header with one descriptor, aligned as the kernel wants it.
    #[derive(Default)]
    #[repr(C, align(8))]
    struct Ancillary([u8; 32]);

    impl Ancillary {
        fn message(&mut self, part: &mut libc::iovec) -> libc::msghdr {
            // SAFETY: an all-zero msghdr is a valid, empty one.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            message.msg_iov = part;
            message.msg_iovlen = 1;
            message.msg_control = self.0.as_mut_ptr().cast();
            message.msg_controllen = self.0.len() as _;
            message
        }
    }

    const DESCRIPTOR_SIZE: u32 = size_of::<RawFd>() as u32;

    /// Rests for a moment.
    pub(crate) fn rest(time: Duration) {
        poll([], libc::POLLIN, i32::try_from(time.as_millis()).unwrap_or(i32::MAX));
    }
}
