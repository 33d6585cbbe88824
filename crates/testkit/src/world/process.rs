//! A simulated process: a runtime with a clock of its own, and what it takes from its world.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tenure_lease::Moment;
use tenure_lease::world::{self, Boxed, Connection, Listener, World};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::time::Instant;

use super::core::{Core, EPOCH};
use super::network;

thread_local! {
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The process whose code runs now, if one's does.
pub(super) fn current() -> Option<usize> {
    CURRENT.get()
}

/// One life of a process.
pub(super) struct Process {
    index: usize,
    inside: Arc<Inside>,
    /// There until it is dropped.
    runtime: Option<Runtime>,
}

/// What the process's code sees of its world.
struct Inside {
    core: Arc<Core>,
    index: usize,
    life: u64,
    name: String,
    incarnation: u64,
    /// Where the process connects from.
    address: SocketAddr,
    handle: Handle,
    /// The runtime's clock at the world's time `born`.
    origin: Instant,
    born: Duration,
    clock_ahead: Duration,
}

impl Process {
    /// Starts a process, which does nothing yet. The runtimes of one world have one builder: tokio
    /// seeds each from the one before.
    pub(super) fn new(
        core: &Arc<Core>,
        builder: &mut Builder,
        index: usize,
        address: SocketAddr,
    ) -> io::Result<Self> {
        let runtime = builder.build()?;
        let handle = runtime.handle().clone();
        let origin = runtime.block_on(async { Instant::now() });
        let inside = core.with(|state| {
            let incarnation = state.random.next().max(1);
            let state_of = &mut state.processes[index];
            state_of.life += 1;
            state_of.is_running = true;
            state_of.is_paused = false;
            state_of.machine_gone = false;
            Inside {
                core: core.clone(),
                index,
                life: state_of.life,
                name: state_of.name.clone(),
                incarnation,
                address,
                handle,
                origin,
                born: state.now,
                clock_ahead: state_of.clock_ahead,
            }
        });
        Ok(Self { index, inside: Arc::new(inside), runtime: Some(runtime) })
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.inside.handle
    }

    /// Does something as this process.
    pub(super) fn enter<T>(&self, act: impl FnOnce() -> T) -> T {
        let former = CURRENT.replace(Some(self.index));
        let world = world::enter(self.inside.clone());
        let result = act();
        drop(world);
        CURRENT.set(former);
        result
    }

    /// Lets the process live until the world's time `until`.
    pub(super) fn live(&self, until: Duration) {
        let until = self.inside.origin + until.saturating_sub(self.inside.born);
        let Some(runtime) = &self.runtime else { return };
        self.enter(|| runtime.block_on(async { tokio::time::sleep_until(until).await }));
    }

    /// The process was stopped until now: its clocks have gone on without it.
    pub(super) fn wake_up(&self, now: Duration) {
        let until = self.inside.origin + now.saturating_sub(self.inside.born);
        let Some(runtime) = &self.runtime else { return };
        self.enter(|| {
            runtime.block_on(async {
                let slept = until.saturating_duration_since(Instant::now());
                tokio::time::advance(slept).await;
            });
        });
    }
}

impl Drop for Process {
    /// As `kill -9`: all tasks end where they are, and connections are closed by the kernel.
    fn drop(&mut self) {
        let runtime = self.runtime.take();
        self.enter(|| drop(runtime));
    }
}

impl World for Inside {
    fn now(&self) -> Moment {
        Moment::ZERO + EPOCH + self.clock_ahead + self.world_time()
    }

    fn wall_clock(&self) -> Duration {
        // Some day in 2026; wall clocks differ, too.
        Duration::from_secs(1_780_000_000) + self.clock_ahead + self.world_time()
    }

    fn fill(&self, bytes: &mut [u8]) {
        self.core.with(|state| {
            for chunk in bytes.chunks_mut(8) {
                let random = state.random.next().to_le_bytes();
                chunk.copy_from_slice(&random[..chunk.len()]);
            }
        });
    }

    fn runtime(&self) -> Handle {
        self.handle.clone()
    }

    fn process(&self) -> (String, u64) {
        (self.name.clone(), self.incarnation)
    }

    fn listen(&self, at: SocketAddr) -> io::Result<Box<dyn Listener>> {
        network::listen(&self.core, self.index, self.life, at)
    }

    fn connect(&self, to: SocketAddr) -> Boxed<io::Result<Box<dyn Connection>>> {
        network::connect(self.core.clone(), self.index, self.address, to)
    }
}

impl Inside {
    fn world_time(&self) -> Duration {
        match Handle::try_current() {
            Ok(_) => self.born + Instant::now().saturating_duration_since(self.origin),
            Err(_) => self.core.with(|state| state.now),
        }
    }
}
