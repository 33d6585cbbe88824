//! The API server of the tests, and what its operators do with it.
#![allow(dead_code)] // Not every test needs all of it.
#![allow(clippy::disallowed_methods)] // Real servers, in real time.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::Duration;

use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams,
};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use tokio::task::JoinHandle;

use tenure_lease::backend::Boxed;
use tenure_lease::{LeaseName, Store};
use tenure_testkit::conformance::Factory;

use crate::server::Turn;

/// The server that `scripts/servers` has started.
pub(crate) struct Cluster {
    user: PathBuf,
    tools: Arc<Tools>,
}

struct Tools {
    admin: PathBuf,
    kubectl: PathBuf,
    script: PathBuf,
}

impl Cluster {
    /// The server, to be used beside others; `None`, and a word about it, if there is none.
    pub(crate) fn find(test: &str) -> Option<(Self, Turn)> {
        Self::from_env(test).map(|cluster| (cluster, Turn::beside()))
    }

    /// The server, and the right to disturb it.
    pub(crate) fn find_alone(test: &str) -> Option<(Self, Turn)> {
        Self::from_env(test).map(|cluster| (cluster, Turn::alone()))
    }

    fn from_env(test: &str) -> Option<Self> {
        let path = |key: &str| std::env::var_os(key).map(PathBuf::from);
        let cluster = (|| {
            Some(Self {
                user: path("TENURE_TEST_KUBE_USER")?,
                tools: Arc::new(Tools {
                    admin: path("TENURE_TEST_KUBE_ADMIN")?,
                    kubectl: path("TENURE_TEST_KUBECTL")?,
                    script: path("TENURE_TEST_SERVERS_SCRIPT")?,
                }),
            })
        })();
        if cluster.is_none() {
            println!(
                "{test}: skipped, because TENURE_TEST_KUBE_USER names no API server; run it as \
                 \"scripts/servers run --only kube -- cargo test -p tenure-stores --features \
                 kubernetes\""
            );
        }
        cluster
    }

    /// Where the configuration is of the user who may only get, create, update and watch leases.
    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.user
    }

    /// The URL of a namespace, as the user who may only get, create, update and watch leases.
    pub(crate) fn url(&self) -> String {
        format!("k8s://{NAMESPACE}?kubeconfig={}", self.user.display())
    }

    pub(crate) async fn store(&self) -> Store {
        tenure_stores::open(&self.url()).await.expect("the kubeconfig of the test server")
    }

    /// An operator's kubectl; what it printed.
    pub(crate) async fn operate(&self, arguments: &[&str], input: &str) -> String {
        let (tools, input) = (Arc::clone(&self.tools), input.to_owned());
        let arguments: Vec<String> = arguments.iter().map(|&text| text.to_owned()).collect();
        let run = move || tools.kubectl(&arguments, &input);
        tokio::task::spawn_blocking(run).await.expect("kubectl does as it is told")
    }

    /// A store whose kubeconfig was changed.
    pub(crate) async fn with_config(&self, change: impl FnOnce(&str) -> String) -> Store {
        static COUNT: AtomicU16 = AtomicU16::new(0);
        let config = std::fs::read_to_string(&self.user).expect("the kubeconfig is readable");
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tenure-kubeconfig-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, change(&config)).expect("a temporary file");
        let url = format!("k8s://{NAMESPACE}?kubeconfig={}", path.display());
        tenure_stores::open(&url).await.expect("a kubeconfig")
    }

    /// HOST:PORT of the server.
    pub(crate) fn address(&self) -> String {
        let config = std::fs::read_to_string(&self.user).expect("the kubeconfig is readable");
        let address = config.lines().find_map(|line| line.trim().strip_prefix("server: https://"));
        address.expect("it names a server").to_owned()
    }

    /// The store at another address.
    pub(crate) async fn at(&self, address: String) -> Store {
        self.with_config(|config| config.replace(&self.address(), &address)).await
    }

    /// The Leases as an administrator sees them.
    async fn leases(&self) -> Api<DynamicObject> {
        let config = Kubeconfig::read_from(&self.tools.admin).expect("the administrator's");
        let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await;
        let client = Client::try_from(config.expect("a kubeconfig")).expect("a client");
        Api::namespaced_with(client, NAMESPACE, &lease_resource())
    }

    /// Writes labels on the Lease, each this long after the one before, until it is ended.
    pub(crate) async fn write_labels(&self, name: &str, pause: Duration) -> Labelling {
        let (leases, name) = (self.leases().await, name.to_owned());
        let written = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&written);
        let task = tokio::spawn(async move {
            loop {
                let label = count.load(Ordering::Relaxed).to_string();
                let patch = serde_json::json!({ "metadata": { "labels": { "round": label } } });
                let patch = Patch::Merge(patch);
                leases.patch(&name, &PatchParams::default(), &patch).await.expect("labelled");
                count.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(pause).await;
            }
        });
        Labelling { written, task }
    }

    /// A credential plugin that takes this long and gives the user's token, for so many seconds.
    pub(crate) fn plugin(&self, takes: Duration, expires_in_seconds: u32) -> Plugin {
        static COUNT: AtomicU16 = AtomicU16::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tenure-plugin-{}-{count}", std::process::id());
        let script = std::env::temp_dir().join(name);
        let runs = script.with_extension("runs");
        let _ = std::fs::remove_file(&runs);
        let text = format!(
            "echo >>{}
sleep {}
expires=$(date -u -d '+{expires_in_seconds} seconds' +%Y-%m-%dT%H:%M:%SZ)
cat <<END
{{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",
 \"status\":{{\"token\":\"{}\",\"expirationTimestamp\":\"$expires\"}}}}
END
",
            runs.display(),
            takes.as_secs_f64(),
            self.token()
        );
        std::fs::write(&script, text).expect("a temporary file");
        Plugin { script, runs }
    }

    /// The user's bearer token.
    pub(crate) fn token(&self) -> String {
        let config = std::fs::read_to_string(&self.user).expect("the kubeconfig is readable");
        let token = config.lines().find_map(|line| line.trim().strip_prefix("token: "));
        token.expect("the user has a token").to_owned()
    }

    /// A foreign elector takes the Lease over, as client-go does it.
    pub(crate) async fn take_over(&self, name: &str, identity: &str, seconds: u32) {
        let transitions = self.field(name, "leaseTransitions").await;
        let transitions: i32 = transitions.parse().unwrap_or(0);
        let patch = format!(
            r#"{{"spec":{{"holderIdentity":"{identity}","leaseDurationSeconds":{seconds},
                "acquireTime":"2020-01-01T00:00:00.000000Z",
                "renewTime":"2020-01-01T00:00:00.000000Z","leaseTransitions":{}}}}}"#,
            transitions + 1
        );
        self.operate(&["patch", "lease", name, "--type=merge", "-p", &patch], "").await;
    }

    /// A field of `spec` as text.
    pub(crate) async fn field(&self, name: &str, field: &str) -> String {
        self.operate(&["get", "lease", name, "-o", &format!("jsonpath={{.spec.{field}}}")], "")
            .await
    }

    /// What `scripts/servers` does to the servers.
    pub(crate) async fn servers(&self, arguments: &[&str]) {
        let mut command = Command::new(&self.tools.script);
        command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
        let status = tokio::task::spawn_blocking(move || command.status()).await;
        let status = status.expect("it does not panic").expect("scripts/servers runs");
        assert!(status.success(), "servers {arguments:?}");
    }
}

/// Somebody who writes labels.
pub(crate) struct Labelling {
    written: Arc<AtomicU32>,
    task: JoinHandle<()>,
}

impl Labelling {
    /// Ends it; how many were written.
    pub(crate) fn end(self) -> u32 {
        assert!(!self.task.is_finished(), "it could not write labels");
        self.task.abort();
        self.written.load(Ordering::Relaxed)
    }
}

/// A credential plugin of a kubeconfig.
pub(crate) struct Plugin {
    script: PathBuf,
    runs: PathBuf,
}

impl Plugin {
    /// A store whose kubeconfig names the plugin.
    pub(crate) async fn store(&self, cluster: &Cluster) -> Store {
        let token = format!("token: {}", cluster.token());
        let exec = format!(
            "exec: {{apiVersion: client.authentication.k8s.io/v1, command: sh, args: [{:?}], \
             interactiveMode: Never}}",
            self.script.display().to_string()
        );
        cluster.with_config(|config| config.replace(&token, &exec)).await
    }

    /// How often it was run.
    pub(crate) fn runs(&self) -> usize {
        std::fs::read_to_string(&self.runs).map_or(0, |runs| runs.lines().count())
    }
}

fn lease_resource() -> ApiResource {
    let kind = GroupVersionKind::gvk("coordination.k8s.io", "v1", "Lease");
    ApiResource::from_gvk_with_plural(&kind, "leases")
}

impl Tools {
    fn kubectl(&self, arguments: &[String], input: &str) -> String {
        let mut child = Command::new(&self.kubectl)
            .args(["--kubeconfig", &self.admin.display().to_string(), "-n", NAMESPACE])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl of the test server");
        let mut stdin = child.stdin.take().expect("it was piped");
        stdin.write_all(input.as_bytes()).expect("kubectl reads what it is given");
        drop(stdin);
        let output = child.wait_with_output().expect("kubectl ends");
        let (out, err) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "kubectl {arguments:?}: {err}");
        out.into_owned()
    }
}

impl Factory for Cluster {
    fn open(&self) -> Boxed<'_, Store> {
        Box::pin(self.store())
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(10)
    }

    // A dozen kubectl at once would keep this machine from its tests, so these go by its protocol.

    fn delete<'a>(&'a self, name: &'a LeaseName) -> Option<Boxed<'a, ()>> {
        Some(Box::pin(async move {
            let leases = self.leases().await;
            match leases.delete(name.as_str(), &DeleteParams::default()).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => panic!("deleting {name}: {error}"),
            }
        }))
    }

    fn seize<'a>(&'a self, name: &'a LeaseName, identity: &'a str) -> Option<Boxed<'a, ()>> {
        Some(Box::pin(async move {
            let leases = self.leases().await;
            let mut lease = leases.get(name.as_str()).await.expect("there is one");
            let transitions = lease.data["spec"]["leaseTransitions"].as_i64().unwrap_or(0);
            lease.data["spec"] = serde_json::json!({
                "holderIdentity": identity,
                "leaseDurationSeconds": self.ttl().as_secs(),
                "acquireTime": "2020-01-01T00:00:00.000000Z",
                "renewTime": "2020-01-01T00:00:00.000000Z",
                "leaseTransitions": transitions + 1,
            });
            let replaced = leases.replace(name.as_str(), &PostParams::default(), &lease).await;
            replaced.expect("an administrator may replace it");
        }))
    }

    fn write_newer<'a>(&'a self, name: &'a LeaseName) -> Option<Boxed<'a, ()>> {
        Some(Box::pin(async move {
            let mut lease = DynamicObject::new(name.as_str(), &lease_resource());
            let record = ("tenure.dev/record".to_owned(), r#"{"format":99}"#.to_owned());
            lease.metadata.annotations = Some([record].into());
            let created = self.leases().await.create(&PostParams::default(), &lease).await;
            created.expect("an administrator may create it");
        }))
    }

    fn open_unreachable(&self) -> Option<Boxed<'_, Store>> {
        // Port 1 of this machine: nobody listens there.
        Some(Box::pin(self.with_config(|config| {
            let server = config.lines().find(|line| line.contains("server:"));
            let server = server.expect("a kubeconfig names its server");
            config.replace(server, "    server: https://127.0.0.1:1")
        })))
    }

    fn restart(&self) -> Option<Boxed<'_, ()>> {
        Some(Box::pin(self.servers(&["restart", "kube"])))
    }
}

pub(crate) const NAMESPACE: &str = "tenure-test";
