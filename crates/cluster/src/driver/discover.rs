//! Looking for others, until this node is in.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{Address, Discovery};

/// Asks again and again where others are.
pub(super) struct Discoverer {
    from: Vec<Discovery>,
    /// Addresses that turned out to be another way to a node that calls itself this.
    also: BTreeMap<Address, Address>,
    asked: bool,
}

impl Discoverer {
    pub(super) fn new(from: Vec<Discovery>) -> Self {
        Self { from, also: BTreeMap::new(), asked: false }
    }

    /// The node that answers at `dialed` calls itself `actual`.
    pub(super) fn also(&mut self, dialed: Address, actual: Address) {
        if self.also.len() < MOST {
            self.also.insert(dialed, actual);
        }
    }

    /// What there is now; at once the first time, then every second.
    pub(super) async fn next(&mut self) -> Vec<Address> {
        if self.asked {
            tokio::time::sleep(AGAIN).await;
        }
        self.asked = true;
        let mut found = Vec::new();
        for discovery in &self.from {
            match discovery {
                Discovery::Node(address) => found.push(address.clone()),
                Discovery::Dns(name) => found.extend(resolve(name).await),
            }
        }
        for address in &mut found {
            if let Some(actual) = self.also.get(address) {
                *address = actual.clone();
            }
        }
        found.dedup();
        found
    }
}

async fn resolve(name: &Address) -> Vec<Address> {
    let lookup = tokio::net::lookup_host((name.host().to_owned(), name.port()));
    match tokio::time::timeout(PATIENCE, lookup).await {
        Ok(Ok(addresses)) => {
            let mut found: Vec<Address> =
                addresses.filter_map(|address| Address::new(&address.to_string()).ok()).collect();
            found.sort();
            found.truncate(MOST);
            found
        }
        Ok(Err(error)) => {
            tracing::debug!(%name, "cannot be resolved: {error}");
            Vec::new()
        }
        Err(_) => {
            tracing::debug!(%name, "no answer from the resolver");
            Vec::new()
        }
    }
}

const AGAIN: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(2);
/// Enough to find somebody who lives.
const MOST: usize = 64;
