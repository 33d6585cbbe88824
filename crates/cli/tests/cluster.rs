//! `tenure certs`, a node's file, its admin socket, and how a node ends.
#![cfg(all(target_os = "linux", feature = "cluster"))]

mod common;
mod nodes;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Output;

use common::*;
use nodes::*;
use tenure_cluster::transport::Identity;

fn tenure_in(dir: &Dir, arguments: &[&str]) -> Output {
    tenure().current_dir(dir.path()).args(arguments).output().unwrap()
}

fn succeeds(dir: &Dir, arguments: &[&str]) -> String {
    let output = tenure_in(dir, arguments);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Its exit code and the only line that it wrote to stderr.
fn refused(dir: &Dir, arguments: &[&str]) -> (i32, String) {
    let output = tenure_in(dir, arguments);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text.lines().count(), 1, "{arguments:?}: {text}");
    (code(output.status), text)
}

#[test]
fn certificates_are_made_and_never_overwritten() {
    let dir = Dir::new("certs");
    let new = ["certs", "new", "--cluster", "shop", "--dir", "made"];
    let with = |more: &[&'static str]| [&new[..], more].concat();
    let said = succeeds(&dir, &with(&["shop-0", "shop-1"]));
    assert!(said.contains("identity = \"made/shop-0\""), "{said}");
    let read = |path: &str| fs::read(dir.join(path)).unwrap();
    let (ca, first) = (read("made/ca/ca.pem"), read("made/shop-0/node.pem"));
    for key in ["made/ca/ca.key", "made/shop-0/node.key"] {
        let mode = fs::metadata(dir.join(key)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{key}");
    }
    // More nodes, the same authority; nothing at all if one of them is there.
    let (code, said) = refused(&dir, &with(&["shop-2", "shop-0"]));
    assert!(code == 64 && said.contains("--force"), "{said}");
    assert!(!dir.join("made/shop-2").exists());
    succeeds(&dir, &with(&["shop-2"]));
    assert_eq!(read("made/shop-2/ca.pem"), ca);
    succeeds(&dir, &with(&["--force", "shop-0"]));
    assert_eq!(read("made/ca/ca.pem"), ca);
    assert_ne!(read("made/shop-0/node.pem"), first);
    let other = ["certs", "new", "--cluster", "other", "--dir", "made", "other-0"];
    let (code, said) = refused(&dir, &other);
    assert!(code == 64 && said.contains("\"shop\""), "{said}");
    for name in ["..", "ca", "a/b", "all", ".hidden"] {
        let (code, said) = refused(&dir, &[&new[..], &[name]].concat());
        assert!(code == 64 && said.contains("cannot name a node"), "{said}");
    }
}

#[test]
fn certificates_are_renewed_revoked_and_rolled() {
    let dir = Dir::new("certs-later");
    let hosts = ["--host", "shop.svc", "--host", "10.0.0.7"];
    let new = ["certs", "new", "--cluster", "shop", "shop-0", "shop-1", "*"];
    succeeds(&dir, &[&new[..], &hosts].concat());
    let read = |path: &str| fs::read_to_string(dir.join("certs").join(path)).unwrap();
    let load = |node: &str| {
        let place = dir.join("certs").join(if node == "*" { "all" } else { node });
        Identity::load(place, "shop", if node == "*" { "anybody" } else { node })
    };
    for node in ["shop-0", "shop-1", "*"] {
        load(node).unwrap();
    }
    assert_eq!(read("ca/issued").matches(" shop.svc,10.0.0.7\n").count(), 3);
    let (first, second) = (read("shop-0/node.pem"), read("shop-1/node.pem"));

    // Another certificate and key for one of them, with the same hosts.
    succeeds(&dir, &["certs", "renew", "shop-0"]);
    assert_ne!(read("shop-0/node.pem"), first);
    assert_eq!(read("shop-1/node.pem"), second);
    assert_eq!(read("ca/issued").matches(" shop-0 shop.svc,10.0.0.7\n").count(), 2);
    load("shop-0").unwrap();
    let (code, said) = refused(&dir, &["certs", "renew", "shop-9"]);
    assert!(code == 64 && said.contains("tenure certs new"), "{said}");

    // All that was made for it so far, the first one, too.
    let said = succeeds(&dir, &["certs", "revoke", "shop-0"]);
    assert!(said.contains("Revoked 2 certificates"), "{said}");
    let error = load("shop-0").unwrap_err().to_string();
    assert!(error.contains("crl.pem revokes it"), "{error}");
    load("shop-1").unwrap();
    fs::write(dir.join("certs/shop-0/node.pem"), &first).unwrap();
    let error = load("shop-0").unwrap_err().to_string();
    assert!(error.contains("crl.pem revokes it"), "{error}");
    succeeds(&dir, &["certs", "renew", "shop-0"]);
    load("shop-0").unwrap();

    // Another authority, beside this one and then in its place; what was revoked stays so.
    let (code, said) = refused(&dir, &["certs", "roll", "--finish"]);
    assert!(code == 64 && said.contains("tenure certs roll first"), "{said}");
    let authority = read("ca/ca.pem");
    succeeds(&dir, &["certs", "roll"]);
    assert_eq!(read("shop-1/ca.pem"), read("ca/ca.pem") + &authority);
    assert_eq!(read("shop-1/crl.pem").matches("BEGIN X509 CRL").count(), 2);
    load("shop-1").unwrap();
    for again in [&["certs", "roll"][..], &["certs", "roll", "--finish"]] {
        let (code, said) = refused(&dir, again);
        assert!(code == 64 && said.contains("tenure certs renew"), "{said}");
    }
    let former = read("shop-1/node.pem");
    succeeds(&dir, &["certs", "renew"]);
    succeeds(&dir, &["certs", "roll", "--finish"]);
    assert_eq!(read("shop-1/ca.pem"), read("ca/ca.pem"));
    assert_ne!(read("ca/ca.pem"), authority);
    for node in ["shop-0", "shop-1", "*"] {
        load(node).unwrap();
    }
    fs::write(dir.join("certs/shop-1/node.pem"), former).unwrap();
    load("shop-1").unwrap_err();
}

#[test]
fn clients_have_certificates_of_their_own() {
    let dir = Dir::new("certs-clients");
    succeeds(&dir, &["certs", "new", "--cluster", "shop", "shop-0"]);
    let said = succeeds(&dir, &["certs", "new", "--cluster", "shop", "--client", "web"]);
    assert!(said.contains("certs/client/web"), "{said}");
    let load = |name: &str| Identity::load(dir.join("certs").join(name), "shop", name);
    load("client/web").unwrap();
    let error = Identity::load(dir.join("certs/client/web"), "shop", "web").unwrap_err();
    assert!(error.to_string().contains("tenure://shop/web"), "{error}");
    succeeds(&dir, &["certs", "renew"]);
    succeeds(&dir, &["certs", "revoke", "client/web"]);
    assert!(load("client/web").unwrap_err().to_string().contains("crl.pem revokes it"));
    load("shop-0").unwrap();
    let (code, said) = refused(&dir, &["certs", "new", "--cluster", "shop", "client"]);
    assert!(code == 64 && said.contains("cannot name a node"), "{said}");
}

#[test]
fn what_is_wrong_with_a_file_is_said_in_one_line() {
    let dir = Dir::new("node-file");
    let node = ["node", "--config", "node.toml"];
    let (code, said) = refused(&dir, &node);
    assert!(code == 64 && said.contains("node.toml"), "{said}");
    let whole = "cluster = \"shop\"\nname = \"n0\"\naddress = \"127.0.0.1:7400\"\n\
                 identity = \"certs/n0\"\ndiscover = [\"127.0.0.1:7400\"]\n";
    for (from, to, expected) in [
        ("", "", "line 4: identity: "),
        ("7400\"\nidentity", "\"\nidentity", "line 3: address: "),
        ("cluster", "clustre", "line 1: unknown field `clustre`"),
        ("discover", "store = \"file:leases\"\n#", "line 5: store: set formation, too"),
        ("discover", "plaintext_without_any_protection = true\ndiscover", "line 4: identity and"),
    ] {
        fs::write(dir.join("node.toml"), whole.replacen(from, to, 1)).unwrap();
        let (code, said) = refused(&dir, &node);
        assert!(code == 64 && said.contains(expected), "{expected}: {said}");
    }
    let (code, said) = refused(&dir, &["cluster", "status", "--admin", "nobody.sock"]);
    assert!(code == 69 && said.contains("nobody.sock"), "{said}");
}

#[test]
fn the_admin_socket_shows_and_changes_the_cluster() {
    let mut nodes = Nodes::with_lease("admin", loopback(80, 3), "roles = [\"web\", \"cron\"]");
    nodes.start_all();
    nodes.formed(3, SOON);
    let socket = nodes.socket(0);
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);

    let shown = succeeds(&nodes.dir, &["cluster", "status", "--admin", "n0.sock"]);
    for text in ["cluster    shop, id ", "this node  n0, ", "converged  yes", "cron,web", "MEMBER"]
    {
        assert!(shown.contains(text), "{text}: {shown}");
    }
    assert!(nodes.addresses.iter().all(|address| shown.contains(address)), "{shown}");
    let json = succeeds(&nodes.dir, &["cluster", "status", "--admin", "n0.sock", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(Status(json.clone()), nodes.status(0).unwrap());
    assert_eq!(json["leader"], nodes.status(0).unwrap().node());
    let ages: Vec<u64> = json["members"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["up_number"].as_u64().unwrap())
        .collect();
    assert_eq!(ages.iter().sum::<u64>(), 6, "{ages:?}");

    let (code, said) = refused(&nodes.dir, &["cluster", "down", "--admin", "n0.sock", "no:1"]);
    assert!(code == 64 && said.contains("is no member"), "{said}");
    // Another one leaves because this one says so.
    let other = nodes.addresses[1].clone();
    let said = succeeds(&nodes.dir, &["cluster", "leave", "--admin", "n0.sock", &other]);
    assert!(said.contains("is asked to leave"), "{said}");
    assert_eq!(nodes.end(1, SOON), 0);
    nodes.formed(2, SOON);
    // One that is declared down says so with its exit code.
    let third = nodes.status(2).unwrap().node().to_owned();
    let said = succeeds(&nodes.dir, &["cluster", "down", "--admin", "n0.sock", "--json", &third]);
    assert_eq!(said.trim(), format!("{{\"change\":\"down\",\"node\":\"{third}\"}}"));
    assert_eq!(nodes.end(2, SOON), 79);
    assert_eq!(nodes.logged(2, "it was declared down; start it again"), 1);
    // The last one, by itself.
    nodes.formed(1, SOON);
    succeeds(&nodes.dir, &["cluster", "leave", "--admin", "n0.sock"]);
    assert_eq!(nodes.end(0, SOON), 0);
    assert!(!socket.exists());
}

#[test]
fn a_socket_in_use_is_refused_and_a_dead_one_replaced() {
    let mut nodes = Nodes::with_lease("socket", loopback(90, 1), "");
    let socket = nodes.socket(0);
    // Another program's.
    let listener = UnixListener::bind(&socket).unwrap();
    let node = ["node", "--config", "n0.toml"];
    let (code, said) = refused(&nodes.dir, &node);
    assert!(code == 64 && said.contains("a running process listens there"), "{said}");
    drop(listener);
    // The file is still there, as after kill -9.
    nodes.start(0);
    nodes.formed(1, SOON);
    let (code, said) = refused(&nodes.dir, &node);
    assert!(code == 64 && said.contains("a running process listens there"), "{said}");
    assert!(nodes.status(0).is_some(), "the running one is not disturbed");
    nodes.kill(0);
    assert!(socket.exists());
    nodes.start(0);
    nodes.formed(1, SOON);
    nodes.kill(0);
    fs::remove_file(&socket).unwrap();
    fs::write(&socket, "precious").unwrap();
    let (code, said) = refused(&nodes.dir, &node);
    assert!(code == 64 && said.contains("no socket"), "{said}");
    assert_eq!(fs::read(&socket).unwrap(), b"precious");
}

#[test]
fn strange_requests_are_refused_and_disturb_nobody() {
    let mut nodes = Nodes::with_lease("requests", loopback(95, 1), "");
    nodes.start(0);
    nodes.formed(1, SOON);
    let socket = nodes.socket(0);
    for request in ["", "hello", "{}", r#"{"request":"party"}"#, r#"{"request":"down"}"#, "[[[["] {
        let answer = ask(&socket, request).unwrap();
        assert!(answer["refused"].as_str().unwrap().starts_with("not a request"), "{answer}");
    }
    // A line without an end.
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.write_all(&[b'x'; 5000]).unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    assert!(answer.contains("at most 4096 bytes"), "{answer}");
    // More who say nothing than are let in at once; they are shown out in time.
    let silent: Vec<UnixStream> = (0..20).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    until("an answer", SOON, || nodes.status(0));
    drop(silent);
    // Several in one connection.
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.write_all(b"{\"request\":\"status\"}\n{\"request\":\"status\"}\n").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    assert_eq!(answers.lines().count(), 2, "{answers}");
}

#[test]
fn a_node_that_does_not_agree_is_refused() {
    let mut nodes = Nodes::with_lease("agree", loopback(100, 2), "[must_agree]\nshards = \"64\"");
    let file = nodes.dir.join("n1.toml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("64", "128")).unwrap();
    nodes.start(0);
    nodes.formed(1, SOON);
    nodes.start(1);
    assert_eq!(nodes.end(1, SOON), 77);
    let said = "the setting shards must agree: it is 64 in the cluster, 128 here";
    assert_eq!(nodes.logged(1, &format!("tenure: the cluster refused it: {said}")), 1);
}

#[test]
fn a_signal_while_it_looks_for_the_cluster_ends_a_node() {
    let seeds = loopback(105, 2);
    let mut nodes = Nodes::new("looking", seeds.clone(), &format!("discover = {seeds:?}"));
    nodes.start(1);
    let status = until("a status", SOON, || nodes.status(1));
    assert_eq!(status.id(), None);
    let shown = succeeds(&nodes.dir, &["cluster", "status", "--admin", "n1.sock"]);
    assert!(shown.contains("in none yet"), "{shown}");
    nodes.process(1).signal(libc::SIGTERM);
    assert_eq!(nodes.end(1, SOON), 0);
}

#[test]
fn a_lease_that_cannot_be_used_is_found_out_at_the_start() {
    let mut nodes = Nodes::with_lease("refused-lease", loopback(150, 1), LEASE_MAJORITY);
    fs::create_dir(nodes.dir.join("leases")).unwrap();
    // Where the store keeps this lease; a permission that is missing would stop nobody who is root.
    fs::write(nodes.dir.join("leases/shop.arbitration"), "").unwrap();
    nodes.start(0);
    assert_eq!(nodes.end(0, SOON), 69);
    assert!(nodes.logged(0, "the arbitration lease shop.arbitration cannot be used") > 0);
    fs::remove_file(nodes.dir.join("leases/shop.arbitration")).unwrap();
    nodes.start(0);
    nodes.formed(1, SOON);
    nodes.all("it to be ready", SOON, |status| status.0["ready"] == true);
    let shown = succeeds(&nodes.dir, &["cluster", "status", "--admin", "n0.sock"]);
    assert!(shown.contains("ready      yes"), "{shown}");
}

#[test]
fn the_transport_is_measured() {
    let dir = Dir::new("bench-transport");
    let text = succeeds(&dir, &["bench", "transport", "--duration", "100ms", "--json"]);
    let figures: serde_json::Value = serde_json::from_str(&text).unwrap();
    for figure in ["messages_per_s", "control_ms_p50_idle", "control_ms_p99_saturated"] {
        assert!(figures[figure].as_f64().is_some_and(|figure| figure > 0.0), "{figures}");
    }
}
