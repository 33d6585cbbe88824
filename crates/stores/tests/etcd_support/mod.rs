//! An etcd of a test's own, for what would disturb others: passwords, certificates, old backups.
#![allow(clippy::disallowed_methods)] // Real servers, real time.
#![allow(dead_code)]

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tenure_lease::{Nonce, Store};
use tenure_stores::etcd::EtcdStore;

use crate::port::free_port;

/// A folder that is deleted in the end.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        let path = std::env::temp_dir().join(format!("tenure-etcd-{}", Nonce::random()));
        std::fs::create_dir(&path).expect("a temporary folder");
        Self(path)
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("it is text").to_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// One member, which is a cluster.
pub(crate) struct Solo {
    child: Child,
    pub(crate) address: String,
    peer: String,
    /// Options of its client port, also for etcdctl.
    tls: Vec<String>,
}

impl Solo {
    /// Starts one with these options on the data in this folder, and waits until it listens.
    pub(crate) fn start(data: &Path, tls: &[(&str, String)], options: &[&str]) -> Self {
        let [address, peer] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
        let mut solo = Self {
            child: Command::new("true").spawn().expect("true"),
            address,
            peer,
            tls: tls.iter().map(|(key, value)| format!("--{key}={value}")).collect(),
        };
        solo.child = solo.launch(data, options);
        solo
    }

    fn launch(&self, data: &Path, options: &[&str]) -> Child {
        let scheme = if self.tls.is_empty() { "http" } else { "https" };
        let (client, peer) =
            (format!("{scheme}://{}", self.address), format!("http://{}", self.peer));
        let mut child = Command::new(program("etcd"))
            .args(["--name", "solo", "--log-level", "error", "--data-dir"])
            .arg(data)
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("solo={peer}")])
            .args(&self.tls)
            .args(options)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcd is beside etcdctl");
        let begun = Instant::now();
        while TcpStream::connect(&self.address).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(30), "etcd does not listen");
            assert!(child.try_wait().expect("it is our child").is_none(), "etcd has ended");
            std::thread::sleep(Duration::from_millis(50));
        }
        child
    }

    /// Stops it, and starts it again on this data.
    pub(crate) fn restart(&mut self, data: &Path, options: &[&str]) {
        self.stop();
        self.child = self.launch(data, options);
    }

    pub(crate) fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The peer address that a restored backup must name.
    pub(crate) fn peer(&self) -> &str {
        &self.peer
    }

    /// Runs etcdctl, waiting for it to answer.
    pub(crate) fn ctl(&self, arguments: &[&str]) -> String {
        ctl(&self.address, arguments)
    }
}

impl Drop for Solo {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Runs etcdctl against this address (with the scheme, if that is not http).
pub(crate) fn ctl(address: &str, arguments: &[&str]) -> String {
    run(&program("etcdctl"), &[&["--endpoints", address], arguments].concat())
}

/// Runs a program that must succeed; its output.
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The path of etcd, etcdctl or etcdutl: they are in one folder.
pub(crate) fn program(name: &str) -> String {
    let etcdctl = std::env::var("TENURE_TEST_ETCDCTL");
    let etcdctl = etcdctl.expect("scripts/servers sets TENURE_TEST_ETCDCTL");
    Path::new(&etcdctl).with_file_name(name).to_str().expect("it is text").to_owned()
}

pub(crate) fn store(url: &str) -> Store {
    Store::new(EtcdStore::open(url).unwrap_or_else(|error| panic!("{error}")))
}
