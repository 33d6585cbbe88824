//! What the fuzz targets call; no part of what users may rely on.

use crate::wire::{Farewell, Letter};

/// Reads bytes as each message of this crate.
pub fn wire(bytes: &[u8]) {
    tenure_wire::samples::check_read::<Letter>(bytes);
    tenure_wire::samples::check_read::<Farewell>(bytes);
}
