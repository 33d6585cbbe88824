//! Where numbered messages meet clocks, tasks and chance.
#![allow(clippy::disallowed_methods, reason = "this is where tasks, timers and chance come in")]

mod receive;
mod send;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use receive::{Delivery, ReliableReceiver};
pub use send::ReliableSender;

/// Where a sender hears what is done.
fn acks(stream: u64) -> String {
    format!("tenure/acks/{stream:016x}")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is guarded is never left half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
