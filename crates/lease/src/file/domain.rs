//! On which clock a moment is.

use std::io;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::record::Nonce;

/// Where moments compare: within one boot of one machine, and there within one time namespace,
/// since each of those shifts the boot clock by an offset of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Domain {
    /// The boot. Within it, locks also tell whether a process lives.
    pub(super) boot: String,
    /// The time namespace.
    pub(super) time: String,
}

impl Domain {
    /// The domain that this process is in. What cannot be told is made up, so that it compares with
    /// nobody's.
    pub(super) fn of_this_process() -> Self {
        static DOMAIN: OnceLock<Domain> = OnceLock::new();
        DOMAIN
            .get_or_init(|| {
                let unknown = || format!("unknown-{}", Nonce::random());
                let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
                let time = match std::fs::read_link("/proc/self/ns/time") {
                    Ok(link) => link.to_string_lossy().into_owned(),
                    // A kernel without time namespaces.
                    Err(error) if error.kind() == io::ErrorKind::NotFound && boot.is_ok() => {
                        "none".to_owned()
                    }
                    Err(_) => unknown(),
                };
                let boot = boot.map_or_else(|_| unknown(), |boot| boot.trim().to_owned());
                Self { boot, time }
            })
            .clone()
    }

    pub(super) fn is_same_boot(&self, other: &Self) -> bool {
        self.boot == other.boot
    }
}
