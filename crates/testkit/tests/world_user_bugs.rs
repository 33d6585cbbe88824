//! Six bugs that a user might write, and one service that has none of them. The world finds each.
//!
//! The service bills invoices, one node at a time. Every invoice is first written down with its amount,
//! then charged at a payment provider, then ticked off. The provider forgets no number that it was given:
//! whoever charges an invoice again under its number charges it once.
#![allow(clippy::disallowed_methods, reason = "time is virtual")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_lease::{Lease, LeaseError, Tenure};
use tenure_testkit::world::{Node, Nodes, Opened, World, check, find};
use tokio::time::sleep;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Bug {
    None,
    /// The invoice is written past the fence.
    WritesBesideTheFence,
    /// It is charged before it is written down.
    ChargesBeforeItCommits,
    /// What a tenure knew is believed by the next one of the same process.
    KeepsStateAcrossTenures,
    /// The work goes on when the lease is lost.
    IgnoresTheLoss,
    /// A charge whose answer was lost is made again under another number.
    RetriesWithoutNumber,
    /// The work does not end when it is told to.
    BlocksItsStop,
}

/// What the payment provider knows: an amount for each number.
#[derive(Clone, Default)]
struct Provider(Arc<Mutex<BTreeMap<String, (u64, u64)>>>);

impl Provider {
    /// Charges an invoice. The answer may get lost: then it is not known whether it was charged.
    async fn charge(&self, node: &Node, number: &str, invoice: u64, amount: u64) -> Result<(), ()> {
        sleep(Duration::from_millis(node.random(5..60))).await;
        if node.random(0..20) == 0 {
            return Err(()); // It never arrived.
        }
        self.note(node, number, (invoice, amount));
        sleep(Duration::from_millis(node.random(5..60))).await;
        if node.random(0..20) == 0 { Err(()) } else { Ok(()) }
    }

    fn note(&self, node: &Node, number: &str, charge: (u64, u64)) {
        let mut charges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        charges.entry(number.into()).or_insert_with(|| {
            node.effect(format!("charges {} for invoice {} as {number}", charge.1, charge.0));
            charge
        });
    }

    fn charges(&self) -> Vec<(u64, u64)> {
        let charges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        charges.values().copied().collect()
    }
}

#[derive(Clone)]
struct Billing {
    node: Node,
    provider: Provider,
    bug: Bug,
    /// The next invoice, as the process remembers it.
    remembered: Arc<AtomicU64>,
}

impl Billing {
    async fn run(self, lease: Lease) {
        let result = lease
            .run(async move |tenure: &Tenure| match self.bug {
                Bug::IgnoresTheLoss => {
                    let (this, token) = (self.clone(), tenure.token());
                    let work = tokio::spawn(async move {
                        let _working = this.node.working("billing");
                        let Ok(books) = this.node.database().open("books", token).await else {
                            return;
                        };
                        loop {
                            if this.bill_next(&books).await.is_err() {
                                sleep(Duration::from_secs(1)).await; // It will go away.
                            }
                        }
                    });
                    let loss = tenure.lost().await;
                    drop(work); // Detached, not ended.
                    Err(LeaseError::Over(loss))
                }
                _ => self.bill(tenure).await,
            })
            .await;
        let _: Result<(), LeaseError> = result;
    }

    async fn bill(&self, tenure: &Tenure) -> Result<(), LeaseError> {
        let _working = self.node.working("billing");
        let over = || LeaseError::Over(tenure.loss().unwrap_or(tenure_lease::Loss::Expired));
        let books = self.node.database().open("books", tenure.token()).await.map_err(|_| over())?;
        loop {
            tokio::select! {
                biased;
                _ = tenure.lost() => {
                    if self.bug == Bug::BlocksItsStop {
                        // It waits for a batch that takes its time, and calls nobody who could wait.
                        block_for(Duration::from_secs(60));
                    }
                    return Err(over());
                }
                billed = self.bill_next(&books) => billed.map_err(|()| over())?,
            }
        }
    }

    async fn bill_next(&self, books: &Opened) -> Result<(), ()> {
        let next = match (self.bug, self.remembered.load(Relaxed)) {
            (Bug::KeepsStateAcrossTenures, remembered) if remembered > 0 => remembered,
            _ => {
                let next = books.read("next").await.map_err(drop)?;
                next.and_then(|next| next.parse().ok()).unwrap_or(1)
            }
        };
        let row = format!("invoice {next}");
        let written = books.read(&row).await.map_err(drop)?;
        let amount = match written.and_then(|amount| amount.parse().ok()) {
            Some(amount) if self.bug != Bug::KeepsStateAcrossTenures => amount,
            _ => {
                let amount = self.node.random(1..1_000_000);
                if self.bug == Bug::ChargesBeforeItCommits {
                    let number = format!("{next}-{amount}");
                    while self.provider.charge(&self.node, &number, next, amount).await.is_err() {}
                }
                match self.bug {
                    Bug::WritesBesideTheFence => {
                        let database = self.node.database();
                        database.write_beside_the_fence("books", &row, &amount.to_string()).await;
                    }
                    _ => books.write(&row, &amount.to_string()).await.map_err(drop)?,
                }
                amount
            }
        };
        if self.bug != Bug::ChargesBeforeItCommits {
            let mut number = next.to_string();
            while self.provider.charge(&self.node, &number, next, amount).await.is_err() {
                if self.bug == Bug::RetriesWithoutNumber {
                    number = format!("{next} again {}", self.node.random(0..1_000_000));
                }
            }
        }
        self.remembered.store(next + 1, Relaxed);
        books.write("next", &(next + 1).to_string()).await.map_err(drop)
    }
}

/// What a blocking call does to everything else in the process: time passes, and nothing happens.
fn block_for(time: Duration) {
    std::thread::sleep(time.max(HANGS));
}

/// Three nodes, faults for half a minute, then the books are looked at.
async fn billing(world: World, bug: Bug) {
    let provider = Provider::default();
    let paid = provider.clone();
    let nodes = Nodes::start(&world, 3, move |node| {
        let provider = paid.clone();
        async move {
            let lease = node.store().lease("billing").ttl(Duration::from_secs(4));
            let remembered = Arc::new(AtomicU64::new(0));
            let billing = Billing { node, provider, bug, remembered };
            tokio::spawn(billing.run(lease));
            Ok(())
        }
    });
    nodes.until_all_started().await;
    let mut paused = None;
    for _ in 0..12 {
        world.sleep(world.random_millis(500..4000)).await;
        let node = world.random(0..3) as usize;
        match world.random(0..6) {
            0 => nodes.restart(node).await,
            1 | 2 if paused.is_none() => {
                nodes.pause(node);
                paused = Some(node);
            }
            1 | 2 => {
                if let Some(node) = paused.take() {
                    nodes.resume(node).await;
                }
            }
            3 => nodes.store_away(&[node]),
            4 => nodes.store_back(),
            _ => world.lose_store_requests(world.random(0..50)),
        }
    }
    if let Some(node) = paused {
        nodes.resume(node).await;
    }
    nodes.store_back();
    world.sleep(Duration::from_secs(15)).await;
    audit(&world, &provider);
}

/// Every invoice that was charged was charged once, and what the books say.
fn audit(world: &World, provider: &Provider) {
    let database = world.database();
    let mut charged = BTreeMap::new();
    for (invoice, amount) in provider.charges() {
        let before = charged.insert(invoice, amount);
        assert!(before.is_none(), "invoice {invoice} was charged twice: {before:?}, {amount}");
        let written = database.row("books", &format!("invoice {invoice}"));
        assert_eq!(written, Some(amount.to_string()), "invoice {invoice} was charged {amount}");
    }
    let next: u64 = database.row("books", "next").map_or(1, |next| next.parse().unwrap());
    let all = (1..next).all(|invoice| charged.contains_key(&invoice));
    assert!(all, "the books say that all below {next} are charged: {:?}", charged.keys());
    assert!(next > 10, "hardly anything was billed: {next}");
}

#[test]
fn billing_without_a_bug_passes() {
    let summary = check(0..60, |world| billing(world, Bug::None));
    println!("{summary:?}");
}

fn must_be_found(bug: Bug, by: &str) {
    let failure = find(0..500, move |world| billing(world, bug));
    let failure = failure.expect("500 seeds find it");
    println!(
        "found by seed {}: {}",
        failure.seed,
        failure.story.lines().last().unwrap_or_default()
    );
    assert!(failure.story.contains(by), "seed {}: {}", failure.seed, failure.story);
}

#[test]
fn a_write_beside_the_fence_is_found() {
    must_be_found(Bug::WritesBesideTheFence, "was charged");
}

#[test]
fn an_effect_before_its_commit_is_found() {
    must_be_found(Bug::ChargesBeforeItCommits, "was charged");
}

#[test]
fn state_kept_across_tenures_is_found() {
    must_be_found(Bug::KeepsStateAcrossTenures, "was charged");
}

#[test]
fn a_loss_that_is_ignored_is_found() {
    must_be_found(Bug::IgnoresTheLoss, "billing works on");
}

#[test]
fn a_retry_without_a_number_is_found() {
    must_be_found(Bug::RetriesWithoutNumber, "was charged twice");
}

#[test]
fn a_stop_that_blocks_is_found() {
    must_be_found(Bug::BlocksItsStop, "blocks");
}

/// Longer than a seed may stand still.
const HANGS: Duration = Duration::from_secs(3600);
