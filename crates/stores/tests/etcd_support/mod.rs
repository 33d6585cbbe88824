//! The releases of etcd that are tested, and an etcd of a test's own, for what would disturb others:
//! passwords, certificates, old backups.
#![allow(clippy::disallowed_methods)] // Real servers, real time.
#![allow(dead_code)]

pub(crate) mod checks;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tenure_lease::backend::Boxed;
use tenure_lease::{LeaseName, Nonce, Store};
use tenure_stores::etcd::EtcdStore;
use tenure_testkit::conformance::Factory;

use crate::port::free_port;
use crate::server::{Server, Turn};

/// A release of etcd.
#[derive(Clone, Copy)]
pub(crate) struct Release {
    /// Its name in scripts/servers.
    pub(crate) server: &'static str,
    /// The variable with the path of its etcdctl.
    pub(crate) ctl: &'static str,
}

/// The newest, a cluster of three.
pub(crate) const NEWEST: Release = Release { server: "etcd", ctl: "TENURE_TEST_ETCDCTL" };

pub(crate) const PREFIX: &str = "/tests/leases";

impl Release {
    /// Whether the programs are there; if not, says how to get them.
    pub(crate) fn is_installed(self) -> bool {
        let found = std::env::var(self.ctl).is_ok();
        if !found {
            eprintln!(
                "skipped: {} is not set; enable it with: scripts/servers run --only {} -- cargo \
                 test -p tenure-stores --features etcd",
                self.ctl, self.server
            );
        }
        found
    }

    /// The path of etcd, etcdctl or etcdutl: they are in one folder.
    pub(crate) fn program(self, name: &str) -> String {
        let etcdctl = std::env::var(self.ctl).expect("scripts/servers sets it");
        Path::new(&etcdctl).with_file_name(name).to_str().expect("it is text").to_owned()
    }

    /// Runs etcdctl against this address (with the scheme, if that is not http).
    pub(crate) fn ctl(self, address: &str, arguments: &[&str]) -> String {
        run(&self.program("etcdctl"), &[&["--endpoints", address], arguments].concat())
    }

    /// The server, to be used beside others who mostly wait.
    pub(crate) fn find(self) -> Option<(Etcd, Turn)> {
        let (server, turn) = Server::find(self.server)?;
        Some((Etcd { server, release: self }, turn))
    }

    /// The server, and the right to stop it or to keep it busy.
    pub(crate) fn find_alone(self) -> Option<(Etcd, Turn)> {
        let (server, turn) = Server::find_alone(self.server)?;
        Some((Etcd { server, release: self }, turn))
    }
}

/// A server that scripts/servers started.
#[derive(Clone)]
pub(crate) struct Etcd {
    pub(crate) server: Server,
    pub(crate) release: Release,
}

impl Etcd {
    pub(crate) fn store(&self) -> Store {
        store(&format!("etcd://{}{PREFIX}", self.server.address))
    }

    pub(crate) fn ctl(&self, arguments: &[&str]) -> String {
        self.release.ctl(&self.server.address, arguments)
    }

    /// The address of the first member.
    pub(crate) fn member(&self) -> &str {
        self.server.address.split(',').next().expect("there is one")
    }

    /// The sum of a counter of the first member over all of its labels.
    pub(crate) fn counter(&self, name: &str) -> f64 {
        let mut stream = TcpStream::connect(self.member()).expect("it listens");
        let request = "GET /metrics HTTP/1.0\r\n\r\n";
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("it answers");
        let lines = text.lines().filter(|line| line.starts_with(name));
        let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
        values.sum()
    }
}

pub(crate) fn live(name: &LeaseName) -> String {
    format!("{PREFIX}/{name}/live")
}

pub(crate) fn kept(name: &LeaseName) -> String {
    format!("{PREFIX}/{name}/kept")
}

impl Factory for Etcd {
    fn open(&self) -> Boxed<'_, Store> {
        Box::pin(async { self.store() })
    }

    /// Long enough for the dozens of steps that some checks take within it on a busy machine.
    fn ttl(&self) -> Duration {
        Duration::from_secs(10)
    }

    /// Both keys in one step.
    fn delete<'a>(&'a self, name: &'a LeaseName) -> Option<Boxed<'a, ()>> {
        let stem = format!("{PREFIX}/{name}/");
        Some(Box::pin(async move { drop(self.ctl(&["del", "--prefix", &stem])) }))
    }

    fn seize<'a>(&'a self, name: &'a LeaseName, identity: &'a str) -> Option<Boxed<'a, ()>> {
        Some(Box::pin(async move { drop(self.ctl(&["put", &live(name), identity])) }))
    }

    fn write_newer<'a>(&'a self, name: &'a LeaseName) -> Option<Boxed<'a, ()>> {
        let newer = "{\"format\":2,\"term\":\"of another kind\"}";
        Some(Box::pin(async move { drop(self.ctl(&["put", &kept(name), newer])) }))
    }

    fn open_unreachable(&self) -> Option<Boxed<'_, Store>> {
        // Ports 1 and 2 answer nobody here.
        Some(Box::pin(async { store("etcd://127.0.0.1:1,127.0.0.1:2") }))
    }

    fn restart(&self) -> Option<Boxed<'_, ()>> {
        Some(Box::pin(self.server.control("restart")))
    }
}

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
    release: Release,
    child: Child,
    pub(crate) address: String,
    peer: String,
    /// Options of its client port, also for etcdctl.
    tls: Vec<String>,
}

impl Solo {
    /// Starts one with these options on the data in this folder, and waits until it listens.
    pub(crate) fn start(
        release: Release,
        data: &Path,
        tls: &[(&str, String)],
        options: &[&str],
    ) -> Self {
        let [address, peer] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
        let mut solo = Self {
            release,
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
        let mut child = Command::new(self.release.program("etcd"))
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
        self.release.ctl(&self.address, arguments)
    }
}

impl Drop for Solo {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Runs a program that must succeed; its output.
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn store(url: &str) -> Store {
    Store::new(EtcdStore::open(url).unwrap_or_else(|error| panic!("{error}")))
}
