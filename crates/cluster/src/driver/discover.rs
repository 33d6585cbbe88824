//! Looking for others, until this node is in.

#[cfg(feature = "kubernetes-unversioned")]
mod kubernetes;
#[cfg(feature = "srv")]
mod srv;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::discovery::{AnyDiscover, BoxError, Discover};
use crate::{Address, Discovery};

/// Asks again and again where others are.
pub(super) struct Discoverer {
    sources: Arc<[Source]>,
    /// What the node that answered last at an address calls itself, where that is another address.
    aliases: BTreeMap<Address, Address>,
    /// The round that is under way, with its wait. Kept between calls of [`next`](Self::next): the
    /// node's loop drops that future whenever anything else happens, several times a second.
    round: Option<Round>,
    /// When the next round may begin.
    next_at: Instant,
    rounds: usize,
    /// What went wrong with each source when it was last logged, and when that was.
    logged: BTreeMap<usize, (String, Instant)>,
}

/// One way to find nodes.
struct Source {
    /// How it is written.
    text: String,
    discover: AnyDiscover,
}

/// What each source found.
type Round = Pin<Box<dyn Future<Output = Vec<Result<Vec<Address>, BoxError>>> + Send>>;

impl Discoverer {
    /// Of what is written, and then of what users have programmed.
    pub(super) fn new(written: &[Discovery], own: &[AnyDiscover]) -> Self {
        let written = written.iter().map(|discovery| Source {
            text: discovery.to_string(),
            discover: match discovery.clone() {
                Discovery::Node(address) => AnyDiscover::new(Fixed(address)),
                Discovery::Dns(name) => AnyDiscover::new(Dns(name)),
                #[cfg(feature = "srv")]
                Discovery::Srv(name) => AnyDiscover::new(srv::Srv(name)),
                #[cfg(feature = "kubernetes-unversioned")]
                Discovery::Kubernetes(service) => {
                    AnyDiscover::new(kubernetes::EndpointSlices::new(service))
                }
                // The settings' check has refused these.
                #[cfg(not(feature = "srv"))]
                Discovery::Srv(_) => AnyDiscover::new(NotBuiltIn),
                #[cfg(not(feature = "kubernetes-unversioned"))]
                Discovery::Kubernetes(_) => AnyDiscover::new(NotBuiltIn),
            },
        });
        let own =
            own.iter().map(|own| Source { text: "discover_with".into(), discover: own.clone() });
        Self {
            sources: written.chain(own).collect(),
            aliases: BTreeMap::new(),
            round: None,
            next_at: Instant::now(),
            rounds: 0,
            logged: BTreeMap::new(),
        }
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
        let Self { sources, round, next_at, .. } = self;
        let round = round.get_or_insert_with(|| Box::pin(look_up(Arc::clone(sources), *next_at)));
        let answers = round.await;
        self.round = None;
        self.next_at = Instant::now() + AGAIN;
        self.rounds += 1;
        let mut found = Vec::new();
        for (index, answer) in answers.into_iter().enumerate() {
            match answer {
                Ok(addresses) => {
                    self.logged.remove(&index);
                    found.extend(some_of(addresses, self.rounds / TURN));
                }
                Err(error) => self.log(index, error.to_string()),
            }
        }
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

    /// Says what went wrong: at once, when it changes, and now and then.
    fn log(&mut self, index: usize, error: String) {
        let now = Instant::now();
        let is_said = |(said, at): &(String, Instant)| *said == error && now - *at < SAY_AGAIN;
        if !self.logged.get(&index).is_some_and(is_said) {
            let source = &self.sources[index].text;
            tracing::warn!(discover = source, "no nodes are found there: {error}");
            self.logged.insert(index, (error, now));
        }
    }
}

/// Asks all sources at once, so that one that does not answer keeps no other waiting.
async fn look_up(sources: Arc<[Source]>, at: Instant) -> Vec<Result<Vec<Address>, BoxError>> {
    sleep_until(at).await;
    let mut asked = JoinSet::new();
    for (index, source) in sources.iter().enumerate() {
        let found = source.discover.find_nodes();
        asked.spawn(async move { (index, timeout(PATIENCE, found).await) });
    }
    let silent = || Err(format!("no answer within {PATIENCE:?}").into());
    let mut answers: Vec<_> = sources.iter().map(|_| silent()).collect();
    while let Some(answer) = asked.join_next().await {
        match answer {
            Ok((index, Ok(found))) => answers[index] = found,
            Ok((_, Err(_))) => {}
            // Of a user's own, most likely; it counts as silent.
            Err(error) => tracing::error!("looking for nodes failed: {error}"),
        }
    }
    answers
}

/// As many as it takes to find somebody who lives; others when these have had their turn.
fn some_of(mut addresses: Vec<Address>, turn: usize) -> Vec<Address> {
    if addresses.len() > MOST {
        addresses.sort();
        addresses.dedup();
        let first = turn * MOST % addresses.len();
        addresses.rotate_left(first);
        addresses.truncate(MOST);
    }
    addresses
}

struct Fixed(Address);

impl Discover for Fixed {
    async fn find_nodes(&self) -> Result<Vec<Address>, BoxError> {
        Ok(vec![self.0.clone()])
    }
}

/// The addresses that a name stands for.
struct Dns(Address);

impl Discover for Dns {
    async fn find_nodes(&self) -> Result<Vec<Address>, BoxError> {
        let name = (self.0.host().to_owned(), self.0.port());
        let mut found = Vec::new();
        for address in tokio::net::lookup_host(name).await? {
            found.push(Address::new(&address.to_string())?);
        }
        found.sort();
        Ok(found)
    }
}

#[cfg(not(all(feature = "srv", feature = "kubernetes-unversioned")))]
struct NotBuiltIn;

#[cfg(not(all(feature = "srv", feature = "kubernetes-unversioned")))]
impl Discover for NotBuiltIn {
    async fn find_nodes(&self) -> Result<Vec<Address>, BoxError> {
        Err("this program was built without it".into())
    }
}

const AGAIN: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(2);
/// How often the same failure is logged.
const SAY_AGAIN: Duration = Duration::from_secs(60);
/// Enough to find somebody who lives.
const MOST: usize = 64;
/// For how many rounds the same ones of many are asked.
const TURN: usize = 10;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::{sleep, timeout};

    use super::*;

    fn address(text: &str) -> Address {
        text.parse().unwrap()
    }

    /// The third look-up finds something, and each takes longer than the node's loop ever waits.
    struct Late(Arc<AtomicUsize>);

    impl Discover for Late {
        async fn find_nodes(&self) -> Result<Vec<Address>, BoxError> {
            let looked = self.0.fetch_add(1, Ordering::Relaxed);
            sleep(Duration::from_millis(120)).await;
            match looked {
                0 => Err("no such name".into()),
                1 => Ok(Vec::new()),
                _ => Ok(vec![address("10.0.0.7:7400")]),
            }
        }
    }

    #[tokio::test]
    async fn a_name_that_appears_later_is_found_by_whoever_is_interrupted_all_the_time() {
        let looked = Arc::new(AtomicUsize::new(0));
        let mut discoverer = Discoverer::new(&[], &[AnyDiscover::new(Late(looked.clone()))]);
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
        assert_eq!((found, looked.load(Ordering::Relaxed)), (vec![address("10.0.0.7:7400")], 3));
    }

    #[tokio::test]
    async fn a_node_is_known_by_what_it_calls_itself_and_the_name_stays() {
        let from = ["shop:7400", "10.0.0.2:7400"].map(|text| text.parse().unwrap());
        let mut discoverer = Discoverer::new(&from, &[]);
        discoverer.add_alias(address("shop:7400"), address("10.0.0.1:7400"));
        discoverer.add_alias(address("shop:7400"), address("10.0.0.2:7400"));
        assert_eq!(discoverer.next().await, ["10.0.0.2:7400", "shop:7400"].map(address));
    }

    struct Silent;

    impl Discover for Silent {
        async fn find_nodes(&self) -> Result<Vec<Address>, BoxError> {
            std::future::pending().await
        }
    }

    struct Panics;

    impl Discover for Panics {
        async fn find_nodes(&self) -> Result<Vec<Address>, BoxError> {
            panic!("a defect of a user's")
        }
    }

    #[tokio::test]
    async fn one_that_is_silent_or_fails_keeps_no_other_from_being_heard() {
        let own = [AnyDiscover::new(Silent), AnyDiscover::new(Panics)];
        let mut discoverer = Discoverer::new(&["10.0.0.2:7400".parse().unwrap()], &own);
        assert_eq!(discoverer.next().await, [address("10.0.0.2:7400")]);
    }

    #[test]
    fn of_very_many_each_has_its_turn() {
        let all: Vec<Address> = (1..=200).map(|it| address(&format!("10.0.0.{it}:1"))).collect();
        let mut seen = BTreeSet::new();
        for turn in 0..5 {
            let some = some_of(all.clone(), turn);
            assert_eq!(some.len(), MOST);
            seen.extend(some);
        }
        assert_eq!(seen.len(), all.len());
        assert_eq!(some_of(all[..2].to_vec(), 7), all[..2]);
    }
}
