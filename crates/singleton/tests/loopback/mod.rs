//! Addresses for nodes of one test.

use std::sync::atomic::{AtomicU8, Ordering};

/// An address on loopback that stays free while its node is away: the port is outside of the range
/// that the kernel gives away, the host is this process's own.
pub(crate) fn address() -> String {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let pid = std::process::id();
    let (high, low) = (1 + (pid >> 8) % 254, pid & 0xff);
    format!("127.{high}.{low}.{}:7400", NEXT.fetch_add(1, Ordering::Relaxed))
}
