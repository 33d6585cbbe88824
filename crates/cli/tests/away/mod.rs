//! A store that goes away and comes back: servers behind a proxy of the test's own, or a directory.
#![allow(clippy::disallowed_methods)] // Real connections, real time.

use std::ffi::CString;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

/// What becomes of connections.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Network {
    Passes = 0,
    /// Connections are made, and nothing passes in either direction, as when packets are dropped. What was sent
    /// meanwhile arrives once it passes again.
    Hangs = 1,
    /// Connections are closed, and new ones are, too.
    Closes = 2,
}

/// A network between the test's processes and servers.
#[derive(Clone, Default)]
pub(crate) struct Switch(Arc<AtomicU8>);

impl Switch {
    pub(crate) fn set(&self, network: Network) {
        self.0.store(network as u8, Ordering::SeqCst);
    }

    /// The text, with a proxy's address for each server's: for each `127.0.0.1:PORT` in it.
    pub(crate) fn in_front_of(&self, text: &str) -> String {
        let mut pieces = text.split(LOOPBACK);
        let mut replaced = pieces.next().unwrap().to_owned();
        for piece in pieces {
            let digits = piece.find(|c: char| !c.is_ascii_digit()).unwrap_or(piece.len());
            let proxy = self.proxy(piece[..digits].parse().expect("a port"));
            replaced += &format!("{LOOPBACK}{proxy}{}", &piece[digits..]);
        }
        replaced
    }

    /// Listens in front of a server until the test ends; at which port.
    fn proxy(&self, server: u16) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let switch = self.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                switch.pass(&client, &server);
                switch.pass(&server, &client);
            }
        });
        port
    }

    fn is(&self, network: Network) -> bool {
        self.0.load(Ordering::SeqCst) == network as u8
    }

    /// Passes on what one side says, until it or the network ends that.
    fn pass(&self, from: &TcpStream, to: &TcpStream) {
        let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        let switch = self.clone();
        std::thread::spawn(move || {
            from.set_read_timeout(Some(TICK)).unwrap();
            to.set_nodelay(true).unwrap();
            let mut bytes = vec![0; 1 << 16];
            while !switch.is(Network::Closes) {
                let length = match from.read(&mut bytes) {
                    Ok(length @ 1..) => length,
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
                    _ => break,
                };
                while switch.is(Network::Hangs) {
                    std::thread::sleep(TICK);
                }
                if switch.is(Network::Closes) || to.write_all(&bytes[..length]).is_err() {
                    break;
                }
            }
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
}

/// A directory that can be made unreachable: its place is taken by a file, in one step, so that every access by
/// its path fails and nobody can create it anew. (Permissions would not do: root has them all.)
pub(crate) struct Directory(pub(crate) PathBuf);

impl Directory {
    /// Goes away, or comes back.
    #[allow(unsafe_code)]
    pub(crate) fn exchange(&self) {
        let aside = self.0.with_extension("aside");
        if !aside.exists() {
            std::fs::write(&aside, "").unwrap();
        }
        let [one, other] =
            [&self.0, &aside].map(|path| CString::new(path.as_os_str().as_bytes()).unwrap());
        let (here, flags) = (libc::AT_FDCWD, libc::RENAME_EXCHANGE);
        // SAFETY: takes two strings that live until it returns.
        let done = unsafe { libc::renameat2(here, one.as_ptr(), here, other.as_ptr(), flags) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }
}

const LOOPBACK: &str = "127.0.0.1:";
const TICK: Duration = Duration::from_millis(50);
