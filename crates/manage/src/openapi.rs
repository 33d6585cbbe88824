//! The same as the routes, for programs: an OpenAPI document, written by hand and held against
//! [`ROUTES`](crate::ROUTES) by a test.

use serde_json::{Map, Value, json};

/// The document; the routes of a demonstration are in it only there.
pub(crate) fn document(demo: bool) -> Value {
    let mut paths = Map::new();
    for (path, item) in reading().into_iter().chain(writing()) {
        paths.insert(path.into(), item);
    }
    if demo {
        for (path, item) in faults() {
            paths.insert(path.into(), item);
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Tenure management",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "What a node of a cluster does, and the few things that an operator changes.",
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"}
        },
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The read token, or the write token. A client's certificate does as well. \
                        On loopback reading needs none unless a read token is set."
                }
            },
            "schemas": schemas()
        }
    })
}

type Items = Vec<(&'static str, Value)>;

fn reading() -> Items {
    let page = |kind: &str| json!({"200": {"description": "A part of the page", "content": {kind: {"schema": {"type": "string"}}}}});
    let public = |summary: &str, responses: Value| json!({"get": {"summary": summary, "security": [], "responses": responses}});
    let get = |summary: &str, schema: &str| {
        json!({"get": {
            "summary": summary,
            "security": [{"bearer": []}],
            "responses": with(json!({"200": answer(summary, schema)}), &[DENIED])
        }})
    };
    let metrics = json!({"get": {
        "summary": "Metrics, as Prometheus reads them",
        "security": [{"bearer": []}],
        "responses": with(
            json!({"200": {"description": "Metrics", "content": {"text/plain": {"schema": {"type": "string"}}}}}),
            &[DENIED, &[("404", "This process has another exporter, or none")]],
        )
    }});
    let events = json!({"get": {
        "summary": "What happens, as server-sent events: changed, timeline, missed, beat",
        "security": [{"bearer": []}],
        "parameters": [
            {
                "name": "after",
                "in": "query",
                "description": "Only what came after the event with this id",
                "schema": {"type": "integer", "minimum": 0, "maximum": u32::MAX}
            },
            {
                "name": "Last-Event-ID",
                "in": "header",
                "description": "The same",
                "schema": {"type": "integer", "minimum": 0, "maximum": u32::MAX}
            }
        ],
        "responses": with(
            json!({"200": {
                "description": "A stream that ends when the reader does",
                "content": {"text/event-stream": {"schema": {"type": "string"}}}
            }}),
            &[DENIED, &[("400", "after is no number"), ("503", "Too many listen")]],
        )
    }});
    let regions = json!({"get": {
        "summary": "What every node has of each kind of shards; it is asked, and may take two seconds",
        "security": [{"bearer": []}],
        "responses": with(
            json!({"200": answer("What they say of themselves", "AllRegions")}),
            &[DENIED, &[("503", "Too many ask already")]],
        )
    }});
    vec![
        (
            "/alive",
            public(
                "Whether the process answers, and its node is not out of the cluster for good",
                with(
                    json!({"200": answer("It does", "Alive")}),
                    &[&[("503", "Start the process again: its node is out for good")]],
                ),
            ),
        ),
        (
            "/ready",
            public(
                "Whether the node can do its part: joined, its leases can be had, not downed",
                with(
                    json!({"200": answer("It can", "Ready")}),
                    &[&[("503", "It cannot; whoever may read is told why")]],
                ),
            ),
        ),
        (
            "/openapi.json",
            public(
                "This document",
                json!({"200": {"description": "This document", "content": {"application/json": {"schema": {"type": "object"}}}}}),
            ),
        ),
        ("/", public("The page", page("text/html"))),
        ("/app.js", public("A part of the page's program", page("text/javascript"))),
        ("/common.js", public("A part of the page's program", page("text/javascript"))),
        ("/demo.js", public("A part of the page's program", page("text/javascript"))),
        ("/feed.js", public("A part of the page's program", page("text/javascript"))),
        ("/lists.js", public("A part of the page's program", page("text/javascript"))),
        ("/nodes.js", public("A part of the page's program", page("text/javascript"))),
        ("/shards.js", public("A part of the page's program", page("text/javascript"))),
        ("/timeline.js", public("A part of the page's program", page("text/javascript"))),
        ("/style.css", public("The page's looks", page("text/css"))),
        ("/metrics", metrics),
        ("/api/cluster", get("Who is in, who leads, who cannot reach whom", "Cluster")),
        ("/api/leases", get("Who holds which lease, and for how long", "Leases")),
        ("/api/singletons", get("Where singletons run", "Singletons")),
        ("/api/shards", get("Where shards are", "Shards")),
        ("/api/regions", regions),
        ("/api/events", events),
    ]
}

fn writing() -> Items {
    let node = json!({"type": "string", "description": "host:port, or host:port#incarnation"});
    vec![
        (
            "/api/leave",
            change(
                "Have a node leave in order; without a name, the one that is asked",
                json!({"node": {"type": ["string", "null"], "description": "host:port, or host:port#incarnation"}}),
                &[],
                &[("404", "No such member"), ("503", "This node is out of the cluster")],
            ),
        ),
        (
            "/api/down",
            change(
                "Declare a node down: make sure first that it has stopped",
                json!({"node": node}),
                &["node"],
                &[("404", "No such member"), ("503", "This node is out of the cluster")],
            ),
        ),
        (
            "/api/hand-over",
            change(
                "Have this node, which hosts it, hand a singleton over",
                json!({"singleton": {"type": "string"}}),
                &["singleton"],
                &[
                    ("404", "No such singleton"),
                    ("409", "Not here, or nobody else can host it"),
                    ("503", "This node is out of the cluster"),
                ],
            ),
        ),
        (
            "/api/rebalance",
            change(
                "Have shards of a kind moved to where fewer are",
                json!({"kind": {"type": "string"}}),
                &["kind"],
                &[
                    ("404", "No such kind"),
                    ("409", "Not now"),
                    ("503", "This node is out of the cluster"),
                ],
            ),
        ),
    ]
}

fn faults() -> Items {
    let whom = json!({"type": "string", "description": "holder, or numbers of nodes: 2,3"});
    let one = json!({"whom": whom});
    let nothing = json!({});
    let late = &[("409", "There is no such node now"), ("503", "It is over")];
    let fault = |summary: &str, properties: &Value, required: &[&str]| {
        change(summary, properties.clone(), required, late)
    };
    let sides =
        json!({"sides": {"type": "string", "description": "1,2 | 3,4,5, or holder | rest"}});
    let pause = json!({"whom": whom, "for": {"type": "string", "description": "How long: 6s"}});
    vec![
        ("/api/demo/cut", fault("Cut the network", &sides, &["sides"])),
        ("/api/demo/heal", fault("Make the network whole", &nothing, &[])),
        ("/api/demo/kill", fault("kill -9", &one, &["whom"])),
        ("/api/demo/pause", fault("Stop a process for a while", &pause, &["whom", "for"])),
        ("/api/demo/leave", fault("Have nodes leave", &one, &["whom"])),
        ("/api/demo/restart", fault("Start those that are gone", &one, &[])),
        ("/api/demo/store-away", fault("Take the store away", &one, &[])),
        ("/api/demo/store-back", fault("Give the store back", &nothing, &[])),
    ]
}

fn change(summary: &str, properties: Value, required: &[&str], more: &[(&str, &str)]) -> Value {
    let unclear = ("400", "The body is not understood, or not what this takes");
    let more = [&[unclear][..], more].concat();
    json!({"post": {
        "summary": summary,
        "security": [{"bearer": []}],
        "requestBody": {
            "required": true,
            "content": {"application/json": {"schema": {
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": false
            }}}
        },
        "responses": with(
            json!({"202": answer("It is under way", "Changed")}),
            &[DENIED, &more, &[("413", "The body is too long"), ("415", "The body is no JSON")]],
        )
    }})
}

fn answer(description: &str, schema: &str) -> Value {
    let schema = json!({"$ref": format!("#/components/schemas/{schema}")});
    json!({"description": description, "content": {"application/json": {"schema": schema}}})
}

fn with(mut responses: Value, more: &[&[(&str, &str)]]) -> Value {
    if let Value::Object(all) = &mut responses {
        for (status, description) in more.iter().copied().flatten() {
            all.insert((*status).into(), answer(description, "Error"));
        }
    }
    responses
}

/// What everything that needs a token may answer.
const DENIED: &[(&str, &str)] =
    &[("401", "No token, or one that is not known"), ("403", "A token that is not enough")];

fn schemas() -> Value {
    let text = json!({"type": "string"});
    let maybe = json!({"type": ["string", "null"]});
    let number = json!({"type": "integer", "minimum": 0});
    let yes = json!({"type": "boolean"});
    let texts = list(&text);
    let object = |fields: &[(&str, &Value)]| {
        let properties: Map<String, Value> =
            fields.iter().map(|(name, schema)| ((*name).to_owned(), (*schema).clone())).collect();
        let required: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
        json!({"type": "object", "properties": properties, "required": required})
    };
    let maybe_object = |schema: &str| json!({"oneOf": [reference(schema), {"type": "null"}]});
    let maybe_number = json!({"type": ["integer", "null"], "minimum": 0});
    let status = json!({"type": "string", "enum": ["joining", "up", "leaving", "exiting", "down", "gone", "outside"]});
    let outcome = json!({"type": "string", "enum": ["survive", "down_self"]});
    let whole = |name: &str, schema: &str| {
        object(&[("version", &number), ("time_ms", &number), (name, &list(&reference(schema)))])
    };
    json!({
        "Error": object(&[("error", &text)]),
        "Alive": object(&[("alive", &yes)]),
        "Ready": object(&[("ready", &yes)]),
        "Changed": object(&[("change", &text), ("node", &maybe), ("text", &text)]),
        "Cluster": object(&[
            ("version", &number), ("time_ms", &number), ("cluster", &text), ("id", &maybe),
            ("me", &maybe), ("name", &maybe), ("ready", &yes), ("not_ready", &maybe),
            ("warnings", &texts), ("leader", &maybe), ("oldest", &maybe), ("converged", &yes),
            ("nodes", &list(&reference("Node"))), ("unreachable", &list(&reference("Cut"))),
            ("downing", &reference("Downing")), ("demo", &json!({"type": ["object", "null"]})),
        ]),
        "Node": object(&[
            ("node", &text), ("address", &text), ("name", &maybe), ("status", &status),
            ("up_number", &number), ("roles", &texts), ("protocol", &text), ("version", &maybe),
            ("since_ms", &number), ("seen", &yes), ("why", &maybe),
        ]),
        "Cut": object(&[("from", &text), ("to", &text)]),
        "Downing": object(&[("strategy", &maybe), ("last", &maybe_object("Decision"))]),
        "Decision": object(&[
            ("time_ms", &number), ("by", &maybe), ("outcome", &outcome), ("down", &texts),
            ("text", &text),
        ]),
        "Leases": whole("leases", "Lease"),
        "Lease": object(&[
            ("name", &text), ("store", &text), ("purpose", &maybe), ("holder", &maybe),
            ("token", &maybe), ("ttl_ms", &number), ("remaining_ms", &maybe_number),
            ("held_here", &yes), ("since_ms", &number), ("error", &maybe),
        ]),
        "Singletons": whole("singletons", "Singleton"),
        "Singleton": object(&[
            ("name", &text), ("host", &maybe), ("token", &maybe), ("since_ms", &number),
            ("waiting", &number), ("why_not", &maybe),
        ]),
        "Shards": whole("kinds", "Kind"),
        "Kind": object(&[
            ("kind", &text), ("count", &number), ("coordinator", &maybe), ("term", &maybe),
            ("nodes", &texts), ("map", &list(&json!({"type": "integer", "minimum": -1}))), ("hosted", &number),
            ("entities", &number), ("waiting", &number), ("why_not", &maybe),
        ]),
        "AllRegions": object(&[("time_ms", &number), ("kinds", &list(&reference("Regions")))]),
        "Regions": object(&[("kind", &text), ("regions", &list(&reference("Region")))]),
        "Region": object(&[
            ("node", &text), ("shards", &list(&reference("HostedShard"))), ("entities", &number),
            ("waiting", &number), ("error", &maybe),
        ]),
        "HostedShard": object(&[("shard", &number), ("token", &text)]),
    })
}

fn list(of: &Value) -> Value {
    json!({"type": "array", "items": of})
}

fn reference(schema: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{schema}")})
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::to_value;

    use super::*;
    use crate::ROUTES;
    use crate::access::Needs;
    use crate::document;

    #[test]
    fn every_route_is_in_it_and_nothing_else() {
        for demo in [false, true] {
            let document = document(demo);
            let mut written = BTreeSet::new();
            for (path, item) in document["paths"].as_object().unwrap() {
                for (method, operation) in item.as_object().unwrap() {
                    let open = operation["security"].as_array().unwrap().is_empty();
                    written.insert((method.clone(), path.clone(), open));
                }
            }
            let routes = ROUTES.iter().filter(|route| demo || !route.demo).map(|route| {
                let method = if route.post { "post" } else { "get" };
                (method.to_owned(), route.path.to_owned(), route.access == Needs::Nothing)
            });
            assert_eq!(written, routes.collect());
        }
    }

    #[test]
    fn what_changes_something_needs_to_be_allowed_to_write() {
        for route in ROUTES {
            assert_eq!(route.post, route.access == Needs::Writing, "{}", route.path);
        }
    }

    #[test]
    fn schemas_are_what_is_served() {
        let fields = |value: &Value| {
            value.as_object().unwrap().keys().cloned().collect::<BTreeSet<String>>()
        };
        let schemas = schemas();
        let same = |name: &str, served: serde_json::Result<Value>| {
            let mut written = fields(&schemas[name]["properties"]);
            written.remove("time_ms");
            let mut served = fields(&served.unwrap());
            served.remove("time_ms");
            // A whole document's is added when it is served.
            if !served.contains("version") {
                written.remove("version");
            }
            assert_eq!(written, served, "{name}");
        };
        same("Cluster", to_value(document::Cluster::default()));
        same("Node", to_value(document::Node::default()));
        same("Downing", to_value(document::Downing::default()));
        let text = String::new;
        same("Cut", to_value(&document::Cut { from: text(), to: text() }));
        let decision = document::Decision {
            time_ms: 0,
            by: None,
            outcome: text(),
            down: vec![],
            text: text(),
        };
        same("Decision", to_value(&decision));
        let sight = crate::sight::LeaseSight::new("a", "file", None, std::time::Duration::ZERO);
        same("Lease", to_value(sight.document()));
        let singleton = document::Singleton {
            name: text(),
            host: None,
            token: None,
            since_ms: 0,
            waiting: 0,
            why_not: None,
        };
        same("Singleton", to_value(&singleton));
        let kind = document::Kind {
            kind: text(),
            count: 0,
            coordinator: None,
            term: None,
            nodes: vec![],
            map: vec![],
            hosted: 0,
            entities: 0,
            waiting: 0,
            why_not: None,
        };
        same("Kind", to_value(&kind));
        let regions = document::Regions { kind: text(), regions: vec![] };
        same("Regions", to_value(&regions));
        same("Region", to_value(document::Region::default()));
        let hosted = document::HostedShard { shard: 0, token: text() };
        same("HostedShard", to_value(&hosted));
        let changed = crate::Changed { change: text(), node: None, text: text() };
        same("Changed", to_value(&changed));
        same("Error", to_value(&document::Error { error: text() }));
        for name in schemas.as_object().unwrap().keys() {
            let text = document(true).to_string();
            assert!(text.contains(&format!("#/components/schemas/{name}\"")), "{name} is not used");
        }
    }
}
