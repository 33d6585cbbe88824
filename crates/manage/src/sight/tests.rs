use tenure_cluster::{Incarnation, Member};
use tenure_lease::Token;
use tenure_lease::record::{Holder, Version};

use super::*;

fn node(name: &str) -> Node {
    Node { address: format!("{name}:1").parse().unwrap(), incarnation: Incarnation(7) }
}

fn member(status: Status) -> Member {
    Member { status, up_number: 1, roles: Default::default(), facts: Default::default() }
}

/// All of these, with this status.
fn view(names: &[(&str, Status)]) -> View {
    View::of(names.iter().map(|(name, status)| (node(name), member(*status))), [])
}

struct Test(ClusterSight);

impl Test {
    fn look(&mut self, now_ms: u64, view: &View) -> document::Cluster {
        let seen = BTreeSet::from([node("a")]);
        self.0.look(now_ms, &node("a"), view, &seen, Ok(()))
    }

    /// Name, status and why of all but the first.
    fn others(&mut self, now_ms: u64, view: &View) -> Vec<(String, String, Option<String>)> {
        let nodes = self.look(now_ms, view).nodes.into_iter().skip(1);
        nodes.map(|it| (it.address, it.status, it.why)).collect()
    }
}

fn test() -> Test {
    Test(ClusterSight::new("shop-0", "shop", Some("keep-majority")))
}

use Status::{Down, Exiting, Up};

#[test]
fn who_was_downed_is_shown_with_the_sentence_and_then_gone() {
    let mut test = test();
    let (both, one) = (view(&[("a", Up), ("b", Up)]), view(&[("a", Up)]));
    test.look(1, &both);
    let decided = Decided { survives: true, down: vec![node("b")], reason: "it is few".into() };
    let note = test.0.happened(2, &node("a"), &Event::Decided(decided)).unwrap();
    assert_eq!((note.kind, note.reason.as_deref()), (EntryKind::Decision, Some("survive")));
    assert!(note.text.contains("b:1 is down: it is few"), "{}", note.text);
    let note = test.0.happened(2, &node("a"), &Event::Downed(node("b"))).unwrap();
    assert!(note.text.ends_with("is down: it is few"), "{}", note.text);
    let shown =
        |status: &str| vec![("b:1".to_owned(), status.to_owned(), Some("it is few".to_owned()))];
    assert_eq!(test.others(3, &view(&[("a", Up), ("b", Down)])), shown("down"));
    let document = test.look(4, &one);
    assert_eq!(document.downing.last.as_ref().unwrap().text, "it is few");
    assert_eq!(document.nodes[1].since_ms, 4);
    assert_eq!(test.others(5, &one), shown("gone"));
    assert_eq!(test.others(4 + GONE_MS + 1, &one), []);
}

#[test]
fn who_left_is_gone_until_somebody_is_at_its_address() {
    let mut test = test();
    test.look(1, &view(&[("a", Up), ("b", Exiting)]));
    let gone = test.others(2, &view(&[("a", Up)]));
    assert_eq!(gone, [("b:1".into(), "gone".into(), Some("it left".into()))]);
    let newcomer = Node { incarnation: Incarnation(8), ..node("b") };
    let again = View::of([(node("a"), member(Up)), (newcomer, member(Up))], []);
    assert_eq!(test.others(3, &again), [("b:1".into(), "up".into(), None)]);
}

#[test]
fn not_more_than_enough_are_remembered() {
    let mut test = test();
    for number in 0..GONE as u64 + 20 {
        let name = format!("n{number}");
        test.look(number, &view(&[("a", Up), (name.as_str(), Up)]));
    }
    assert_eq!(test.others(9000, &view(&[("a", Up)])).len(), GONE);
}

#[test]
fn members_are_found_by_address_or_in_full() {
    let view = view(&[("a", Up), ("b", Down)]);
    assert_eq!(find(&view, "a:1"), Ok(node("a")));
    assert_eq!(find(&view, &node("a").to_string()), Ok(node("a")));
    for none in ["a", "b:1", "a:1#0000000000000008"] {
        assert!(find(&view, none).unwrap_err().contains("is no member"), "{none}");
    }
}

fn record(term: u64, version: &str, holder: Option<&str>) -> Record {
    let holder = holder.map(|name| Holder {
        owner: Owner { name: name.into(), incarnation: 5 },
        claim: None,
        nonce: None,
        session: None,
    });
    Record {
        version: Version(version.into()),
        token: Token::new(term, 0),
        holder,
        ttl: Duration::from_secs(9),
        expiry: Expiry::ByObservation,
        note: Vec::new(),
    }
}

fn at(seconds: u64) -> Moment {
    Moment::ZERO + Duration::from_secs(seconds)
}

#[test]
fn a_lease_runs_towards_its_deadline_and_is_told_when_it_moves() {
    let mut sight = LeaseSight::new("cron", "file", None, Duration::from_secs(9));
    let mut saw = |second, said| {
        let note = sight.saw(at(second), second * 1000, said);
        let document = sight.document();
        (
            note.map(|note| (note.text, note.reason.map(|it| it.into_owned()))),
            document.ends,
            document.since_ms,
        )
    };
    let a = |version| Ok(Some(record(1, version, Some("a"))));
    assert_eq!(saw(100, a("v1")), (None, Some(at(109)), 100_000), "it was there before us");
    assert_eq!(saw(102, a("v1")), (None, Some(at(109)), 100_000));
    assert_eq!(saw(103, a("v2")), (None, Some(at(112)), 100_000), "renewed");
    assert_eq!(saw(104, Err("silence".into())), (None, Some(at(112)), 100_000));
    let (note, ends, since) = saw(112, Ok(Some(record(2, "v3", Some("b")))));
    let (text, reason) = note.unwrap();
    assert!(
        text.contains("b#") && text.contains("token 2.0") && text.contains("expired"),
        "{text}"
    );
    assert_eq!((reason.as_deref(), ends, since), (Some("expired"), Some(at(121)), 112_000));
    let (note, ends, _) = saw(113, Ok(Some(record(2, "v4", None))));
    assert_eq!((note.unwrap().1.as_deref(), ends), (Some("released"), None));
    let (note, ..) = saw(114, Ok(Some(record(3, "v5", Some("a")))));
    assert_eq!(note.unwrap().1, None);
}

#[test]
fn shards_are_a_map_of_indexes_into_who_has_some() {
    let homes = [(0, "b"), (2, "a"), (3, "b")];
    let status = tenure_sharding::Status {
        coordinator: Some((node("a"), 7)),
        shards: 4,
        homes: homes.map(|(shard, name)| (tenure_sharding::Shard(shard), node(name))).into(),
        hosted: vec![(tenure_sharding::Shard(2), Token { term: 7, step: 1 })],
        entities: 9,
        ..tenure_sharding::Status::default()
    };
    let kind = shards("cart", status);
    assert_eq!(kind.nodes, [node("a").to_string(), node("b").to_string()]);
    assert_eq!((kind.count, kind.map), (4, vec![1, -1, 0, 1]));
    assert_eq!(kind.coordinator, Some(node("a").to_string()));
    assert_eq!((kind.hosted, kind.entities, kind.waiting), (1, 9, 0));
}
