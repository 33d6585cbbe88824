//! Real nodes, real sockets: who may do what, and what comes of it.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod kit;

use std::collections::BTreeSet;
use std::time::Duration;

use kit::{READ, WRITE, ask, eventually, get, manage, nodes, post, soon, until};
use serde_json::Value;
use tenure_manage::access::Needs;
use tenure_manage::{Manage, ROUTES};
use tenure_singleton::Singletons as _;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

#[tokio::test]
async fn who_may_not_write_changes_nothing() {
    let (_, clusters) = nodes(1).await;
    let running = manage(&clusters[0]).start().await.unwrap();
    let me = clusters[0].me().to_string();
    let body = format!("{{\"node\":\"{me}\"}}");
    for route in ROUTES.iter().filter(|route| route.post && !route.demo) {
        for (token, status) in [("", 401), ("a-token-of-nobody", 401), (READ, 403)] {
            let answer = post(&running, route.path, token, &body).await;
            assert_eq!(answer.status, status, "{} with {token:?}: {answer:?}", route.path);
            assert!(!answer.error().is_empty());
        }
    }
    for route in ROUTES.iter().filter(|route| !route.post && route.access == Needs::Reading) {
        assert_eq!(get(&running, route.path, "").await.status, 401, "{}", route.path);
    }
    let plain = manage(&clusters[0]).settings(tenure_manage::Settings {
        listen: "127.0.0.1:0".into(),
        ..tenure_manage::Settings::default()
    });
    let plain = plain.start().await.unwrap();
    let answer = post(&plain, "/api/leave", "", "{}").await;
    assert_eq!(answer.status, 403, "without a write token nobody may");
    assert!(answer.error().contains("no write token"), "{answer:?}");
    assert_eq!(
        get(&plain, "/api/cluster", "").await.status,
        200,
        "but all of this machine may read"
    );
    let elsewhere = "Host: evil.example\r\n";
    assert_eq!(ask(plain.address(), "GET", "/api/cluster", elsewhere, "").await.status, 403);
    let origin = "Origin: http://evil.example\r\n";
    assert_eq!(ask(plain.address(), "GET", "/api/cluster", origin, "").await.status, 403);
    assert!(clusters[0].ready().is_ok() && !clusters[0].is_over(), "nothing happened to the node");
}

#[tokio::test]
async fn beyond_loopback_it_does_not_listen_without_credentials() {
    let (_, clusters) = nodes(1).await;
    for listen in ["0.0.0.0:0", "[::]:0"] {
        let refused = Manage::new(&clusters[0]).listen(listen).start().await.unwrap_err();
        assert!(refused.to_string().contains("set certificate and key"), "{refused}");
        let refused = manage(&clusters[0]).listen(listen).start().await.unwrap_err();
        assert!(refused.to_string().contains("set certificate and key"), "{refused}");
    }
    let refused = Manage::new(&clusters[0]).write_token("short").start().await.unwrap_err();
    assert!(refused.to_string().contains("write_token"), "{refused}");
}

#[tokio::test]
async fn every_route_answers_and_errors_are_sentences() {
    let (_, clusters) = nodes(1).await;
    let running = manage(&clusters[0]).start().await.unwrap();
    let document = get(&running, "/openapi.json", "").await.json();
    for route in ROUTES.iter().filter(|route| !route.demo && route.path != "/api/events") {
        let method = if route.post { "post" } else { "get" };
        let answer = match route.post {
            true => post(&running, route.path, WRITE, "{\"nonsense\": 1}").await,
            false => get(&running, route.path, READ).await,
        };
        let said = &document["paths"][route.path][method]["responses"];
        assert!(said[answer.status.to_string()].is_object(), "{}: {answer:?}", route.path);
        assert!(answer.head.to_lowercase().contains("content-security-policy"), "{answer:?}");
        if route.post {
            assert_eq!(answer.status, 400, "{answer:?}");
            assert!(answer.error().contains("nonsense"), "{answer:?}");
        }
    }
    let at = running.address();
    let may = format!("Authorization: Bearer {WRITE}\r\n");
    let json = format!("{may}Content-Type: application/json\r\n");
    let long = "x".repeat(5000);
    for (method, path, headers, body, status) in [
        ("GET", "/nowhere", &may, "", 404),
        ("GET", "/api/demo/cut", &may, "", 404),
        ("POST", "/api/cluster", &json, "{}", 405),
        ("GET", "/api/leave", &may, "", 405),
        ("POST", "/api/leave", &may, "{}", 415),
        ("POST", "/api/leave", &json, "no JSON", 400),
        ("POST", "/api/leave", &json, &long, 413),
        ("POST", "/api/down", &json, "{\"node\":\"nobody:1\"}", 404),
        ("POST", "/api/hand-over", &json, "{\"singleton\":\"none\"}", 404),
        ("POST", "/api/rebalance", &json, "{\"kind\":\"none\"}", 404),
        ("GET", "/api/events?after=x", &may, "", 400),
    ] {
        let answer = ask(at, method, path, headers, body).await;
        assert_eq!(answer.status, status, "{method} {path}: {answer:?}");
        assert!(answer.error().len() > 10, "{answer:?}");
    }
    let page = get(&running, "/", "").await;
    assert!(page.status == 200 && page.body.contains("<title>"), "{page:?}");
}

#[tokio::test]
async fn ready_turns_false_when_it_is_downed_and_the_others_say_why() {
    let (_, clusters) = nodes(2).await;
    let first = manage(&clusters[0]).start().await.unwrap();
    let second = manage(&clusters[1]).start().await.unwrap();
    until("ready", || clusters[1].ready().is_ok()).await;
    assert_eq!(get(&second, "/ready", "").await.status, 200);
    assert_eq!(get(&second, "/alive", "").await.status, 200);
    let whom = clusters[1].me();
    let body = format!("{{\"node\":\"{}\"}}", whom.address);
    let answer = post(&first, "/api/down", WRITE, &body).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    assert_eq!(answer.json()["node"], whom.to_string());
    soon(clusters[1].ended()).await;
    let answer = get(&second, "/ready", READ).await;
    assert_eq!(answer.status, 503);
    assert!(answer.error().contains("out of the cluster"), "{answer:?}");
    let answer = post(&second, "/api/leave", WRITE, "{}").await;
    assert_eq!(answer.status, 503, "{answer:?}");
    let gone = |cluster: &Value| {
        let nodes = cluster["nodes"].as_array().unwrap();
        let it = nodes.iter().find(|it| it["node"] == whom.to_string());
        it.is_some_and(|it| it["status"] == "gone" && it["why"].is_string())
    };
    eventually("the other is gone, with a reason", &first, "/api/cluster", gone).await;
    let not_ready = |cluster: &Value| cluster["ready"] == false && cluster["not_ready"].is_string();
    eventually("the downed one says so", &second, "/api/cluster", not_ready).await;
}

#[tokio::test]
async fn events_are_delivered_live_and_from_the_past() {
    let (_, clusters) = nodes(2).await;
    let running = manage(&clusters[0]).start().await.unwrap();
    let mut stream = listen(running.address(), "/api/events").await;
    let (name, data) = stream.next().await;
    assert_eq!(name, "changed");
    assert!(data["cluster"].as_u64().unwrap() > 0, "{data}");
    let leaver = clusters[1].clone();
    let whom = leaver.me().to_string();
    let leaving = tokio::spawn(async move { leaver.leave().await });
    let (mut names, mut last) = (BTreeSet::new(), 0);
    let removed = soon(async {
        loop {
            let (name, data) = stream.next().await;
            names.insert(name.clone());
            if name == "timeline" {
                last = data["id"].as_u64().unwrap();
                if data["text"].as_str().unwrap().contains("is gone") {
                    return data;
                }
            }
        }
    });
    let removed = removed.await;
    assert_eq!((&removed["kind"], &removed["node"]), (&"member".into(), &whom.clone().into()));
    soon(leaving).await.unwrap();
    assert!(names.contains("changed") && names.contains("timeline"), "{names:?}");
    // Another begins where this one was.
    let mut again = listen(running.address(), &format!("/api/events?after={}", last - 1)).await;
    let first = soon(async {
        loop {
            let (name, data) = again.next().await;
            if name == "timeline" {
                return data["id"].as_u64().unwrap();
            }
        }
    });
    assert_eq!(first.await, last);
    soon(async { while again.next().await.0 != "beat" {} }).await;
}

/// Server-sent events.
struct Events(tokio::io::Lines<BufReader<TcpStream>>);

async fn listen(at: std::net::SocketAddr, path: &str) -> Events {
    let mut stream = TcpStream::connect(at).await.unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nHost: {at}\r\nAuthorization: Bearer {READ}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next_line().await.unwrap().unwrap();
    assert!(first.contains("200"), "{first}");
    Events(lines)
}

impl Events {
    async fn next(&mut self) -> (String, Value) {
        let mut name = String::new();
        loop {
            // Lengths of chunks are among the lines.
            let line = soon(self.0.next_line()).await.unwrap().expect("it goes on");
            if let Some(it) = line.strip_prefix("event: ") {
                name = it.to_owned();
            }
            if let Some(data) = line.strip_prefix("data: ") {
                return (name, serde_json::from_str(data).unwrap());
            }
        }
    }
}

#[tokio::test]
async fn a_singleton_and_its_lease_are_shown_and_handed_over() {
    let (store, clusters) = nodes(2).await;
    let lease = store.lease("shop.cron").ttl(Duration::from_secs(3));
    let mut servers = Vec::new();
    for cluster in &clusters {
        let proxy = cluster.singleton("cron").lease(lease.clone()).run(async |hosted| {
            hosted.stopping().await;
            Ok(())
        });
        let proxy = proxy.unwrap();
        let manage = manage(cluster).singleton(&proxy).lease(&lease, Some("singleton cron"));
        servers.push(manage.start().await.unwrap());
    }
    let hosts = clusters.iter().map(|cluster| cluster.me().to_string()).collect::<Vec<_>>();
    let at = |host: String| move |it: &Value| it["singletons"][0]["host"] == host;
    for server in &servers {
        eventually("the oldest hosts it", server, "/api/singletons", at(hosts[0].clone())).await;
    }
    let held = |it: &Value| {
        let lease = it["leases"].as_array().unwrap().iter().find(|it| it["name"] == "shop.cron");
        lease.is_some_and(|it| {
            it["held_here"] == true && it["remaining_ms"].as_u64().is_some_and(|left| left <= 3000)
        })
    };
    let before = eventually("its lease is held", &servers[0], "/api/leases", held).await;
    let cron = "{\"singleton\":\"cron\"}";
    let answer = post(&servers[1], "/api/hand-over", WRITE, cron).await;
    assert_eq!(answer.status, 409, "{answer:?}");
    assert!(answer.error().contains(&hosts[0]), "{answer:?}");
    let answer = post(&servers[0], "/api/hand-over", WRITE, cron).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    assert_eq!(answer.json()["node"], hosts[1].as_str());
    eventually("the other hosts it", &servers[0], "/api/singletons", at(hosts[1].clone())).await;
    let token = |it: &Value| {
        let all = it["leases"].as_array().unwrap();
        let token = all.iter().find(|it| it["name"] == "shop.cron").unwrap()["token"].clone();
        token.as_str().unwrap().parse::<tenure_lease::Token>().unwrap()
    };
    let higher = |it: &Value| token(it) > token(&before);
    eventually("a higher token", &servers[0], "/api/leases", higher).await;
    let mut events = listen(servers[0].address(), "/api/events").await;
    let mut reasons = BTreeSet::new();
    soon(async {
        while !(reasons.contains("hand_over") && reasons.contains("released")) {
            if let (name, data) = events.next().await
                && name == "timeline"
            {
                reasons.extend(data["reason"].as_str().map(str::to_owned));
            }
        }
    })
    .await;
}
