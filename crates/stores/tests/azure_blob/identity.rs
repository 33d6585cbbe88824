//! Identities of Entra's, and proxies, against stand-ins: for the authority, for the identity service
//! of App Service, and for the storage. The store runs in processes of its own, because environments
//! are a process's.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, crypto};

use tenure_lease::{LeaseName, Store};
use tenure_stores::azure_blob::AzureBlobStore;
use tenure_testkit::conformance;

use super::server::Private;

/// What all servers of a test were asked.
type Asked = Arc<Mutex<Vec<String>>>;

/// Plain and by TLS, the authority, App Service's identity service and the storage in one.
struct StandIn {
    http: String,
    https: String,
    asked: Asked,
    folder: std::path::PathBuf,
}

impl StandIn {
    async fn start() -> Self {
        let (folder, asked) = (Private::folder().await, Asked::default());
        let acceptor = acceptor(&folder);
        let (plain, http) = listen().await;
        let (secure, https) = listen().await;
        let kept = Arc::clone(&asked);
        tokio::spawn(async move {
            while let Ok((stream, _)) = plain.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&kept)));
            }
        });
        let kept = Arc::clone(&asked);
        tokio::spawn(async move {
            while let Ok((stream, _)) = secure.accept().await {
                let (acceptor, kept) = (acceptor.clone(), Arc::clone(&kept));
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        serve(stream, kept).await;
                    }
                });
            }
        });
        Self { http: format!("http://{http}"), https: format!("https://{https}"), asked, folder }
    }

    /// What a process with this environment says of a read, and what the servers were asked.
    async fn read(&self, endpoint: &str, environment: &[(&str, &str)]) -> (String, String) {
        self.asked.lock().expect("whole").clear();
        let url = format!("azblob://shop/leases?endpoint={endpoint}/shop");
        let mut child = Command::new(std::env::current_exe().expect("a program"));
        child
            .args(["--exact", "identity::with_this_identity", "--nocapture"])
            .env_clear()
            .env("WITH_THIS_IDENTITY", url)
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("SSL_CERT_FILE", self.folder.join("cert.pem"))
            .envs(environment.iter().copied());
        let output = tokio::task::spawn_blocking(move || child.output()).await;
        let output = output.expect("it ran").expect("it ran");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}");
        (said, self.asked.lock().expect("whole").join("\n"))
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A client's secret buys a token, which the storage is shown; a refusal is told without what was
/// shown.
#[test]
fn a_secret_buys_a_token() {
    conformance::block_on(async {
        let stand_in = StandIn::start().await;
        let tenant = |tenant: &'static str| {
            [
                ("AZURE_AUTHORITY_HOST", stand_in.https.as_str()),
                ("AZURE_TENANT_ID", tenant),
                ("AZURE_CLIENT_ID", "client"),
                ("AZURE_CLIENT_SECRET", "s&cret"),
            ]
        };
        let (said, asked) = stand_in.read(&stand_in.http, &tenant("tenant")).await;
        assert!(said.contains("read: Ok([None])"), "{said}");
        assert!(asked.contains("POST /tenant/oauth2/v2.0/token"), "{asked}");
        assert!(asked.contains("client_secret=s%26cret"), "{asked}");
        assert!(asked.contains("authorization: Bearer of-entra"), "{asked}");
        let (said, _) = stand_in.read(&stand_in.http, &tenant("refused")).await;
        assert!(said.contains("Denied") && said.contains("401 (7000215)"), "{said}");
        assert!(!said.contains("s&cret"), "{said}");
        let (said, _) = stand_in.read(&stand_in.http, &tenant("busy")).await;
        assert!(said.contains("Unavailable") && said.contains("503"), "{said}");
    });
}

#[test]
fn a_workload_shows_the_token_in_its_file() {
    conformance::block_on(async {
        let stand_in = StandIn::start().await;
        let file = stand_in.folder.join("token");
        std::fs::write(&file, "signed.by+kubernetes").expect("written");
        let file = file.display().to_string();
        let environment = [
            ("AZURE_AUTHORITY_HOST", stand_in.https.as_str()),
            ("AZURE_TENANT_ID", "tenant"),
            ("AZURE_CLIENT_ID", "client"),
            ("AZURE_FEDERATED_TOKEN_FILE", file.as_str()),
        ];
        let (said, asked) = stand_in.read(&stand_in.http, &environment).await;
        assert!(said.contains("read: Ok([None])"), "{said}");
        assert!(asked.contains("client_assertion=signed.by%2Bkubernetes"), "{asked}");
        assert!(asked.contains("authorization: Bearer of-entra"), "{asked}");
    });
}

/// App Service, Functions and Container Apps have an identity service of their own.
#[test]
fn app_service_is_asked_for_its_identity() {
    conformance::block_on(async {
        let stand_in = StandIn::start().await;
        let endpoint = format!("{}/msi/token", stand_in.http);
        let environment = [
            ("IDENTITY_ENDPOINT", endpoint.as_str()),
            ("IDENTITY_HEADER", "known-to-both"),
            ("AZURE_CLIENT_ID", "mine"),
        ];
        let (said, asked) = stand_in.read(&stand_in.http, &environment).await;
        assert!(said.contains("read: Ok([None])"), "{said}");
        assert!(asked.contains("GET /msi/token?api-version=2019-08-01"), "{asked}");
        assert!(asked.contains("client_id=mine"), "{asked}");
        assert!(asked.contains("x-identity-header: known-to-both"), "{asked}");
        assert!(asked.contains("authorization: Bearer of-the-machine"), "{asked}");
    });
}

/// What `az` is logged in as, for people at their own machines.
#[test]
fn a_developer_is_who_az_says() {
    conformance::block_on(async {
        let stand_in = StandIn::start().await;
        let az = stand_in.folder.join("az");
        let token = "{\"accessToken\":\"of-az\",\"expires_on\":4102444800,\
                     \"expiresOn\":\"2100-01-01 00:00:00.000000\",\"tokenType\":\"Bearer\"}";
        std::fs::write(&az, format!("#!/bin/sh\necho '{token}'\n")).expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&az, mode).expect("allowed");
        let path = format!("{}:/usr/bin:/bin", stand_in.folder.display());
        let environment = [("AZURE_TOKEN_CREDENTIALS", "dev"), ("PATH", path.as_str())];
        let (said, asked) = stand_in.read(&stand_in.http, &environment).await;
        assert!(said.contains("read: Ok([None])"), "{said}");
        assert!(asked.contains("authorization: Bearer of-az"), "{asked}");
    });
}

/// `https:` goes through the proxy that HTTPS_PROXY names, unless NO_PROXY says otherwise.
#[test]
fn proxies() {
    conformance::block_on(async {
        let stand_in = StandIn::start().await;
        let (listener, address) = listen().await;
        let tunnels = Asked::default();
        tokio::spawn(tunnel(listener, Arc::clone(&tunnels)));
        let proxy = format!("http://me:s%26cret@{address}");
        let key = ("AZURE_STORAGE_KEY", "c2VjcmV0");
        let environment = [key, ("HTTPS_PROXY", proxy.as_str())];
        let (said, asked) = stand_in.read(&stand_in.https, &environment).await;
        assert!(said.contains("read: Ok([None])"), "{said}");
        assert!(asked.contains("GET /shop/leases/a "), "{asked}");
        let through = std::mem::take(&mut *tunnels.lock().expect("whole")).join("\n");
        let place = stand_in.https.trim_start_matches("https://");
        assert!(through.contains(&format!("CONNECT {place} HTTP/1.1")), "{through}");
        // "me:s&cret"
        assert!(through.contains("Basic bWU6cyZjcmV0"), "{through}");
        let environment = [environment[0], environment[1], ("NO_PROXY", "127.0.0.1")];
        let (said, _) = stand_in.read(&stand_in.https, &environment).await;
        assert!(said.contains("read: Ok([None])"), "{said}");
        assert!(tunnels.lock().expect("whole").is_empty());
        let nobody = [key, ("HTTPS_PROXY", "http://127.0.0.1:1")];
        let (said, _) = stand_in.read(&stand_in.https, &nobody).await;
        assert!(said.contains("Unavailable"), "{said}");
    });
}

/// The other half of the tests above.
#[test]
fn with_this_identity() {
    let Ok(url) = std::env::var("WITH_THIS_IDENTITY") else { return };
    let store = Store::new(AzureBlobStore::new(&url).expect("a URL"));
    let name = LeaseName::new("a").expect("a name");
    conformance::block_on(async {
        let read = tokio::time::timeout(Duration::from_secs(20), store.backend().read(vec![name]));
        println!("read: {:?}", read.await.expect("answered"));
    });
}

async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    (listener, address)
}

fn acceptor(folder: &Path) -> TlsAcceptor {
    let certificate =
        CertificateDer::from_pem_file(folder.join("cert.pem")).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(folder.join("key.pem")).expect("a key");
    let config = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key);
    TlsAcceptor::from(Arc::new(config.expect("a certificate and its key")))
}

/// Answers the requests of one connection.
async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin, asked: Asked) {
    while let Some(request) = read_request(&mut stream).await {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        let (status, body) = if request.starts_with("POST /refused/") {
            let told = "{\"error\":\"invalid_client\",\"error_codes\":[7000215],\
                        \"error_description\":\"tell s&cret\"}";
            (401, told.to_owned())
        } else if request.starts_with("POST /busy/") {
            (503, "{}".to_owned())
        } else if request.starts_with("POST ") {
            let told = "{\"token_type\":\"Bearer\",\"expires_in\":3599,\"ext_expires_in\":3599,\
                        \"access_token\":\"of-entra\"}";
            (200, told.to_owned())
        } else if request.starts_with("GET /msi/") {
            let told = format!(
                "{{\"access_token\":\"of-the-machine\",\"expires_on\":\"{}\",\"token_type\":\
                 \"Bearer\",\"resource\":\"https://storage.azure.com\"}}",
                now + 3600
            );
            (200, told)
        } else {
            (404, String::new())
        };
        asked.lock().expect("whole").push(request);
        let answer = format!(
            "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nx-ms-error-code: BlobNotFound\r\n\r\n{body}",
            body.len()
        );
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// A head, and as much body as it says.
async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let (mut request, mut byte) = (Vec::new(), [0]);
    while !request.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).await.ok()?;
        request.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&request).into_owned();
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("content-length").then(|| value.parse().ok())?
    });
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await.ok()?;
    Some(head + &String::from_utf8_lossy(&body))
}

/// A proxy that connects whoever asks to whatever is asked for.
async fn tunnel(listener: TcpListener, asked: Asked) {
    while let Ok((mut client, _)) = listener.accept().await {
        let asked = Arc::clone(&asked);
        tokio::spawn(async move {
            let Some(request) = read_request(&mut client).await else { return };
            let server = request.split(' ').nth(1).expect("an address").to_owned();
            asked.lock().expect("whole").push(request);
            let mut server = TcpStream::connect(server).await.expect("it listens");
            client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.expect("answered");
            let _ = copy_bidirectional(&mut client, &mut server).await;
        });
    }
}
