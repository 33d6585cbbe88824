//! Fencing.
