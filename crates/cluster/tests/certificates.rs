//! Certificates that end, are renewed, revoked, or not valid yet, while nodes talk.
#![allow(clippy::disallowed_methods, reason = "these tests run in real time, over real sockets")]

mod kit;
mod nodes;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use kit::{Kit, Started, gauged, logged, quick};
use nodes::{addresses, agree, eventually, join_all, plain, soon};
use rustls::pki_types::UnixTime;
use tenure_cluster::certs::{Authority, NodeFiles, serial, write_public};
use tenure_cluster::transport::telemetry::CERTIFICATE;
use tenure_cluster::transport::{Down, Event, IdentityError, Lane, Refusal, TransportSettings};
use tenure_cluster::{Cluster, Settings};
use tenure_lease::{MemoryStore, Store};

/// Looks at its files often.
fn attentive() -> TransportSettings {
    TransportSettings { certificate_check: Duration::from_millis(50), ..quick() }
}

fn now() -> u64 {
    UnixTime::now().as_secs()
}

fn revoke(authority: &Authority, files: &NodeFiles, of: &Path) {
    let list = authority.revoke(&[serial(&files.certificate).unwrap()]).unwrap();
    write_public(&of.join("crl.pem"), &list).unwrap();
}

/// Why a link of this node ended that somebody else had opened.
async fn closed(node: &mut Started) -> Down {
    node.told(|event| match event {
        Event::Down { why, .. } => Some(why),
        _ => None,
    })
    .await
}

/// What this node says of a connection that it refuses, while somebody tries to talk to it. A frame
/// that is written to a link that has just been closed is gone, and nobody dials for it.
async fn refused(node: &mut Started, by: &Started) -> Refusal {
    loop {
        assert!(by.transport.control(&node.node.address, None, vec![255]));
        let refusal = node.told(|event| match event {
            Event::Refused { refusal, .. } => Some(refusal),
            Event::Control { from, .. } if from.name == "stolen" => panic!("heard: {from:?}"),
            _ => None,
        });
        if let Ok(refusal) = tokio::time::timeout(Duration::from_millis(200), refusal).await {
            return refusal;
        }
    }
}

#[test]
fn a_certificate_whose_time_has_not_come_is_looked_at_again() {
    let kit = Kit::new();
    let identity = kit.identity("one");
    let from = now() + 2;
    let files = kit.authority.issue_between("one", &[], from..from + 1000).unwrap();
    files.save(kit.path("one")).unwrap();
    let error = identity.reload().unwrap_err();
    assert!(
        matches!(&error, IdentityError::NotYet { not_before, .. } if *not_before == from),
        "{error}"
    );
    let start = Instant::now();
    let changed = loop {
        assert!(start.elapsed() < kit::LONG);
        match identity.reload() {
            Err(IdentityError::NotYet { .. }) => std::thread::sleep(Duration::from_millis(50)),
            changed => break changed.unwrap(),
        }
    };
    assert!(changed && now() >= from);
}

#[test]
fn lists_that_cannot_be_read_are_refused_and_those_of_others_are_not_needed() {
    let kit = Kit::new();
    let (identity, dir) = (kit.identity("one"), kit.path("one"));
    write_public(&dir.join("crl.pem"), "nothing").unwrap();
    let error = identity.reload().unwrap_err().to_string();
    assert!(error.contains("crl.pem") && error.contains("X509 CRL"), "{error}");
    // A list of an authority that is not trusted (any more) says nothing about anybody.
    let other = Authority::new("shop").unwrap().successor().unwrap();
    let list = other.revoke(&[serial(&read(&dir.join("node.pem"))).unwrap()]).unwrap();
    write_public(&dir.join("crl.pem"), &list).unwrap();
    assert!(identity.reload().unwrap());
    // One that revokes this very node is not taken: the node would throw itself out.
    let list = kit.authority.revoke(&[serial(&read(&dir.join("node.pem"))).unwrap()]).unwrap();
    write_public(&dir.join("crl.pem"), &list).unwrap();
    let error = identity.reload().unwrap_err().to_string();
    assert!(error.contains("node.pem") && error.contains("crl.pem revokes it"), "{error}");
}

#[tokio::test]
async fn a_revoked_peer_is_closed_and_stays_out() {
    let mut kit = Kit::new();
    let stolen_files = kit.authority.issue("stolen", &[]).unwrap();
    stolen_files.save(kit.path("stolen")).unwrap();
    let mut node = kit.node_with("node", attentive());
    let (stolen, good) = (kit.node("stolen"), kit.node("good"));
    for peer in [&stolen, &good] {
        assert!(peer.transport.control(&node.node.address, None, vec![1]));
        assert_eq!(node.control_frame().await, [1]);
    }
    let lane = stolen.transport.data(&node.node);
    lane.send_with(|out| out.push(1)).await.unwrap();
    let _frames = node.data().await;
    // What this node opened itself ends, too.
    assert!(node.transport.control(&stolen.node.address, None, vec![2]));
    node.told(|event| match event {
        Event::Up(link) if link.peer.name == "stolen" => (link.lane == Lane::Control).then_some(()),
        _ => None,
    })
    .await;

    revoke(&kit.authority, &stolen_files, &kit.path("node"));
    for _ in 0..3 {
        let why = closed(&mut node).await;
        assert_eq!(why, Down::NotAccepted("crl.pem revokes it".into()));
    }
    let refusal = soon(refused(&mut node, &stolen)).await;
    assert!(refusal.to_string().contains("revoked by our crl.pem"), "{refusal}");
    assert!(good.transport.control(&node.node.address, None, vec![4]));
    assert_eq!(node.control_frame().await, [4], "others stay, and the revoked one says nothing");
}

#[tokio::test]
async fn peers_of_an_authority_that_is_taken_out_are_closed() {
    let mut kit = Kit::new();
    let second = kit.authority.successor().unwrap();
    let mut files = second.issue("node", &[]).unwrap();
    let both = format!("{}{}", second.certificate(), kit.authority.certificate());
    files.authority = both;
    files.save(kit.path("node")).unwrap();
    kit.certify("old");
    let with_second = format!("{}{}", kit.authority.certificate(), second.certificate());
    write_public(&kit.path("old").join("ca.pem"), &with_second).unwrap();
    let (mut node, old) = (kit.node_with("node", attentive()), kit.node("old"));
    assert!(old.transport.control(&node.node.address, None, vec![1]));
    assert_eq!(node.control_frame().await, [1]);
    write_public(&kit.path("node").join("ca.pem"), second.certificate()).unwrap();
    let why = closed(&mut node).await;
    assert_eq!(why, Down::NotAccepted("it is not of an authority in ca.pem".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_are_opened_again_when_they_are_old_and_nothing_is_lost() {
    let mut kit = Kit::new();
    let settings = TransportSettings { link_age_max: Duration::from_secs(1), ..quick() };
    let mut one = kit.node_with("one", settings.clone());
    let mut two = kit.node_with("two", settings);
    let lane = one.transport.data(&two.node);
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let sending = tokio::spawn(async move {
        let mut sent = 0u64;
        while !stopped.load(Relaxed) {
            lane.send_with(|out| out.extend_from_slice(&sent.to_le_bytes())).await.unwrap();
            sent += 1;
            if sent.is_multiple_of(50) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        sent
    });
    let mut frames = two.data().await;
    let received = Arc::new(AtomicU64::new(0));
    let counted = received.clone();
    let receiving = tokio::spawn(async move {
        while let Some(batch) = frames.recv().await {
            for frame in batch {
                let number = u64::from_le_bytes(frame[..].try_into().unwrap());
                assert_eq!(number, counted.fetch_add(1, Relaxed), "in order, each once");
            }
        }
    });
    for _ in 0..3 {
        let (why, unknown) = one
            .told(|event| match event {
                Event::Down { why, unknown, .. } => Some((why, unknown)),
                _ => None,
            })
            .await;
        assert_eq!((why, unknown), (Down::Outdated, 0));
    }
    stop.store(true, Relaxed);
    let sent = sending.await.unwrap();
    eventually(|| received.load(Relaxed) == sent || receiving.is_finished()).await;
    assert_eq!(received.load(Relaxed), sent);
    println!("{sent} messages over at least three links");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_certificate_has_expired_is_not_ready_and_says_so() {
    let kit = Kit::new();
    let end = now() + 6;
    let files = kit.authority.issue_between("late", &[], end - 1000..end).unwrap();
    files.save(kit.path("late")).unwrap();
    let store = Store::new(MemoryStore::default());
    let mut settings = plain(&addresses(1)[0], &store).name("late").identity(kit.path("late"));
    settings.plaintext_without_any_protection = false;
    settings.transport = attentive();
    let cluster = soon(Cluster::join(settings)).await.unwrap();
    eventually(|| cluster.ready().is_ok() || now() > end).await;
    assert!(now() <= end, "it was ready in time");
    eventually(|| gauged(CERTIFICATE, "file=node.pem").is_some_and(|left| left < 0.0)).await;
    assert!(gauged(CERTIFICATE, "file=ca.pem").unwrap() > 3000.0 * 86400.0);
    let why = cluster.ready().unwrap_err().to_string();
    assert!(why.contains("late/node.pem has expired"), "{why}");
    eventually(|| logged("the certificate has expired") > 0).await;
    let (soon_lines, over) =
        (logged("the certificate expires soon"), "the certificate has expired");
    assert!((1..=3).contains(&soon_lines), "once for each stage: {soon_lines}");
    assert_eq!(logged(over), 1);
    // A new certificate is taken up, without a restart.
    kit.certify("late");
    eventually(|| cluster.ready().is_ok()).await;
}

/// Three nodes that talk all the time get a new authority; then a key is stolen and revoked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_authority_is_replaced_and_a_key_revoked_under_load() {
    let mut kit = Kit::new();
    let store = Store::new(MemoryStore::default());
    let names = ["shop-0", "shop-1", "shop-2"];
    let age = Duration::from_secs(3);
    let settings = names.iter().zip(addresses(3)).map(|(name, address)| {
        kit.certify(name);
        let mut settings: Settings = plain(&address, &store).name(*name).identity(kit.path(name));
        settings.plaintext_without_any_protection = false;
        settings.transport = TransportSettings { link_age_max: age, ..attentive() };
        settings
    });
    let clusters = join_all(settings.collect()).await;
    agree(&clusters, 3).await;
    let me: Vec<_> = clusters.iter().map(Cluster::me).collect();
    let load = Load::start(&clusters);

    // The key of a node that is not there any more. Its owner does not mind who answers.
    let second = kit.authority.successor().unwrap();
    let both = format!("{}{}", kit.authority.certificate(), second.certificate());
    let mut stolen_files = kit.authority.issue("stolen", &[]).unwrap();
    stolen_files.authority.clone_from(&both);
    stolen_files.save(kit.path("stolen")).unwrap();
    let mut stolen = kit.node("stolen");

    // The new authority beside the old one, everywhere; then new certificates, one by one; then the
    // old one is taken out.
    let everywhere = |ca: &str| {
        for name in names {
            write_public(&kit.path(name).join("ca.pem"), ca).unwrap();
        }
    };
    let taken =
        |name: &str| logged(&format!("new links use the changed certificate name={name:?}"));
    everywhere(&both);
    eventually(|| names.iter().all(|name| taken(name) == 1)).await;
    for name in names {
        let mut files = second.issue(name, &[]).unwrap();
        files.authority.clone_from(&both);
        files.save(kit.path(name)).unwrap();
        // Once for the key and the certificate: in between they do not fit.
        eventually(|| taken(name) == 2).await;
    }
    // The owner of the stolen key is still let in.
    assert!(stolen.transport.control(&me[0].address, None, vec![255]));
    stolen.told(|event| matches!(event, Event::Up(_)).then_some(())).await;
    // Peers show their new certificates within the links' greatest age.
    tokio::time::sleep(age).await;
    let revoked = Instant::now();
    for name in names {
        revoke(&kit.authority, &stolen_files, &kit.path(name));
    }
    let why = closed(&mut stolen).await;
    let out_after = revoked.elapsed();
    assert!(out_after < age, "{out_after:?}: {why}");
    let refusal = soon(async {
        loop {
            assert!(stolen.transport.control(&me[0].address, None, vec![255]));
            let failed = stolen.told(|event| match event {
                Event::Failed { refusal, .. } => Some(refusal),
                Event::Up(link) => panic!("let in again: {link:?}"),
                _ => None,
            });
            if let Ok(refusal) = tokio::time::timeout(Duration::from_millis(200), failed).await {
                break refusal;
            }
        }
    })
    .await;
    eventually(|| names.iter().all(|name| taken(name) == 3)).await;
    everywhere(second.certificate());
    eventually(|| names.iter().all(|name| taken(name) == 4)).await;
    tokio::time::sleep(age).await;

    let (sent, received) = load.stop().await;
    println!("{sent} messages, all arrived; the stolen key was out after {out_after:?}: {refusal}");
    assert_eq!(received, sent);
    assert!(sent > 1000, "{sent}");
    assert_eq!(clusters.iter().map(Cluster::me).collect::<Vec<_>>(), me, "nobody started over");
    agree(&clusters, 3).await;
}

/// Every node tells every other one numbers in order, until it is stopped.
struct Load {
    stop: Arc<AtomicBool>,
    received: Arc<AtomicU64>,
    lost: Arc<AtomicU64>,
    sending: Vec<tokio::task::JoinHandle<u64>>,
}

impl Load {
    fn start(clusters: &[Cluster]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (received, lost) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let mut sending = Vec::new();
        for (index, from) in clusters.iter().enumerate() {
            let mut letters = from.dead_letters();
            let counted = lost.clone();
            tokio::spawn(async move {
                while let Some(letter) = letters.next().await {
                    eprintln!("lost: {letter}");
                    counted.fetch_add(letter.count, Relaxed);
                }
            });
            for to in clusters.iter().filter(|to| to.me() != from.me()) {
                let name = format!("from-{index}");
                let mut receiver = to.receiver::<u64>(&name).unwrap();
                let counted = received.clone();
                tokio::spawn(async move {
                    let mut next = 0;
                    while let Some(received) = receiver.recv().await {
                        assert_eq!(received.message, next, "in order, each once");
                        next += 1;
                        counted.fetch_add(1, Relaxed);
                    }
                });
                let (sender, stopped) = (from.to::<u64>(&to.me(), &name), stop.clone());
                sending.push(tokio::spawn(async move {
                    let mut sent = 0;
                    while !stopped.load(Relaxed) {
                        sender.tell(sent).await.unwrap();
                        sent += 1;
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    sent
                }));
            }
        }
        Self { stop, received, lost, sending }
    }

    /// How many messages were sent, and how many arrived.
    async fn stop(self) -> (u64, u64) {
        self.stop.store(true, Relaxed);
        let mut sent = 0;
        for sending in self.sending {
            sent += sending.await.unwrap();
        }
        let (received, lost) = (self.received, self.lost);
        eventually(|| received.load(Relaxed) + lost.load(Relaxed) >= sent).await;
        (sent, received.load(Relaxed))
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}
