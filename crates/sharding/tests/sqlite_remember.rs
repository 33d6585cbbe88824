//! Entities that are remembered in SQLite.
#![cfg(feature = "sqlite")]

mod remember;

use tenure_sharding::SqliteRemember;

#[tokio::test]
async fn conforms() {
    let path = std::env::temp_dir().join(format!("tenure-remember-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let open = || SqliteRemember::open(&path).unwrap();
    remember::conforms(&open(), &open()).await;
    std::fs::remove_file(&path).unwrap();
}
