//! Leases: named, exclusive, expiring rights, kept in a store outside your processes.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = std::env::temp_dir().join(format!("tenure-doc-{}", std::process::id()));
//! # let url = format!("file:{}", directory.display());
//! let store = tenure_lease::open(&url).await?; // file:./leases
//! store
//!     .lease("nightly-report")
//!     .run(async |tenure| {
//!         println!("only one of us is here, with token {}", tenure.token());
//!         Ok::<_, tenure_lease::LeaseError>(())
//!     })
//!     .await?;
//! # let _ = std::fs::remove_dir_all(directory);
//! # Ok(()) }
//! ```
//!
//! What is promised, and what it rests on:
//!
//! 1. **One at a time.** The activity of two tenures of a lease never overlaps, as long as pauses
//!    and clock *rates* stay within [`Settings::margin`], and the work ends within
//!    [`Settings::stop_budget`] or the [watchdog](Lease::watchdog) is on.
//! 2. **Never a stale effect.** Beyond that, a stale holder may still run; a [`fence`] refuses what
//!    it writes, because its [`Token`] is lower than its successor's.
//! 3. **Stop, then release.** A lease is released only after what it guarded has ended.
//! 4. **Unknown is not no, and not yes.** A store that did not answer has said nothing.
//!
//! The words of other lease libraries: *acquire* is [`Lease::acquire`], *release* is
//! [`Tenure::release`] (or dropping the tenure), *check alive* is [`Tenure::is_held`] (no lock, no
//! I/O), and *on lost* is [`Tenure::lost`], which says why.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod backend;
pub mod clock;
mod driver;
pub mod duration;
mod error;
pub mod fence;
mod file;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod keeper;
mod lease;
mod loss;
mod memory;
mod name;
mod news;
mod open;
#[doc(hidden)]
pub mod planted;
mod preflight;
pub mod record;
mod session;
pub mod settings;
pub mod signals;
mod standby;
pub mod telemetry;
mod tenure;
mod watchdog;
#[doc(hidden)]
pub mod world;

pub use clock::Moment;
pub use error::LeaseError;
pub use file::FileStore;
pub use lease::{Lease, Store};
pub use loss::Loss;
pub use memory::{MemoryRecords, MemoryStore, check_note};
pub use name::{LeaseName, NameError};
pub use news::{LeaseEvent, LeaseNews, News, news};
pub use open::{OpenError, open, open_to_look};
pub use record::{Nonce, Owner, Record, Token};
pub use session::{AttachedLease, KeptSession, Session};
pub use settings::{Settings, SettingsError};
pub use standby::Standby;
pub use tenure::Tenure;
pub use watchdog::Watchdog;
