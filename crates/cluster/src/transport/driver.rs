//! The transport at work: sockets, tasks, timers.
#![allow(clippy::disallowed_methods, reason = "this is where the transport meets clocks and tasks")]

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs as _};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use socket2::SockRef;
use tenure_lease::Moment;
use tenure_lease::planted::{self, GlueBug};
use tenure_wire::Version;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::carrier::Listening;
use self::claims::Claims;
use self::control::ControlLink;
use self::data::DataLink;
use self::incoming::Incoming;
use self::link::{Established, Failures, Flag, GOODBYE};
use self::outdated::Renewal;
use super::handshake::is_name;
use super::refusal::LogLimit;
use super::{
    Closed, Event, Handles, Local, Peer, Refusal, Security, TransportError, TransportSettings,
    telemetry,
};
use crate::{Address, Incarnation, Node};

mod accept;
#[cfg(feature = "certs")]
pub mod bench;
mod carrier;
mod claims;
mod clients;
mod control;
mod data;
mod greet;
mod incoming;
mod link;
mod outdated;
mod renew;
mod silence;
mod socket;
mod stuck;
#[cfg(feature = "switch")]
mod switch;

pub(crate) use clients::{Outgoing, dial_as_client};
pub use data::DataLane;
pub use stuck::StuckLane;
#[cfg(feature = "switch")]
pub use switch::Switch;

/// A node's end of all its links. Dropping it closes them at once.
#[derive(Debug)]
pub struct Transport {
    shared: Arc<Shared>,
    local: SocketAddr,
}

/// What all tasks share.
#[derive(Debug)]
struct Shared {
    settings: TransportSettings,
    security: Security,
    local: Local,
    handles: Handles,
    events: mpsc::Sender<Event>,
    control: Mutex<HashMap<Address, Arc<ControlLink>>>,
    data: Mutex<HashMap<Node, Arc<DataLink>>>,
    incoming: Mutex<Incoming>,
    claims: Mutex<Claims>,
    /// What was agreed with whoever was at an address last.
    spoken: Mutex<HashMap<Address, Version>>,
    /// How many connections clients have.
    clients: AtomicUsize,
    renewals: watch::Sender<Renewal>,
    log: Mutex<LogLimit>,
    /// When a control frame that is too long was last logged.
    warned_too_long: Mutex<Option<Moment>>,
    tasks: Mutex<JoinSet<()>>,
    /// Nothing new is sent or opened.
    closed: Flag,
    /// Whatever is not a link ends now.
    ending: Flag,
}

impl Transport {
    /// Starts to listen. `events` is where everything comes out; give it room for some hundred.
    pub fn bind(
        settings: TransportSettings,
        security: Security,
        local: Local,
        handles: Handles,
        events: mpsc::Sender<Event>,
    ) -> Result<Self, TransportError> {
        let text = match settings.listen {
            Some(listen) => listen.to_string(),
            None => local.node.address.to_string(),
        };
        #[cfg(feature = "simulation")]
        if let Some(world) = tenure_lease::world::here() {
            let failed = |source| TransportError::Listen { address: text.clone(), source };
            let address = resolve(settings.listen, &local.node.address).map_err(failed)?;
            let address =
                *address.first().ok_or_else(|| failed(std::io::ErrorKind::NotFound.into()))?;
            let listening = Listening::Simulated(world.listen(address).map_err(failed)?);
            return Self::with_listening(
                listening, address, settings, security, local, handles, events,
            );
        }
        let listener = listen(settings.listen, &local.node.address)
            .map_err(|source| TransportError::Listen { address: text, source })?;
        Self::with_listener(listener, settings, security, local, handles, events)
    }

    /// The same with a socket that listens already.
    pub fn with_listener(
        listener: TcpListener,
        settings: TransportSettings,
        security: Security,
        local: Local,
        handles: Handles,
        events: mpsc::Sender<Event>,
    ) -> Result<Self, TransportError> {
        let failed =
            |source| TransportError::Listen { address: local.node.address.to_string(), source };
        let address = listener.local_addr().map_err(failed)?;
        // A large cluster comes back all at once after a cut; the usual 128 would be too few.
        SockRef::from(&listener).listen(BACKLOG).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let listener = {
            let _context = handles.control.enter();
            tokio::net::TcpListener::from_std(listener).map_err(failed)?
        };
        let listening = Listening::Tcp(listener);
        Self::with_listening(listening, address, settings, security, local, handles, events)
    }

    fn with_listening(
        listening: Listening,
        address: SocketAddr,
        settings: TransportSettings,
        security: Security,
        local: Local,
        handles: Handles,
        events: mpsc::Sender<Event>,
    ) -> Result<Self, TransportError> {
        settings.check()?;
        for name in [&local.cluster, &local.name] {
            if !is_name(name) {
                return Err(TransportError::Name(name.clone()));
            }
        }
        match &security {
            Security::Tls(identity) => {
                let ours = format!("{}/{}", local.cluster, local.name);
                let theirs = format!("{}/{}", identity.cluster(), identity.name());
                if ours != theirs {
                    return Err(TransportError::Identity { ours, theirs });
                }
            }
            Security::PlaintextWithoutAnyProtection => {
                if !settings.allow_plaintext_beyond_loopback
                    && !socket::is_this_machine(address.ip())
                {
                    return Err(TransportError::PlaintextBeyondLoopback(address));
                }
                tracing::warn!(%address, "links of this node are not encrypted");
            }
        }
        let shared = Arc::new(Shared {
            settings,
            security,
            local,
            handles,
            events,
            control: Mutex::default(),
            data: Mutex::default(),
            incoming: Mutex::default(),
            claims: Mutex::default(),
            spoken: Mutex::default(),
            clients: AtomicUsize::new(0),
            renewals: watch::Sender::default(),
            log: Mutex::default(),
            warned_too_long: Mutex::default(),
            tasks: Mutex::default(),
            closed: Flag::new(),
            ending: Flag::new(),
        });
        let control = &shared.handles.control;
        shared.spawn(control, accept::run(shared.clone(), listening));
        if let Security::Tls(identity) = &shared.security {
            shared.spawn(control, renew::watch_certificate(shared.clone(), identity.clone()));
        }
        Ok(Self { shared, local: address })
    }

    /// Where it listens.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// Who this node is.
    pub fn local(&self) -> &Local {
        &self.shared.local
    }

    /// Queues a control frame for whoever is at `address`, or only for the process `only_to` there.
    /// Never waits, and promises nothing: the frame is dropped, and counted, if the peer cannot be
    /// reached soon, is another process, or does not keep up. False means that it was not even
    /// queued: it is empty or too long, it is for this node, or the transport is closed.
    pub fn control(
        &self,
        address: &Address,
        only_to: Option<Incarnation>,
        frame: impl Into<Bytes>,
    ) -> bool {
        let (shared, frame) = (&self.shared, frame.into());
        if frame.len() > shared.settings.control_frame_max {
            shared.refuse_long_control(address, frame.len());
            return false;
        }
        if frame.is_empty() || *address == shared.local.node.address || shared.closed.is_raised() {
            return false;
        }
        shared.with_control_link(address, |link| link.push(Moment::now(), only_to, frame))
    }

    /// The version of the protocol that is spoken with whoever is at an address; as long as that is not known,
    /// what everybody understands.
    pub fn spoken_with(&self, address: &Address) -> Version {
        lock(&self.shared.spoken).get(address).copied().unwrap_or(Version::FIRST)
    }

    /// Whether a node that sent something was found at its address, under its name, when this node
    /// dialed it: whoever dials this node only claims an address.
    pub fn has_proven(&self, peer: &Peer) -> bool {
        lock(&self.shared.claims).is_proven(&peer.node.address, &peer.name)
    }

    /// The way for messages to a node. It is the same one at each call; keep it if you send often.
    pub fn data(&self, node: &Node) -> DataLane {
        let shared = &self.shared;
        let mut links = lock(&shared.data);
        let link = links.entry(node.clone()).or_insert_with(|| {
            let link = Arc::new(DataLink::new(node.clone(), &shared.settings));
            let task = data::run(shared.clone(), link.clone());
            if !shared.spawn(&shared.handles.data, task) {
                link.never_ran();
            }
            link
        });
        DataLane::new(link.clone())
    }

    /// Closes the data link to a node, and all links that come from it: it is not a member any more.
    /// What waited to be sent is told as [`Event::Unsent`]. Links of another process at the same
    /// address stay, and so does the control link, which goes to the address: see
    /// [`forget_address`](Self::forget_address).
    pub fn forget(&self, node: &Node) {
        if planted::has(GlueBug::FreshLinksClosed) {
            let mut incoming = lock(&self.shared.incoming);
            incoming.stop_others(&node.address, "");
        }
        if let Some(link) = lock(&self.shared.data).remove(node) {
            link.close(Closed::Forgotten);
            link.stop();
        }
        lock(&self.shared.incoming).stop(node);
    }

    /// Closes the control link to an address: no process there is a member any more.
    pub fn forget_address(&self, address: &Address) {
        lock(&self.shared.claims).forget(address);
        lock(&self.shared.spoken).remove(address);
        if let Some(link) = lock(&self.shared.control).remove(address) {
            link.stop();
        }
    }

    /// Lanes that have had something to send for twice `silence_max`, and on which nothing has got
    /// through in that time.
    pub fn stuck_lanes(&self) -> Vec<StuckLane> {
        let after = self.shared.settings.silence_max * 2;
        let mut stuck: Vec<StuckLane> =
            lock(&self.shared.data).values().filter_map(|link| link.stuck(after)).collect();
        stuck.extend(lock(&self.shared.control).values().filter_map(|link| link.stuck(after)));
        stuck
    }

    /// Takes no more messages, sends those that wait and learns of their arrival, for at most
    /// `within`; then closes everything and says goodbye. What could not be sent or is not known to
    /// have arrived by then is told as for any link that is cut, if the channel has room for it: go
    /// on receiving events meanwhile.
    pub async fn close(&self, within: Duration) {
        let shared = &self.shared;
        shared.closed.raise();
        let links: Vec<_> = lock(&shared.data).values().cloned().collect();
        for link in &links {
            link.close(Closed::Transport);
        }
        let all_sent = async {
            for link in &links {
                link.ended().await;
            }
        };
        shared.at_most(within, all_sent).await;
        for link in &links {
            link.stop();
        }
        shared.ending.raise();
        lock(&shared.control).values().for_each(|link| link.stop());
        lock(&shared.incoming).stop_all();
        let mut tasks = std::mem::take(&mut *lock(&shared.tasks));
        let all_ended = async { while tasks.join_next().await.is_some() {} };
        shared.at_most(GOODBYE * 2, all_ended).await; // What is left is aborted with the set.
    }
}

impl Drop for Transport {
    fn drop(&mut self) {
        self.shared.closed.raise();
        for link in lock(&self.shared.data).values() {
            link.close(Closed::Transport);
        }
        lock(&self.shared.tasks).abort_all();
    }
}

impl Shared {
    /// Starts a task, unless the transport is closed.
    fn spawn(&self, handle: &Handle, task: impl Future<Output = ()> + Send + 'static) -> bool {
        let mut tasks = lock(&self.tasks);
        while let Some(ended) = tasks.try_join_next() {
            // A defect; the link's state may be lost, but others go on.
            if let Err(error) = ended
                && error.is_panic()
            {
                tracing::error!("a task of the transport panicked: {error}");
            }
        }
        // Checked under the lock: nothing starts after everything was aborted.
        let open = !self.closed.is_raised();
        if open {
            tasks.spawn_on(task, handle);
        }
        open
    }

    /// Remembers what is spoken with a peer. Whoever has a certificate can claim any address: with too many of
    /// them, those that this node has no control link to are forgotten.
    fn remember_spoken(&self, peer: &Peer) {
        let (address, max) = (&peer.node.address, self.settings.connections_max);
        let mut spoken = lock(&self.spoken);
        if spoken.len() >= max && !spoken.contains_key(address) {
            let links = lock(&self.control);
            spoken.retain(|address, _| links.contains_key(address));
        }
        if spoken.len() < max || spoken.contains_key(address) {
            spoken.insert(address.clone(), peer.version);
        }
    }

    /// Does something with the control link to an address, which is made if need be; false if there
    /// are too many.
    fn with_control_link(
        self: &Arc<Self>,
        address: &Address,
        act: impl FnOnce(&ControlLink),
    ) -> bool {
        let mut links = lock(&self.control);
        if links.len() >= self.settings.connections_max && !links.contains_key(address) {
            telemetry::control_dropped("too_many", 1);
            return false;
        }
        let link = links.entry(address.clone()).or_insert_with(|| {
            let link = Arc::new(ControlLink::new(address.clone(), &self.settings));
            self.spawn(&self.handles.control, control::run(self.clone(), link.clone()));
            link
        });
        // Under the lock: a link that something waits for is not forgotten.
        act(link);
        true
    }

    /// Forgets a control link for which there is nothing to do.
    fn forget_unwanted(&self, address: &Address, link: &Arc<ControlLink>) -> bool {
        let mut links = lock(&self.control);
        let unwanted = link.is_unwanted();
        if unwanted && links.get(address).is_some_and(|it| Arc::ptr_eq(it, link)) {
            links.remove(address);
        }
        unwanted
    }

    /// Dialing `address` found `name` there: whoever else says that it is there is not.
    fn prove(&self, address: &Address, name: &str) {
        let max = self.settings.connections_max;
        if lock(&self.claims).prove(address, name, Moment::now(), max) {
            lock(&self.incoming).stop_others(address, name);
        }
    }

    /// Dials an address that somebody claims, to see who is there.
    fn ask_for_proof(self: &Arc<Self>, address: &Address) {
        if *address != self.local.node.address && !self.closed.is_raised() {
            self.with_control_link(address, ControlLink::ask_for_proof);
        }
    }

    async fn at_most(&self, within: Duration, future: impl Future) {
        let limited = {
            // The caller's own runtime may have no timer.
            let _context = self.handles.data.enter();
            timeout(within, future)
        };
        let _ = limited.await;
    }

    async fn tell(&self, event: Event) {
        // Nobody listens any more when the node is being dropped.
        let _ = self.events.send(event).await;
    }

    fn may_talk_with(&self, ip: IpAddr) -> bool {
        matches!(self.security, Security::Tls(_))
            || self.settings.allow_plaintext_beyond_loopback
            || socket::is_this_machine(ip)
    }

    /// A control frame that no peer would take: what it says, a view most likely, is never heard.
    fn refuse_long_control(&self, address: &Address, bytes: usize) {
        telemetry::control_dropped("too_long", 1);
        let (now, mut last) = (Moment::now(), lock(&self.warned_too_long));
        if last.is_none_or(|last| now.since(last) >= WARN_AGAIN) {
            *last = Some(now);
            let max = self.settings.control_frame_max;
            tracing::error!(
                %address, bytes, max,
                "a control frame is too long and was dropped; raise transport.control_frame_max on \
                 all nodes, or views can no longer merge"
            );
        }
    }

    /// Somebody who dialed us is sent away.
    fn refuse(&self, from: IpAddr, refusal: Refusal) {
        telemetry::refused(&refusal);
        if let Some(silent) = lock(&self.log).admit(Moment::now(), &refusal) {
            match refusal {
                // Somebody who only looked whether the port is open, most often.
                Refusal::Cut(_) => tracing::debug!(%from, silent, "not a connection: {refusal}"),
                _ => tracing::warn!(%from, silent, "refused a connection: {refusal}"),
            }
            // As few as are logged, and without waiting: strangers must not fill the channel that
            // heartbeats come through.
            let _ = self.events.try_send(Event::Refused { from, refusal });
        }
    }
}

fn listen(listen: Option<SocketAddr>, address: &Address) -> std::io::Result<TcpListener> {
    TcpListener::bind(&resolve(listen, address)?[..])
}

/// Where to listen.
fn resolve(listen: Option<SocketAddr>, address: &Address) -> std::io::Result<Vec<SocketAddr>> {
    match listen {
        Some(listen) => Ok(vec![listen]),
        None => Ok((address.host(), address.port()).to_socket_addrs()?.collect()),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is guarded is never left half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn random() -> u64 {
    // Only for jitter: without entropy, all wait equally long.
    tenure_lease::world::random_bits().unwrap_or(u64::MAX / 2)
}

/// How often the same trouble is logged.
const WARN_AGAIN: Duration = Duration::from_secs(60);
/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;
