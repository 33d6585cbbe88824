//! A switch that cuts a node off from others, for demonstrations of what happens then.
//!
//! Nothing is closed: as behind a cable that was pulled, what is sent is repeated and never answered.
//! The kernel sees to that, by a filter on each connection that takes in no packet at all. So that both
//! ends notice as they would, both nodes are to be told.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, Weak};

use socket2::{SockRef, Socket};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::lock;
use crate::Address;

/// From whom a node is cut off. Clones share it; it outlives the transports that it was given to.
#[derive(Clone, Debug, Default)]
pub struct Switch(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    cut: watch::Sender<BTreeSet<Address>>,
    ends: Mutex<Vec<(Address, Weak<Socket>)>>,
}

impl Switch {
    /// Cuts the node off from these addresses, and from no others: links to and from them fall
    /// silent, and new ones are not answered.
    pub fn cut(&self, from: impl IntoIterator<Item = Address>) {
        let from: BTreeSet<Address> = from.into_iter().collect();
        let mut ends = lock(&self.0.ends);
        ends.retain(|(peer, socket)| match socket.upgrade() {
            Some(socket) => {
                set(&socket, from.contains(peer));
                true
            }
            None => false,
        });
        self.0.cut.send_replace(from);
    }

    /// Waits until the node is not cut off from `address`. Whoever calls limits the time.
    pub(super) async fn open(&self, address: &Address) {
        // The sender is in `self`, so it cannot be gone.
        let _ = self.0.cut.subscribe().wait_for(|cut| !cut.contains(address)).await;
    }

    /// From now on the connection is one with `peer`, until what is returned is dropped.
    pub(super) fn enter(&self, peer: &Address, tcp: &TcpStream) -> io::Result<Arc<Socket>> {
        let socket = Arc::new(SockRef::from(tcp).try_clone()?);
        let mut ends = lock(&self.0.ends);
        ends.retain(|(_, socket)| socket.strong_count() > 0);
        ends.push((peer.clone(), Arc::downgrade(&socket)));
        // Under the lock: a cut that comes now finds the connection in the list.
        if self.0.cut.borrow().contains(peer) {
            set(&socket, true);
        }
        Ok(socket)
    }
}

impl PartialEq for Switch {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Switch {}

#[cfg(target_os = "linux")]
fn set(socket: &Socket, cut: bool) {
    const RETURN: u16 = 0x06; // The filter's whole program: keep 0 bytes of the packet.
    let done = match cut {
        true => socket.attach_filter(&[socket2::SockFilter::new(RETURN, 0, 0, 0)]),
        false => socket.detach_filter(),
    };
    match done {
        // It had no filter.
        Err(error) if !cut && error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => tracing::error!(cut, "the switch could not reach a connection: {error}"),
        Ok(()) => {}
    }
}

/// Elsewhere a cut is not silent.
#[cfg(not(target_os = "linux"))]
fn set(socket: &Socket, cut: bool) {
    if cut {
        let _ = socket.shutdown(std::net::Shutdown::Both);
    }
}
