//! For how long this thread has run.
#![allow(unsafe_code)]

use std::time::Duration;

/// The time that the processor has spent on this thread. For work that waits for nothing it is what
/// the work takes, however busy the machine is.
pub(super) fn time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the time to `time`, which outlives the call.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(result, 0, "every thread has such a clock");
    // Both are positive, and the second is less than a second.
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
