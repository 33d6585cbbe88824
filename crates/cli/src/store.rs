//! Which lease, in which store.

use tenure_lease::{LeaseName, OpenError, Store};

use crate::exit::Failure;

/// The store's URL.
#[derive(clap::Args)]
pub(crate) struct StoreArgs {
    /// The store that keeps the lease, such as file:./leases
    #[arg(long = "lease", value_name = "URL", env = "TENURE_LEASE", hide_env_values = true)]
    url: String,
}

impl StoreArgs {
    pub(crate) async fn open(&self) -> Result<Store, Failure> {
        open(&self.url).await
    }
}

/// A lease in a store.
#[derive(clap::Args)]
pub(crate) struct LeaseArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// The name of the lease: lower-case letters, digits, '-' and '.'
    #[arg(long, value_name = "NAME")]
    pub(crate) name: LeaseName,
}

pub(crate) async fn open(url: &str) -> Result<Store, Failure> {
    tenure_stores::open(url).await.map_err(|error| match error {
        OpenError::Url(wrong) => Failure::usage(wrong),
        OpenError::Store(trouble) => trouble.into(),
    })
}
