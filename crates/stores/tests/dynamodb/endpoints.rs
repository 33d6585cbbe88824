//! Where AWS's own endpoints are, and the way to them through a proxy.

use std::process::Command;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use tenure_lease::{LeaseName, Store};
use tenure_stores::dynamodb::DynamoStore;
use tenure_testkit::conformance;

use super::server::Private;

/// The proxy that HTTPS_PROXY names is asked for the endpoint of the region's partition. In
/// processes of their own, since an environment is a process's.
#[test]
fn each_region_has_its_endpoint() {
    conformance::block_on(async {
        let folder = Private::folder().await;
        for (region, host) in [
            ("eu-central-1", "dynamodb.eu-central-1.amazonaws.com"),
            ("cn-north-1", "dynamodb.cn-north-1.amazonaws.com.cn"),
            ("us-iso-east-1", "dynamodb.us-iso-east-1.c2s.ic.gov"),
            ("us-isob-east-1", "dynamodb.us-isob-east-1.sc2s.sgov.gov"),
            ("eusc-de-east-1", "dynamodb.eusc-de-east-1.amazonaws.eu"),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let proxy = format!("http://{}", listener.local_addr().expect("an address"));
            let mut child = Command::new(std::env::current_exe().expect("a program"));
            child
                .args(["--exact", "endpoints::in_this_region", "--nocapture"])
                .env("IN_THIS_REGION", region)
                .env("IN_THIS_REGION_CA", folder.join("cert.pem"))
                .env("HTTPS_PROXY", proxy)
                .env_remove("https_proxy")
                .env_remove("NO_PROXY")
                .env_remove("no_proxy")
                .env_remove("AWS_ENDPOINT_URL")
                .env_remove("AWS_ENDPOINT_URL_DYNAMODB")
                .env("AWS_CONFIG_FILE", "/nonexistent")
                .env("AWS_EC2_METADATA_DISABLED", "true");
            let child = tokio::task::spawn_blocking(move || child.output());
            let accepted = tokio::time::timeout(Duration::from_secs(20), listener.accept()).await;
            let (mut client, _) = accepted.expect("the proxy is asked").expect("a client");
            let (mut request, mut buffer) = (String::new(), [0; 1024]);
            while !request.ends_with("\r\n\r\n") {
                let count = client.read(&mut buffer).await.expect("a request");
                request.push_str(&String::from_utf8_lossy(&buffer[..count]));
            }
            client.write_all(b"HTTP/1.1 403 Forbidden\r\n\r\n").await.expect("answered");
            let output = child.await.expect("it ran").expect("it ran");
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(request.starts_with(&format!("CONNECT {host}:443 HTTP/1.1")), "{request}");
            // Nobody has seen the request, but that is not known for sure.
            assert!(said.contains("kind: Unavailable"), "{said}");
        }
        std::fs::remove_dir_all(folder).expect("removed");
    });
}

/// The other half of `each_region_has_its_endpoint`.
#[test]
fn in_this_region() {
    let Ok(region) = std::env::var("IN_THIS_REGION") else { return };
    let ca = std::env::var("IN_THIS_REGION_CA").expect("set with the other");
    let url = format!("dynamodb://leases?region={region}&ca={ca}");
    let store = DynamoStore::with_access_key(&url, "any", "any").expect("a URL");
    let (store, name) = (Store::new(store), LeaseName::new("a").expect("a name"));
    conformance::block_on(async {
        let read = tokio::time::timeout(Duration::from_secs(20), store.backend().read(vec![name]));
        println!("read: {:?}", read.await);
    });
}
