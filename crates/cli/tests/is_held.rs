//! `is_held` costs one atomic load and one clock read: it allocates nothing.
#![allow(unsafe_code, clippy::disallowed_methods)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;
use std::time::Instant;

use tenure_lease::{MemoryStore, Store};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: passes everything on to the system's allocator; the counter needs no memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[tokio::test]
async fn is_held_allocates_nothing() {
    let store = Store::new(MemoryStore::new());
    let plain = store.lease("plain").acquire().await.unwrap();
    let session = store.lease("session").session().await.unwrap();
    let attached = session.lease("attached").acquire().await.unwrap();
    for (name, tenure) in [("plain", &plain), ("attached", &attached)] {
        let (calls, start) = (100_000, Instant::now());
        let before = ALLOCATIONS.with(Cell::get);
        for _ in 0..calls {
            assert!(black_box(tenure).is_held());
        }
        assert_eq!(ALLOCATIONS.with(Cell::get), before, "{name}");
        println!("{name}: {:.1} ns", start.elapsed().as_nanos() as f64 / f64::from(calls));
    }
}
