//! The seam between a process and its world: the clock, entropy, the runtime, the process's name
//! and its connections.
//!
//! Everything else (keepers, sessions, the cluster's driver, singletons, sharding) takes these five
//! from here and from `tokio::time`. In production they are the machine's. With the feature
//! `simulation`, a test enters a [`World`] of its own on a thread, and every function below then
//! asks that world, on that thread only. The choice is a thread-local: the drivers' code is the
//! same in both worlds, and without the feature there is nothing to choose.

#[cfg(feature = "simulation")]
pub use simulated::{Accepting, Boxed, Connection, Entered, Listener, World, enter, here};

use std::time::Duration;

/// Fills a buffer with entropy, or says that the operating system has none.
#[allow(clippy::disallowed_methods, reason = "the seam draws entropy for everybody")]
pub fn fill(bytes: &mut [u8]) -> Result<(), getrandom::Error> {
    #[cfg(feature = "simulation")]
    if let Some(world) = here() {
        world.fill(bytes);
        return Ok(());
    }
    getrandom::fill(bytes)
}

/// 64 bits of entropy, or why there are none.
pub fn random_bits() -> Result<u64, getrandom::Error> {
    let mut bytes = [0; 8];
    fill(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// The time since 1970 by the wall clock, which decides nothing; zero if the clock is before that.
#[allow(clippy::disallowed_methods, reason = "the seam reads clocks for everybody")]
pub fn wall_clock() -> Duration {
    #[cfg(feature = "simulation")]
    if let Some(world) = here() {
        return world.wall_clock();
    }
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

#[cfg(feature = "simulation")]
mod simulated {
    use std::cell::{Cell, RefCell};
    use std::fmt;
    use std::future::Future;
    use std::io;
    use std::net::SocketAddr;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::io::{AsyncRead, AsyncWrite};
    use tokio::runtime::Handle;

    use crate::clock::Moment;

    /// What one simulated process takes from its world.
    pub trait World: Send + Sync {
        /// Now, by the process's boot clock.
        fn now(&self) -> Moment;
        /// The time since 1970 by the process's wall clock.
        fn wall_clock(&self) -> Duration;
        /// Entropy.
        fn fill(&self, bytes: &mut [u8]);
        /// The runtime that stands for all threads of the process.
        fn runtime(&self) -> Handle;
        /// The process's name, and the random id that tells it from an earlier process of that name.
        fn process(&self) -> (String, u64);
        /// Listens.
        fn listen(&self, at: SocketAddr) -> io::Result<Box<dyn Listener>>;
        /// Connects.
        fn connect(&self, to: SocketAddr) -> Boxed<io::Result<Box<dyn Connection>>>;
    }

    /// A future that a world gives out.
    pub type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

    /// What [`Listener::accept`] gives out.
    pub type Accepting<'a> =
        Pin<Box<dyn Future<Output = io::Result<(Box<dyn Connection>, SocketAddr)>> + Send + 'a>>;

    /// A listening socket.
    pub trait Listener: Send + Sync + fmt::Debug {
        /// Waits for the next connection. Dropping the future loses none.
        fn accept(&self) -> Accepting<'_>;
    }

    /// One end of a connection.
    pub trait Connection: AsyncRead + AsyncWrite + Send + Sync + Unpin + fmt::Debug {}

    thread_local! {
        static IS_SIMULATED: Cell<bool> = const { Cell::new(false) };
        static WORLD: RefCell<Option<Arc<dyn World>>> = const { RefCell::new(None) };
    }

    /// From now on this thread is in that world, until what is returned is dropped.
    #[must_use]
    pub fn enter(world: Arc<dyn World>) -> Entered {
        let former = WORLD.with(|here| here.borrow_mut().replace(world));
        IS_SIMULATED.set(true);
        Entered { former }
    }

    /// The world that this thread is in, if it is in a simulated one.
    #[inline]
    pub fn here() -> Option<Arc<dyn World>> {
        if IS_SIMULATED.get() { WORLD.with(|here| here.borrow().clone()) } else { None }
    }

    /// This thread's stay in a simulated world.
    pub struct Entered {
        former: Option<Arc<dyn World>>,
    }

    impl std::fmt::Debug for Entered {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("Entered").finish_non_exhaustive()
        }
    }

    impl Drop for Entered {
        fn drop(&mut self) {
            let former = self.former.take();
            IS_SIMULATED.set(former.is_some());
            // What is replaced is dropped outside of the borrow: its own `Drop` may ask for the world.
            let left = WORLD.with(|here| std::mem::replace(&mut *here.borrow_mut(), former));
            drop(left);
        }
    }
}
