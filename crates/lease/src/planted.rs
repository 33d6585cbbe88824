//! Defects of drivers that a test can put back, to see that a campaign of whole nodes finds them.
//!
//! Rules of the pure cores are left out by their settings. What drivers do between the cores has no
//! settings; a switch of the whole process stands in for them. Without the feature `planted` it is
//! always off, and costs nothing.

/// A defect between the cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum GlueBug {
    /// What cannot be sent goes round between the outbox and the region without a pause.
    OutboxDoesNotPause = 1,
    /// A question that the same node refuses again is asked again without a pause.
    AskDoesNotPause,
    /// A singleton's proxy that waits for a mark looks again without a pause.
    ProxyDoesNotPause,
    /// A singleton whose lease is lost may take as long as it likes to stop.
    StopBudgetIgnored,
    /// What a singleton is told while it starts is lost in silence.
    TellsLostWhileStarting,
    /// What waits behind a message that fails is lost in silence.
    BatchLostAtError,
    /// Nobody is told of messages that a cut took.
    CutIsNotTold,
    /// Shards go on when the session of their process is lost.
    SessionLossIgnored,
}

/// Puts a defect into this process, for good.
#[cfg(feature = "planted")]
pub fn plant(bug: GlueBug) {
    switch::PLANTED.store(bug as u8, std::sync::atomic::Ordering::Relaxed);
}

/// Whether this process has the defect.
#[inline]
pub fn has(bug: GlueBug) -> bool {
    #[cfg(feature = "planted")]
    return switch::PLANTED.load(std::sync::atomic::Ordering::Relaxed) == bug as u8;
    #[cfg(not(feature = "planted"))]
    {
        let _ = bug;
        false
    }
}

#[cfg(feature = "planted")]
mod switch {
    use std::sync::atomic::AtomicU8;

    pub(super) static PLANTED: AtomicU8 = AtomicU8::new(0);
}
