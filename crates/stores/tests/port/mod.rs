//! Ports for servers that a test starts.

use std::net::TcpListener;

use tenure_lease::Nonce;

/// A port that was free a moment ago. It is below the kernel's range for outgoing connections and
/// apart from those of scripts/servers, so that it stays free until its server listens.
pub(crate) fn free_port() -> u16 {
    loop {
        let port = 10_000 + (Nonce::random().bits() % 10_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
