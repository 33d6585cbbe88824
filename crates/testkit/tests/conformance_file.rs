//! The conformance suite on the store in a directory.

use std::path::PathBuf;
use std::time::Duration;

use tenure_lease::backend::Boxed;
use tenure_lease::{LeaseName, Nonce, Store};
use tenure_testkit::conformance::{self, Factory};

struct Directory(PathBuf);

impl Factory for Directory {
    fn open(&self) -> Boxed<'_, Store> {
        let url = format!("file:{}", self.0.display());
        Box::pin(async move { tenure_lease::open(&url).await.expect("a directory of our own") })
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn skips(&self) -> &'static [&'static str] {
        &["terms_rise_over_a_restart", "a_foreign_holder_is_respected", "silence_is_unknown"]
    }

    fn delete<'a>(&'a self, name: &'a LeaseName) -> Option<Boxed<'a, ()>> {
        Some(Box::pin(async move {
            // Its holder may be writing into it.
            while let Err(error) = std::fs::remove_dir_all(self.0.join(name.as_str())) {
                assert_eq!(error.kind(), std::io::ErrorKind::DirectoryNotEmpty, "{error}");
            }
        }))
    }

    fn write_newer<'a>(&'a self, name: &'a LeaseName) -> Option<Boxed<'a, ()>> {
        Some(Box::pin(async move {
            let lease = self.0.join(name.as_str());
            std::fs::create_dir_all(&lease).expect("a directory of our own");
            std::fs::write(lease.join("lease9-sealed"), []).expect("a directory of our own");
        }))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // What is left over is in the directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn file_conforms() {
    let name = format!("tenure-conformance-{}", Nonce::random());
    conformance::test(Directory(std::env::temp_dir().join(name)));
}
