//! What the fuzz targets call; no part of what users may rely on.

use std::time::Duration;

use tenure_lease::Moment;
use tenure_wire::samples::check_read;

pub use crate::messaging::fuzzing::data_frames;
pub use crate::messaging::reliable::fuzzing::{acks, packets};

use crate::transport::handshake::{Accepted, ClientHello, Hello};
use crate::wire::{self, Control};
use crate::{MembershipSettings, Node, View};

/// Reads bytes as each message of this crate.
pub fn wire(bytes: &[u8]) {
    check_read::<Control>(bytes);
    check_read::<Hello>(bytes);
    check_read::<ClientHello>(bytes);
    check_read::<Accepted>(bytes);
    crate::clients::wire::fuzzing::wire(bytes);
    crate::messaging::reliable::fuzzing::wire(bytes);
}

/// Reads a frame of the control lane.
pub fn control(frame: &[u8]) -> Option<Control> {
    wire::decode(frame).ok()
}

/// What `ours` becomes when it is told what `other` believes, tombstones included.
pub fn merged(ours: &View, other: &View, now: Moment, settings: &MembershipSettings) -> View {
    let mut view = ours.clone();
    view.merge(other, &other.removed(now), now, settings);
    view
}

/// The removed incarnations that a view remembers.
pub fn removed(view: &View, now: Moment) -> Vec<(Node, Duration)> {
    view.removed(now)
}
