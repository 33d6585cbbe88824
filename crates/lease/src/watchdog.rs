//! The last resort: the process ends before the lease can be somebody else's.
//!
//! It is armed in the kernel, not in a thread, because a thread is paused along with the rest of a
//! stopped process. A timer on the boot clock delivers SIGKILL, which also reaches a process that is
//! stopped, or one whose machine has just woken up.
#![allow(unsafe_code)]

use crate::clock::Moment;

/// Ends this process with SIGKILL at a given moment, also while it is stopped: a timer in the kernel,
/// on the boot clock. Dropping it disarms it.
///
/// [`Lease::watchdog`](crate::Lease::watchdog) arms one; this is for supervisors that guard in a
/// process of their own.
///
/// To process 1 of a PID namespace, as a container's program often is, the kernel delivers no SIGKILL
/// from inside: there the watchdog does nothing, and a warning says so when it is made.
pub struct Watchdog {
    #[cfg(target_os = "linux")]
    timer: libc::timer_t,
}

impl std::fmt::Debug for Watchdog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watchdog").finish_non_exhaustive()
    }
}

// SAFETY: a timer id is a number that any thread of the process may use.
#[cfg(target_os = "linux")]
unsafe impl Send for Watchdog {}
// SAFETY: as above; the kernel serialises the calls.
#[cfg(target_os = "linux")]
unsafe impl Sync for Watchdog {}

#[cfg(target_os = "linux")]
impl Watchdog {
    /// A disarmed one.
    pub fn new() -> Self {
        if std::process::id() == 1 {
            tracing::warn!(
                "this process is number 1 of its PID namespace, so the kernel ignores the \
                 watchdog, and work that overruns its deadline is not ended: start the container \
                 with an init (`--init`, or shareProcessNamespace), or the program by `tenure run`"
            );
        }
        // SAFETY: an all-zero sigevent is valid, and is filled in before it is used.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_SIGNAL;
        event.sigev_signo = libc::SIGKILL;
        let mut timer: libc::timer_t = std::ptr::null_mut();
        // SAFETY: both pointers are valid for the duration of the call.
        let result =
            unsafe { libc::timer_create(libc::CLOCK_BOOTTIME, &raw mut event, &raw mut timer) };
        // Without its watchdog a process must not go on as if it had one.
        assert_eq!(result, 0, "no kernel timer: {}", std::io::Error::last_os_error());
        Self { timer }
    }

    /// The process dies at this moment, unless it is armed anew or dropped before.
    pub fn arm(&self, at: Moment) {
        // An all-zero time would disarm it.
        let nanos = at.as_nanos().max(1);
        let time = libc::timespec {
            tv_sec: (nanos / 1_000_000_000) as libc::time_t,
            tv_nsec: (nanos % 1_000_000_000) as libc::c_long,
        };
        let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let setting = libc::itimerspec { it_interval: never, it_value: time };
        // SAFETY: the timer is ours until it is dropped, and the setting outlives the call.
        let result = unsafe {
            libc::timer_settime(
                self.timer,
                libc::TIMER_ABSTIME,
                &raw const setting,
                std::ptr::null_mut(),
            )
        };
        assert_eq!(result, 0, "the watchdog cannot be armed: {}", std::io::Error::last_os_error());
    }
}

#[cfg(target_os = "linux")]
impl Drop for Watchdog {
    fn drop(&mut self) {
        // A driver that panicked does not know whether the work has ended.
        if std::thread::panicking() {
            return;
        }
        // SAFETY: the timer is ours and is not used afterwards.
        unsafe { libc::timer_delete(self.timer) };
    }
}

impl Default for Watchdog {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(not(target_os = "linux"))]
impl Watchdog {
    /// One that does nothing.
    pub fn new() -> Self {
        tracing::warn!("no watchdog on this system: a stalled process is not ended in time");
        Self {}
    }

    /// Does nothing.
    pub fn arm(&self, _at: Moment) {}
}
