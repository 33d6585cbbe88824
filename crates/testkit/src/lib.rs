//! What Tenure is tested with: a conformance suite that every store faces, faults to inject between
//! a keeper and its store, simulated clusters of keepers in virtual time, and checkers for the
//! histories that any of these produce.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod conformance;
pub mod cost;
pub mod faults;
pub mod history;
pub mod mutants;
pub mod sim;
#[cfg(feature = "world")]
pub mod world;
