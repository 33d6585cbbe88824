//! Certificates: the server's, and those of clients.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod kit;

use std::path::Path;
use std::sync::Arc;

use kit::{Answer, READ, WRITE, converse, manage, nodes, soon};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::json;
use tenure_cluster::certs::Authority;
use tenure_manage::client::{Client, ClientError};
use tenure_manage::{Manage, Running, Token};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

fn token(text: &str) -> Option<Token> {
    Some(Token::new(text).unwrap())
}

#[tokio::test]
async fn with_tls_and_a_token_it_listens_everywhere() {
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &str| dir.path().join(path);
    let authority = Authority::new("shop").unwrap();
    authority.issue("server", &["127.0.0.1"]).unwrap().save(at("server")).unwrap();
    Authority::new("other")
        .unwrap()
        .issue("server", &["127.0.0.1"])
        .unwrap()
        .save(at("other"))
        .unwrap();
    let (_, clusters) = nodes(1).await;
    let server = |manage: Manage| manage.certificate(at("server/node.pem"), at("server/node.key"));
    let running = server(manage(&clusters[0])).listen("0.0.0.0:0").start().await.unwrap();
    assert!(running.url().starts_with("https://"));
    let url = format!("https://127.0.0.1:{}", running.address().port());
    let (ca, foreign) = (at("server/ca.pem"), at("other/ca.pem"));
    let status = async |token: Option<Token>, ca: &Path| {
        Client::new(&url, token, Some(ca)).unwrap().get("/api/cluster").await
    };
    assert_eq!(status(token(READ), &ca).await.unwrap()["cluster"], "shop");
    let refused = status(None, &ca).await.unwrap_err();
    assert!(matches!(refused, ClientError::Refused { status: 401, .. }), "{refused:?}");
    let unknown = status(token(READ), &foreign).await.unwrap_err();
    assert!(matches!(unknown, ClientError::Unreachable(_)), "{unknown:?}");
    let client = Client::new(&url, token(READ), Some(&ca)).unwrap();
    let refused = client.post("/api/leave", &json!({})).await.unwrap_err();
    assert!(matches!(refused, ClientError::Refused { status: 403, .. }), "{refused:?}");
    let client = Client::new(&url, token(WRITE), Some(&ca)).unwrap();
    let changed = client.post("/api/leave", &json!({})).await.unwrap();
    assert_eq!(changed["change"], "leaving");
    soon(clusters[0].ended()).await;

    let missing =
        Manage::new(&clusters[0]).certificate(at("none.pem"), at("none.key")).start().await;
    assert!(missing.unwrap_err().to_string().contains("none.pem cannot be used"));
    let mixed = Manage::new(&clusters[0]).certificate(at("server/node.pem"), at("other/node.key"));
    let mixed = mixed.listen("127.0.0.1:0").start().await.unwrap_err().to_string();
    assert!(mixed.contains("does not fit"), "{mixed}");
}

#[tokio::test]
async fn certificates_of_clients_let_them_look_and_some_change() {
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &str| dir.path().join(path);
    let authority = Authority::new("shop").unwrap();
    authority.issue("server", &["127.0.0.1"]).unwrap().save(at("server")).unwrap();
    authority.issue("reader", &["reader.shop"]).unwrap().save(at("reader")).unwrap();
    authority.issue("writer", &["ops.shop"]).unwrap().save(at("writer")).unwrap();
    Authority::new("x").unwrap().issue("w", &["ops.shop"]).unwrap().save(at("stranger")).unwrap();
    let (_, clusters) = nodes(1).await;
    let running = Manage::new(&clusters[0])
        .listen("127.0.0.1:0")
        .certificate(at("server/node.pem"), at("server/node.key"))
        .clients(at("server/ca.pem"), ["ops.shop"])
        .start()
        .await
        .unwrap();
    let ca = at("server/ca.pem");
    let (reader, writer, stranger) = (at("reader"), at("writer"), at("stranger"));
    let say = async |who: Option<&Path>, method: &str, path: &str, body: &str| {
        shown(&running, &ca, who, method, path, body).await.map(|answer| answer.status)
    };
    assert_eq!(say(None, "GET", "/alive", "").await, Some(200), "probes have none");
    assert_eq!(say(None, "GET", "/api/cluster", "").await, Some(401));
    assert_eq!(say(Some(&reader), "GET", "/api/cluster", "").await, Some(200));
    assert_eq!(say(Some(&reader), "POST", "/api/leave", "{}").await, Some(403));
    assert_eq!(say(Some(&stranger), "GET", "/alive", "").await, None, "not even a greeting");
    assert_eq!(say(Some(&writer), "GET", "/api/cluster", "").await, Some(200));

    // The client of `tenure cluster` shows one, too.
    let url = format!("https://127.0.0.1:{}", running.address().port());
    let client = |url: &str, who: &Path| {
        let client = Client::new(url, None, Some(&ca)).unwrap();
        client.with_certificate(&who.join("node.pem"), &who.join("node.key")).unwrap()
    };
    assert_eq!(client(&url, &reader).get("/api/cluster").await.unwrap()["cluster"], "shop");
    let refused = client(&url, &reader).post("/api/leave", &json!({})).await.unwrap_err();
    assert!(matches!(refused, ClientError::Refused { status: 403, .. }), "{refused:?}");
    let elsewhere = url.replace("127.0.0.1", "localhost");
    let unnamed = client(&elsewhere, &reader).get("/api/cluster").await.unwrap_err().to_string();
    assert!(unnamed.contains("does not name the host localhost"), "{unnamed}");
    let left = client(&url, &writer).post("/api/leave", &json!({})).await.unwrap();
    assert_eq!(left["change"], "leaving");
    soon(clusters[0].ended()).await;
}

/// Asks with this certificate; none if the connection came to nothing.
async fn shown(
    running: &Running,
    ca: &Path,
    who: Option<&Path>,
    method: &str,
    path: &str,
    body: &str,
) -> Option<Answer> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match who {
        None => config.with_no_client_auth(),
        Some(dir) => {
            let chain = vec![CertificateDer::from_pem_file(dir.join("node.pem")).unwrap()];
            let key = PrivateKeyDer::from_pem_file(dir.join("node.key")).unwrap();
            config.with_client_auth_cert(chain, key).unwrap()
        }
    };
    let stream = TcpStream::connect(running.address()).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.ok()?;
    let headers = "Content-Type: application/json\r\n";
    soon(converse(stream, running.address(), method, path, headers, body)).await
}
