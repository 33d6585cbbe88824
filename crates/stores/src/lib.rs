//! The stores that live on servers, one feature and one module each.

#[cfg(feature = "azure_blob")]
pub mod azure_blob;
#[cfg(any(feature = "http", feature = "kubernetes-unversioned"))]
mod connections;
#[cfg(feature = "consul")]
pub mod consul;
#[cfg(feature = "dynamodb")]
pub mod dynamodb;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "http")]
mod http;
#[cfg(feature = "kubernetes-unversioned")]
pub mod kubernetes;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis_store;

use tenure_lease::{OpenError, Store};

/// Opens a store from its URL, whichever kind it is: `file:DIR` and `memory:` always, the others if
/// their feature is compiled in.
pub async fn open(url: &str) -> Result<Store, OpenError> {
    // Never the whole of it in an error: there may be a password in it.
    let scheme = url.split(':').next().unwrap_or_default();
    match scheme {
        "file" | "memory" => tenure_lease::open(url).await,
        #[cfg(feature = "azure_blob")]
        "azblob" => azure_blob::AzureBlobStore::new(url).map(Store::new),
        #[cfg(feature = "consul")]
        "consul" => consul::ConsulStore::new(url).map(Store::new),
        #[cfg(feature = "kubernetes-unversioned")]
        "k8s" => kubernetes::open(url).await,
        #[cfg(feature = "dynamodb")]
        "dynamodb" => dynamodb::DynamoStore::new(url).map(Store::new),
        #[cfg(feature = "etcd")]
        "etcd" | "etcds" => etcd::EtcdStore::open(url).map(Store::new),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => postgres::PostgresStore::new(url).map(Store::new),
        #[cfg(feature = "redis")]
        "redis" | "rediss" => redis_store::RedisStore::new(url).map(Store::new),
        _ => Err(unknown(scheme)),
    }
}

fn unknown(scheme: &str) -> OpenError {
    match SCHEMES.iter().find(|(known, _)| *known == scheme) {
        Some((_, feature)) => OpenError(format!(
            "{scheme}: stores are not compiled in; enable the feature \"{feature}\" of \
             tenure-stores (or \"all-stores\")"
        )),
        None => {
            let known: Vec<_> = SCHEMES.iter().map(|(scheme, _)| format!("{scheme}:")).collect();
            OpenError(format!(
                "{scheme:?} is no kind of store; \"file:./leases\" is a store's URL, and others begin \
                 with memory:, {}",
                known.join(", ")
            ))
        }
    }
}

/// Every scheme and the feature that brings it.
const SCHEMES: &[(&str, &str)] = &[
    ("k8s", "kubernetes"),
    ("etcd", "etcd"),
    ("etcds", "etcd"),
    ("consul", "consul"),
    ("postgres", "postgres"),
    ("postgresql", "postgres"),
    ("dynamodb", "dynamodb"),
    ("azblob", "azure_blob"),
    ("redis", "redis"),
    ("rediss", "redis"),
];
