//! What strategies are told of nodes.

use std::sync::{Arc, Mutex};

use tenure_cluster::{Member, Status, View};

use super::*;

/// Takes what comes first, and keeps what it is told.
#[derive(Debug, Default)]
struct Told(Mutex<Vec<Load>>);

impl Placement for Arc<Told> {
    fn place(&self, _: Shard, regions: &[Load]) -> Option<usize> {
        *self.0.lock().unwrap() = regions.to_vec();
        Some(0)
    }

    fn moves(&self, _: &[Load], _: &[(Shard, usize)], _: usize) -> Vec<Shard> {
        Vec::new()
    }
}

/// What each of these is called, in the order of their addresses, when their members have these names.
fn labels(names: &[Option<&str>]) -> Vec<String> {
    let members = names.iter().enumerate().map(|(index, name)| {
        let facts = name.iter().map(|name| ("name".into(), (*name).into())).collect();
        let (status, up_number) = (Status::Up, index as u64 + 1);
        let (roles, facts) = (Arc::default(), Arc::new(facts));
        (node(index), Member { status, up_number, roles, facts })
    });
    let told = Arc::<Told>::default();
    let strategy = Strategy::custom(told.clone());
    let settings = Settings { strategy, ..Settings::new(Setup::Lease, 1) };
    let mut coordinator = Coordinator::new(node(0), settings);
    let now = at(100_000);
    coordinator.view(Some(&View::of(members, [])), now);
    coordinator.won(5, &note(&[]), UNTIL, now);
    for index in 0..names.len() {
        let (host, version) = (Some(Host::node(node(index))), Version::default());
        let report = Message::Report { term: 5, host, shards: Vec::new(), version };
        coordinator.receive(&node(index), report, now);
        coordinator.note_written(index as u64 + 1, now);
    }
    let mut told = told.0.lock().unwrap().clone();
    told.sort_unstable_by(|one, two| one.node.cmp(&two.node));
    told.iter().map(|load| load.label().to_owned()).collect()
}

#[test]
fn nodes_are_told_apart_by_names_and_else_by_addresses() {
    assert_eq!(labels(&[Some("shop-0"), Some("shop-1")]), ["shop-0", "shop-1"]);
    assert_eq!(labels(&[Some("shop-0"), None]), ["shop-0", "n1:7400"], "an older version");
    let alike = [Some("host"), Some("shop-1"), Some("host")];
    assert_eq!(labels(&alike), ["n0:7400", "shop-1", "n2:7400"], "one machine");
}
