//! Looking for others, until this node is in.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::{Address, Discovery};

/// Asks again and again where others are.
pub(super) struct Discoverer {
    from: Vec<Discovery>,
    resolver: Resolver,
    /// What the node that answered last at an address calls itself, where that is another address.
    aliases: BTreeMap<Address, Address>,
    /// The round that is under way, with its wait. Kept between calls of [`next`](Self::next): the
    /// node's loop drops that future whenever anything else happens, several times a second.
    round: Option<Pending>,
    /// When the next round may begin.
    next_at: Instant,
}

/// Finds the addresses that a name stands for.
type Resolver = Arc<dyn Fn(Address) -> Pending + Send + Sync>;
type Pending = Pin<Box<dyn Future<Output = Vec<Address>> + Send>>;

impl Discoverer {
    pub(super) fn new(from: Vec<Discovery>) -> Self {
        Self::with_resolver(from, Arc::new(|name| Box::pin(resolve(name))))
    }

    fn with_resolver(from: Vec<Discovery>, resolver: Resolver) -> Self {
        let (aliases, next_at) = (BTreeMap::new(), Instant::now());
        Self { from, resolver, aliases, round: None, next_at }
    }

    /// The node that answers at `dialed` calls itself `actual`.
    pub(super) fn add_alias(&mut self, dialed: Address, actual: Address) {
        if self.aliases.len() < MOST || self.aliases.contains_key(&dialed) {
            self.aliases.insert(dialed, actual);
        }
    }

    /// What there is now; at once the first time, then every second. Dropping the future loses
    /// nothing.
    pub(super) async fn next(&mut self) -> Vec<Address> {
        let Self { from, resolver, round, next_at, .. } = self;
        let round = round
            .get_or_insert_with(|| Box::pin(look_up(from.clone(), resolver.clone(), *next_at)));
        let found = round.await;
        self.round = None;
        self.next_at = Instant::now() + AGAIN;
        self.with_aliases(found)
    }

    /// Puts the address that a node calls itself before the one that it was found at: others know
    /// it by that one, and the first seed recognises itself. The one that it was found at stays,
    /// because another node may answer there next time.
    fn with_aliases(&self, found: Vec<Address>) -> Vec<Address> {
        let mut all = Vec::with_capacity(found.len());
        for address in found {
            for address in self.aliases.get(&address).into_iter().chain([&address]) {
                if !all.contains(address) {
                    all.push(address.clone());
                }
            }
        }
        all
    }
}

async fn look_up(from: Vec<Discovery>, resolver: Resolver, at: Instant) -> Vec<Address> {
    sleep_until(at).await;
    let mut found = Vec::new();
    for discovery in from {
        match discovery {
            Discovery::Node(address) => found.push(address),
            Discovery::Dns(name) => found.extend(resolver(name).await),
        }
    }
    found
}

async fn resolve(name: Address) -> Vec<Address> {
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::{sleep, timeout};

    use super::*;

    /// The third look-up finds something, and each takes longer than the node's loop ever waits.
    #[tokio::test]
    async fn a_name_that_appears_later_is_found_by_whoever_is_interrupted_all_the_time() {
        let later: Address = "10.0.0.7:7400".parse().unwrap();
        let looked = Arc::new(AtomicUsize::new(0));
        let (answer, count) = (later.clone(), looked.clone());
        let resolver: Resolver = Arc::new(move |_| {
            let found =
                if count.fetch_add(1, Ordering::Relaxed) < 2 { None } else { Some(&answer) };
            let found: Vec<Address> = found.into_iter().cloned().collect();
            Box::pin(async move {
                sleep(Duration::from_millis(120)).await;
                found
            })
        });
        let from = vec!["dns:shop.default.svc:7400".parse().unwrap()];
        let mut discoverer = Discoverer::with_resolver(from, resolver);
        let found = async {
            loop {
                let next = timeout(Duration::from_millis(50), discoverer.next()).await;
                if let Ok(found) = next
                    && !found.is_empty()
                {
                    return found;
                }
            }
        };
        let found = timeout(Duration::from_secs(20), found).await.expect("it is looked up again");
        assert_eq!((found, looked.load(Ordering::Relaxed)), (vec![later], 3));
    }

    #[tokio::test]
    async fn a_node_is_known_by_what_it_calls_itself_and_the_name_stays() {
        let address = |text: &str| text.parse::<Address>().unwrap();
        let from = ["shop:7400", "10.0.0.2:7400"].map(|text| text.parse().unwrap());
        let mut discoverer = Discoverer::new(from.into());
        discoverer.add_alias(address("shop:7400"), address("10.0.0.1:7400"));
        discoverer.add_alias(address("shop:7400"), address("10.0.0.2:7400"));
        assert_eq!(discoverer.next().await, ["10.0.0.2:7400", "shop:7400"].map(address));
    }
}
