//! How much room is made for an input.
//!
//! A decoder that believes a length before it has checked it may pass unnoticed, since memory that
//! is never touched costs nothing. So memory is counted when it is asked for.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Runs something that may ask for so many bytes at a time beyond what is in use; ends the process
/// if it asks for more.
pub fn within<T>(bytes: usize, run: impl FnOnce() -> T) -> T {
    MOST.store(USED.load(Relaxed) + bytes, Relaxed);
    let output = run();
    MOST.store(usize::MAX, Relaxed);
    output
}

/// What reading an input may take: some times its length, and some for a start.
pub fn for_input(input: &[u8]) -> usize {
    input.len() * 64 + (64 << 10)
}

struct Counting;

// SAFETY: all of it is done by the system's allocator; what is added is counting.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(at, layout) }
    }
}

fn took(bytes: usize) {
    let used = USED.fetch_add(bytes, Relaxed) + bytes;
    let most = MOST.load(Relaxed);
    if used > most {
        MOST.store(usize::MAX, Relaxed); // Saying so takes some, too.
        eprintln!("room for {bytes} bytes was asked for, {} more than allowed", used - most);
        std::process::abort();
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
static USED: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(usize::MAX);
