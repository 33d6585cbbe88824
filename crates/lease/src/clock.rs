//! The one clock that decides: `CLOCK_BOOTTIME`.
//!
//! `std::time::Instant` is `CLOCK_MONOTONIC` on Linux, which stands still while a machine sleeps; a
//! lease in a store does not. A holder that slept would believe in a lease long gone. Wall clocks
//! jump, so they decide nothing here.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// A point on a clock that never goes back and counts sleep: nanoseconds since the machine booted,
/// or since the beginning of a simulation.
///
/// Moments of different machines do not compare.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(u64);

impl Moment {
    /// The beginning of the clock.
    pub const ZERO: Self = Self(0);
    /// Later than everything.
    pub const NEVER: Self = Self(u64::MAX);

    /// The moment `nanos` nanoseconds after the beginning.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the beginning.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; zero if it is not.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Now, by the machine's boot clock.
    #[inline]
    pub fn now() -> Self {
        #[cfg(feature = "simulation")]
        if let Some(world) = crate::world::here() {
            return world.now();
        }
        driver::now()
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

impl AddAssign<Duration> for Moment {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Duration> for Moment {
    type Output = Self;

    fn sub(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_sub(nanos))
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NEVER {
            return f.write_str("never");
        }
        write!(f, "{:.6}s", self.0 as f64 / 1e9)
    }
}

mod driver {
    use super::Moment;

    #[cfg(target_os = "linux")]
    const CLOCK: libc::clockid_t = libc::CLOCK_BOOTTIME;
    /// On macOS `CLOCK_MONOTONIC` counts sleep; elsewhere it is the best there is.
    #[cfg(not(target_os = "linux"))]
    const CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC;

    #[inline]
    #[allow(unsafe_code)]
    pub(super) fn now() -> Moment {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // Through libc rather than a direct system call, so that a test can preload a shim.
        // SAFETY: `time` is a valid, writable timespec.
        let result = unsafe { libc::clock_gettime(CLOCK, &raw mut time) };
        // The clock id is a constant that the kernel knows, so this cannot fail.
        assert_eq!(result, 0, "the boot clock cannot be read");
        Moment(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Moment::NEVER + Duration::from_secs(1), Moment::NEVER);
        assert_eq!(Moment::ZERO - Duration::from_secs(1), Moment::ZERO);
        assert_eq!(Moment::ZERO.since(Moment::NEVER), Duration::ZERO);
    }

    #[test]
    fn the_boot_clock_moves_forward() {
        let first = Moment::now();
        assert!(first > Moment::ZERO && Moment::now() >= first);
    }
}
