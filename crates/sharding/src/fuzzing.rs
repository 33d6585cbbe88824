//! What the fuzz targets call; no part of what users may rely on.

use crate::wire::Letter;

/// Reads bytes as each message of this crate.
pub fn wire(bytes: &[u8]) {
    tenure_wire::samples::check_read::<Letter>(bytes);
}
