//! The store blinks: for less than half a ttl it does not answer, and no tenure ends.
//!
//! Each outage meets twenty leases of twenty clients, each at another phase of its renewals, four of
//! them attached to a session. The outage that was measured counts, not the one that was meant:
//! starting and stopping servers takes its time. `TENURE_BLINKS=all` runs every length; without it,
//! those of three seconds at most. `TENURE_ATTACHED=10000` attaches that many leases to one session
//! instead, while two processes keep both cores busy: renewals come first, so the session lives.
#![cfg(feature = "all-stores")]
#![allow(clippy::disallowed_methods)] // Real servers, real time.

#[path = "blink/gate.rs"]
mod gate;
mod server;

use std::task::Poll;
use std::time::Duration;

use tenure_lease::backend::Boxed;
use tenure_lease::{LeaseError, Moment, Nonce, Session, Settings, Store, Tenure};
use tenure_stores::azure_blob::AzureBlobStore;
use tenure_stores::dynamodb::DynamoStore;
use tenure_testkit::conformance::block_on;

use gate::Gate;
use server::{Turn, fresh};

/// How the store is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outage {
    /// Connections are closed, and new ones refused.
    Refused,
    /// The network drops every packet.
    Dropped,
    /// The connections that exist hang for ever, and new ones work. Its length is the test's choice.
    HungConnections,
    /// These servers are stopped (SIGSTOP), and go on.
    Stopped(&'static [&'static str]),
    /// These servers are killed, and started again.
    Killed(&'static [&'static str]),
    /// The leader of etcd is killed, and started again.
    EtcdLeaderKilled,
}

/// A store whose server can be taken away.
struct Blinking {
    /// What `scripts/servers` calls it.
    name: &'static str,
    /// HOST:PORT of each of its servers.
    servers: Vec<String>,
    /// Opens the store as if its servers were at these addresses.
    open: OpenStore,
    outages: Vec<Outage>,
}

impl Blinking {
    fn run(self) {
        let _turn = Turn::alone();
        if let Ok(count) = std::env::var("TENURE_ATTACHED") {
            return block_on(self.attach_many(count.parse().expect("a number of leases")));
        }
        block_on(async {
            let mut unexpected = Vec::new();
            for ttl in self.ttls().await {
                for outage in self.outages.clone() {
                    for length in self.lengths(ttl) {
                        if let Some(text) = self.blink(outage, ttl, length).await {
                            unexpected.push(text);
                        }
                    }
                }
            }
            assert!(unexpected.is_empty(), "{}: {unexpected:#?}", self.name);
        });
    }

    /// Attaches many leases to one session on a busy machine.
    async fn attach_many(&self, count: usize) {
        let burners = [(); 2].map(|()| Burner::start());
        let store = (self.open)(&self.servers).await;
        let session = store.lease(fresh("many").as_str()).session().await.expect("a session");
        let begun = Moment::now();
        let names: Vec<_> = (0..count).map(|number| fresh(&format!("many-{number}"))).collect();
        let mut attached = Vec::new();
        // Two thousand callers at once, for whom the session asks for a few at a time.
        for some in names.chunks(2_000) {
            let all = futures_of(some.iter().map(|name| session.lease(name.as_str()).acquire()));
            attached.extend(tokio::select! {
                tenures = all => tenures,
                loss = session.tenure().lost() => panic!("{}: the session: {loss}", self.name),
            });
        }
        let took = Moment::now().since(begun);
        tokio::select! {
            loss = session.tenure().lost() => panic!("{}: the session: {loss}", self.name),
            () = tokio::time::sleep(DEFAULT * 2) => {}
        }
        let held = attached.iter().filter(|tenure| tenure.is_held()).count();
        println!("{}: {held} of {count} attached in {took:.1?}, held for 30 s more", self.name);
        assert_eq!(held, count);
        drop(burners);
    }

    /// The default, and a shorter one where the store keeps it.
    async fn ttls(&self) -> Vec<Duration> {
        let least = (self.open)(&self.servers).await.info().ttl_min;
        let short = SHORT.max(least);
        if is_full() {
            if short < DEFAULT { vec![DEFAULT, short] } else { vec![DEFAULT] }
        } else {
            vec![short]
        }
    }

    fn lengths(&self, ttl: Duration) -> Vec<Duration> {
        let lengths = LENGTHS.map(|length| length.mul_f64(ttl.as_secs_f64() / 15.0));
        let limit = if is_full() { ttl } else { Duration::from_secs(3) };
        let mut lengths: Vec<_> = lengths.into_iter().filter(|length| *length <= limit).collect();
        if !is_full() {
            lengths.drain(..lengths.len().saturating_sub(1));
        }
        lengths
    }

    /// One outage that twenty tenures live through; what went wrong, if anything.
    async fn blink(&self, outage: Outage, ttl: Duration, length: Duration) -> Option<String> {
        let mut gates = Vec::new();
        for server in &self.servers {
            gates.push(Gate::open(server).await);
        }
        let addresses: Vec<_> = gates.iter().map(|gate| gate.address.to_string()).collect();
        let settings = Settings::new(ttl);
        let held = self.hold(&addresses, &settings).await;
        tokio::time::sleep(random(settings.renew_interval)).await;

        let begun = Moment::now();
        let before = held.deadlines();
        let Some(back) = self.away(outage, &mut gates, length).await else {
            println!("{} {outage:?}: skipped: this user may not set up a packet filter", self.name);
            return None;
        };
        let measured = back.since(begun);
        let lost = held.lost(&before, &settings).await;
        let survived = CLIENTS - lost.len();
        println!(
            "{} {outage:?}, ttl {ttl:?}, away for {measured:.2?}: {survived} of {CLIENTS} survived {lost:?}",
            self.name
        );
        // All connections that hang are the outage of one hedge, however long they hang.
        let promised = outage == Outage::HungConnections || measured <= ttl / 2;
        (promised && !lost.is_empty())
            .then(|| format!("{outage:?}, ttl {ttl:?}, {measured:.2?}: lost {lost:?}"))
    }

    async fn hold(&self, addresses: &[String], settings: &Settings) -> Held {
        let mut tenures = Vec::new();
        for _ in 0..PLAIN {
            let lease = (self.open)(addresses).await.lease(fresh("blink").as_str());
            let acquired = lease.settings(settings.clone()).acquire().await;
            tenures.push(acquired.unwrap_or_else(|error| panic!("{}: {error}", self.name)));
            tokio::time::sleep(settings.renew_interval / PLAIN as u32).await;
        }
        let lease = (self.open)(addresses).await.lease(fresh("blink-session").as_str());
        let session = lease.settings(settings.clone()).session().await.expect("a session");
        for _ in 0..ATTACHED {
            let attached = session.lease(fresh("blink-attached").as_str()).acquire().await;
            tenures.push(attached.expect("attached"));
        }
        Held { tenures, _session: session }
    }

    /// Takes the store away for so long; when it was back. `None`: that cannot be done here.
    async fn away(&self, outage: Outage, gates: &mut [Gate], length: Duration) -> Option<Moment> {
        match outage {
            Outage::Refused => gates.iter_mut().for_each(Gate::refuse),
            Outage::Dropped => {
                if !gates.iter_mut().all(Gate::drop_packets) {
                    return None;
                }
            }
            Outage::HungConnections => gates.iter().for_each(Gate::hang_connections),
            Outage::Stopped(servers) => control("pause", servers).await,
            Outage::Killed(servers) => control("kill", servers).await,
            Outage::EtcdLeaderKilled => {
                let leader = etcd_leader(&self.servers).await;
                control("kill", &[leader]).await;
                tokio::time::sleep(length).await;
                let back = Moment::now();
                control("restart", &[leader]).await;
                return Some(back);
            }
        }
        tokio::time::sleep(length).await;
        match outage {
            Outage::Stopped(servers) => control("resume", servers).await,
            Outage::Killed(servers) => control("restart", servers).await,
            _ => {
                for gate in gates {
                    gate.reopen().await;
                }
            }
        }
        Some(Moment::now())
    }
}

/// What twenty clients hold.
struct Held {
    tenures: Vec<Tenure>,
    _session: Session,
}

impl Held {
    fn deadlines(&self) -> Vec<Moment> {
        self.tenures.iter().map(Tenure::deadline).collect()
    }

    /// Waits until each tenure has been renewed twice since the outage began, or is lost: those.
    async fn lost(&self, before: &[Moment], settings: &Settings) -> Vec<String> {
        let mut lost = Vec::new();
        for (index, (tenure, before)) in self.tenures.iter().zip(before).enumerate() {
            let renewed = async {
                while tenure.deadline() < *before + settings.renew_interval * 2 {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            tokio::select! {
                loss = tenure.lost() => {
                    let kind = if index < PLAIN { "plain" } else { "attached" };
                    lost.push(format!("{kind}: {loss}"));
                }
                () = renewed => {}
            }
        }
        lost
    }
}

/// A process that computes until it is dropped.
struct Burner(std::process::Child);

impl Burner {
    fn start() -> Self {
        let child = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn();
        Self(child.expect("a shell"))
    }
}

impl Drop for Burner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What all of them come to.
async fn futures_of(
    acquisitions: impl Iterator<Item = impl Future<Output = Result<Tenure, LeaseError>>>,
) -> Vec<Tenure> {
    let mut tenures = Vec::new();
    let mut waiting: Vec<_> = acquisitions.map(Box::pin).collect();
    std::future::poll_fn(|context| {
        waiting.retain_mut(|acquisition| match acquisition.as_mut().poll(context) {
            Poll::Ready(tenure) => {
                tenures.push(tenure.expect("attached"));
                false
            }
            Poll::Pending => true,
        });
        if waiting.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    tenures
}

async fn control(command: &str, servers: &[&str]) {
    let script = std::env::var("TENURE_TEST_SERVERS_SCRIPT");
    let script = script.expect("scripts/servers sets TENURE_TEST_SERVERS_SCRIPT");
    let arguments = std::iter::once(&command).chain(servers).map(|text| (*text).to_owned());
    server::run(&script, arguments.collect(), vec![]).await;
}

async fn etcd_leader(members: &[String]) -> &'static str {
    let etcdctl = std::env::var("TENURE_TEST_ETCDCTL").expect("scripts/servers sets it");
    for (member, name) in members.iter().zip(ETCD_MEMBERS) {
        let arguments = ["--endpoints", member, "endpoint", "status", "--write-out", "fields"];
        let arguments = arguments.map(str::to_owned).to_vec();
        let status = server::run(&etcdctl, arguments, vec![]).await;
        let status = String::from_utf8_lossy(&status).into_owned();
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(&format!("\"{name}\"")));
            line.and_then(|line| line.split_once(" : ")).map(|(_, value)| value.to_owned())
        };
        if field("Leader").is_some() && field("Leader") == field("MemberID") {
            return name;
        }
    }
    panic!("the cluster has no leader");
}

fn random(below: Duration) -> Duration {
    below.mul_f64((Nonce::random().bits() % 1_000) as f64 / 1_000.0)
}

fn is_full() -> bool {
    std::env::var("TENURE_BLINKS").is_ok_and(|value| value == "all")
}

/// The variable that `scripts/servers` sets; if it is not set, says why the test is skipped.
fn variable(name: &str) -> Option<String> {
    let variable = format!("TENURE_TEST_{name}");
    let value = std::env::var(&variable).ok();
    if value.is_none() {
        eprintln!("skipped: {variable} is not set; run it by: scripts/servers run -- cargo test …");
    }
    value
}

/// What can be done to any store whose connections go through a gate.
const NETWORK: [Outage; 3] = [Outage::Refused, Outage::Dropped, Outage::HungConnections];

fn outages(more: &[Outage]) -> Vec<Outage> {
    [&NETWORK[..], more].concat()
}

/// Opens stores whose URL names the addresses of their servers.
fn by_url(url: impl Fn(&[String]) -> String + 'static) -> OpenStore {
    Box::new(move |servers| {
        let url = url(servers);
        Box::pin(async move { tenure_stores::open(&url).await.expect("a URL of a store") })
    })
}

#[test]
fn etcd() {
    let Some(members) = variable("ETCD") else { return };
    Blinking {
        name: "etcd",
        servers: members.split(',').map(str::to_owned).collect(),
        open: by_url(|servers| format!("etcd://{}/tests/blink", servers.join(","))),
        outages: outages(&[
            Outage::Stopped(&ETCD_MEMBERS),
            Outage::Killed(&ETCD_MEMBERS),
            Outage::EtcdLeaderKilled,
        ]),
    }
    .run();
}

#[test]
fn consul() {
    let Some(server) = variable("CONSUL") else { return };
    Blinking {
        name: "consul",
        servers: vec![server],
        open: by_url(|servers| format!("consul://{}/tests/blink", servers[0])),
        outages: outages(&[Outage::Stopped(&["consul"]), Outage::Killed(&["consul"])]),
    }
    .run();
}

#[test]
fn redis() {
    let Some(server) = variable("REDIS") else { return };
    Blinking {
        name: "redis",
        servers: vec![server],
        open: by_url(|servers| format!("redis://{}/0?prefix=blink", servers[0])),
        // A Redis that is killed may forget its records: that is its promise, not an outage.
        outages: outages(&[Outage::Stopped(&["redis"])]),
    }
    .run();
}

#[test]
fn postgres() {
    let Some(base) = variable("POSTGRES") else { return };
    Blinking {
        name: "postgres",
        servers: vec![place_of(&base)],
        open: by_url(move |servers| base.replace(&place_of(&base), &servers[0])),
        outages: outages(&[Outage::Stopped(&["postgres"]), Outage::Killed(&["postgres"])]),
    }
    .run();
}

#[test]
fn pgbouncer() {
    let Some(base) = variable("PGBOUNCER") else { return };
    Blinking {
        name: "pgbouncer",
        servers: vec![place_of(&base)],
        open: by_url(move |servers| base.replace(&place_of(&base), &servers[0])),
        outages: outages(&[Outage::Killed(&["pgbouncer"])]),
    }
    .run();
}

/// HOST:PORT in a PostgreSQL URL.
fn place_of(url: &str) -> String {
    let place = url.split('@').next_back().and_then(|rest| rest.split('/').next());
    place.expect("a URL has a host").to_owned()
}

#[test]
fn dynamodb() {
    let Some(endpoint) = variable("DYNAMODB") else { return };
    Blinking {
        name: "dynamodb",
        servers: vec![endpoint.trim_start_matches("http://").to_owned()],
        open: Box::new(|servers| {
            let url = format!("dynamodb://tenure-blink?endpoint=http://{}&create=true", servers[0]);
            let store = DynamoStore::with_access_key(&url, "any", "any").expect("a URL");
            Box::pin(async { Store::new(store) })
        }),
        outages: outages(&[Outage::Stopped(&["dynamodb"]), Outage::Killed(&["dynamodb"])]),
    }
    .run();
}

#[test]
fn azure_blob() {
    let Some(endpoint) = variable("AZURE") else { return };
    let place = endpoint.trim_start_matches("http://").split('/').next().expect("a host");
    let place = place.to_owned();
    Blinking {
        name: "azure_blob",
        servers: vec![place.clone()],
        open: Box::new(move |servers| {
            let endpoint = endpoint.replace(&place, &servers[0]);
            let url = format!(
                "azblob://{AZURE_ACCOUNT}/blink?endpoint={endpoint}&prefix=leases&key={AZURE_KEY}"
            );
            let store = AzureBlobStore::new(&url).expect("a URL");
            Box::pin(async move {
                store.create_container().await.expect("a container");
                Store::new(store)
            })
        }),
        // Azurite forgets what it has not saved yet when it is killed; the service does not.
        outages: outages(&[Outage::Stopped(&["azure"])]),
    }
    .run();
}

#[test]
fn kubernetes() {
    let Some(user) = variable("KUBE_USER") else { return };
    let config = std::fs::read_to_string(user).expect("the kubeconfig is readable");
    let server = config.lines().find_map(|line| line.trim().strip_prefix("server: https://"));
    let server = server.expect("it names a server").to_owned();
    Blinking {
        name: "kubernetes",
        servers: vec![server.clone()],
        open: Box::new(move |servers| {
            let file = format!("tenure-blink-{}", servers[0].replace(':', "-"));
            let path = std::env::temp_dir().join(file);
            std::fs::write(&path, config.replace(&server, &servers[0])).expect("a file");
            let url = format!("k8s://tenure-test?kubeconfig={}", path.display());
            Box::pin(async move { tenure_stores::open(&url).await.expect("a kubeconfig") })
        }),
        outages: outages(&[
            Outage::Stopped(&["kube-apiserver"]),
            Outage::Killed(&["kube-apiserver"]),
        ]),
    }
    .run();
}

type OpenStore = Box<dyn Fn(&[String]) -> Boxed<'static, Store>>;

/// Azurite's development account, whose key is public.
const AZURE_ACCOUNT: &str = "devstoreaccount1";
const AZURE_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
const ETCD_MEMBERS: [&str; 3] = ["etcd-1", "etcd-2", "etcd-3"];
const PLAIN: usize = 16;
const ATTACHED: usize = 4;
const CLIENTS: usize = PLAIN + ATTACHED;
const DEFAULT: Duration = Duration::from_secs(15);
const SHORT: Duration = Duration::from_secs(5);
/// At the default ttl; shorter in proportion at a shorter one.
const LENGTHS: [Duration; 4] = [
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(5),
    Duration::from_secs(7),
];
