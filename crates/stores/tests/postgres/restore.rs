//! An old dump is restored: the store has lost history, and says so where it matters.

use tenure_lease::Loss;
use tenure_lease::fence::FenceError;
use tenure_stores::postgres::{PostgresFence, PostgresFenceError};

use super::support::{block_on, program, run, server};

#[test]
fn a_restored_dump_is_noticed_at_the_fence_and_repaired() {
    let Some((_turn, server)) = server() else { return };
    block_on(async {
        // The fence is in another schema: in real life, in another database.
        let mut data = server.client().await;
        let path = format!("SET search_path TO {}_data", server.schema);
        let create = format!("CREATE SCHEMA {}_data; {path}", server.schema);
        data.batch_execute(&create).await.unwrap();
        let lease = server.store().await.lease("restored");
        let first = lease.acquire().await.unwrap();
        first.release().await;

        let dump = run(program("pg_dump")
            .args(["--clean", "--if-exists", "--schema"])
            .args([&server.schema, server.base()]));
        assert!(dump.status.success(), "{}", String::from_utf8_lossy(&dump.stderr));
        let file = std::env::temp_dir().join(format!("{}.sql", server.schema));
        std::fs::write(&file, dump.stdout).unwrap();

        let mut highest = Default::default();
        for _ in 0..3 {
            let tenure = lease.acquire().await.unwrap();
            PostgresFence::raise(&tenure, &mut data, "ledger").await.unwrap();
            highest = tenure.token();
            tenure.release().await;
        }
        // --clean drops the schema, which our own connection does not use.
        let restore = program("psql")
            .args(["-Xq", "-v", "ON_ERROR_STOP=1", "-f"])
            .arg(&file)
            .arg(server.base())
            .output()
            .unwrap();
        std::fs::remove_file(&file).unwrap();
        assert!(restore.status.success(), "{}", String::from_utf8_lossy(&restore.stderr));

        let tenure = lease.acquire().await.unwrap();
        assert!(tenure.token() < highest, "{} after {highest}", tenure.token());
        let error = PostgresFence::raise(&tenure, &mut data, "ledger").await.unwrap_err();
        let PostgresFenceError::Fence(FenceError::TokenRegressed { fence, .. }) = &error else {
            panic!("{error}");
        };
        assert!(
            error.to_string().contains("tenure lease raise --lease URL --name restored"),
            "{error}"
        );
        assert_eq!(*fence, highest);
        let loss = Loss::TokenRegressed { held: tenure.token(), fence: highest };
        assert_eq!(tenure.lost().await, loss);
        assert!(!tenure.is_held());
        tenure.release().await;

        let tenure = lease.clone().above(fence.term).acquire().await.unwrap();
        assert!(tenure.token() > highest);
        PostgresFence::raise(&tenure, &mut data, "ledger").await.unwrap();
        tenure.release().await;
        // And it stays repaired.
        let tenure = lease.acquire().await.unwrap();
        PostgresFence::raise(&tenure, &mut data, "ledger").await.unwrap();
        data.batch_execute(&format!("DROP SCHEMA {}_data CASCADE", server.schema)).await.unwrap();
    });
}
