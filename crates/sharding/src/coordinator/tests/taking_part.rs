//! Who is waited for, and who is not; hosts that are set up otherwise.

use super::*;

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

impl Bench {
    /// The coordinator of another node than the oldest.
    fn on(setup: Setup, me: usize, count: usize) -> Self {
        let nodes = Nodes::up(count);
        let mut coordinator = Coordinator::new(node(me), Settings::new(setup, 2));
        let now = at(100_000);
        coordinator.view(Some(nodes.view(me)), now);
        Self { nodes, coordinator, now }
    }

    fn hear(&mut self, from: usize, message: Message) -> Vec<Effect> {
        self.coordinator.receive(&node(from), message, self.now);
        self.effects()
    }

    fn nothing(term: u64) -> Message {
        let (shards, version) = (Vec::new(), Version::default());
        Message::Report { term, host: None, shards, version }
    }
}

#[test]
fn with_a_lease_whoever_says_nothing_is_not_waited_for() {
    for setup in [Setup::Lease, Setup::Sessions] {
        let mut second = Bench::on(setup, 1, 2);
        assert!(!second.coordinator.is_candidate(), "the oldest may still say something");
        second.pass(Duration::from_millis(2_900));
        assert!(!second.coordinator.is_candidate());
        let effects = second.pass(Duration::from_millis(100));
        assert_eq!(effects, [Effect::Contend { above: 0 }], "{setup:?}");
    }
}

#[test]
fn whoever_takes_part_is_waited_for() {
    let introduce = Message::Introduce { able: true };
    let greeting = Message::Greeting { term: 4, digest: None };
    let homes = vec![(Shard(0), token(4, 1), node(0))];
    let homes = Message::Homes { term: 4, homes };
    let said = [(0, Message::Able(true)), (0, introduce), (0, greeting), (2, homes)];
    for setup in [Setup::Gossip, Setup::Lease, Setup::Sessions] {
        for (from, message) in &said {
            let mut second = Bench::on(setup, 1, 3);
            second.hear(*from, message.clone());
            second.pass(seconds(600));
            assert!(!second.coordinator.is_candidate(), "{setup:?} {message:?}");
        }
    }
}

#[test]
fn they_introduce_themselves_until_they_know() {
    let mut bench = Bench::on(Setup::Lease, 1, 2);
    let introduce = Effect::Send(node(0), Message::Introduce { able: true });
    let all = |bench: &mut Bench| bench.coordinator.effects().collect::<Vec<_>>();
    assert_eq!(all(&mut bench), std::slice::from_ref(&introduce));
    bench.now += seconds(1);
    bench.coordinator.poll(bench.now);
    assert_eq!(all(&mut bench), [introduce], "words may be lost");
    bench.coordinator.receive(&node(0), Message::Introduce { able: true }, bench.now);
    assert_eq!(all(&mut bench), [Effect::Send(node(0), Message::Able(true))]);
    bench.now += seconds(60);
    bench.coordinator.poll(bench.now);
    assert_eq!(all(&mut bench), []);
    assert_eq!(bench.coordinator.next_wake(), Moment::NEVER);
}

#[test]
fn one_that_was_out_of_reach_has_its_time_afterwards() {
    let mut second = Bench::on(Setup::Gossip, 1, 3);
    let up = |index: usize| {
        let (status, up_number) = (tenure_cluster::Status::Up, index as u64 + 1);
        (
            node(index),
            tenure_cluster::Member {
                status,
                up_number,
                roles: Default::default(),
                facts: Default::default(),
            },
        )
    };
    let cut = tenure_cluster::View::of((0..3).map(up), [(node(2), node(0))]);
    second.coordinator.view(Some(&cut), second.now);
    second.pass(seconds(60));
    assert!(!second.coordinator.is_candidate(), "it could say nothing");
    let whole = tenure_cluster::View::of((0..3).map(up), []);
    second.coordinator.view(Some(&whole), second.now);
    second.pass(Duration::from_millis(2_900));
    assert!(!second.coordinator.is_candidate());
    second.pass(Duration::from_millis(100));
    assert!(second.coordinator.is_candidate());
}

#[test]
fn without_a_lease_those_that_do_not_host_are_not_waited_for() {
    // The second has a proxy, the third says nothing.
    let mut bench = Bench::new(Setup::Gossip, 3, 2);
    let zero = Host::node(node(0));
    bench.report(1, zero.clone(), &[]);
    bench.hear(1, Bench::nothing(1));
    let effects = bench.pass(Duration::from_millis(2_900));
    assert_eq!(directives(&effects), [], "the third may be slow");
    let mut given = directives(&bench.pass(Duration::from_millis(100)));
    given.dedup(); // It was time to send again what was not answered.
    assert_eq!(given, [allocate(1, zero, &[(0, token(1, 1)), (1, token(1, 2))])]);
}

#[test]
fn without_a_lease_one_that_hosts_is_waited_for_however_slow_it_is() {
    let mut bench = Bench::new(Setup::Gossip, 2, 2);
    bench.hear(1, Message::Able(true));
    let [zero, one] = bench.hosts();
    bench.report(1, zero.clone(), &[]);
    assert_eq!(directives(&bench.pass(seconds(600))), []);
    let effects = bench.report(1, one, &[(0, token(0, 7))]);
    assert_eq!(directives(&effects), [allocate(1, zero, &[(1, token(1, 1))])]);
}

/// From a lease to sessions, all nodes at once: the roster names hosts without one.
#[test]
fn a_host_of_the_roster_without_a_session_is_over_when_it_was_removed() {
    let mut bench = Bench::new(Setup::Sessions, 2, 2);
    bench.won(5, &[Host::node(node(8)), Host::node(node(9))]);
    bench.report(5, host(0, 1), &[]);
    bench.report(5, host(1, 1), &[]);
    bench.coordinator.note_written(1, bench.now);
    bench.coordinator.note_written(2, bench.now);
    assert_eq!(directives(&bench.pass(Duration::from_millis(9_900))), []);
    assert!(!directives(&bench.pass(seconds(2))).is_empty());
}

/// The same, one node after the other: what they host stays theirs until they have given it back.
#[test]
fn a_host_without_a_session_gives_its_shards_to_those_that_have_one() {
    let mut bench = Bench::new(Setup::Sessions, 2, 2);
    let old = Host::node(node(1));
    bench.won(5, std::slice::from_ref(&old));
    bench.report(5, host(0, 1), &[]);
    let effects = bench.report(5, old.clone(), &[(0, token(4, 1))]);
    assert!(effects.contains(&Effect::Tell(Event::Active { term: 5 })));
    bench.coordinator.note_written(1, bench.now);
    let mut given = directives(&bench.effects());
    given.extend(directives(&bench.pass(Duration::from_millis(900))));
    assert_eq!(given[0], hand_off(5, old.clone(), &[(0, token(4, 1))]), "{given:?}");
    let mut given = directives(&bench.stopped(old, &[(0, token(4, 1))]));
    given.extend(directives(&bench.pass(seconds(3))));
    let is_first = |it: &Effect| matches!(it, Effect::Send(to, _) if *to == node(0));
    assert!(!given.is_empty() && given.iter().all(is_first), "{given:?}");
    // It is gone, and has never given up a session: the removal is what ends it.
    bench.nodes.leave(1);
    bench.look();
    bench.pass(seconds(11));
    assert!(bench.coordinator.is_recovered());
}

/// And back: a coordinator without a session goes by the sessions of those that have one.
#[test]
fn a_coordinator_without_a_session_waits_for_the_end_of_those_of_others() {
    let mut bench = Bench::new(Setup::Lease, 2, 2);
    let effects = bench.won(5, &[host(8, 3)]);
    bench.report(5, Host::node(node(0)), &[]);
    bench.report(5, host(1, 1), &[]);
    bench.coordinator.note_written(1, bench.now);
    bench.coordinator.note_written(2, bench.now);
    let given = directives(&bench.pass(seconds(60)));
    assert_eq!(given, [], "it was removed, and its session may live");
    let taken = |it: &Effect| matches!(it, Effect::TakeOver(it) if it.contains(&session(8, 3)));
    assert!(effects.iter().any(taken), "{effects:?}");
    bench.coordinator.session_over(&session(8, 3), bench.now);
    let mut given = directives(&bench.effects());
    given.extend(directives(&bench.pass(seconds(3))));
    let gets = |index: usize| {
        given.iter().any(|it| matches!(it, Effect::Send(to, _) if *to == node(index)))
    };
    assert!(gets(0) && gets(1), "{given:?}");
}

#[test]
fn whoever_stands_back_does_not_coordinate() {
    for setup in [Setup::Gossip, Setup::Lease] {
        let mut bench = Bench::new(setup, 2, 2);
        assert!(bench.coordinator.is_candidate());
        bench.coordinator.stand_back(true, bench.now);
        assert!(!bench.coordinator.is_candidate(), "{setup:?}");
        bench.coordinator.stand_back(false, bench.now);
        assert!(bench.coordinator.is_candidate(), "{setup:?}");
    }
}
