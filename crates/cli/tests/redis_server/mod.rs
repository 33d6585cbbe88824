//! A Redis of one test, which can be away.
#![allow(dead_code)]

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Command, Stdio};

use super::common::*;

/// A Redis of one test, or `None` where there is none.
pub(crate) struct Redis {
    server: Process,
    port: u16,
}

impl Redis {
    pub(crate) fn start(dir: &Dir) -> Option<Self> {
        let port = free_port();
        let mut command = Command::new("redis-server");
        command
            .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""])
            .current_dir(dir.path())
            .stdout(Stdio::null());
        let Ok(server) = command.spawn() else {
            println!("skipped: redis-server is not installed");
            return None;
        };
        let redis = Self { server: Process::of(server), port };
        until("Redis", SOON, || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok());
        Some(redis)
    }

    pub(crate) fn url(&self) -> String {
        url(self.port)
    }

    /// It accepts connections and answers nothing, as behind a network that is cut.
    pub(crate) fn goes_away(&self) {
        self.server.signal(libc::SIGSTOP);
    }

    pub(crate) fn comes_back(&self) {
        self.server.signal(libc::SIGCONT);
    }
}

pub(crate) fn url(port: u16) -> String {
    format!("redis://127.0.0.1:{port}/0")
}

/// A port at which nobody listens.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap().port()
}
