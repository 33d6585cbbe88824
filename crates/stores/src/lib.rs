//! The stores that live on servers, one feature and one module each.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "azure_blob")]
pub mod azure_blob;
#[cfg(any(feature = "http", feature = "kubernetes-unversioned"))]
#[cfg_attr(not(feature = "all-stores"), allow(dead_code))] // Each store uses some of it.
mod connections;
#[cfg(feature = "consul")]
pub mod consul;
#[cfg(any(feature = "azure_blob", feature = "dynamodb"))]
mod date;
#[cfg(any(feature = "azure_blob", feature = "dynamodb"))]
mod detached;
#[cfg(feature = "dynamodb")]
pub mod dynamodb;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(any(feature = "http", feature = "kubernetes-unversioned"))]
#[cfg_attr(not(feature = "all-stores"), allow(dead_code))] // Each store uses some of it.
mod generations;
#[cfg(feature = "http")]
#[cfg_attr(not(feature = "all-stores"), allow(dead_code))] // Each store uses some of it.
mod http;
#[cfg(feature = "kubernetes-unversioned")]
pub mod kubernetes;
#[cfg(any(feature = "azure_blob", feature = "consul"))]
mod line;
#[cfg(any(
    feature = "azure_blob",
    feature = "consul",
    feature = "etcd",
    feature = "kubernetes-unversioned"
))]
mod percent;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg_attr(not(feature = "all-stores"), allow(dead_code))] // Each store uses some of it.
mod records;
#[cfg(feature = "redis")]
pub mod redis_store;

#[cfg(any(feature = "azure_blob", feature = "consul"))]
use tenure_lease::LeaseName;
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
        Some((_, feature)) => OpenError::Url(format!(
            "{scheme}: stores are not compiled in; enable the feature \"{feature}\" (or \"all-stores\") of the \
             crate that you depend on, tenure or tenure-stores; for the program: cargo install \
             tenure-cli --features {feature}"
        )),
        None => {
            let known: Vec<_> = SCHEMES.iter().map(|(scheme, _)| format!("{scheme}:")).collect();
            OpenError::Url(format!(
                "{scheme:?} is no kind of store; \"file:./leases\" is a store's URL, and others begin \
                 with memory:, {}",
                known.join(", ")
            ))
        }
    }
}

/// What all names begin with.
#[cfg(any(feature = "azure_blob", feature = "consul"))]
fn common_stem(names: &[LeaseName]) -> &str {
    let Some((first, rest)) = names.split_first() else { return "" };
    let first = first.as_str();
    let common = rest.iter().fold(first.len(), |common, name| {
        let alike = first.bytes().zip(name.as_str().bytes()).take_while(|(a, b)| a == b);
        common.min(alike.count())
    });
    // Names are ASCII.
    &first[..common]
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

#[cfg(all(test, any(feature = "azure_blob", feature = "consul")))]
mod tests {
    use super::*;

    #[test]
    fn the_common_stem_is_common() {
        let stem = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| LeaseName::new(name).unwrap()).collect();
            common_stem(&names).to_owned()
        };
        assert_eq!(stem(&["shop.a-1", "shop.a-12", "shop.b"]), "shop.");
        assert_eq!(stem(&["a", "b"]), "");
        assert_eq!(stem(&["a", "a"]), "a");
        assert_eq!(stem(&[]), "");
    }
}
