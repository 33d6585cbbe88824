//! Real nodes, each a process, asked through their admin sockets.
#![allow(dead_code, clippy::disallowed_methods)]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::*;

/// The nodes of one cluster. All that run are killed when this is dropped.
pub(crate) struct Nodes {
    pub(crate) dir: Dir,
    pub(crate) addresses: Vec<String>,
    /// What each is started with, before the program's own name: `ip netns exec` and the like.
    pub(crate) inside: Vec<Vec<String>>,
    processes: Vec<Option<Process>>,
}

impl Nodes {
    /// Writes certificates and settings for nodes at these addresses; `more` goes into each file.
    pub(crate) fn new(name: &str, addresses: Vec<String>, more: &str) -> Self {
        let dir = Dir::new(name);
        let names: Vec<String> = (0..addresses.len()).map(|index| format!("n{index}")).collect();
        let certs = tenure()
            .current_dir(dir.path())
            .args(["certs", "new", "--cluster", "shop"])
            .args(&names)
            .output()
            .unwrap();
        assert!(certs.status.success(), "{certs:?}");
        for (name, address) in names.iter().zip(&addresses) {
            let text = format!(
                "cluster = \"shop\"\nname = \"{name}\"\naddress = \"{address}\"\n\
                 identity = \"certs/{name}\"\nadmin = \"{name}.sock\"\n{more}\n"
            );
            fs::write(dir.join(&format!("{name}.toml")), text).unwrap();
        }
        let processes = addresses.iter().map(|_| None).collect();
        let inside = vec![Vec::new(); addresses.len()];
        Self { dir, addresses, inside, processes }
    }

    /// With a formation lease in a directory that all share, and the default settings.
    pub(crate) fn with_lease(name: &str, addresses: Vec<String>, more: &str) -> Self {
        let formation = "store = \"file:leases\"\nformation = \"shop.formation\"";
        Self::new(name, addresses, &format!("{formation}\n{more}"))
    }

    pub(crate) fn len(&self) -> usize {
        self.addresses.len()
    }

    /// Starts a node, in place of one that has ended.
    pub(crate) fn start(&mut self, index: usize) {
        let log = self.dir.join(&format!("n{index}.log"));
        let log = File::options().create(true).append(true).open(log).unwrap();
        let program = tenure();
        let mut command = match &self.inside[index][..] {
            [] => program,
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(program.get_program());
                command.env_remove("RUST_LOG").stdin(std::process::Stdio::null());
                command
            }
        };
        command.args(["node", "--config", &format!("n{index}.toml")]);
        command.current_dir(self.dir.path()).stderr(log);
        self.processes[index] = Some(Process::start(&mut command));
    }

    pub(crate) fn start_all(&mut self) {
        for index in 0..self.len() {
            self.start(index);
        }
    }

    pub(crate) fn process(&mut self, index: usize) -> &mut Process {
        self.processes[index].as_mut().expect("the node was started")
    }

    /// Kills it with -9, and waits for its end.
    pub(crate) fn kill(&mut self, index: usize) {
        let mut process = self.processes[index].take().expect("the node was started");
        process.signal(libc::SIGKILL);
        process.end(SOON);
    }

    /// Waits for its own end, and returns its exit code.
    pub(crate) fn end(&mut self, index: usize, within: Duration) -> i32 {
        let mut process = self.processes[index].take().expect("the node was started");
        code(process.end(within))
    }

    pub(crate) fn running(&self) -> Vec<usize> {
        (0..self.len()).filter(|index| self.processes[*index].is_some()).collect()
    }

    pub(crate) fn socket(&self, index: usize) -> PathBuf {
        self.dir.join(&format!("n{index}.sock"))
    }

    /// What a node says of the cluster; `None` while it does not answer.
    pub(crate) fn status(&self, index: usize) -> Option<Status> {
        let answer = ask(&self.socket(index), r#"{"request":"status"}"#)?;
        Some(Status(answer.get("status")?.clone()))
    }

    /// Waits until all that run see this many members, all of them up, reachable, and known by all.
    /// Returns the cluster's id, and how long it took.
    pub(crate) fn formed(&self, count: usize, within: Duration) -> (u64, Duration) {
        let start = Instant::now();
        let mut ids = BTreeSet::new();
        let id =
            until(&format!("{count} members in {}", self.dir.path().display()), within, || {
                let found: Option<Vec<u64>> =
                    self.running().iter().map(|node| self.status(*node)?.whole(count)).collect();
                ids.extend(found?);
                (ids.len() == 1).then(|| *ids.first().unwrap())
            });
        (id, start.elapsed())
    }

    /// Waits until every node that runs says this of its status.
    pub(crate) fn all(
        &self,
        what: &str,
        within: Duration,
        is: impl Fn(&Status) -> bool,
    ) -> Duration {
        self.these(&self.running(), what, within, is)
    }

    /// Waits until each of these says so.
    pub(crate) fn these(
        &self,
        nodes: &[usize],
        what: &str,
        within: Duration,
        is: impl Fn(&Status) -> bool,
    ) -> Duration {
        let start = Instant::now();
        until(&format!("{what} in {}", self.dir.path().display()), within, || {
            let all = nodes.iter().all(|node| self.status(*node).is_some_and(|status| is(&status)));
            all.then_some(())
        });
        start.elapsed()
    }

    /// How many lines of a node's log contain this.
    pub(crate) fn logged(&self, index: usize, text: &str) -> usize {
        let lines = self.dir.lines(&format!("n{index}.log"));
        lines.iter().filter(|line| line.contains(text)).count()
    }
}

/// What a node says of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Status(pub(crate) Value);

impl Status {
    pub(crate) fn id(&self) -> Option<u64> {
        self.0["id"].as_u64()
    }

    pub(crate) fn node(&self) -> &str {
        self.0["node"].as_str().unwrap()
    }

    /// The cluster's id, if there are so many members and nothing is amiss.
    pub(crate) fn whole(&self, count: usize) -> Option<u64> {
        let fine = self.members().len() == count
            && self.members().iter().all(|member| member["status"] == "up")
            && self.unreachable().is_empty()
            && self.0["converged"] == true;
        self.id().filter(|_| fine)
    }

    pub(crate) fn members(&self) -> &[Value] {
        self.0["members"].as_array().unwrap()
    }

    /// Who is in, with incarnations.
    pub(crate) fn names(&self) -> BTreeSet<String> {
        self.members().iter().map(|member| member["node"].as_str().unwrap().to_owned()).collect()
    }

    /// Who cannot reach whom, by address.
    pub(crate) fn unreachable(&self) -> BTreeSet<(String, String)> {
        let mut found = BTreeSet::new();
        for member in self.members() {
            for observer in member["unreachable_from"].as_array().unwrap() {
                found.insert((address(observer), address(&member["node"])));
            }
        }
        found
    }

    /// Who cannot be reached by somebody, by address.
    pub(crate) fn lost(&self) -> BTreeSet<String> {
        self.unreachable().into_iter().map(|(_, subject)| subject).collect()
    }
}

fn address(node: &Value) -> String {
    node.as_str().unwrap().split('#').next().unwrap().to_owned()
}

/// One request; `None` if nobody answers.
pub(crate) fn ask(socket: &std::path::Path, line: &str) -> Option<Value> {
    let mut stream = UnixStream::connect(socket).ok()?;
    // A stopped process accepts, and says nothing; a busy machine takes its time.
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    writeln!(stream, "{line}").ok()?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).ok()?;
    serde_json::from_str(&answer).ok()
}

/// Addresses on loopback of which no other test, process or connection knows: the port is outside
/// of the range that the kernel gives away, the host follows from the process id and `block`.
pub(crate) fn loopback(block: u8, count: u8) -> Vec<String> {
    let pid = std::process::id();
    let (high, low) = (1 + (pid >> 8) % 254, pid & 0xff);
    (0..count).map(|node| format!("127.{high}.{low}.{}:7400", block + node)).collect()
}

/// For a node's file: a lease in the same directory settles who goes on.
pub(crate) const LEASE_MAJORITY: &str =
    "[downing]\nstrategy = \"lease-majority\"\nlease = \"shop.arbitration\"";

/// How often to do it: so often here, and as often as `TENURE_ROUNDS` says in a long run.
pub(crate) fn rounds(usual: usize) -> usize {
    std::env::var("TENURE_ROUNDS").map_or(usual, |rounds| rounds.parse().unwrap())
}
