//! What the fuzz targets call; no part of what users may rely on.

use std::time::Duration;

use tenure_lease::Moment;

pub use crate::messaging::fuzzing::data_frames;
pub use crate::messaging::reliable::fuzzing::{acks, packets};

use crate::message::{self, Control};
use crate::{MembershipSettings, Node, View};

/// Reads a frame of the control lane.
pub fn control(frame: &[u8]) -> Option<Control> {
    message::decode(frame)
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
