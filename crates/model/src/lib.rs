//! Models of the protocols that Tenure's safety rests on, and the checker that explores them.
//!
//! A model is a small program that says which steps are possible in a state: a request reaches the
//! store, a process pauses, a tick passes. [`engine::check`] takes all of them, in every order, and
//! looks for a state that must not be (safety) and for one that has no way out (liveness). The
//! models leave out everything that a protocol does not decide on, so that all interleavings within
//! small bounds fit into memory. What they leave out, each says at its head.
//!
//! Each model can switch its rules off one by one. The tests show that all rules together are safe,
//! and what happens without each of them, which is why the rule is there.
//!
//! | model | what it is about |
//! |---|---|
//! | [`renewals`] | one tenure, several renewals of which overlap |
//! | [`sessions`] | many leases that live and die with one renewed record |
//! | [`verdict`] | which side of a split lives on |
//! | [`formation`] | how a cluster comes to be, and comes back |
//! | [`coordinator`] | one shard in one place, through a change of coordinators |
//!
//! ```
//! use tenure_model::engine::{Limits, Verdict, check};
//! use tenure_model::sessions::{Rules, Scenario, Sessions};
//!
//! let rules = Rules { boottime: false, ..Rules::ALL };
//! let scenario = Scenario { pauses: 1, ..Scenario::CALM };
//! let report = check(&Sessions { rules, scenario }, Limits::default());
//! let Verdict::Unsafe { trace, .. } = report.verdict else { panic!("a rule is missing") };
//! println!("{trace}");
//! ```

pub mod coordinator;
pub mod engine;
pub mod formation;
mod interner;
mod node_set;
pub mod renewals;
pub mod sessions;
pub mod verdict;
