//! Bugs to be found, so that it is known that bugs are found: `scripts/fuzz --planted`.

use std::sync::OnceLock;

use bytes::BytesMut;
use tenure_cluster::transport::Frames;
use tenure_cluster::transport::frame::{self, FrameError, HEADER};

/// What is planted, named by the environment variable `TENURE_PLANTED`.
pub fn planted(bug: &str) -> bool {
    static NAME: OnceLock<Option<String>> = OnceLock::new();
    NAME.get_or_init(|| std::env::var("TENURE_PLANTED").ok()).as_deref() == Some(bug)
}

/// [`frame::take`], or one that is wrong about lengths.
pub fn take(read: &mut BytesMut, max: usize) -> Result<Frames, FrameError> {
    if planted("length") {
        return frame::take(read, max + 1);
    }
    if planted("room")
        && let Some(header) = read.first_chunk::<HEADER>()
    {
        read.reserve(u32::from_le_bytes(*header) as usize);
    }
    frame::take(read, max)
}
