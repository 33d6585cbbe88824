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
    /// A node whose session turns out to be over answers marks before its shards have given back what waits.
    MarkOvertakesStop,
    /// What a shard was handed and has not begun with is lost in silence when it stops.
    LeftoversLost,
    /// What comes for a shard while it stops is lost in silence.
    HeldMessagesLost,
    /// Messages to entities that come back from a former home are lost in silence.
    ReturnsLost,
    /// Messages to a singleton that come back from a former host are lost in silence.
    SingletonReturnsLost,
    /// Nobody is told of messages to entities that were refused.
    RefusalIsNotTold,
    /// Nobody is told of messages that never left.
    UnsentIsNotTold,
    /// A singleton goes on when its lease is lost.
    LeaseLossIgnored,
    /// A coordinator of shards goes on when its lease is lost.
    CoordinatorLossIgnored,
    /// A question without an answer is said not to be done.
    NoAnswerIsNotDone,
    /// A question that a cut took is said not to be done.
    CutQuestionIsNotDone,
    /// The straight way to a shard is opened while messages are on the slow one.
    WayOpensTooEarly,
    /// What waits until its shard is here is lost in silence.
    ParkedMessagesLost,
    /// What cannot be sent to a shard's home is lost in silence.
    UnsendableMessagesLost,
    /// An arbiter takes a record that it cannot read for one that is not there.
    UnknownVerdictIsNone,
    /// The links of a process are closed when its predecessor at that address is forgotten.
    FreshLinksClosed,
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
