//! Who answers whom.
//!
//! Each node watches up to nine others, its neighbours on a ring, by asking them for a sign of life
//! and timing the answers. What it finds out is one row of the table that every view carries. It is
//! an observation, no more: it heals when answers come again, and it changes nobody's status.

mod detector;
mod health;
mod ring;
mod watch;

pub(crate) use detector::Detector;
pub(crate) use watch::{Observed, Watch};
