//! Which lease, in which store.

use tenure_lease::{LeaseName, Store};

use crate::exit::{self, Failure};

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

impl From<&str> for StoreArgs {
    fn from(url: &str) -> Self {
        Self { url: url.into() }
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
    tenure_stores::open(url).await.map_err(|error| {
        // A directory that cannot be used is the store's trouble; anything else is a wrong URL.
        let names_a_directory = url.strip_prefix("file:").is_some_and(|rest| {
            !rest.is_empty() && (rest.starts_with("///") || !rest.starts_with("//"))
        });
        let code = if names_a_directory { exit::UNAVAILABLE } else { exit::USAGE };
        Failure::new(code, error.to_string())
    })
}
