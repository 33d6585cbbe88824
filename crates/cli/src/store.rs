//! Which lease, in which store.

use tenure_lease::{LeaseName, OpenError, Store};

use crate::exit::Failure;

/// The store's URL.
#[derive(clap::Args)]
pub(crate) struct StoreArgs {
    /// The store that keeps the lease, such as file:./leases
    #[arg(
        long = "lease",
        alias = "store",
        value_name = "URL",
        env = "TENURE_LEASE",
        hide_env_values = true
    )]
    url: String,
}

impl StoreArgs {
    pub(crate) async fn open(&self) -> Result<Store, Failure> {
        tenure_stores::open(&self.url).await.map_err(failure)
    }

    /// As [`StoreArgs::open`], for what other processes must see.
    pub(crate) async fn open_shared(&self) -> Result<Store, Failure> {
        self.refuse_memory()?;
        self.open().await
    }

    /// As [`look`], for what other processes must see.
    pub(crate) async fn look_shared(&self) -> Result<Store, Failure> {
        self.refuse_memory()?;
        look(&self.url).await
    }

    fn refuse_memory(&self) -> Result<(), Failure> {
        if self.url != "memory:" {
            return Ok(());
        }
        Err(Failure::usage(
            "memory: is a store of one process: each process would have its own, and would hold the \
             lease at once; \"file:./leases\" is a store for all processes of this machine",
        ))
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
