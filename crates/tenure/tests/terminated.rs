//! SIGTERM is a hand-over: two processes of each example that hosts something, on a lease in a directory;
//! the host is told to end, and the other begins. `TENURE_ROUNDS=20` does it twenty times each.
#![cfg(all(
    target_os = "linux",
    feature = "node",
    feature = "singleton",
    feature = "sharding",
    feature = "sqlite"
))]

mod terminated_kit;

use terminated_kit::{EXAMPLES, judge, rounds};

#[test]
fn a_host_that_is_told_to_end_hands_over() {
    for (index, example) in EXAMPLES.iter().enumerate() {
        let block = 10 + 2 * u8::try_from(index).unwrap();
        let took = example.hand_over("file:./leases", block, rounds(3));
        judge(example, "file:", took);
    }
}

/// What the guide shows is what was told to end.
#[test]
fn the_guide_shows_the_example_service() {
    let example = include_str!("../examples/service.rs");
    let program = &example[example.find("use std::time").unwrap()..];
    let page = include_str!("../../../docs/production.md");
    let shown = page.split("```rust,no_run\n").nth(1).and_then(|rest| rest.split("```").next());
    assert_eq!(
        shown,
        Some(program),
        "docs/production.md has another program than examples/service.rs"
    );
}
