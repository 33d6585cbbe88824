//! A node's management API from elsewhere, and the page of the demonstration.
#![cfg(all(target_os = "linux", feature = "demo"))]
#![allow(clippy::disallowed_methods)]

mod common;
mod nodes;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::*;
use nodes::*;
use serde_json::Value;

const TOKEN: &str = "a-secret-of-the-operators";

#[test]
fn a_node_is_asked_by_its_url() {
    let manage = "[manage]\nlisten = \"127.0.0.1:0\"\nwrite_token_file = \"write\"";
    let mut nodes = Nodes::with_lease("manage", loopback(160, 1), manage);
    fs::write(nodes.dir.join("write"), format!("{TOKEN}\n")).unwrap();
    nodes.start_all();
    nodes.formed(1, SOON);
    let url = until("the log to say where it listens", SOON, || {
        let lines = nodes.dir.lines("n0.log");
        let url = lines.iter().find_map(|line| line.split("url=\"").nth(1)?.split('"').next());
        url.map(|url| url.trim_end_matches('/').to_owned())
    });
    let run = |arguments: &[&str]| {
        let mut command = tenure();
        command.current_dir(nodes.dir.path()).args(["cluster"]).args(arguments).output().unwrap()
    };
    let json = |arguments: &[&str]| {
        let output = run(arguments);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let near = || json(&["status", "--json", "--admin", "n0.sock"]);
    let far = || json(&["status", "--json", "--url", &url]);
    until("both to say the same", SOON, || (near() == far()).then_some(()));
    let metrics = get(&url, "/metrics", None);
    assert!(metrics.contains("tenure_cluster_member 1"), "{metrics}");

    let said = |arguments: &[&str]| {
        let output = run(arguments);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, text) = said(&["leave", "--url", &url]);
    assert!(code == Some(64) && text.contains("--token-file"), "{code:?} {text}");
    let (code, text) = said(&["down", "--url", &url, "--token-file", "write", "nobody:1"]);
    assert!(code == Some(64) && text.contains("is no member"), "{code:?} {text}");
    let hand_over = ["hand-over", "--url", &url, "--token-file", "write", "cron"];
    let (code, text) = said(&hand_over);
    assert!(code == Some(64) && text.contains("no singleton"), "{code:?} {text}");
    let (code, text) = said(&["status", "--url", "http://127.0.0.1:9"]);
    assert!(code == Some(69) && text.contains("does it run?"), "{code:?} {text}");
    let left = json(&["leave", "--json", "--url", &url, "--token-file", "write"]);
    assert_eq!(left["change"], "leaving");
    assert_eq!(nodes.end(0, SOON), 0);
}

#[test]
fn a_node_is_asked_over_https_with_certificates_of_its_authority() {
    let manage = "[manage]\nlisten = \"127.0.0.1:0\"\ncertificate = \"certs/n0/node.pem\"\n\
                  key = \"certs/n0/node.key\"\nclient_ca = \"certs/n0/ca.pem\"\n\
                  writers = [\"ops.shop\"]";
    let mut nodes = Nodes::with_lease("manage-tls", loopback(164, 1), manage);
    let said = |arguments: &[&str]| {
        let output = tenure().current_dir(nodes.dir.path()).args(arguments).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let made = [
        &["certs", "renew", "--host", "127.0.0.1", "n0"][..],
        &["certs", "new", "--cluster", "shop", "--host", "ops.shop", "ops"],
        &["certs", "new", "--cluster", "shop", "reader"],
    ];
    for arguments in made {
        assert_eq!(said(arguments).0, Some(0), "{arguments:?}");
    }
    let dir = nodes.dir.path().to_owned();
    nodes.start_all();
    nodes.formed(1, SOON);
    let url = until("the log to say where it listens", SOON, || {
        let lines = nodes.dir.lines("n0.log");
        let url = lines.iter().find_map(|line| line.split("url=\"").nth(1)?.split('"').next());
        url.map(|url| url.trim_end_matches('/').to_owned())
    });
    assert!(url.starts_with("https://127.0.0.1:"), "{url}");
    let cluster = |arguments: &[&str]| {
        let mut command = tenure();
        let output = command.current_dir(&dir).arg("cluster").args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, text) = cluster(&["status", "--url", &url, "--identity", "certs/reader"]);
    assert!(code == Some(0), "{text}");
    let (code, text) = cluster(&["status", "--url", &url, "--ca", "certs/n0/ca.pem"]);
    assert!(code == Some(64) && text.contains("--cert"), "{code:?} {text}");
    let elsewhere = url.replace("127.0.0.1", "localhost");
    let (code, text) = cluster(&["status", "--url", &elsewhere, "--identity", "certs/reader"]);
    assert!(code == Some(69) && text.contains("--host localhost"), "{code:?} {text}");
    let (code, text) = cluster(&["leave", "--url", &url, "--identity", "certs/reader"]);
    assert!(code == Some(64), "{code:?} {text}");
    fs::write(dir.join("write"), TOKEN).unwrap();
    let plain = ["status", "--url", "http://10.0.0.7:7480", "--token-file", "write"];
    let (code, text) = cluster(&plain);
    assert!(code == Some(64) && text.contains("could read the token"), "{code:?} {text}");
    let (ca, cert, key) = ("certs/n0/ca.pem", "certs/ops/node.pem", "certs/ops/node.key");
    let (code, text) = cluster(&["leave", "--url", &url, "--ca", ca, "--cert", cert, "--key", key]);
    assert!(code == Some(0), "{code:?} {text}");
    assert_eq!(nodes.end(0, SOON), 0);
}

#[test]
fn the_page_of_the_demonstration_shows_what_its_buttons_do() {
    let dir = Dir::new("demo-page");
    let mut command = tenure();
    command.args(["demo", "--json", "--nodes", "3", "--page", "127.0.0.1:0"]);
    let events = File::create(dir.join("events")).unwrap();
    let mut demo = Process::start(command.stdout(Stdio::null()).stderr(events));
    let (url, token) = until("the page's address", SOON, || {
        let lines = dir.lines("events");
        let page = lines.iter().find_map(|line| line.strip_prefix("page: "))?.to_owned();
        let (url, token) = page.split_once("/#token=")?;
        Some((url.to_owned(), token.to_owned()))
    });
    let page = Page { url, token };
    until("three workers and a client to be up", SOON, || (page.up() == 3).then_some(()));
    until("the worker to work", SOON, || page.holder());
    assert!(page.press("kill", "{\"whom\":\"holder\"}", None).contains("401"));
    assert!(page.press("kill", "{\"whom\":\"9\"}", Some(&page.token)).contains("400"));
    let (first, before) = page.holder().unwrap();
    // The record names the holder before its first job tells the demonstration.
    until("the holder to be known", SOON, || {
        let pressed = page.press("kill", "{\"whom\":\"holder\"}", Some(&page.token));
        pressed.contains("202").then_some(())
    });
    let (next, after) =
        until("another holder", SOON, || page.holder().filter(|(holder, _)| *holder != first));
    assert!(next != first && after > before, "{first} {before:?}, {next} {after:?}");
    until("the timeline to say why", SOON, || {
        page.timeline().iter().any(|entry| entry["reason"] == "expired").then_some(())
    });
    assert!(page.press("restart", "{}", Some(&page.token)).contains("202"));
    until("three workers to be up again", SOON, || (page.up() == 3).then_some(()));

    let three = "{\"sides\":\"1 | 2,3\"}";
    assert!(page.press("cut", three, Some(&page.token)).contains("202"));
    let cut = until("the smaller side to be down, with a sentence", SOON, || {
        let cluster = page.cluster();
        let last = &cluster["downing"]["last"];
        let one = cluster["nodes"].as_array().unwrap().iter().find(|it| it["name"] == "node-1");
        let apart = ["down", "outside"].iter().any(|it| one.unwrap()["status"] == *it);
        (apart && last["text"].is_string()).then_some(cluster)
    });
    assert_eq!(cut["demo"]["sides"].as_array().unwrap().len(), 2, "{cut:#}");
    assert!(page.press("heal", "{}", Some(&page.token)).contains("202"));
    until("all to be up in the end", SOON * 2, || (page.up() == 3).then_some(()));
    demo.signal(libc::SIGTERM);
    demo.end(SOON);
}

/// Counters on three nodes, as the page, one of the nodes and `tenure cluster shards` tell it.
#[test]
fn shards_are_shown_by_the_page_and_by_the_command() {
    let dir = Dir::new("demo-shards");
    let mut command = tenure();
    command.args(["demo", "--json", "--nodes", "3", "--sharding", "--rate", "500"]);
    let events = File::create(dir.join("events")).unwrap();
    let command = command.args(["--page", "127.0.0.1:0"]).stdout(Stdio::null()).stderr(events);
    let mut demo = Process::start(command);
    let url = until("the page's address", SOON, || {
        let lines = dir.lines("events");
        let page = lines.iter().find_map(|line| line.strip_prefix("page: "))?.to_owned();
        Some(page.split_once("/#token=")?.0.to_owned())
    });
    let shown = |url: &str, arguments: &[&str]| {
        let output = tenure().args(["cluster", "shards", "--url", url]).args(arguments).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let json = |url: &str, arguments: &[&str]| {
        let text = shown(url, &[&["--json"], arguments].concat());
        serde_json::from_str::<Value>(&text).unwrap()
    };
    // What the demonstration has put together, and what one of its nodes knows and has asked for.
    let page = Page { url: url.clone(), token: String::new() };
    let node = until("a node's own address", SOON, || {
        let processes = &page.cluster()["demo"]["processes"];
        let url = processes.as_array()?.iter().find(|it| it["number"] == 2)?["url"].as_str()?;
        Some(url.trim_end_matches('/').to_owned())
    });
    let settled = |shown: &Value| {
        let kind = &shown["kinds"][0];
        let counts: Vec<_> = kind["nodes"].as_array().into_iter().flatten().collect();
        let sum = |what: &str| counts.iter().map(|it| it[what].as_u64().unwrap_or(0)).sum::<u64>();
        let even = counts.iter().all(|it| (21..=22).contains(&it["shards"].as_u64().unwrap_or(0)));
        let whole = counts.len() == 3 && even && kind["nowhere"] == 0;
        whole && (sum("shards"), sum("entities")) == (64, 300)
    };
    let kind = until("both to show 64 shards and all counters", SOON * 2, || {
        let (all, one) = (json(&url, &[]), json(&node, &[]));
        (settled(&all) && all == one).then_some(one)
    });
    let kind = &kind["kinds"][0];
    assert_eq!((&kind["kind"], &kind["shards"]), (&"counters".into(), &64.into()), "{kind:#}");
    assert!(kind["coordinator"].is_string() && kind["term"].is_string(), "{kind:#}");
    assert!(kind.get("places").is_none() && kind["why_not"].is_null(), "{kind:#}");

    // Each shard, with its token; and an entity in one of them.
    let whole = json(&node, &["--kind", "counters"]);
    let places = whole["kinds"][0]["places"].as_array().unwrap();
    assert_eq!(places.len(), 64);
    assert!(places.iter().all(|it| it["node"].is_string() && it["token"].is_string()), "{whole:#}");
    let home = json(&node, &["--kind", "counters", "--entity", "counter-17"]);
    let place = &places[home["shard"].as_u64().unwrap() as usize];
    assert_eq!((&home["node"], &home["token"]), (&place["node"], &place["token"]));
    let (host, token) = (home["node"].as_str().unwrap(), home["token"].as_str().unwrap());
    let text = shown(&node, &["--kind", "counters", "--entity", "counter-17"]);
    let shard = &home["shard"];
    let sentence =
        format!("counter-17 of counters is in shard {shard}, on {host}, with token {token}\n");
    assert_eq!(text, sentence);
    let text = shown(&node, &[]);
    assert!(text.starts_with("counters: 64 shards, coordinated by 127."), "{text}");
    assert!(text.contains("NODE") && text.contains("ENTITIES"), "{text}");

    let refused = |arguments: &[&str]| {
        let output = tenure().args(["cluster", "shards"]).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(64), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refused(&["--url", &node, "--kind", "boats"]).contains("counters"));
    assert!(refused(&["--url", &node, "--entity", "counter-17"]).contains("--kind"));
    assert!(refused(&["--admin", "n0.sock"]).contains("--url"));
    demo.signal(libc::SIGTERM);
    demo.end(SOON);
}

struct Page {
    url: String,
    token: String,
}

impl Page {
    fn cluster(&self) -> Value {
        serde_json::from_str(&get(&self.url, "/api/cluster", None)).unwrap()
    }

    /// How many workers are up, and reached by all.
    fn up(&self) -> usize {
        let cluster = self.cluster();
        let nodes = cluster["nodes"].as_array().unwrap().iter();
        let up = nodes.filter(|node| node["status"] == "up" && node["name"] != "client").count();
        if cluster["unreachable"].as_array().unwrap().is_empty() { up } else { 0 }
    }

    /// Where the worker works, with which term.
    fn holder(&self) -> Option<(String, u64)> {
        let text = get(&self.url, "/api/singletons", None);
        let singletons: Value = serde_json::from_str(&text).unwrap();
        let one = &singletons["singletons"][0];
        let term = one["token"].as_str()?.split('.').next()?.parse().ok()?;
        Some((one["host"].as_str()?.to_owned(), term))
    }

    /// What the page was told first: it goes on for ever.
    fn timeline(&self) -> Vec<Value> {
        let text = get(&self.url, "/api/events", Some(Duration::from_millis(300)));
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        data.filter_map(|data| serde_json::from_str(data).ok()).collect()
    }

    /// The status line of the answer.
    fn press(&self, what: &str, body: &str, token: Option<&str>) -> String {
        let token = token.map_or(String::new(), |it| format!("Authorization: Bearer {it}\r\n"));
        let head = format!("{token}Content-Type: application/json\r\n");
        let answer = ask(&self.url, "POST", &format!("/api/demo/{what}"), &head, body, None);
        answer.lines().next().unwrap().to_owned()
    }
}

fn get(url: &str, path: &str, within: Option<Duration>) -> String {
    let answer = ask(url, "GET", path, "", "", within);
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// The whole answer; what has come within that time, if it does not end.
fn ask(
    url: &str,
    method: &str,
    path: &str,
    head: &str,
    body: &str,
    within: Option<Duration>,
) -> String {
    let host = url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(within.unwrap_or(SOON))).unwrap();
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{head}\
         Content-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let until = within.map(|within| Instant::now() + within);
    let (mut answer, mut part) = (Vec::new(), [0; 4096]);
    // A stream may never fall silent.
    while until.is_none_or(|until| Instant::now() < until) {
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(length) => answer.extend_from_slice(&part[..length]),
            Err(_) if within.is_some() => break,
            Err(error) => panic!("{method} {path}: {error}"),
        }
    }
    String::from_utf8_lossy(&answer).into_owned()
}
