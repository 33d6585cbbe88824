//! Makes what std and tokio draw at random follow from the seed.
//!
//! A `HashMap` iterates in an order that depends on keys which std asks the operating system for, once
//! per thread; tokio seeds the order of `select!` and of a watch channel's waiters from such keys.
//! Neither can be told a seed. But std calls `getrandom` so that a program may bring its own, and
//! this is it: on a thread that simulates it gives out numbers of the seed, on every other thread
//! those of the kernel. (madsim does the same.)
#![allow(unsafe_code, reason = "a symbol of the C library is defined")]

use std::cell::Cell;

thread_local! {
    static SEED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// From now on this thread's entropy follows from the seed. For the first thing that a thread does:
/// what it has drawn before stays as it is.
pub(super) fn follow(seed: u64) {
    // Named here, so that the linker takes the object that defines it.
    let replaced: unsafe extern "C" fn(
        *mut libc::c_void,
        libc::size_t,
        libc::c_uint,
    ) -> libc::ssize_t = getrandom;
    std::hint::black_box(replaced);
    SEED.set(Some(seed));
}

/// As `getrandom(2)`.
///
/// # Safety
///
/// `buffer` is writable for `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(
    buffer: *mut libc::c_void,
    length: libc::size_t,
    flags: libc::c_uint,
) -> libc::ssize_t {
    let Some(mut seed) = SEED.try_with(Cell::get).ok().flatten() else {
        // SAFETY: the caller's buffer and length, passed on as they are.
        let result = unsafe { libc::syscall(libc::SYS_getrandom, buffer, length, flags) };
        return result as libc::ssize_t;
    };
    // SAFETY: the caller promises that the buffer is writable for the length.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
    for byte in bytes {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *byte = (seed >> 56) as u8;
    }
    SEED.set(Some(seed));
    length as libc::ssize_t
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher as _;

    #[test]
    fn a_thread_that_follows_a_seed_hashes_the_same_each_time() {
        let hashed = |seed: Option<u64>| {
            let thread = std::thread::spawn(move || {
                seed.inspect(|seed| super::follow(*seed));
                std::collections::hash_map::RandomState::new().hash_one(7)
            });
            thread.join().unwrap()
        };
        assert_eq!(hashed(Some(1)), hashed(Some(1)));
        assert_ne!(hashed(Some(1)), hashed(Some(2)));
        assert_ne!(hashed(None), hashed(None));
    }
}
