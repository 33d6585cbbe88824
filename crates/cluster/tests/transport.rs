//! Links between real nodes over mutual TLS.
#![allow(clippy::disallowed_methods, reason = "these tests run in real time, over real sockets")]

mod kit;

use std::net::TcpListener;
use std::time::Duration;

use kit::{Kit, LONG, copy_files, counted, logged, quick, receive};
use tenure_cluster::transport::{
    Closed, Direction, Down, Event, Handles, Identity, Lane, SendError, Transport, TransportError,
    TransportSettings, Version,
};
use tenure_cluster::{Incarnation, Node};
use tokio::runtime::Handle;
use tokio::time::timeout;

#[tokio::test]
async fn control_frames_and_messages_arrive_in_order() {
    let mut kit = Kit::new();
    let (mut one, mut two) = (kit.node("one"), kit.node("two"));

    for byte in 0..100u8 {
        assert!(one.transport.control(&two.node.address, None, vec![byte]));
    }
    let link = two.told(|event| if let Event::Up(link) = event { Some(link) } else { None }).await;
    assert_eq!((link.lane, link.direction), (Lane::Control, Direction::Incoming));
    assert_eq!((link.peer.node.clone(), &*link.peer.name), (one.node.clone(), "one"));
    assert_eq!(link.peer.version, Version::OURS);
    let mut next = 0;
    while next < 100 {
        next += two
            .told(|event| {
                let Event::Control { frames, .. } = event else { return None };
                let bodies: Vec<u8> = frames.map(|body| body[0]).collect();
                assert!(bodies.iter().copied().eq(next..next + bodies.len() as u8));
                Some(bodies.len() as u8)
            })
            .await;
    }

    let lane = one.transport.data(&two.node);
    for number in 0..50_000u32 {
        lane.send_with(|out| out.extend_from_slice(&number.to_le_bytes())).await.unwrap();
    }
    let mut frames = two.data().await;
    let mut next = 0u32;
    while next < 50_000 {
        for body in receive(&mut frames).await {
            assert_eq!(body[..], next.to_le_bytes());
            next += 1;
        }
    }
    one.transport.close(LONG).await;
    let unknown = one
        .told(|event| match event {
            Event::Down { link, unknown, .. } if link.lane == Lane::Data => Some(unknown),
            _ => None,
        })
        .await;
    assert_eq!(unknown, 0, "all were reported as arrived");
    assert!(matches!(lane.try_send_with(|out| out.push(1)), Err(SendError::Closed(_))));
    assert!(!one.transport.control(&two.node.address, None, vec![1]));
}

fn control_frame(event: Event) -> Option<Vec<u8>> {
    match event {
        Event::Control { mut frames, .. } => frames.next().map(|frame| frame.to_vec()),
        _ => None,
    }
}

#[tokio::test]
async fn a_restarted_peer_is_told_from_the_one_before() {
    let mut kit = Kit::new();
    let mut one = kit.node("one");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let mut two = kit.node_at("two", quick(), listener, 1);
    let old = two.node.clone();
    let lane = one.transport.data(&old);
    lane.send_with(|out| out.push(1)).await.unwrap();
    one.transport.control(&old.address, Some(old.incarnation), vec![1]);
    assert_eq!(two.control_frame().await, [1]);
    let mut incoming = two.data().await;
    receive(&mut incoming).await;
    drop(two);
    // Until then the next message would be sent to the old process.
    let data_is_down =
        |event| matches!(event, Event::Down { link, .. } if link.lane == Lane::Data).then_some(());
    one.told(data_is_down).await;

    let mut again = kit.node_at("two", quick(), rebind(at).await, 2);
    lane.send_with(|out| out.push(2)).await.unwrap();
    let (dialed, expected, actual) = one.told(other_node).await;
    assert_eq!((&dialed, expected), (&old.address, Some(Incarnation(1))));
    assert_eq!(actual, again.node);
    // The lane to the old process is closed for good, and says so.
    let refused = loop {
        match lane.send_with(|out| out.push(3)).await {
            Ok(()) => tokio::task::yield_now().await,
            Err(error) => break error,
        }
    };
    let why = Closed::OtherIncarnation(again.node.clone());
    assert_eq!(refused, SendError::Closed(why.into()));
    let unsent = one.told(|event| match event {
        Event::Unsent { node, messages } => Some((node, messages)),
        _ => None,
    });
    let (node, messages) = unsent.await;
    assert!(node == old && messages >= 1);

    // Control frames for the old process are not given to the new one; those for anybody are.
    one.transport.control(&old.address, Some(old.incarnation), vec![4]);
    one.transport.control(&old.address, None, vec![5]);
    assert_eq!(again.control_frame().await, [5]);
    assert_eq!(one.told(other_node).await.1, Some(Incarnation(1)));
    let lane = one.transport.data(&again.node);
    lane.send_with(|out| out.push(6)).await.unwrap();
    assert_eq!(receive(&mut again.data().await).await.next().unwrap()[..], [6]);
}

fn other_node(event: Event) -> Option<(tenure_cluster::Address, Option<Incarnation>, Node)> {
    match event {
        Event::OtherNode { dialed, expected, actual } => Some((dialed, expected, actual)),
        _ => None,
    }
}

async fn rebind(at: std::net::SocketAddr) -> TcpListener {
    let bound = async {
        loop {
            match TcpListener::bind(at) {
                Ok(listener) => return listener,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    timeout(LONG, bound).await.unwrap()
}

#[tokio::test]
async fn what_a_cut_may_have_lost_is_told() {
    let mut kit = Kit::new();
    let settings = TransportSettings { incoming_batches: 1, ..quick() };
    let (mut one, mut two) = (kit.node("one"), kit.node_with("two", settings));
    let lane = one.transport.data(&two.node);
    for _ in 0..1000 {
        lane.send_with(|out| out.resize(1000, 1)).await.unwrap();
    }
    let mut frames = two.data().await;
    let mut arrived = receive(&mut frames).await.len() as u64;
    // Give the report of what was handed over the time to come back.
    tokio::time::sleep(Duration::from_millis(200)).await;
    drop(two.transport);
    while let Some(more) = frames.recv().await {
        arrived += more.len() as u64;
    }
    let unknown = one
        .told(|event| match event {
            Event::Down { unknown, why, .. } => {
                assert!(!matches!(why, Down::Idle | Down::Closed), "{why:?}");
                Some(unknown)
            }
            _ => None,
        })
        .await;
    one.transport.close(Duration::ZERO).await;
    let mut unsent = 0;
    while let Ok(event) = one.told.try_recv() {
        if let Event::Unsent { messages, .. } = event {
            unsent += messages;
        }
    }
    // Every message is accounted for: it arrived, or it is in doubt, or it never left.
    assert!(unknown > 0, "somebody who stopped taking messages was cut off");
    assert!(arrived >= 1000 - unknown - unsent, "{arrived} {unknown} {unsent}");
    assert!(kit::counted("tenure_transport_unknown_total", "") >= unknown);
    assert!(kit::counted("tenure_transport_unsent_total", "") >= unsent);
}

#[tokio::test]
async fn certificates_change_without_dropping_a_link() {
    let mut kit = Kit::new();
    kit.certify("two");
    let settings = TransportSettings { certificate_check: Duration::from_millis(50), ..quick() };
    let (one, mut two) = (kit.node("one"), kit.node_with("two", settings));
    let to_two = two.node.address.clone();
    let send = |byte| assert!(one.transport.control(&to_two, None, vec![byte]));
    send(1);
    assert_eq!(two.told(control_frame).await, [1]);

    // A bad pair is complained of, and the former identity stays.
    let (good, path) = (kit.path("good"), kit.path("two"));
    kit.authority.issue("two", &[]).unwrap().save(&good).unwrap();
    std::fs::copy(good.join("node.key"), path.join("node.key")).unwrap();
    eventually(|| kit::logged("the former certificate stays in use") > 0).await;
    let mut three = kit.node("three");
    assert!(three.transport.control(&to_two, None, vec![2]));
    assert_eq!(two.told(control_frame).await, [2]);

    // The good pair is taken; a new link uses it, the old link has stayed.
    copy_files(&good, &path);
    eventually(|| kit::logged("new links use the changed certificate") > 0).await;
    assert!(kit.identity("two").reload().is_ok_and(|changed| !changed));
    send(3);
    let mut down = false;
    let frame = two
        .told(|event| {
            down |= matches!(event, Event::Down { .. });
            control_frame(event)
        })
        .await;
    assert_eq!((frame, down), (vec![3], false));
    two.transport.control(&three.node.address, None, vec![4]);
    assert_eq!(three.control_frame().await, [4]);
}

async fn eventually(mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LONG, waiting).await.expect("it comes to hold in time");
}

#[tokio::test]
async fn idle_links_close_and_open_again() {
    let mut kit = Kit::new();
    let settings = TransportSettings { idle_timeout: Duration::from_millis(200), ..quick() };
    let (mut one, mut two) =
        (kit.node_with("one", settings.clone()), kit.node_with("two", settings));
    let lane = one.transport.data(&two.node);
    for round in 0..2 {
        lane.send_with(|out| out.push(round)).await.unwrap();
        assert!(one.transport.control(&two.node.address, None, vec![round]));
        assert_eq!(two.control_frame().await, [round]);
        for _ in 0..2 {
            let (why, unknown) = one
                .told(|event| match event {
                    Event::Down { why, unknown, .. } => Some((why, unknown)),
                    _ => None,
                })
                .await;
            assert_eq!((why, unknown), (Down::Idle, 0));
        }
    }
}

#[tokio::test]
async fn many_senders_share_a_lane_and_give_up_without_a_trace() {
    let mut kit = Kit::new();
    let settings = TransportSettings { data_buffer: 4096, data_frame_max: 1024, ..quick() };
    let (one, mut two) = (kit.node_with("one", settings.clone()), kit.node_with("two", settings));
    let lane = one.transport.data(&two.node);
    let senders: Vec<_> = (0..8u8)
        .map(|sender| {
            let lane = lane.clone();
            tokio::spawn(async move {
                let mut sent = 0u32;
                for number in 0..2000u32 {
                    let send = lane.send_with(|out| {
                        out.push(sender);
                        out.extend_from_slice(&number.to_le_bytes());
                        out.resize(200, 0);
                    });
                    // Some are dropped while they wait for room.
                    match number % 3 {
                        0 => sent += u32::from(timeout(Duration::ZERO, send).await.is_ok()),
                        _ => {
                            send.await.unwrap();
                            sent += 1;
                        }
                    }
                }
                sent
            })
        })
        .collect();
    let mut frames = two.data().await;
    let mut last = [None; 8];
    let (mut arrived, mut sent) = (0, None);
    let all = async {
        for sender in senders {
            *sent.get_or_insert(0) += sender.await.unwrap();
        }
        lane.send_with(|out| out.push(99)).await.unwrap();
    };
    let read = async {
        loop {
            for body in receive(&mut frames).await {
                if body[0] == 99 {
                    return;
                }
                let number = u32::from_le_bytes(body[1..5].try_into().unwrap());
                let last = &mut last[body[0] as usize];
                assert!(last.is_none_or(|last| last < number), "in order, none twice");
                *last = Some(number);
                arrived += 1;
            }
        }
    };
    tokio::join!(all, read);
    assert_eq!(Some(arrived), sent);
}

#[tokio::test]
async fn closing_ends_though_nobody_answers_or_listens() {
    let mut kit = Kit::new();
    let (one, two) = (kit.node("one"), kit.node("two"));
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = nobody.local_addr().unwrap().to_string().parse().unwrap();
    let nobody = Node { address, incarnation: Incarnation(1) };
    // More events than the channel has room for, and none is taken.
    for _ in 0..300 {
        let lane = one.transport.data(&nobody);
        lane.send_with(|out| out.push(1)).await.unwrap();
        one.transport.forget(&nobody);
    }
    one.transport.data(&nobody).send_with(|out| out.push(1)).await.unwrap();
    assert!(one.transport.control(&two.node.address, None, vec![1]));
    timeout(LONG, one.transport.close(Duration::from_millis(100))).await.unwrap();
    let lane = one.transport.data(&two.node);
    assert!(matches!(lane.try_send_with(|out| out.push(1)), Err(SendError::Closed(_))));
    timeout(LONG, one.transport.close(Duration::from_secs(60))).await.unwrap();
}

#[tokio::test]
async fn the_last_words_are_sent_before_a_link_closes() {
    let mut kit = Kit::new();
    let mut two = kit.node("two");
    for round in 1..=20 {
        // On the thread that closes it, as a node's own is: the link finds both news at once.
        let here = Handle::current();
        let handles = Handles { control: here.clone(), data: here };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = kit.node_on(handles, "one", quick(), listener, u64::from(round));
        assert!(one.transport.control(&two.node.address, None, vec![0]));
        assert_eq!(two.control_frame().await, [0]);
        assert!(one.transport.control(&two.node.address, None, vec![round]));
        one.transport.close(Duration::from_millis(100)).await;
        let heard = timeout(Duration::from_secs(5), two.control_frame()).await;
        assert_eq!(heard.as_deref(), Ok(&[round][..]), "round {round}");
    }
}

#[tokio::test]
async fn a_forgotten_node_is_let_go() {
    let mut kit = Kit::new();
    let (mut one, mut two) = (kit.node("one"), kit.node("two"));
    let lane = one.transport.data(&two.node);
    lane.send_with(|out| out.push(1)).await.unwrap();
    assert!(one.transport.control(&two.node.address, None, vec![1]));
    two.control_frame().await;
    // Kept: a peer that wants no more messages closes the link itself.
    let mut incoming = two.data().await;
    receive(&mut incoming).await;
    one.transport.forget(&two.node);
    one.transport.forget_address(&two.node.address);
    for _ in 0..2 {
        let why =
            one.told(|event| if let Event::Down { why, .. } = event { Some(why) } else { None });
        assert_eq!(why.await, Down::Closed);
    }
    let refused = lane.send_with(|out| out.push(1)).await;
    assert_eq!(refused, Err(SendError::Closed(Closed::Forgotten.into())));
}

#[tokio::test]
async fn a_node_that_answers_under_another_address_is_told() {
    let mut kit = Kit::new();
    let mut one = kit.node("one");
    let two = kit.node("two");
    let other: tenure_cluster::Address =
        format!("localhost:{}", two.node.address.port()).parse().unwrap();
    assert!(one.transport.control(&other, None, vec![1]));
    let (dialed, expected, actual) = one.told(other_node).await;
    assert_eq!((dialed, expected, actual), (other, None, two.node));
    // Itself, too.
    let own: tenure_cluster::Address =
        format!("localhost:{}", one.node.address.port()).parse().unwrap();
    assert!(one.transport.control(&own, None, vec![1]));
    let actual = one.told(|event| other_node(event).filter(|found| found.0 == own)).await.2;
    assert_eq!(actual, one.node);
}

#[tokio::test]
async fn plaintext_stays_on_this_machine_unless_said_twice() {
    use tenure_cluster::transport::{Local, Security};
    let mut kit = Kit::new();
    let mut start = |listen: &str, settings: TransportSettings| {
        let listener = TcpListener::bind(listen).unwrap();
        let address = format!("127.0.0.1:{}", listener.local_addr().unwrap().port());
        let node = Node { address: address.parse().unwrap(), incarnation: Incarnation(1) };
        let local = Local { cluster: "shop".into(), name: "one".into(), node };
        let (events, _) = tokio::sync::mpsc::channel(10);
        let security = Security::PlaintextWithoutAnyProtection;
        Transport::with_listener(listener, settings, security, local, kit.handles(), events)
    };
    start("127.0.0.1:0", quick()).unwrap();
    let error = start("0.0.0.0:0", quick()).unwrap_err();
    assert!(matches!(error, TransportError::PlaintextBeyondLoopback(_)), "{error}");
    let twice = TransportSettings { allow_plaintext_beyond_loopback: true, ..quick() };
    start("0.0.0.0:0", twice).unwrap();
}

#[test]
fn an_identity_that_peers_would_refuse_is_not_loaded() {
    let kit = Kit::new();
    kit.certify("one");
    let path = kit.path("one");
    let error = Identity::load(&path, "shop", "two").unwrap_err().to_string();
    assert!(error.contains("tenure://shop/two"), "{error}");
    let error = Identity::load(&path, "bank", "one").unwrap_err().to_string();
    assert!(error.contains("bank") && error.contains("tenure://shop/one"), "{error}");
    let error = Identity::load(kit.path("none"), "shop", "one").unwrap_err().to_string();
    assert!(error.contains("ca.pem"), "{error}");

    kit.authority.issue_between("old", &[], 1..1000).unwrap().save(kit.path("old")).unwrap();
    let error = Identity::load(kit.path("old"), "shop", "old").unwrap_err().to_string();
    assert!(error.contains("expired"), "{error}");

    kit.authority.issue("*", &[]).unwrap().save(kit.path("all")).unwrap();
    Identity::load(kit.path("all"), "shop", "any-name").unwrap();
}

#[test]
fn an_authority_survives_its_files() {
    use std::os::unix::fs::PermissionsExt as _;

    use tenure_cluster::certs::Authority;
    let kit = Kit::new();
    kit.authority.save(kit.path("ca")).unwrap();
    let again = Authority::load(kit.path("ca")).unwrap();
    assert_eq!(again.cluster(), "shop");
    again.issue("one", &["10.0.0.1", "one.shop"]).unwrap().save(kit.path("one")).unwrap();
    Identity::load(kit.path("one"), "shop", "one").unwrap();
    for secret in ["ca/ca.key", "one/node.key"] {
        let mode = std::fs::metadata(kit.path(secret)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{secret}");
    }
    let error = kit.authority.save(kit.path("ca")).unwrap_err().to_string();
    assert!(error.contains("ca.key"), "{error}");
}

/// A process that was started again at the address has links already when its predecessor is
/// removed.
#[tokio::test]
async fn forgetting_a_node_leaves_its_successor_at_the_address_alone() {
    let mut kit = Kit::new();
    let (mut one, mut two) = (kit.node("one"), kit.node("two"));
    let before = Node { incarnation: Incarnation(0), ..two.node.clone() };
    let lane = one.transport.data(&two.node);
    lane.send_with(|out| out.push(1)).await.unwrap();
    two.transport.data(&one.node).send_with(|out| out.push(1)).await.unwrap();
    let (mut to_two, mut to_one) = (two.data().await, one.data().await);
    receive(&mut to_two).await;
    receive(&mut to_one).await;
    one.transport.forget(&before);
    lane.send_with(|out| out.push(2)).await.unwrap();
    two.transport.data(&one.node).send_with(|out| out.push(2)).await.unwrap();
    receive(&mut to_two).await;
    receive(&mut to_one).await;
    while let Ok(event) = one.told.try_recv() {
        assert!(!matches!(event, Event::Down { .. }), "{event:?}");
    }
}

#[tokio::test]
async fn a_control_frame_that_is_too_long_is_counted_and_logged_once() {
    let mut kit = Kit::new();
    let one = kit.node_with("one", TransportSettings { control_frame_max: 64 << 10, ..quick() });
    let dropped = || counted("tenure_transport_control_dropped_total", "reason=too_long");
    let to: tenure_cluster::Address = "127.0.0.1:7499".parse().unwrap();
    for round in 1..=3 {
        assert!(!one.transport.control(&to, None, vec![0; (64 << 10) + 1]));
        assert_eq!(dropped(), round);
    }
    assert_eq!(logged("raise transport.control_frame_max"), 1);
}
