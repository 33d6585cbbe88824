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
        tenure_stores::open(&self.url).await.map_err(failure)
    }

    /// As [`look`].
    pub(crate) async fn look(&self) -> Result<Store, Failure> {
        look(&self.url).await
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

/// Opens a store to look at what is there: a mistyped directory is not created.
pub(crate) async fn look(url: &str) -> Result<Store, Failure> {
    let store = match url.strip_prefix("file:") {
        Some(_) => tenure_lease::open_to_look(url).await,
        None => tenure_stores::open(url).await,
    };
    store.map_err(failure)
}

fn failure(error: OpenError) -> Failure {
    match error {
        OpenError::Url(wrong) => Failure::usage(wrong),
        OpenError::Store(trouble) => trouble.into(),
    }
}
