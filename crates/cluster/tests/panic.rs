//! A defect that panics in a node's own thread.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod nodes;

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use nodes::{addresses, plain, soon};
use tenure_cluster::{Cluster, Ending, JoinError};
use tenure_lease::{MemoryStore, Store};

/// The next line that a node's thread logs panics.
static ARMED: AtomicBool = AtomicBool::new(false);

struct PanickingLog;

impl Write for PanickingLog {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let of_node = std::thread::current().name() == Some("tenure-cluster");
        assert!(!of_node || !ARMED.swap(false, Ordering::Relaxed), "planted");
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_thread_panics_has_ended_and_says_so() {
    tracing_subscriber::fmt().with_writer(|| PanickingLog).init();
    let store = Store::new(MemoryStore::default());
    let node = soon(Cluster::join(plain(&addresses(1)[0], &store))).await.unwrap();
    let mut receiver = node.receiver::<u64>("numbers").unwrap();
    ARMED.store(true, Ordering::Relaxed);
    node.ask_to_leave(&node.me()).await; // It logs that it leaves.
    let ending = soon(node.ended()).await;
    assert!(matches!(&ending, Ending::Failed(why) if why.contains("planted")), "{ending}");
    assert!(node.is_over() && node.ready().is_err());
    assert!(matches!(node.failure(), Some(JoinError::Failed(_))));
    assert!(soon(receiver.recv()).await.is_none(), "nothing will come any more");
}
