//! Cancels a statement, as libpq does: the request's connection stays open until the server closes it.
//!
//! `tokio_postgres` hangs up at once. That is fine with PostgreSQL, but PgBouncer 1.18 and 1.19, which
//! take a moment to pass the request on, end with a fatal error if its sender has gone meanwhile.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_postgres::CancelToken;
use tokio_postgres::config::Host;
use tokio_postgres::tls::MakeTlsConnect;

use super::url::Target;

/// Asks the server to cancel what that connection is doing. If it cannot be cancelled, it does no
/// harm: every write is conditional.
pub(super) async fn cancel(token: &CancelToken, target: &Target) {
    let config = &target.config;
    let ports = config.get_ports();
    for (index, host) in config.get_hosts().iter().enumerate() {
        let Host::Tcp(host) = host else {
            let _ = token.cancel_query(target.tls.connector.clone()).await;
            return;
        };
        // Where the connection goes is one of them; the others do not know its key.
        let port = ports.get(index).or(ports.first()).unwrap_or(&5432);
        let address = config.get_hostaddrs().get(index).map_or(host.clone(), ToString::to_string);
        let Ok(stream) = TcpStream::connect((address.as_str(), *port)).await else { continue };
        let mut connector = target.tls.connector.clone();
        let Ok(tls) = MakeTlsConnect::<Lingering>::make_tls_connect(&mut connector, host);
        let _ = token.cancel_query_raw(Lingering(stream), tls).await;
    }
}

/// A connection whose end is the other side's.
struct Lingering(TcpStream);

impl AsyncRead for Lingering {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Lingering {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    /// Waits for the other side.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut bytes = [0; 64];
        loop {
            let mut buffer = ReadBuf::new(&mut bytes);
            match Pin::new(&mut self.0).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {}
                ended => return ended,
            }
        }
    }
}
