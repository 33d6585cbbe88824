//! The singleton: one worker in the whole cluster, found by everybody, handed over without a gap.
//!
//! ```text
//! manager.rs   pure: when this node hosts the singleton
//! proxy.rs     pure: where it is, and what waits for it
//! word.rs      what managers and proxies say to each other
//! settings.rs
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]

mod builder;
mod driver;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod hosted;
pub mod manager;
mod proxy;
mod settings;
pub mod telemetry;
mod wire;

pub use builder::{Builder, Singletons, StartError};
pub use driver::{Asking, Did, HandOverError, Happening, Happenings, Proxy, Status};
pub use hosted::{Actor, BoxError, Hosted};
pub use manager::StopReason;
pub use proxy::{Finder, Host, Put};
#[cfg(feature = "planted")]
pub use settings::Rule;
pub use settings::{Placement, Settings, SettingsError};
pub use wire::Word;
