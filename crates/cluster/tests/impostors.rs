//! Whoever has a certificate of the cluster and is no member: the owner of a key that leaked. It can
//! talk to nodes, and nothing that it says about the cluster or to receivers counts.
#![allow(clippy::disallowed_methods, reason = "these tests run in real time, over real sockets")]

mod kit;
mod nodes;

use std::time::Duration;

use kit::{Kit, Started};
use nodes::{addresses, agree, join_all, plain, soon};
use tenure_cluster::messaging::Json;
use tenure_cluster::transport::Version;
use tenure_cluster::transport::{Event, Lane, Refusal};
use tenure_cluster::wire::{self, Control};
use tenure_cluster::{Cluster, Settings};
use tenure_lease::{MemoryStore, Store};

/// Members with certificates of the kit's authority.
async fn members(kit: &Kit, count: usize) -> Vec<Cluster> {
    let store = Store::new(MemoryStore::default());
    let certified = |(index, address)| {
        let name = format!("shop-{index}");
        kit.certify(&name);
        let mut settings: Settings =
            plain(address, &store).name(name.clone()).identity(kit.path(&name));
        settings.plaintext_without_any_protection = false;
        settings
    };
    let settings = addresses(count).iter().enumerate().map(certified).collect();
    let clusters = join_all(settings).await;
    agree(&clusters, count).await;
    clusters
}

fn post(from: &Started, to: &Cluster, message: &Control) {
    let frame = wire::encode(message, Version::OURS).unwrap();
    assert!(from.transport.control(&to.me().address, None, frame));
}

/// The next control message that somebody was sent.
async fn told(started: &mut Started) -> Control {
    started
        .told(|event| match event {
            Event::Control { mut frames, .. } => {
                frames.next().map(|frame| wire::decode(&frame).unwrap())
            }
            _ => None,
        })
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_key_of_no_member_throws_nobody_out() {
    let mut kit = Kit::new();
    let clusters = members(&kit, 2).await;
    let (me, id) = (clusters[0].me(), clusters[0].view().cluster());
    let mut old = kit.node("old");
    for cluster in [u64::MAX, id + 1] {
        post(&old, &clusters[0], &Control::Ping { cluster });
        post(&old, &clusters[0], &Control::Pong { cluster });
    }
    post(&old, &clusters[0], &Control::Removed { cluster: id });
    // Frames are handled in order: when this is answered, those before it were handled.
    post(&old, &clusters[0], &Control::Ping { cluster: id });
    let answer = told(&mut old).await;
    assert!(matches!(answer, Control::Pong { cluster } if cluster == id), "{answer:?}");
    assert_eq!((clusters[0].me(), clusters[0].view().cluster()), (me, id));
    agree(&clusters, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_no_member_reach_no_receiver() {
    let mut kit = Kit::new();
    let clusters = members(&kit, 2).await;
    let mut receiver = clusters[0].receiver::<Json<String>>("lines").unwrap();
    let mut old = kit.node("old");
    let frame = b"\x01\x05lines\x03\x00\"told\"";
    let mut posted = b"\x02\x05lines\x03\x00\"posted\"".to_vec();
    post(&old, &clusters[0], &Control::Posted(std::mem::take(&mut posted)));
    let lane = old.transport.data(&clusters[0].me());
    lane.send_with(|out| out.extend_from_slice(frame)).await.unwrap();
    // The node gives up waiting for the sender to become a member, and closes the link.
    let closed = |event| match event {
        Event::Down { link, .. } if link.lane == Lane::Data => Some(()),
        _ => None,
    };
    let closed = tokio::time::timeout(Duration::from_secs(15), old.told(closed)).await;
    let to = clusters[1].to::<Json<String>>(&clusters[0].me(), "lines");
    to.tell(Json("member".into())).await.unwrap();
    assert_eq!(soon(receiver.recv()).await.unwrap().message.0, "member");
    closed.expect("the link of no member is closed");
}

/// Somebody with another certificate says that it is a certain member.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_name_cannot_pass_for_a_member() {
    let mut kit = Kit::new();
    let clusters = members(&kit, 2).await;
    let (me, id) = (clusters[0].me(), clusters[0].view().cluster());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut impostor = kit.node_as("old", clusters[1].me(), listener);
    post(&impostor, &clusters[0], &Control::Ping { cluster: u64::MAX });
    let refusal = impostor
        .told(|event| match event {
            Event::Failed { refusal, .. } => Some(refusal),
            Event::Up(link) => panic!("let in: {link:?}"),
            _ => None,
        })
        .await;
    let Refusal::ByPeer(why) = refusal else { panic!("{refusal}") };
    assert!(why.contains("\"old\"") && why.contains("\"shop-1\""), "{why}");
    assert_eq!((clusters[0].me(), clusters[0].view().cluster()), (me, id));
    agree(&clusters, 2).await;
}

/// A certificate is good for a node's links, not for as many as there are addresses to claim.
#[tokio::test]
async fn one_certificate_has_few_links_whatever_it_claims() {
    let mut kit = Kit::new();
    let mut node = kit.node("node");
    let mut claims = Vec::new();
    let refused = loop {
        let claimed = format!("127.9.9.9:{}", 1 + claims.len()).parse().unwrap();
        let claimed =
            tenure_cluster::Node { address: claimed, incarnation: tenure_cluster::Incarnation(7) };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut claim = kit.node_as("old", claimed, listener);
        assert!(claim.transport.control(&node.node.address, None, vec![1]));
        let refused = claim
            .told(|event| match event {
                Event::Failed { refusal, .. } => Some(Some(refusal)),
                Event::Up(_) => Some(None),
                _ => None,
            })
            .await;
        claims.push(claim);
        if let Some(refused) = refused {
            break refused;
        }
        assert!(claims.len() <= 64, "{} links with one certificate", claims.len());
    };
    assert!(refused.to_string().contains("links_per_certificate_max"), "{refused}");
    // Others are not hindered by it.
    let good = kit.node("good");
    assert!(good.transport.control(&node.node.address, None, vec![2]));
    while node.control_frame().await != [2] {}
}
