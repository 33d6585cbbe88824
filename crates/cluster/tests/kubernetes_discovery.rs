//! Nodes that find each other by the EndpointSlices of a headless service, on a real API server, with
//! the permissions of deploy/kubernetes/discovery-role.yaml.
//!
//! `scripts/servers run --only kube -- cargo test -p tenure-cluster --features kubernetes --test
//! kubernetes_discovery` starts the server; without it these tests say so and pass.
#![cfg(feature = "kubernetes-unversioned")]
#![allow(clippy::disallowed_methods, reason = "real nodes and servers take real time")]

mod away;
mod nodes;

use std::io::{self, Write};
use std::net::{IpAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nodes::{agree, eventually, join_all, plain, soon};
use tenure_cluster::{Address, Cluster, Settings};
use tenure_lease::{MemoryStore, Store};
use tokio::time::{sleep, timeout};

const ROLE: &str = include_str!("../../../deploy/kubernetes/discovery-role.yaml");
const NAMESPACE: &str = "tenure-test";

/// The server that `scripts/servers` has started.
struct Server {
    user: PathBuf,
    admin: PathBuf,
    kubectl: PathBuf,
}

impl Server {
    fn find(test: &str) -> Option<Self> {
        let path = |key: &str| std::env::var_os(key).map(PathBuf::from);
        let server = (|| {
            let (user, admin) = (path("TENURE_TEST_KUBE_USER")?, path("TENURE_TEST_KUBE_ADMIN")?);
            Some(Self { user, admin, kubectl: path("TENURE_TEST_KUBECTL")? })
        })();
        if server.is_none() {
            println!("{test}: skipped, because TENURE_TEST_KUBE_USER names no API server");
        }
        server
    }

    /// An operator's kubectl; what it printed.
    fn operate(&self, arguments: &[&str], input: &str) -> String {
        let mut child = Command::new(&self.kubectl)
            .args(["--kubeconfig", &self.admin.display().to_string(), "-n", NAMESPACE])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl of the test server");
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {arguments:?}: {err}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The kubeconfig of a new service account that may do what the shipped role says, changed.
    fn account(&self, name: &str, change: impl Fn(&str) -> String) -> PathBuf {
        let role = change(ROLE)
            .replace("namespace: default", &format!("namespace: {NAMESPACE}"))
            .replace("name: default", &format!("name: {name}"))
            .replace("name: tenure-discovery", &format!("name: {name}"));
        let account =
            format!("{{apiVersion: v1, kind: ServiceAccount, metadata: {{name: {name}}}}}\n---\n");
        self.operate(&["apply", "--server-side", "-f", "-"], &(account + &role));
        let token = self.operate(&["create", "token", name], "");
        let config = std::fs::read_to_string(&self.user).unwrap();
        let line = config.lines().find(|line| line.trim().starts_with("token: "));
        let line = line.expect("the user has a token");
        let path = std::env::temp_dir().join(format!("tenure-{name}-{}", std::process::id()));
        std::fs::write(&path, config.replace(line, &format!("    token: {}", token.trim())))
            .unwrap();
        path
    }

    /// A headless service with one slice for each node, half of them not ready. Such as a controller
    /// writes, but each with a port of its own: all nodes are on this machine.
    fn publish(&self, service: &str, nodes: &[Address]) {
        let mut text = format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: {service}}},
  spec: {{clusterIP: None, ports: [{{name: cluster, port: 7400}}]}}}}\n"
        );
        for (index, node) in nodes.iter().enumerate() {
            text += &format!(
                "---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {service}-{index}, labels: {{kubernetes.io/service-name: {service}}}}}
addressType: IPv4
ports: [{{name: other, port: 1, protocol: TCP}}, {{name: cluster, port: {}, protocol: TCP}}]
endpoints: [{{addresses: [{}], conditions: {{ready: {}}}}}]
",
                node.port(),
                node.host(),
                index % 2 == 0
            );
        }
        self.operate(&["apply", "--server-side", "-f", "-"], &text);
    }

    fn withdraw(&self, service: &str) {
        let label = format!("kubernetes.io/service-name={service}");
        self.operate(&["delete", "endpointslices", "-l", &label], "");
        self.operate(&["delete", "service", service], "");
    }
}

/// Addresses that the API server takes for an endpoint's: not on loopback.
fn endpoints(count: usize) -> Vec<Address> {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect("192.0.2.1:9").expect("this machine has an address beyond loopback");
    let ip: IpAddr = socket.local_addr().unwrap().ip();
    let listeners: Vec<_> = (0..count).map(|_| TcpListener::bind((ip, 0)).unwrap()).collect();
    let address = |it: &TcpListener| it.local_addr().unwrap().to_string().parse().unwrap();
    listeners.iter().map(address).collect()
}

fn settings(address: &Address, store: &Store, written: &str) -> Settings {
    let mut settings = plain(address, store).discover(written.parse().unwrap());
    settings.transport.allow_plaintext_beyond_loopback = true;
    settings
}

#[test]
fn the_manifest_asks_for_nothing_but_to_list() {
    let lists: Vec<&str> =
        ROLE.lines().filter_map(|line| line.trim().strip_prefix("verbs: ")).collect();
    assert_eq!(lists, ["[list]"]);
    let resources: Vec<&str> =
        ROLE.lines().filter_map(|line| line.trim().strip_prefix("resources: ")).collect();
    assert_eq!(resources, ["[endpointslices]"]);
}

/// One of ten can form a cluster; the store of the others is away, so that they join it by what the
/// API server says or not at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_nodes_form_one_cluster_from_the_slices_of_a_headless_service() {
    let Some(server) = Server::find("ten_nodes_form_one_cluster") else { return };
    let kubeconfig = server.account("discoverer", str::to_owned);
    let (addresses, service) = (endpoints(10), format!("shop-{}", std::process::id()));
    server.publish(&service, &addresses);
    let written = format!("k8s:{NAMESPACE}/{service}:cluster?kubeconfig={}", kubeconfig.display());
    let (store, away) = (Store::new(MemoryStore::default()), away::store());
    let all = addresses.iter().enumerate().map(|(index, address)| {
        settings(address, if index == 7 { &store } else { &away }, &written)
    });
    let clusters = join_all(all.collect()).await;
    agree(&clusters, 10).await;
    // A newcomer that no slice names finds them by the number of a port, if one has it.
    let newcomer = endpoints(1).remove(0);
    let port = addresses[3].port();
    let written = written.replace(":cluster?", &format!(":{port}?"));
    let joined = soon(Cluster::join(settings(&newcomer, &away, &written))).await.unwrap();
    assert_eq!(joined.view().members().len(), 11);
    server.withdraw(&service);
}

/// What is logged, by all nodes of this process.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_verb_list_no_node_is_found_and_the_log_names_it() {
    let Some(server) = Server::find("without_the_verb_list") else { return };
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).init();
    let less = server.account("no-discoverer", |role| role.replace("[list]", "[get, watch]"));
    let (addresses, service) = (endpoints(2), format!("less-{}", std::process::id()));
    server.publish(&service, &addresses);
    let written =
        |path: &PathBuf| format!("k8s:{NAMESPACE}/{service}:cluster?kubeconfig={}", path.display());
    let (store, away) = (Store::new(MemoryStore::default()), away::store());
    let first = settings(&addresses[0], &store, &written(&less));
    let _first = soon(Cluster::join(first)).await.unwrap();
    let second = settings(&addresses[1], &away, &written(&less));
    let joined = timeout(Duration::from_secs(8), Cluster::join(second)).await;
    assert!(joined.is_err(), "it has found the other without the verb list");
    let said = || String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
    eventually(|| said().contains("the verb list on endpointslices")).await;
    assert!(said().contains("deploy/kubernetes/discovery-role.yaml"), "{}", said());
    // With it, it is found: nothing else was missing.
    let whole = server.account("no-discoverer", str::to_owned);
    sleep(Duration::from_secs(1)).await;
    let second = settings(&addresses[1], &away, &written(&whole));
    soon(Cluster::join(second)).await.unwrap();
    server.withdraw(&service);
}
