//! DynamoDB, against an emulator of it: see scripts/servers. Any endpoint that takes unsigned
//! requests from the operator's side will do.
#![cfg(feature = "dynamodb")]
#![allow(clippy::disallowed_methods)] // Real servers, real time.

#[path = "dynamodb/answers.rs"]
mod answers;
#[path = "dynamodb/credentials.rs"]
mod credentials;
#[path = "dynamodb/endpoints.rs"]
mod endpoints;
#[path = "dynamodb/hanging.rs"]
mod hanging;
mod server;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use tenure_lease::backend::{Acquire, Acquired, Boxed, Release, Renew, Renewed, StoreErrorKind};
use tenure_lease::record::NOTE_MAX;
use tenure_lease::{LeaseName, Loss, Moment, Nonce, Settings, Store, Token};
use tenure_stores::dynamodb::DynamoStore;
use tenure_testkit::conformance::{self, Factory};

use server::{Server, Turn, fresh, request};

const TTL: Duration = Duration::from_secs(2);
/// The suite's hundred checks at once keep the emulator, which has one thread, busy for a second.
const SUITE_TTL: Duration = Duration::from_secs(10);
const TABLE: &str = "tenure-tests";

#[derive(Clone)]
struct Dynamo(Server);

impl Dynamo {
    /// The emulator, with the table that the tests use, to be used beside others.
    fn find() -> Option<(Self, Turn)> {
        Self::prepared(Server::find("dynamodb")?)
    }

    /// The same, and the right to disturb it.
    fn find_alone() -> Option<(Self, Turn)> {
        Self::prepared(Server::find_alone("dynamodb")?)
    }

    fn prepared((server, turn): (Server, Turn)) -> Option<(Self, Turn)> {
        let dynamo = Self(server);
        conformance::block_on(async {
            let store = dynamo.open_table(TABLE, "&create=true");
            let ready = async {
                while let Err(error) = store.inspect("ready").await {
                    println!("not ready: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(20), ready).await.expect("a table");
        });
        Some((dynamo, turn))
    }

    fn store(&self) -> Store {
        self.open_table(TABLE, "")
    }

    fn open_table(&self, table: &str, more: &str) -> Store {
        Self::at(&self.0.address, table, more)
    }

    fn at(endpoint: &str, table: &str, more: &str) -> Store {
        let url = format!("dynamodb://{table}?endpoint={endpoint}{more}");
        Store::new(DynamoStore::with_access_key(&url, "any", "any").expect("the URL is one"))
    }

    /// What an operator does by `aws dynamodb`, in its bare form: the emulator checks no signature.
    async fn tool(&self, operation: &str, body: Value) -> Value {
        let output = self.curl(&["-sSf"], operation, body).await;
        serde_json::from_slice(&output).expect("an answer in JSON")
    }

    /// The same; only the status of the answer.
    async fn status(&self, operation: &str, body: Value) -> u16 {
        let status = ["-sS", "-o", "/dev/null", "-w", "%{http_code}"];
        let output = self.curl(&status, operation, body).await;
        String::from_utf8(output).expect("text").parse().expect("a status")
    }

    async fn curl(&self, options: &[&str], operation: &str, mut body: Value) -> Vec<u8> {
        body["TableName"] = TABLE.into();
        let authorization = "Authorization: AWS4-HMAC-SHA256 Credential=any/20200101/us-east-1/\
                             dynamodb/aws4_request, SignedHeaders=host, Signature=00";
        let target = format!("X-Amz-Target: DynamoDB_20120810.{operation}");
        let body = body.to_string();
        let arguments = [
            "-H",
            authorization,
            "-H",
            &target,
            "-H",
            "Content-Type: application/x-amz-json-1.0",
            "-H",
            "X-Amz-Date: 20200101T000000Z",
            "-d",
            &body,
            &self.0.address,
        ];
        let arguments = options.iter().chain(&arguments).map(|part| (*part).to_owned()).collect();
        server::run("curl", arguments, vec![]).await
    }

    async fn delete_item(&self, name: &LeaseName) {
        self.tool("DeleteItem", json!({ "Key": key(name) })).await;
    }

    async fn put_item(&self, item: &Value) {
        self.tool("PutItem", json!({ "Item": item })).await;
    }

    async fn item(&self, name: &LeaseName) -> Value {
        let body = json!({ "Key": key(name), "ConsistentRead": true });
        self.tool("GetItem", body).await["Item"].take()
    }
}

fn key(name: &LeaseName) -> Value {
    json!({ "pk": { "S": name.as_str() } })
}

impl Factory for Dynamo {
    fn open(&self) -> Boxed<'_, Store> {
        Box::pin(async { self.store() })
    }

    fn skips(&self) -> &'static [&'static str] {
        conformance::POLLED
    }

    fn ttl(&self) -> Duration {
        SUITE_TTL
    }

    fn delete<'a>(&'a self, name: &'a LeaseName) -> Option<Boxed<'a, ()>> {
        Some(Box::pin(self.delete_item(name)))
    }

    fn seize<'a>(&'a self, name: &'a LeaseName, identity: &'a str) -> Option<Boxed<'a, ()>> {
        // As AWS's own lock clients write it.
        let item = json!({
            "pk": { "S": name.as_str() },
            "ownerName": { "S": identity },
            "leaseDuration": { "S": SUITE_TTL.as_millis().to_string() },
            "recordVersionNumber": { "S": "8e4e4ea2-6f1c" },
        });
        Some(Box::pin(async move { self.put_item(&item).await }))
    }

    fn write_newer<'a>(&'a self, name: &'a LeaseName) -> Option<Boxed<'a, ()>> {
        let term = json!({ "S": "of another kind" });
        let newer = json!({
            "pk": { "S": name.as_str() }, "format": { "N": "2" }, "term": term,
        });
        Some(Box::pin(async move { self.put_item(&newer).await }))
    }

    fn open_unreachable(&self) -> Option<Boxed<'_, Store>> {
        // Port 1 answers nobody here.
        let url = "dynamodb://leases?endpoint=http://127.0.0.1:1";
        let store = DynamoStore::with_access_key(url, "any", "any").expect("the URL is one");
        Some(Box::pin(async { Store::new(store) }))
    }

    fn restart(&self) -> Option<Boxed<'_, ()>> {
        Some(Box::pin(self.0.control("restart")))
    }
}

#[test]
fn cost_of_attached() {
    let Some((dynamo, _turn)) = Dynamo::find_alone() else { return };
    conformance::block_on(async {
        let (scheme, address) = dynamo.0.address.split_once("://").expect("an endpoint");
        let through =
            async |address: String| Dynamo::at(&format!("{scheme}://{address}"), TABLE, "");
        let settings = Settings::new(Duration::from_secs(10));
        server::cost_of_attached(address, &settings, 1, through).await;
    });
}

#[test]
fn conformance() {
    let Some((dynamo, _turn)) = Dynamo::find_alone() else { return };
    conformance::test(dynamo);
}

/// The emulator's own compare-and-set, before anything is built on it.
#[test]
fn the_emulator_compares_and_sets() {
    let Some((dynamo, _turn)) = Dynamo::find_alone() else { return };
    conformance::block_on(async {
        let (store, name) = (dynamo.store(), fresh("atomic"));
        let (claim, token) = server::win(&**store.backend(), request(&name, "a", TTL)).await;
        let (clients, rounds) = (8, 100);
        let barrier = Arc::new(Barrier::new(clients));
        let mut racing = JoinSet::new();
        let chain: Arc<Vec<Vec<Nonce>>> = Arc::new(
            (0..rounds).map(|_| (0..clients).map(|_| Nonce::random()).collect()).collect(),
        );
        for client in 0..clients {
            let (store, name, barrier, chain) =
                (dynamo.store(), name.clone(), Arc::clone(&barrier), Arc::clone(&chain));
            racing.spawn(async move {
                let mut won = Vec::new();
                for round in 0..rounds {
                    // Whichever of them wrote in the round before.
                    let known = if round == 0 { vec![claim] } else { chain[round - 1].clone() };
                    let nonce = chain[round][client];
                    let renewal = Renew {
                        name: name.clone(),
                        claim,
                        token,
                        known,
                        nonce,
                        ttl: TTL,
                        note: None,
                        fresh_connection: false,
                    };
                    barrier.wait().await;
                    let renewed = store.backend().renew(renewal).await.expect("answered");
                    if renewed == Renewed::Yes {
                        won.push(round);
                    }
                    barrier.wait().await;
                }
                won
            });
        }
        let mut winners = vec![0; rounds];
        racing.join_all().await.into_iter().flatten().for_each(|round| winners[round] += 1);
        assert!(winners.iter().all(|winners| *winners == 1), "{winners:?}");
    });
}

/// Two renewals of one tenure, as the keeper sends them when an answer is late: both answers tell
/// what stands there, and one of the two nonces does.
#[test]
fn renewals_beside_each_other() {
    let Some((dynamo, _turn)) = Dynamo::find() else { return };
    conformance::block_on(async {
        let (store, name) = (dynamo.store(), fresh("hedged"));
        let backend = store.backend();
        let (claim, token) = server::win(&**backend, request(&name, "a", TTL)).await;
        let (mut last, mut refused) = (vec![claim], 0);
        for round in 0..100 {
            let first = Renew {
                name: name.clone(),
                claim,
                token,
                known: last.clone(),
                nonce: Nonce::random(),
                ttl: TTL,
                note: None,
                fresh_connection: false,
            };
            let mut known = last.clone();
            known.push(first.nonce);
            let nonce = Nonce::random();
            let second = Renew { known, nonce, fresh_connection: true, ..first.clone() };
            let nonces = [first.nonce, second.nonce];
            let answers = tokio::join!(backend.renew(first), backend.renew(second));
            for answer in [answers.0, answers.1] {
                match answer.expect("answered") {
                    Renewed::Yes => {}
                    Renewed::Refused(record) => {
                        let holder = record.expect("it is there").holder.expect("it is held");
                        assert_eq!(holder.claim, Some(claim), "round {round}");
                        assert!(nonces.contains(&holder.nonce.expect("ours")), "round {round}");
                        refused += 1;
                    }
                }
            }
            let record = backend.read(vec![name.clone()]).await.expect("read").remove(0);
            let holder = record.expect("it is there").holder.expect("it is held");
            last = vec![holder.nonce.expect("ours")];
            assert!(nonces.contains(&last[0]), "round {round}");
        }
        println!("{refused} of 200 renewals met the other one");
    });
}

/// What is there is listed; the item of terms and what was never held are not.
#[test]
fn list() {
    let Some((dynamo, _turn)) = Dynamo::find() else { return };
    conformance::block_on(async {
        let table = fresh("listing").to_string();
        let store = dynamo.open_table(&table, "&create=true");
        while let Err(error) = store.inspect("ready").await {
            println!("not ready: {error}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let mut names: Vec<_> = (0..30).map(|_| fresh("listed")).collect();
        names.sort();
        let note = vec![0; NOTE_MAX];
        for name in &names {
            // More than fits in one answer, which is a mebibyte.
            let attempt = Acquire { note: Some(note.clone()), ..request(name, "a", TTL) };
            server::win(&**store.backend(), attempt).await;
        }
        let listed = store.backend().list().expect("it can").await.expect("listed");
        assert_eq!(listed, names);
    });
}

/// The recipe for a fence in an item, as `tenure_lease::fence` has it: it lets the first writer
/// through, and none that is older than the last.
#[test]
fn the_recipe_for_a_fence() {
    let Some((dynamo, _turn)) = Dynamo::find() else { return };
    conformance::block_on(async {
        let name = fresh("fenced");
        let write = async |token: u64, condition: &str| {
            let body = json!({
                "Key": key(&name),
                "UpdateExpression": "SET fence = :mine, written = :mine",
                "ConditionExpression": condition,
                "ExpressionAttributeValues": { ":mine": { "N": token.to_string() } },
            });
            dynamo.status("UpdateItem", body).await
        };
        let recipe = "attribute_not_exists(fence) OR fence <= :mine";
        dynamo.put_item(&json!({ "pk": { "S": name.as_str() }, "written": { "N": "0" } })).await;
        assert_eq!(write(7, "fence <= :mine").await, 400, "its first part is needed");
        assert_eq!(write(7, recipe).await, 200);
        assert_eq!(write(7, recipe).await, 200);
        assert_eq!(write(8, recipe).await, 200);
        assert_eq!(write(7, recipe).await, 400);
        assert_eq!(dynamo.item(&name).await["written"]["N"], "8");
    });
}

#[test]
fn race() {
    let Some((dynamo, _turn)) = Dynamo::find_alone() else { return };
    conformance::block_on(server::race(|| dynamo.store(), TTL, TTL));
}

#[test]
fn restart() {
    let Some((dynamo, _turn)) = Dynamo::find_alone() else { return };
    let store = dynamo.store();
    conformance::block_on(server::survives_restart(&dynamo.0, &store, TTL * 5));
}

#[test]
fn outage() {
    let Some((dynamo, _turn)) = Dynamo::find_alone() else { return };
    conformance::block_on(async {
        for (begin, end) in [("pause", "resume"), ("kill", "restart")] {
            let settings = Settings::new(TTL * 2);
            server::survives_outage(&dynamo.0, || dynamo.store(), settings, begin, end).await;
        }
    });
}

/// Whatever an operator does to a held item, its holder learns within one renewal interval, and
/// terms rise on.
#[test]
fn operator() {
    let Some((dynamo, _turn)) = Dynamo::find() else { return };
    conformance::block_on(async {
        let (store, settings) = (dynamo.store(), Settings::new(TTL * 2));
        let (name, mut last) = (fresh("operated"), Token::default());
        for edit in ["deleted", "overwritten", "edited", "freed", "restored", "deleted"] {
            let lease = store.lease(name.as_str()).settings(settings.clone());
            let tenure = lease.acquire().await.expect("acquired");
            assert!(tenure.token() > last, "{edit}: token {} after {last}", tenure.token());
            last = tenure.token();
            let held = dynamo.item(&name).await;
            match edit {
                "deleted" => dynamo.delete_item(&name).await,
                "overwritten" => {
                    let (ttl, owner) = (json!({ "N": "1500" }), json!({ "S": "mine now" }));
                    let pk = name.as_str();
                    dynamo
                        .put_item(&json!({ "pk": { "S": pk }, "owner": owner, "ttlMs": ttl }))
                        .await;
                }
                "edited" => {
                    let mut edited = held.clone();
                    edited["rvn"] = json!({ "S": "mine now" });
                    dynamo.put_item(&edited).await;
                }
                "freed" => {
                    let mut freed = held.clone();
                    freed.as_object_mut().expect("an item").remove("claim");
                    freed["rvn"] = json!({ "S": "by-hand-released" });
                    dynamo.put_item(&freed).await;
                }
                // The item as it was before its last renewal.
                _ => {
                    tokio::time::sleep(settings.renew_interval * 2).await;
                    dynamo.put_item(&held).await;
                }
            }
            let limit = settings.renew_interval.mul_f64(1.2) + settings.operation_timeout;
            let edited = Moment::now();
            let loss = tokio::time::timeout(limit, tenure.lost()).await;
            let loss = loss.unwrap_or_else(|_| panic!("{edit}: not lost within {limit:?}"));
            println!("{edit}: {loss} after {:?}", Moment::now().since(edited));
            match (edit, &loss) {
                ("deleted", Loss::Deleted) => {}
                ("overwritten", Loss::Stolen { by: Some(by) }) if by.name == "mine now" => {}
                ("edited" | "restored", Loss::Stolen { by: Some(_) }) => {}
                ("freed", Loss::Stolen { by: None }) => {}
                _ => panic!("{edit}: the reason is {loss:?}"),
            }
            tenure.release().await;
        }
    });
}

/// What people see in the table, and that it decides nothing.
#[test]
fn readable_and_not_trusted() {
    let Some((dynamo, _turn)) = Dynamo::find() else { return };
    conformance::block_on(async {
        let (store, name) = (dynamo.store(), fresh("readable"));
        let backend = store.backend();
        let (claim, token) = server::win(&**backend, request(&name, "pod-1", TTL)).await;
        let mut item = dynamo.item(&name).await;
        let owner = item["owner"]["S"].as_str().expect("an owner");
        assert!(owner.starts_with("pod-1#"), "{owner}");
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_secs();
        let until = item["leaseUntil"]["N"].as_str().expect("a number");
        let until: u64 = until.parse().expect("a number");
        assert!((now..=now + 3).contains(&until), "{until} at {now}");
        // Long over, and somebody else's, by these two: nobody may take it for that.
        item["leaseUntil"] = json!({ "N": "7" });
        item["owner"] = json!({ "S": "somebody else" });
        dynamo.put_item(&item).await;
        let lost = backend.acquire(request(&name, "pod-2", TTL)).await.expect("answered");
        assert!(matches!(lost, Acquired::Lost(Some(_))), "{lost:?}");
        let nonce = Nonce::random();
        let renewal = Renew {
            name: name.clone(),
            claim,
            token,
            known: vec![claim],
            nonce,
            ttl: TTL,
            note: None,
            fresh_connection: false,
        };
        assert_eq!(backend.renew(renewal).await, Ok(Renewed::Yes));
        let release = Release { name: name.clone(), claim, known: vec![nonce] };
        backend.release(release).await.expect("released");
        let item = dynamo.item(&name).await;
        assert!(item.get("owner").is_none() && item.get("leaseUntil").is_none(), "{item}");
        assert_eq!(item["term"]["N"], token.term.to_string());
    });
}

/// A deleted record begins above all of its terms, whoever creates it, however fast.
#[test]
fn terms_rise_within_a_second() {
    let Some((dynamo, _turn)) = Dynamo::find_alone() else { return };
    conformance::block_on(async {
        let (name, mut last, begun) = (fresh("seconds"), 0, Moment::now());
        for round in 0..10 {
            let store = dynamo.store();
            for _ in 0..=round {
                let (claim, token) =
                    server::win(&**store.backend(), request(&name, "a", TTL)).await;
                assert!(token.term > last, "{} after {last}", token.term);
                last = token.term;
                let release = Release { name: name.clone(), claim, known: vec![claim] };
                store.backend().release(release).await.expect("released");
            }
            dynamo.delete_item(&name).await;
        }
        println!("10 deletions in {:?}", Moment::now().since(begun));
        // Far above 1, and close to the clock.
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_secs();
        assert!(last / 1_000_000 >= now - 10 && last / 1_000_000 <= now + 10, "{last} at {now} s");
        // Terms are whole numbers of 64 bits.
        let store = dynamo.store();
        let backend = store.backend();
        for above in [(1 << 53) + 1, (1 << 62) + 3, u64::MAX - 9] {
            let attempt = Acquire { above, ..request(&name, "a", TTL) };
            let (claim, token) = server::win(&**backend, attempt).await;
            assert_eq!(token.term, above + 1);
            let release = Release { name: name.clone(), claim, known: vec![claim] };
            backend.release(release).await.expect("released");
            let (claim, token) = server::win(&**backend, request(&name, "a", TTL)).await;
            assert_eq!(token.term, above + 2);
            let release = Release { name: name.clone(), claim, known: vec![claim] };
            backend.release(release).await.expect("released");
        }
    });
}

/// Nor does a deletion in the middle of somebody's first acquisition bring a term back.
#[test]
fn terms_rise_over_deletions_in_a_race() {
    let Some((dynamo, _turn)) = Dynamo::find_alone() else { return };
    conformance::block_on(async {
        let (name, highest) = (fresh("deleted"), Arc::new(AtomicU64::new(0)));
        let mut racing = JoinSet::new();
        for client in 0..6 {
            let (dynamo, name, highest) = (dynamo.clone(), name.clone(), Arc::clone(&highest));
            racing.spawn(async move {
                let (store, mut won) = (dynamo.store(), 0);
                for round in 0..60 {
                    let before = highest.load(Ordering::SeqCst);
                    let attempt = request(&name, "a", TTL);
                    let claim = attempt.claim;
                    // An error is no answer: so many may change it that one comes to no end.
                    if let Ok(Acquired::Won { token, .. }) = store.backend().acquire(attempt).await
                    {
                        assert!(token.term > before, "{} after {before}", token.term);
                        highest.fetch_max(token.term, Ordering::SeqCst);
                        won += 1;
                        let release = Release { name: name.clone(), claim, known: vec![claim] };
                        store.backend().release(release).await.expect("answered");
                    }
                    if (round + client) % 6 == 0 {
                        dynamo.delete_item(&name).await;
                    }
                }
                won
            });
        }
        let won: usize = racing.join_all().await.into_iter().sum();
        println!("{won} tenures, 60 deletions between and in them");
        assert!(won > 0);
    });
}

/// The largest note there may be, and a thousand names at once.
#[test]
fn large_reads() {
    let Some((dynamo, _turn)) = Dynamo::find_alone() else { return };
    conformance::block_on(async {
        let (store, mut names) = (dynamo.store(), Vec::new());
        let backend = store.backend();
        let note: Vec<u8> = (0..NOTE_MAX).map(|byte| byte as u8).collect();
        for index in 0..1000 {
            let name = fresh("large");
            if index % 50 == 0 {
                let attempt = Acquire { note: Some(note.clone()), ..request(&name, "a", TTL) };
                server::win(&**backend, attempt).await;
            }
            names.push(name);
        }
        let begun = Moment::now();
        let records = backend.read(names).await.expect("read");
        println!("1000 names, 20 of them with the largest note, {:?}", Moment::now().since(begun));
        for (index, record) in records.into_iter().enumerate() {
            assert_eq!(record.is_some(), index % 50 == 0, "record {index}");
            assert!(record.is_none_or(|record| record.note == note), "record {index}");
        }
    });
}

/// A table is created if that was asked for, and named if it is missing.
#[test]
fn tables() {
    let Some((dynamo, _turn)) = Dynamo::find() else { return };
    conformance::block_on(async {
        let table = fresh("table").to_string();
        let store = dynamo.open_table(&table, "");
        let name = LeaseName::new("nightly").expect("a name");
        let error = store.backend().read(vec![name]).await.expect_err("there is no table");
        assert_eq!(error.kind(), StoreErrorKind::Unsuitable);
        assert!(error.to_string().contains(&table), "{error}");
        let store = dynamo.open_table(&table, "&create=true");
        let lease = store.lease("nightly").settings(Settings::new(TTL));
        let begun = Moment::now();
        let tenure = tokio::time::timeout(Duration::from_secs(10), lease.acquire()).await;
        let tenure = tenure.expect("within ten seconds").expect("acquired");
        println!("a table and its first tenure in {:?}", Moment::now().since(begun));
        tenure.release().await;
        store.preflight("nightly").await.expect("all is well");
    });
}

/// From a release to the next tenure, by polling.
#[test]
fn hand_over() {
    let Some((dynamo, _turn)) = Dynamo::find() else { return };
    conformance::block_on(async {
        let (stores, name) = ([dynamo.store(), dynamo.store()], fresh("hand-over"));
        let lease =
            |turn: usize| stores[turn % 2].lease(name.as_str()).settings(Settings::new(TTL));
        let (mut tenure, mut took) = (lease(0).acquire().await.expect("acquired"), Vec::new());
        for turn in 1..=9 {
            let next = lease(turn);
            let waiting = tokio::spawn(async move {
                let tenure = next.acquire().await.expect("acquired");
                (tenure, Moment::now())
            });
            tokio::time::sleep(Duration::from_millis(100)).await;
            let released = Moment::now();
            tenure.release().await;
            let (next, at) = waiting.await.expect("the next one");
            took.push(at.since(released));
            tenure = next;
        }
        took.sort();
        println!("hand-over p50 {:?}, longest {:?}", took[4], took[8]);
        // One of them may meet a stall; most of them find it at their next poll.
        assert!(took[4] < TTL, "{took:?}");
    });
}
