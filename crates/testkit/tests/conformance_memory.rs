//! The conformance suite on the store in memory.

use std::time::Duration;

use tenure_lease::backend::Boxed;
use tenure_lease::{LeaseName, MemoryStore, Store};
use tenure_testkit::conformance::{self, Factory};

struct Memory(MemoryStore);

impl Factory for Memory {
    fn open(&self) -> Boxed<'_, Store> {
        Box::pin(async { Store::new(self.0.clone()) })
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn skips(&self) -> &'static [&'static str] {
        &[
            "terms_rise_over_a_restart",
            "a_newer_format_is_left_alone",
            "a_foreign_holder_is_respected",
            "silence_is_unknown",
        ]
    }

    fn delete<'a>(&'a self, name: &'a LeaseName) -> Option<Boxed<'a, ()>> {
        Some(Box::pin(async move { assert!(self.0.delete(name), "{name} is not there") }))
    }
}

#[test]
fn memory_conforms() {
    conformance::test(Memory(MemoryStore::new()));
}
