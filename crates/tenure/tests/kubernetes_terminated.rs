//! SIGTERM is a hand-over in Kubernetes, too: as `terminated`, with leases in a real API server.
//!
//! `scripts/servers run --only kube -- cargo test-all --test kubernetes_terminated` starts one; without it
//! the test says so and passes. `TENURE_ROUNDS=20` does it twenty times each.
#![cfg(all(
    target_os = "linux",
    feature = "node",
    feature = "singleton",
    feature = "sharding",
    feature = "sqlite",
    feature = "kubernetes"
))]

mod terminated_kit;

use terminated_kit::{EXAMPLES, judge, rounds};

#[test]
fn a_host_that_is_told_to_end_hands_over() {
    let Ok(kubeconfig) = std::env::var("TENURE_TEST_KUBE_USER") else {
        eprintln!(
            "skipped: TENURE_TEST_KUBE_USER is not set. Run the test by: scripts/servers run --only kube -- \
             cargo test-all --test kubernetes_terminated"
        );
        return;
    };
    let store = format!("k8s://tenure-test?kubeconfig={kubeconfig}");
    for (index, example) in EXAMPLES.iter().enumerate() {
        let block = 30 + 2 * u8::try_from(index).unwrap();
        let took = example.hand_over(&store, block, rounds(3));
        judge(example, "k8s:", took);
    }
}
