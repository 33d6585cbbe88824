//! etcd: passwords, certificates and old backups, on servers of the tests' own.
#![cfg(feature = "etcd")]
#![allow(clippy::disallowed_methods)] // Real servers, real time.

mod etcd_support;
mod port;
mod server;

use std::time::Duration;

use tenure_lease::{LeaseError, Loss, Settings};
use tenure_testkit::conformance::block_on;

use etcd_support::{NEWEST, Scratch, Solo, checks, run, store};

#[test]
fn passwords() {
    checks::passwords(NEWEST);
}

#[test]
fn a_refused_watch() {
    checks::a_refused_watch(NEWEST);
}

/// Over TLS, with a certificate on both sides; who does not know the authority, or has no
/// certificate, is not let in.
#[test]
fn certificates() {
    if !NEWEST.is_installed() {
        return;
    }
    let scratch = Scratch::new();
    let file = |name: &str| scratch.file(name);
    let ssl = |arguments: &[&str]| run("openssl", arguments);
    for name in ["ca", "server", "client"] {
        ssl(&["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", &file(name)]);
        let key8 = file(&format!("{name}.key"));
        ssl(&["pkcs8", "-topk8", "-nocrypt", "-in", &file(name), "-out", &key8]);
    }
    let (ca, ca_key) = (file("ca.crt"), file("ca.key"));
    ssl(&["req", "-x509", "-key", &ca_key, "-subj", "/CN=ca", "-days", "2", "-out", &ca]);
    std::fs::write(file("ext"), "subjectAltName=IP:127.0.0.1").expect("written");
    for name in ["server", "client"] {
        let (key, csr, crt) =
            (file(&format!("{name}.key")), file("csr"), file(&format!("{name}.crt")));
        ssl(&["req", "-new", "-key", &key, "-subj", &format!("/CN={name}"), "-out", &csr]);
        ssl(&[
            "x509",
            "-req",
            "-in",
            &csr,
            "-CA",
            &ca,
            "-CAkey",
            &ca_key,
            "-CAcreateserial",
            "-days",
            "2",
            "-extfile",
            &file("ext"),
            "-out",
            &crt,
        ]);
    }
    let tls = [
        ("cert-file", file("server.crt")),
        ("key-file", file("server.key")),
        ("trusted-ca-file", ca.clone()),
        ("client-cert-auth", "true".to_owned()),
    ];
    let etcd = Solo::start(NEWEST, &scratch.0.join("data"), &tls, &[]);
    block_on(async {
        let address = &etcd.address;
        let (crt, key) = (file("client.crt"), file("client.key"));
        let settings = Settings::new(Duration::from_secs(8));
        let url = format!("etcds://{address}/leases?ca={ca}&cert={crt}&key={key}");
        let ours = store(&url);
        let lease = ours.lease("nightly").settings(settings.clone());
        let acquired = tokio::time::timeout(Duration::from_secs(20), lease.acquire()).await;
        let tenure = acquired.expect("in time").expect("acquired");
        tenure.write_note(b"over TLS".to_vec()).await.expect("renewed");
        tenure.release().await;
        for url in [
            format!("etcds://{address}?ca={ca}"),
            format!("etcds://{address}?cert={crt}&key={key}"),
            format!("etcd://{address}"),
        ] {
            match store(&url).lease("nightly").settings(settings.clone()).try_acquire().await {
                Err(LeaseError::Store(error)) => println!("{error}"),
                other => panic!("{other:?}"),
            }
        }
    });
}

/// A backup that is restored takes terms back; a fence notices, and `above` repairs it for good.
#[test]
fn an_old_backup() {
    if !NEWEST.is_installed() {
        return;
    }
    let scratch = Scratch::new();
    let mut etcd = Solo::start(NEWEST, &scratch.0.join("data"), &[], &[]);
    block_on(async {
        let ours = store(&format!("etcd://{}/leases", etcd.address));
        let lease = ours.lease("nightly").settings(Settings::new(Duration::from_secs(8)));
        let before = lease.acquire().await.expect("acquired");
        before.write_note(b"old".to_vec()).await.expect("written");
        before.release().await;
        let backup = scratch.file("backup.db");
        etcd.ctl(&["snapshot", "save", &backup]);
        let mut fence = Default::default();
        for _ in 0..20 {
            let tenure = lease.acquire().await.expect("acquired");
            fence = tenure.token();
            tenure.release().await;
        }
        etcd.stop();
        let peer = format!("http://{}", etcd.peer());
        let restore = |folder: &str, options: &[&str]| {
            let data = scratch.0.join(folder);
            let cluster = format!("solo={peer}");
            let mut arguments = vec!["snapshot", "restore", &backup, "--name", "solo"];
            arguments.extend(["--data-dir", data.to_str().expect("it is text")]);
            arguments.extend(["--initial-advertise-peer-urls", &peer]);
            arguments.extend(["--initial-cluster", &cluster]);
            arguments.extend(options);
            run(&NEWEST.program("etcdutl"), &arguments);
            data
        };
        let data = restore("restored", &[]);
        etcd.restart(&data, &[]);
        let tenure = lease.acquire().await.expect("acquired");
        assert!(tenure.token() < fence, "the backup is as new as the fence");
        assert_eq!(tenure.note(), b"old");
        assert!(tenure.report_fence(fence), "the fence is above");
        match tenure.lost().await {
            Loss::TokenRegressed { held, fence } => println!("{held} is below {fence}"),
            loss => panic!("{loss:?}"),
        }
        tenure.release().await;
        let raised = lease.clone().above(fence.term).acquire().await.expect("acquired");
        assert!(raised.token() > fence);
        let raised_to = raised.token();
        raised.release().await;
        let next = lease.acquire().await.expect("acquired");
        assert!(next.token() > raised_to, "{} after {raised_to}", next.token());
        drop(next);

        // As the documentation advises.
        etcd.stop();
        let bumped = restore("bumped", &["--bump-revision", "1000000", "--mark-compacted"]);
        etcd.restart(&bumped, &[]);
        let tenure = lease.acquire().await.expect("acquired");
        assert!(tenure.token() > fence, "{} after {fence}", tenure.token());
        tenure.release().await;
    });
}
