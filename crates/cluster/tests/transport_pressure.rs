//! A peer that takes nothing, and one that is cut off without a word. Alone in its process, since
//! memory is measured.
#![allow(clippy::disallowed_methods, reason = "these tests run in real time, over real sockets")]

mod kit;

use std::time::{Duration, Instant};

use kit::{Kit, quick, receive};
use tenure_cluster::transport::{Event, Lane, SendError, TransportSettings};
use tokio::time::timeout;

#[tokio::test]
async fn a_slow_receiver_makes_senders_wait_and_costs_little_memory() {
    let mut kit = Kit::new();
    let settings = TransportSettings {
        data_buffer: 256 << 10,
        data_frame_max: 64 << 10,
        incoming_batches: 2,
        silence_max: Duration::from_secs(1),
        ..quick()
    };
    let (one, mut two) = (kit.node_with("one", settings.clone()), kit.node_with("two", settings));
    let lane = one.transport.data(&two.node);
    lane.send_with(|out| out.push(0)).await.unwrap();
    let mut frames = two.data().await;
    let before = kit::resident();

    // 200 MiB are offered to somebody who takes nothing, for far longer than silence is allowed.
    let message = vec![7u8; 10_000];
    let mut sent = 0;
    let offer = async {
        while sent < 20_000 {
            lane.send_with(|out| out.extend_from_slice(&message)).await.unwrap();
            sent += 1;
        }
    };
    assert!(timeout(Duration::from_secs(5), offer).await.is_err(), "the sender waits");
    assert!(matches!(lane.try_send_with(|out| out.extend(&message)), Err(SendError::Full)));
    let grown = kit::resident().saturating_sub(before);
    assert!(grown < 16 << 20, "memory grew by {grown} bytes");

    // Meanwhile control frames pass, there and back.
    let mut one = one;
    for byte in 0..100 {
        let asked = Instant::now();
        assert!(one.transport.control(&two.node.address, None, vec![byte]));
        assert_eq!(two.control_frame().await, [byte]);
        assert!(two.transport.control(&one.node.address, None, vec![byte]));
        assert_eq!(one.control_frame().await, [byte]);
        assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    }

    // Once somebody takes them, all arrive: the link has stayed.
    let offer = async {
        while sent < 20_000 {
            lane.send_with(|out| out.extend_from_slice(&message)).await.unwrap();
            sent += 1;
        }
    };
    let take = async {
        let mut arrived = 0;
        while arrived < 20_001 {
            arrived += receive(&mut frames).await.len();
        }
    };
    tokio::join!(offer, take);
    while let Ok(event) = one.told.try_recv() {
        assert!(!matches!(event, Event::Down { .. }), "{event:?}");
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_silent_cut_is_noticed_and_healed() {
    let mut kit = Kit::new();
    let (mut one, mut two) = (kit.node("one"), kit.node("two"));
    let lane = one.transport.data(&two.node);
    lane.send_with(|out| out.push(1)).await.unwrap();
    let mut frames = two.data().await;
    assert_eq!(receive(&mut frames).await.len(), 1);
    assert!(one.transport.control(&two.node.address, None, vec![1]));
    assert_eq!(two.control_frame().await, [1]);
    // The report that the message arrived takes a moment.
    tokio::time::sleep(Duration::from_secs(1)).await;

    // From here on nothing arrives at either end of the two links.
    assert_eq!(cut::silently(&two.node.address), 4);
    let cut = Instant::now();
    for byte in 2..12 {
        lane.send_with(|out| out.push(byte)).await.unwrap();
    }
    assert!(one.transport.control(&two.node.address, None, vec![2]));
    let mut unknown = [None, None];
    while unknown.contains(&None) {
        let (lane, count) = one
            .told(|event| match event {
                Event::Down { link, unknown, .. } => Some((link.lane, unknown)),
                _ => None,
            })
            .await;
        unknown[usize::from(lane == Lane::Data)] = Some(count);
    }
    assert_eq!(unknown, [Some(0), Some(10)]);
    assert!(cut.elapsed() < Duration::from_secs(8), "silence_max is 2 s: {:?}", cut.elapsed());

    // New links are not cut. What is sent now comes in the same channel as before.
    lane.send_with(|out| out.push(99)).await.unwrap();
    assert_eq!(receive(&mut frames).await.next().unwrap()[..], [99]);
    assert!(one.transport.control(&two.node.address, None, vec![99]));
    assert_eq!(two.control_frame().await, [99]);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_silent_cut_is_noticed_while_the_peer_takes_nothing() {
    let mut kit = Kit::new();
    let settings = TransportSettings { incoming_batches: 1, ..quick() };
    let (mut one, mut two) =
        (kit.node_with("one", settings.clone()), kit.node_with("two", settings));
    let lane = one.transport.data(&two.node);
    lane.send_with(|out| out.push(1)).await.unwrap();
    let frames = two.data().await;
    let offer = async { while lane.send_with(|out| out.resize(50_000, 2)).await.is_ok() {} };
    assert!(timeout(Duration::from_secs(1), offer).await.is_err(), "the sender waits");

    assert_eq!(cut::silently(&two.node.address), 2);
    let cut = Instant::now();
    let unknown = one
        .told(|event| if let Event::Down { unknown, .. } = event { Some(unknown) } else { None })
        .await;
    assert!(unknown > 0);
    assert!(cut.elapsed() < Duration::from_secs(8), "silence_max is 2 s: {:?}", cut.elapsed());
    drop(frames);
}

#[cfg(target_os = "linux")]
mod cut {
    use std::collections::HashSet;
    use std::net::SocketAddr;
    use std::os::fd::BorrowedFd;

    use socket2::{SockFilter, SockRef};
    use tenure_cluster::Address;

    /// Lets the kernel drop every packet that comes to either end of a connection with `address`,
    /// and says how many ends that are.
    pub(crate) fn silently(address: &Address) -> usize {
        let fds = std::fs::read_dir("/proc/self/fd").unwrap();
        let fds = fds.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<i32>().ok());
        // One end may have several descriptors.
        let ends: HashSet<_> = fds.filter_map(|fd| drop_all(fd, address)).collect();
        ends.len()
    }

    #[allow(unsafe_code, reason = "the sockets are within the transport")]
    fn drop_all(fd: i32, address: &Address) -> Option<[SocketAddr; 2]> {
        // SAFETY: no socket is closed meanwhile: both links are in use. Of what else may be, no
        // option is changed.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let socket = SockRef::from(&fd);
        let local = socket.local_addr().ok()?.as_socket()?;
        let peer = socket.peer_addr().ok()?.as_socket()?;
        if ![local, peer].iter().any(|end| end.to_string() == address.as_str()) {
            return None;
        }
        const RETURN: u16 = 0x06; // The filter's whole program: keep 0 bytes of the packet.
        socket.attach_filter(&[SockFilter::new(RETURN, 0, 0, 0)]).unwrap();
        Some([local, peer])
    }
}
