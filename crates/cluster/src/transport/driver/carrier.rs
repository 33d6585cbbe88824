//! What carries a link's bytes: TCP, or a simulated network's connection.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

#[cfg(feature = "simulation")]
use tenure_lease::world::{self, Connection, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

/// One end of a connection.
#[derive(Debug)]
pub(super) enum Carrier {
    Tcp(TcpStream),
    #[cfg(feature = "simulation")]
    Simulated(Box<dyn Connection>),
}

/// Passes a call on to whatever carries the bytes.
macro_rules! each {
    ($self:ident, $inner:ident => $call:expr) => {
        match $self.get_mut() {
            Carrier::Tcp($inner) => {
                let $inner = Pin::new($inner);
                $call
            }
            #[cfg(feature = "simulation")]
            Carrier::Simulated($inner) => {
                let $inner = Pin::new(&mut **$inner);
                $call
            }
        }
    };
}

impl Carrier {
    /// Connects to whoever listens there.
    pub(super) async fn connect(address: &SocketAddr) -> io::Result<Self> {
        #[cfg(feature = "simulation")]
        if let Some(world) = world::here() {
            return world.connect(*address).await.map(Self::Simulated);
        }
        TcpStream::connect(address).await.map(Self::Tcp)
    }

    /// Who is at the other end.
    #[cfg(test)]
    pub(super) fn peer_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Tcp(tcp) => tcp.peer_addr(),
            #[cfg(feature = "simulation")]
            Self::Simulated(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

impl AsyncRead for Carrier {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        each!(self, inner => inner.poll_read(context, into))
    }
}

impl AsyncWrite for Carrier {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        each!(self, inner => inner.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self, inner => inner.poll_write_vectored(context, slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, inner => inner.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, inner => inner.poll_shutdown(context))
    }
}

/// Where a node is dialed.
#[derive(Debug)]
pub(super) enum Listening {
    Tcp(TcpListener),
    #[cfg(feature = "simulation")]
    Simulated(Box<dyn Listener>),
}

impl Listening {
    pub(super) async fn accept(&self) -> io::Result<(Carrier, SocketAddr)> {
        match self {
            Self::Tcp(listener) => {
                let (tcp, from) = listener.accept().await?;
                Ok((Carrier::Tcp(tcp), from))
            }
            #[cfg(feature = "simulation")]
            Self::Simulated(listener) => {
                let (connection, from) = listener.accept().await?;
                Ok((Carrier::Simulated(connection), from))
            }
        }
    }
}
