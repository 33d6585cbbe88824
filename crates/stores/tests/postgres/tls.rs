//! TLS, passwords and client certificates, on a server that insists on them.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tenure_lease::{LeaseError, Store};

use super::own::OwnServer;
use super::support::{block_on, run, server, settings, within};

#[test]
fn tls_verifies_and_no_secret_leaks() {
    let Some((_turn, _server)) = server() else { return };
    if Command::new("openssl").arg("version").output().is_err() {
        eprintln!("skipped: no openssl to make certificates with");
        return;
    }
    let mut server = OwnServer::new("tls", &["-A", "trust"]);
    let folder = server.folder.clone();
    certificates(&folder);
    ["server.key", "server.crt", "ca.crt"].iter().for_each(|file| server.give(file));
    let access = "local all all trust\n\
                  hostssl all all all scram-sha-256 clientcert=verify-ca\n";
    let file = |name: &str| folder.join(name).display().to_string();
    std::fs::write(folder.join("access"), access).unwrap();
    set_password(&mut server);
    server.start(
        &[],
        &[
            "ssl=on".to_owned(),
            format!("ssl_cert_file={}", file("server.crt")),
            format!("ssl_key_file={}", file("server.key")),
            format!("ssl_ca_file={}", file("ca.crt")),
            format!("hba_file={}", file("access")),
        ],
    );
    let client = format!("&sslcert={}&sslkey={}", file("client.crt"), file("client.key"));
    let roots = format!("sslmode=verify-full&sslrootcert={}", file("ca.crt"));
    let url = server.url("postgres:sesame");
    block_on(async {
        let store = open(&format!("{url}?{roots}{client}")).await;
        // Wake-ups, too, come through TLS.
        let lease = store.lease("secured").settings(settings(Duration::from_secs(30)));
        let first = lease.acquire().await.unwrap();
        let next = within(Duration::from_secs(5), "handed over", lease.acquire());
        let (next, ()) = tokio::join!(next, async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            first.release().await;
        });
        drop(next.unwrap());

        for (wrong, expected) in [
            (url.clone(), "28000"),
            (format!("{url}?{roots}"), "certificate"),
            (format!("{url}?sslmode=require{client}"), "UnknownIssuer"),
            (format!("{}?{roots}{client}", url.replace("127.0.0.1", "localhost")), "localhost"),
            (format!("{}?{roots}{client}", url.replace("sesame", "sesame2")), "28P01"),
        ] {
            let error = inspect(&open(&wrong).await).await.unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("sesame"), "{expected}: {error}");
        }
    });
}

async fn open(url: &str) -> Store {
    tenure_stores::open(url).await.unwrap()
}

async fn inspect(store: &Store) -> Result<(), LeaseError> {
    store.inspect("secured").await.map(|_| ())
}

/// Sets the password, while nobody is asked for one yet.
fn set_password(server: &mut OwnServer) {
    server.start(&[], &[]);
    server.psql("ALTER ROLE postgres PASSWORD 'sesame'");
    server.stop();
}

/// An authority, and certificates of the server (for its address, not for its name) and a client.
fn certificates(folder: &Path) {
    let openssl = |arguments: &str| {
        let made = run(Command::new("openssl").args(arguments.split(' ')).current_dir(folder));
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2";
    openssl(&format!("req -x509 {key} -subj /CN=authority -keyout ca.key -out ca.crt"));
    for (name, subject) in [("server", "server"), ("client", "postgres")] {
        openssl(&format!(
            "req -x509 {key} -CA ca.crt -CAkey ca.key -subj /CN={subject} \
             -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE \
             -keyout {name}.key -out {name}.crt"
        ));
    }
}
