//! A network of connections: bytes take time, stop at a cut, and end in the middle of a frame.
//!
//! A connection is two pipes. What is written to a pipe arrives in order, each piece after a delay
//! of its own. While the way is cut, nothing arrives; what was written is delivered after the cut
//! heals, as TCP repeats it, unless the cut outlasts the connection's patience: then both ends fail.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tenure_lease::world::{Accepting, Boxed, Connection, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::core::{self, Core, State};

/// All connections of a world.
#[derive(Default)]
pub(super) struct Network {
    listeners: BTreeMap<SocketAddr, Accepts>,
    pipes: BTreeMap<u64, Pipe>,
    next_pipe: u64,
    /// From whom to whom nothing gets through.
    cuts: BTreeSet<(usize, usize)>,
}

struct Accepts {
    process: usize,
    life: u64,
    waiting: VecDeque<(SimulatedConnection, SocketAddr)>,
    waker: Option<Waker>,
}

/// One direction of a connection.
struct Pipe {
    from: usize,
    to: usize,
    /// The other direction.
    back: u64,
    flying: VecDeque<Flying>,
    flying_bytes: usize,
    ready: VecDeque<u8>,
    /// Nothing comes after what is ready.
    ended: bool,
    /// The reader has closed its end.
    unread: bool,
    /// Both ends see this error.
    broken: Option<io::ErrorKind>,
    /// When the last piece that flies arrives.
    last_due: Duration,
    /// Since when something should have arrived and could not.
    stalled: Option<Duration>,
    patience: Duration,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

enum Flying {
    Bytes(Vec<u8>),
    End,
}

/// What happens in a network at a moment.
pub(super) enum Due {
    /// The next piece of this pipe arrives, if it can.
    Arrives(u64),
    /// The writer learns that nobody reads any more.
    Unread(u64),
}

impl State {
    /// Cuts the ways from these to those.
    pub(super) fn cut(&mut self, from: &BTreeSet<usize>, to: &BTreeSet<usize>) {
        for from in from {
            for to in to {
                if from != to {
                    self.network.cuts.insert((*from, *to));
                }
            }
        }
    }

    /// Opens all ways again.
    pub(super) fn heal(&mut self) {
        self.network.cuts.clear();
    }

    fn is_cut(&self, from: usize, to: usize) -> bool {
        self.network.cuts.contains(&(from, to))
            || self.processes[from].machine_gone
            || self.processes[to].machine_gone
    }

    /// Breaks every connection between two processes, wherever its bytes are.
    pub(super) fn break_connections(&mut self, one: usize, other: usize) {
        let between = |pipe: &Pipe| {
            (pipe.from, pipe.to) == (one, other) || (pipe.from, pipe.to) == (other, one)
        };
        let ids: Vec<u64> =
            self.network.pipes.iter().filter(|(_, it)| between(it)).map(|(id, _)| *id).collect();
        for id in ids {
            self.break_pipe(id, io::ErrorKind::ConnectionReset);
        }
    }

    /// A delay between two processes: short as a rule, long now and then.
    fn delay(&mut self) -> Duration {
        let micros = match self.random.within(0..100) {
            0 => self.random.within(20_000..120_000),
            1..10 => self.random.within(3_000..20_000),
            _ => self.random.within(200..3_000),
        };
        Duration::from_micros(micros)
    }

    pub(super) fn network_due(&mut self, due: Due) {
        match due {
            Due::Arrives(id) => self.arrives(id),
            Due::Unread(id) => {
                let Some(pipe) = self.network.pipes.get(&id) else { return };
                let (from, to) = (pipe.from, pipe.to);
                if self.is_cut(to, from) {
                    let again = self.now + RETRANSMIT;
                    self.queue.push(again, core::Due::Network(Due::Unread(id)));
                } else {
                    self.break_pipe(id, io::ErrorKind::BrokenPipe);
                }
            }
        }
    }

    fn arrives(&mut self, id: u64) {
        let now = self.now;
        let Some(pipe) = self.network.pipes.get(&id) else { return };
        let (from, to, back) = (pipe.from, pipe.to, pipe.back);
        let (is_cut, unacknowledged) = (self.is_cut(from, to), self.is_cut(to, from));
        let Some(pipe) = self.network.pipes.get_mut(&id) else { return };
        if pipe.broken.is_some() || (pipe.flying.is_empty() && pipe.stalled.is_none()) {
            return;
        }
        if is_cut || unacknowledged {
            let since = *pipe.stalled.get_or_insert(now);
            if now.saturating_sub(since) >= pipe.patience {
                self.trace(format_args!("pipe {id} from {from} to {to} times out"));
                self.break_pipe(id, io::ErrorKind::TimedOut);
                self.break_pipe(back, io::ErrorKind::TimedOut);
                return;
            }
        } else {
            pipe.stalled = None;
        }
        if !is_cut {
            let mut arrived = 0;
            while let Some(piece) = pipe.flying.pop_front() {
                match piece {
                    Flying::Bytes(bytes) => {
                        arrived += bytes.len();
                        pipe.ready.extend(bytes);
                        break;
                    }
                    Flying::End => pipe.ended = true,
                }
            }
            pipe.flying_bytes -= arrived;
            let (reader, writer) = (pipe.reader.take(), pipe.writer.take());
            self.wake.extend(reader.into_iter().chain(writer));
            self.trace(format_args!("pipe {id} from {from} to {to}: {arrived} bytes"));
        }
        if is_cut || unacknowledged {
            let again = now + RETRANSMIT;
            self.queue.push(again, core::Due::Network(Due::Arrives(id)));
        }
    }

    /// Ends a pipe. Part of what flies may still arrive: a frame is cut wherever it happens to be.
    fn break_pipe(&mut self, id: u64, error: io::ErrorKind) {
        let share = self.random.within(0..101) as usize;
        let Some(pipe) = self.network.pipes.get_mut(&id) else { return };
        if pipe.broken.is_some() {
            return;
        }
        if error == io::ErrorKind::ConnectionReset {
            let flying: Vec<u8> = pipe
                .flying
                .drain(..)
                .flat_map(|piece| match piece {
                    Flying::Bytes(bytes) => bytes,
                    Flying::End => Vec::new(),
                })
                .collect();
            let arrives = flying.len() * share / 100;
            pipe.ready.extend(&flying[..arrives]);
        }
        pipe.flying.clear();
        pipe.flying_bytes = 0;
        pipe.broken = Some(error);
        let (reader, writer) = (pipe.reader.take(), pipe.writer.take());
        self.wake.extend(reader.into_iter().chain(writer));
        self.trace(format_args!("pipe {id} broken: {error:?}"));
    }

    fn new_pipe(&mut self, from: usize, to: usize, back: u64) -> u64 {
        self.network.next_pipe += 1;
        let patience = Duration::from_millis(self.random.within(8_000..20_000));
        let pipe = Pipe {
            from,
            to,
            back,
            flying: VecDeque::new(),
            flying_bytes: 0,
            ready: VecDeque::new(),
            ended: false,
            unread: false,
            broken: None,
            last_due: self.now,
            stalled: None,
            patience,
            reader: None,
            writer: None,
        };
        let id = self.network.next_pipe;
        self.network.pipes.insert(id, pipe);
        id
    }

    fn fly(&mut self, id: u64, piece: Flying) {
        let delay = self.delay();
        let now = self.now;
        let Some(pipe) = self.network.pipes.get_mut(&id) else { return };
        if let Flying::Bytes(bytes) = &piece {
            pipe.flying_bytes += bytes.len();
        }
        pipe.flying.push_back(piece);
        pipe.last_due = pipe.last_due.max(now + delay);
        let due = pipe.last_due;
        self.queue.push(due, core::Due::Network(Due::Arrives(id)));
    }
}

/// Listens for a process.
pub(super) fn listen(
    core: &Arc<Core>,
    process: usize,
    life: u64,
    at: SocketAddr,
) -> io::Result<Box<dyn Listener>> {
    let former = core.with(|state| {
        if state.network.listeners.get(&at).is_some_and(|it| it.life == life) {
            return Err(io::Error::from(io::ErrorKind::AddrInUse));
        }
        let accepts = Accepts { process, life, waiting: VecDeque::new(), waker: None };
        Ok(state.network.listeners.insert(at, accepts))
    })?;
    // Outside of the lock: whoever waited to be accepted is cut, which takes it again.
    drop(former);
    Ok(Box::new(SimulatedListener { core: core.clone(), at, process, life }))
}

/// Connects a process with whoever listens there.
pub(super) fn connect(
    core: Arc<Core>,
    process: usize,
    from: SocketAddr,
    to: SocketAddr,
) -> Boxed<io::Result<Box<dyn Connection>>> {
    Box::pin(async move {
        loop {
            let delay = core.with(|state| state.delay() + state.delay());
            tokio::time::sleep(delay).await;
            let tried = core.with(|state| {
                let Some(accepts) = state.network.listeners.get(&to) else {
                    return Some(Err(io::ErrorKind::ConnectionRefused.into()));
                };
                let other = accepts.process;
                // Neither the first packet nor its answer gets through.
                if state.is_cut(process, other) || state.is_cut(other, process) {
                    return None;
                }
                if !state.processes[other].is_running || state.processes[other].life != accepts.life
                {
                    return Some(Err(io::ErrorKind::ConnectionRefused.into()));
                }
                let forth = state.new_pipe(process, other, 0);
                let back = state.new_pipe(other, process, forth);
                if let Some(pipe) = state.network.pipes.get_mut(&forth) {
                    pipe.back = back;
                }
                let end = |read, write| SimulatedConnection { core: core.clone(), read, write };
                let (mine, theirs) = (end(back, forth), end(forth, back));
                if let Some(accepts) = state.network.listeners.get_mut(&to) {
                    accepts.waiting.push_back((theirs, from));
                    state.wake.extend(accepts.waker.take());
                }
                Some(Ok(mine))
            });
            match tried {
                Some(Ok(connection)) => return Ok(Box::new(connection) as Box<dyn Connection>),
                Some(Err(error)) => return Err(error),
                None => tokio::time::sleep(RETRANSMIT).await,
            }
        }
    })
}

struct SimulatedListener {
    core: Arc<Core>,
    at: SocketAddr,
    process: usize,
    life: u64,
}

impl std::fmt::Debug for SimulatedListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimulatedListener").field("at", &self.at).finish_non_exhaustive()
    }
}

impl Listener for SimulatedListener {
    fn accept(&self) -> Accepting<'_> {
        Box::pin(std::future::poll_fn(|context| {
            self.core.with(|state| {
                let Some(accepts) = state.network.listeners.get_mut(&self.at) else {
                    return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
                };
                match accepts.waiting.pop_front() {
                    Some((connection, from)) => {
                        Poll::Ready(Ok((Box::new(connection) as Box<dyn Connection>, from)))
                    }
                    None => {
                        accepts.waker = Some(context.waker().clone());
                        Poll::Pending
                    }
                }
            })
        }))
    }
}

impl Drop for SimulatedListener {
    fn drop(&mut self) {
        let (process, life) = (self.process, self.life);
        let dropped = self.core.with(|state| match state.network.listeners.get(&self.at) {
            Some(it) if (it.process, it.life) == (process, life) => {
                state.network.listeners.remove(&self.at)
            }
            _ => None,
        });
        // Outside of the lock: whoever waited to be accepted is cut, which takes it again.
        drop(dropped);
    }
}

/// One end of a connection.
struct SimulatedConnection {
    core: Arc<Core>,
    read: u64,
    write: u64,
}

impl std::fmt::Debug for SimulatedConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SimulatedConnection({}, {})", self.read, self.write)
    }
}

impl Connection for SimulatedConnection {}

impl AsyncRead for SimulatedConnection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.core.with(|state| {
            let Some(pipe) = state.network.pipes.get_mut(&self.read) else {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            };
            if !pipe.ready.is_empty() {
                let (first, _) = pipe.ready.as_slices();
                let count = first.len().min(into.remaining());
                into.put_slice(&first[..count]);
                pipe.ready.drain(..count);
                state.wake.extend(pipe.writer.take());
                return Poll::Ready(Ok(()));
            }
            match (pipe.broken, pipe.ended) {
                (Some(error), _) => Poll::Ready(Err(error.into())),
                (None, true) => Poll::Ready(Ok(())),
                (None, false) => {
                    pipe.reader = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
    }
}

impl AsyncWrite for SimulatedConnection {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.core.with(|state| {
            let Some(pipe) = state.network.pipes.get_mut(&self.write) else {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            };
            if let Some(error) = pipe.broken {
                return Poll::Ready(Err(error.into()));
            }
            let room = WINDOW.saturating_sub(pipe.flying_bytes + pipe.ready.len());
            if room == 0 {
                pipe.writer = Some(context.waker().clone());
                return Poll::Pending;
            }
            let count = bytes.len().min(room);
            state.fly(self.write, Flying::Bytes(bytes[..count].to_vec()));
            Poll::Ready(Ok(count))
        })
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.core.with(|state| state.fly(self.write, Flying::End));
        Poll::Ready(Ok(()))
    }
}

impl Drop for SimulatedConnection {
    fn drop(&mut self) {
        self.core.with(|state| {
            state.fly(self.write, Flying::End);
            let due = state.now + state.delay();
            let Some(pipe) = state.network.pipes.get_mut(&self.read) else { return };
            pipe.unread = true;
            state.queue.push(due, core::Due::Network(Due::Unread(self.read)));
            // Both ends are gone: nobody will ask for these pipes again.
            let write = state.network.pipes.get(&self.write).is_none_or(|pipe| pipe.unread);
            if write {
                state.network.pipes.remove(&self.read);
                state.network.pipes.remove(&self.write);
            }
        });
    }
}

/// After how long a packet that got no answer is sent again.
const RETRANSMIT: Duration = Duration::from_millis(200);
/// How much may be under way on a connection.
const WINDOW: usize = 256 << 10;
