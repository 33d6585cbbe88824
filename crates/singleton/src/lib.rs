//! The singleton: one worker in the whole cluster, found by everybody, handed over without a gap.
//!
//! ```text
//! manager.rs   pure: when this node hosts the singleton
//! proxy.rs     pure: where it is, and what waits for it
//! word.rs      what managers and proxies say to each other
//! settings.rs
//! ```

pub mod manager;
mod proxy;
mod settings;
mod word;

pub use manager::StopReason;
pub use proxy::{Finder, Host, Put};
#[cfg(feature = "planted")]
pub use settings::Rule;
pub use settings::{Placement, Settings, SettingsError};
pub use word::Word;
