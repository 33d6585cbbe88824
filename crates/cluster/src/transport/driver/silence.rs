//! Noticing that a peer's machine is gone, as opposed to busy.
//!
//! `TCP_USER_TIMEOUT` also ends a connection whose other end answers, but takes no more data: a
//! receiver that is slow for long would lose its link, and messages with it. So the data lane's
//! sender asks the kernel instead whether what it sends, or the probes that it sends while the other
//! end's window is shut, are answered at all.

use std::time::Duration;

use socket2::{SockRef, Socket};
use tokio::net::TcpStream;
use tokio::time::sleep;

/// Watches over one connection.
pub(super) struct Watched {
    /// Another handle of the same connection.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code))]
    socket: Socket,
    max: Duration,
}

/// Who notices that a peer's machine is gone.
pub(super) enum Silence {
    Watched(Watched),
    /// A simulated network ends by itself what nobody answers.
    #[cfg(feature = "simulation")]
    LeftToTheNetwork,
}

impl Silence {
    pub(super) fn new(tcp: &TcpStream, max: Duration) -> std::io::Result<Self> {
        Ok(Self::Watched(Watched { socket: SockRef::from(tcp).try_clone()?, max }))
    }

    #[cfg(feature = "simulation")]
    pub(super) fn left_to_the_network() -> Self {
        Self::LeftToTheNetwork
    }

    /// Ends when nothing has been heard of the peer for about as long as allowed, though something
    /// should have been.
    pub(super) async fn noticed(&self) {
        match self {
            Self::Watched(watched) => watched.noticed().await,
            #[cfg(feature = "simulation")]
            Self::LeftToTheNetwork => std::future::pending().await,
        }
    }
}

impl Watched {
    async fn noticed(&self) {
        let mut before = false;
        loop {
            sleep(self.max / 4).await;
            // Twice in a row: once may be a probe that is just on its way.
            let now = self.is_unanswered();
            if now && before {
                return;
            }
            before = now;
        }
    }

    #[cfg(target_os = "linux")]
    #[allow(unsafe_code, reason = "the standard library does not ask for TCP_INFO")]
    fn is_unanswered(&self) -> bool {
        use std::os::fd::AsRawFd as _;

        // SAFETY: a struct of numbers, for which all zeros is a value.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
        // SAFETY: the descriptor is open for as long as `self` lives; the kernel writes at most
        // `len` bytes to `info`, which has that many.
        let result = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                (&raw mut info).cast(),
                &raw mut len,
            )
        };
        // A machine whose window is shut answers what is sent again, and probes, without accepting
        // anything; only one that is gone does not answer.
        let again = info.tcpi_retransmits > 0 && info.tcpi_last_ack_recv > info.tcpi_last_data_sent;
        let since_ack = Duration::from_millis(info.tcpi_last_ack_recv.into());
        result == 0 && (again || info.tcpi_probes > 1) && since_ack >= self.max * 3 / 4
    }

    #[cfg(not(target_os = "linux"))]
    fn is_unanswered(&self) -> bool {
        false // The system's own, longer times hold.
    }
}
