mod names;
mod taking_part;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use tenure_cluster::Node;
use tenure_lease::{Moment, Token};

use super::{Coordinator, Effect, Event};
use crate::testing::{Nodes, at, host, node, session};
use crate::wire::{Answer, Directive, Message, Refusal};
use crate::{
    Host, Load, Placement, Roster, RosterEntry, Settings, Setup, Shard, Strategy, Version,
};

/// A coordinator on the oldest of a few nodes, with `shards` shards.
struct Bench {
    nodes: Nodes,
    coordinator: Coordinator,
    now: Moment,
}

const UNTIL: Moment = Moment::from_nanos(u64::MAX / 2);

impl Bench {
    fn new(setup: Setup, count: usize, shards: u32) -> Self {
        let nodes = Nodes::up(count);
        let mut coordinator = Coordinator::new(node(0), Settings::new(setup, shards));
        let now = at(100_000);
        coordinator.view(Some(nodes.view(0)), now);
        Self { nodes, coordinator, now }
    }

    fn effects(&mut self) -> Vec<Effect> {
        effects_of(&mut self.coordinator)
    }

    fn pass(&mut self, time: Duration) -> Vec<Effect> {
        let end = self.now + time;
        while self.coordinator.next_wake() <= end {
            self.now = self.coordinator.next_wake().max(self.now);
            self.coordinator.poll(self.now);
        }
        self.now = end;
        self.coordinator.poll(self.now);
        self.effects()
    }

    fn look(&mut self) {
        self.coordinator.view(Some(self.nodes.view(0)), self.now);
    }

    fn won(&mut self, term: u64, roster: &[Host]) -> Vec<Effect> {
        let note = note(roster);
        self.coordinator.won(term, &note, UNTIL, self.now);
        self.effects()
    }

    fn report(&mut self, term: u64, host: Host, shards: &[(u32, Token)]) -> Vec<Effect> {
        let shards = shards.iter().map(|(shard, token)| (Shard(*shard), *token)).collect();
        let from = host.node.clone();
        let report =
            Message::Report { term, host: Some(host), shards, version: Version::default() };
        self.coordinator.receive(&from, report, self.now);
        self.effects()
    }

    fn started(&mut self, host: Host, shards: &[(u32, Token)]) -> Vec<Effect> {
        let from = host.node.clone();
        self.coordinator.receive(&from, Message::Started(answer(host, shards)), self.now);
        self.effects()
    }

    fn stopped(&mut self, host: Host, shards: &[(u32, Token)]) -> Vec<Effect> {
        let from = host.node.clone();
        self.coordinator.receive(&from, Message::Stopped(answer(host, shards)), self.now);
        self.effects()
    }

    /// Two hosts, of which each has one of two shards: tokens 5.1 and 5.2.
    fn settled(setup: Setup) -> Self {
        let mut bench = Self::new(setup, 2, 2);
        let hosts = bench.hosts();
        bench.won(5, &[]);
        bench.report(5, hosts[0].clone(), &[]);
        bench.report(5, hosts[1].clone(), &[]);
        bench.coordinator.note_written(1, bench.now);
        bench.coordinator.note_written(2, bench.now);
        let allocated = directives(&bench.effects());
        assert_eq!(allocated.len(), 2, "{allocated:?}");
        bench.started(hosts[0].clone(), &[(0, token(5, 1))]);
        bench.started(hosts[1].clone(), &[(1, token(5, 2))]);
        bench
    }

    fn hosts(&self) -> [Host; 2] {
        match self.coordinator.settings.setup {
            Setup::Sessions => [host(0, 1), host(1, 1)],
            _ => [Host::node(node(0)), Host::node(node(1))],
        }
    }
}

/// All but introductions.
fn effects_of(coordinator: &mut Coordinator) -> Vec<Effect> {
    let introduces = |it: &Effect| matches!(it, Effect::Send(_, Message::Introduce { .. }));
    coordinator.effects().filter(|it| !introduces(it)).collect()
}

fn token(term: u64, step: u64) -> Token {
    Token::new(term, step)
}

fn answer(host: Host, shards: &[(u32, Token)]) -> Answer {
    Answer { host, shards: shards.iter().map(|(shard, token)| (Shard(*shard), *token)).collect() }
}

fn note(roster: &[Host]) -> Vec<u8> {
    let mut written = Roster::default();
    for host in roster {
        written.insert(host.clone(), RosterEntry { cluster: 7, up_number: 1 });
    }
    written.to_note().unwrap()
}

fn greeting(index: usize, term: u64) -> Effect {
    Effect::Send(node(index), Message::Greeting { term, digest: None })
}

fn allocate(term: u64, host: Host, shards: &[(u32, Token)]) -> Effect {
    let Answer { shards, .. } = answer(host.clone(), shards);
    let node = host.node.clone();
    Effect::Send(node, Message::Allocate(Directive { term, host, shards }))
}

fn hand_off(term: u64, host: Host, shards: &[(u32, Token)]) -> Effect {
    let Answer { shards, .. } = answer(host.clone(), shards);
    let node = host.node.clone();
    Effect::Send(node, Message::HandOff(Directive { term, host, shards }))
}

fn directives(effects: &[Effect]) -> Vec<Effect> {
    let is_directive = |effect: &&Effect| {
        matches!(effect, Effect::Send(_, Message::Allocate(_) | Message::HandOff(_)))
    };
    effects.iter().filter(is_directive).cloned().collect()
}

#[test]
fn acquire_blocks_coordinator_activity() {
    let mut bench = Bench::new(Setup::Lease, 2, 2);
    assert!(bench.coordinator.is_candidate());
    assert_eq!(bench.effects(), [Effect::Contend { above: 0 }]);
    assert!(!bench.coordinator.is_active(bench.now));
    // Requests wait meanwhile, and nobody is told anything.
    bench.coordinator.receive(&node(1), Message::Where(vec![Shard(1)]), bench.now);
    bench.report(5, Host::node(node(1)), &[]);
    assert_eq!(bench.pass(Duration::from_secs(60)), []);
    // Won: it greets, and only greets, until the roster is through.
    let [zero, one] = bench.hosts();
    let roster = [one.clone()];
    assert_eq!(bench.won(5, &roster), [greeting(0, 5), greeting(1, 5)]);
    assert!(bench.coordinator.is_active(bench.now) && !bench.coordinator.is_recovered());
    assert!(directives(&bench.report(5, zero.clone(), &[])).is_empty());
    let effects = bench.report(5, one.clone(), &[(1, token(4, 9))]);
    assert!(effects.contains(&Effect::Tell(Event::Active { term: 5 })));
    // What waited is answered.
    let homes = vec![(Shard(1), token(4, 9), node(1))];
    let homes = Effect::Send(node(1), Message::Homes { term: 5, homes });
    assert!(effects.contains(&homes), "{effects:?}");
    // Nobody gets anything before it is on the roster.
    assert_eq!(directives(&effects), []);
    bench.coordinator.note_written(1, bench.now);
    assert_eq!(directives(&bench.effects()), [allocate(5, zero, &[(0, token(5, 1))])]);
}

#[test]
fn lost_lease_stops_activity() {
    let mut bench = Bench::settled(Setup::Lease);
    bench.coordinator.lost(bench.now);
    assert_eq!(bench.effects(), [Effect::Tell(Event::Passive), Effect::Contend { above: 0 }]);
    assert!(!bench.coordinator.is_active(bench.now));
    let [zero, one] = bench.hosts();
    assert_eq!(bench.stopped(one.clone(), &[(1, token(5, 2))]), []);
    bench.coordinator.receive(&node(1), Message::Where(vec![Shard(0)]), bench.now);
    assert_eq!(bench.pass(Duration::from_secs(60)), []);
    // When it is won again, everything is found out anew, and what waited is answered.
    bench.won(6, &[zero.clone(), one.clone()]);
    bench.report(6, zero, &[(0, token(5, 1))]);
    let effects = bench.report(6, one, &[(1, token(5, 2))]);
    let homes = vec![(Shard(0), token(5, 1), node(0))];
    let homes = Effect::Send(node(1), Message::Homes { term: 6, homes });
    assert!(effects.contains(&homes), "{effects:?}");
}

#[test]
fn a_lease_whose_time_is_over_is_lost_without_being_told() {
    let mut bench = Bench::settled(Setup::Lease);
    bench.coordinator.renewed(bench.now + Duration::from_secs(5), bench.now);
    bench.now += Duration::from_secs(5);
    assert!(!bench.coordinator.is_active(bench.now));
    let [_, one] = bench.hosts();
    assert_eq!(bench.stopped(one, &[(1, token(5, 2))]), [Effect::Tell(Event::Passive)]);
}

#[test]
fn release_on_leave() {
    let mut bench = Bench::settled(Setup::Lease);
    bench.nodes.leave(0);
    bench.look();
    assert_eq!(bench.effects(), [Effect::Tell(Event::Passive), Effect::Withdraw]);
    assert!(!bench.coordinator.is_candidate());
}

#[test]
fn without_a_lease_the_oldest_acts() {
    let mut bench = Bench::new(Setup::Gossip, 2, 2);
    // No lease is asked for.
    assert_eq!(bench.effects(), [greeting(0, 1), greeting(1, 1)]);
    let [zero, one] = bench.hosts();
    bench.report(1, zero.clone(), &[]);
    // A region obeys a coordinator of term 3: ours is one above.
    let refused = Message::Refused(Refusal::OtherCoordinator { term: 3 });
    bench.coordinator.receive(&node(1), refused, bench.now);
    assert_eq!(bench.effects(), [greeting(0, 4), greeting(1, 4)]);
    bench.report(4, zero.clone(), &[]);
    let effects = bench.report(4, one.clone(), &[(0, token(3, 1))]);
    assert_eq!(directives(&effects), [allocate(4, zero, &[(1, token(4, 1))])]);
    let mut second = Coordinator::new(node(1), Settings::new(Setup::Gossip, 2));
    second.view(Some(bench.nodes.view(1)), bench.now);
    assert_eq!(effects_of(&mut second), []);
}

#[test]
fn unreported_is_taken_until_the_whole_roster_has_answered() {
    let mut bench = Bench::new(Setup::Sessions, 2, 2);
    bench.effects();
    // The session of a third, that is no member any more.
    let gone = host(2, 8);
    bench.won(5, &[host(0, 1), gone.clone()]);
    bench.report(5, host(0, 1), &[(0, token(4, 1))]);
    let effects = bench.report(5, host(1, 1), &[]);
    assert_eq!(directives(&effects), []);
    let effects = bench.pass(Duration::from_secs(30));
    assert_eq!(directives(&effects), []);
    assert!(!bench.coordinator.is_recovered());
    // It is to be taken over from the beginning; then the shard is free.
    let expected = Effect::TakeOver(BTreeSet::from([session(2, 8)]));
    let mut bench = Bench::new(Setup::Sessions, 2, 2);
    bench.effects();
    assert!(bench.won(5, &[host(0, 1), gone]).contains(&expected));
    bench.report(5, host(0, 1), &[(0, token(4, 1))]);
    bench.report(5, host(1, 1), &[]);
    bench.coordinator.note_written(1, bench.now);
    assert_eq!(directives(&bench.effects()), []);
    bench.coordinator.session_over(&session(2, 8), bench.now);
    let expected = [allocate(5, host(1, 1), &[(1, token(5, 1))])];
    assert_eq!(directives(&bench.effects()), expected);
}

#[test]
fn the_highest_token_says_where_a_shard_is() {
    let mut bench = Bench::new(Setup::Sessions, 2, 1);
    bench.effects();
    bench.won(5, &[host(0, 1), host(1, 1)]);
    bench.report(5, host(0, 1), &[(0, token(3, 7))]);
    let effects = bench.report(5, host(1, 1), &[(0, token(4, 1))]);
    assert_eq!(directives(&effects), [hand_off(5, host(0, 1), &[(0, token(3, 7))])]);
    assert_eq!(bench.coordinator.homes().collect::<Vec<_>>(), [(Shard(0), &node(1))]);
}

#[test]
fn an_answer_about_another_allocation_frees_nothing() {
    let mut bench = Bench::settled(Setup::Sessions);
    bench.nodes.leave(1);
    bench.look();
    let effects = bench.effects();
    assert_eq!(directives(&effects), [hand_off(5, host(1, 1), &[(1, token(5, 2))])]);
    let stale = bench.coordinator.counts().stale_answers;
    assert_eq!(bench.stopped(host(1, 1), &[(1, token(4, 2))]), []);
    assert_eq!(bench.coordinator.counts().stale_answers, stale + 1);
    let effects = bench.stopped(host(1, 1), &[(1, token(5, 2))]);
    assert_eq!(directives(&effects), [allocate(5, host(0, 1), &[(1, token(5, 3))])]);
}

#[test]
fn a_shard_that_ends_by_itself_again_and_again_rests() {
    let mut bench = Bench::settled(Setup::Sessions);
    let mut pauses = Vec::new();
    let (mut at, mut step) = (1, 2);
    for _ in 0..8 {
        let began = bench.now;
        let mut given = directives(&bench.stopped(host(at, 1), &[(1, token(5, step))]));
        while given.is_empty() {
            given = directives(&bench.pass(Duration::from_millis(100)));
        }
        pauses.push(bench.now.since(began).as_secs());
        step += 1;
        at = (0..2)
            .find(|to| given[0] == allocate(5, host(*to, 1), &[(1, token(5, step))]))
            .unwrap();
        bench.started(host(at, 1), &[(1, token(5, step))]);
    }
    // The first time at once; then twice as long each time, with a bound. It is looked at each second.
    assert_eq!(pauses, [0, 1, 2, 4, 8, 16, 16, 16]);
    bench.pass(Duration::from_secs(60));
    let given = directives(&bench.stopped(host(at, 1), &[(1, token(5, step))]));
    assert_eq!(given.len(), 1, "after a while all is forgotten");
}

#[test]
fn only_those_who_come_next_observe_sessions() {
    for (me, observes) in [(1, true), (2, true), (3, false)] {
        let nodes = Nodes::up(4);
        let mut coordinator = Coordinator::new(node(me), Settings::new(Setup::Sessions, 1));
        coordinator.view(Some(nodes.view(me)), at(100_000));
        coordinator.note_seen(&note(&[host(0, 1)]), at(100_000));
        let observe = Effect::Observe(BTreeSet::from([session(0, 1)]));
        assert_eq!(coordinator.effects().any(|it| it == observe), observes, "node {me}");
    }
}

#[test]
fn membership_alone_frees_nothing() {
    let mut bench = Bench::settled(Setup::Sessions);
    bench.nodes.crash(1);
    bench.nodes.down(0, 1);
    bench.look();
    let effects = bench.pass(Duration::from_secs(60));
    assert_eq!(directives(&effects), []);
    assert!(effects.contains(&Effect::TakeOver(BTreeSet::from([session(1, 1)]))));
    bench.coordinator.session_over(&session(1, 1), bench.now);
    let expected = [allocate(5, host(0, 1), &[(1, token(5, 3))])];
    assert_eq!(directives(&bench.effects()), expected);
}

#[test]
fn without_sessions_a_removed_node_is_over_after_a_margin() {
    let mut bench = Bench::settled(Setup::Lease);
    let [zero, _] = bench.hosts();
    bench.nodes.crash(1);
    bench.look();
    assert_eq!(directives(&bench.pass(Duration::from_secs(60))), [], "unreachable is not removed");
    bench.nodes.down(0, 1);
    bench.look();
    assert_eq!(directives(&bench.pass(Duration::from_millis(9_900))), []);
    let mut given = directives(&bench.pass(Duration::from_millis(1_100)));
    given.dedup(); // Nobody answers, so it is sent again.
    assert_eq!(given, [allocate(5, zero, &[(1, token(5, 3))])]);
}

#[test]
fn a_later_tenure_of_a_session_ends_the_former() {
    let mut bench = Bench::settled(Setup::Sessions);
    // The region of node 1 has lost its session, and won it again.
    let effects = bench.report(5, host(1, 2), &[]);
    let write = effects.iter().find_map(|effect| match effect {
        Effect::WriteNote { number, note } => Some((*number, Roster::parse(note).unwrap())),
        _ => None,
    });
    let (number, roster) = write.unwrap();
    assert!(roster.contains(&host(1, 2)) && !roster.contains(&host(1, 1)));
    let waited = bench.pass(Duration::from_secs(2));
    // The other one is on the roster already, and gets it after some patience.
    assert!(directives(&effects).iter().chain(&directives(&waited)).all(|effect| matches!(
        effect, Effect::Send(to, Message::Allocate(_)) if *to == node(0))));
    bench.coordinator.note_written(number, bench.now);
    bench.effects();
    // A late report of the former is nothing.
    assert_eq!(bench.report(5, host(1, 1), &[(1, token(5, 2))]), []);
}

#[test]
fn an_unreadable_roster_keeps_it_passive() {
    let mut bench = Bench::new(Setup::Lease, 1, 1);
    bench.effects();
    bench.coordinator.won(5, b"{\"version\":9}", UNTIL, bench.now);
    let effects = bench.effects();
    assert!(matches!(effects[0], Effect::Tell(Event::Unreadable(_))));
    assert_eq!(effects[1..], [Effect::Withdraw], "and the store is left alone for a while");
    assert!(!bench.coordinator.is_active(bench.now));
    assert_eq!(bench.pass(Duration::from_secs(2)), [Effect::Contend { above: 0 }]);
}

#[test]
fn a_store_that_lost_its_memory_is_asked_for_a_higher_term() {
    let mut bench = Bench::new(Setup::Lease, 2, 1);
    bench.effects();
    bench.won(5, &[]);
    let refused = Message::Refused(Refusal::OtherCoordinator { term: 90 });
    bench.coordinator.receive(&node(1), refused, bench.now);
    let passive = Effect::Tell(Event::Passive);
    assert_eq!(bench.effects(), [passive, Effect::Withdraw, Effect::Contend { above: 90 }]);
}

#[test]
fn requests_are_bounded() {
    let nodes = Nodes::up(1);
    let settings = Settings { requests_max: 3, ..Settings::new(Setup::Lease, 10) };
    let mut coordinator = Coordinator::new(node(0), settings);
    coordinator.view(Some(nodes.view(0)), at(1));
    coordinator.receive(&node(1), Message::Where((0..3).map(Shard).collect()), at(1));
    coordinator.receive(&node(1), Message::Where((0..3).map(Shard).collect()), at(1));
    assert_eq!(effects_of(&mut coordinator), [Effect::Contend { above: 0 }]);
    coordinator.receive(&node(1), Message::Where(vec![Shard(4)]), at(1));
    let busy = Effect::Send(node(1), Message::Refused(Refusal::Busy));
    assert_eq!(effects_of(&mut coordinator), [busy]);
}

#[test]
fn shards_are_spread_evenly_a_few_at_a_time() {
    let mut bench = Bench::new(Setup::Lease, 2, 40);
    bench.effects();
    bench.won(5, &[]);
    let [zero, one] = bench.hosts();
    bench.report(5, zero.clone(), &[]);
    bench.coordinator.note_written(1, bench.now);
    // Nobody waits for ever for the other one.
    let effects = bench.pass(Duration::from_secs(3));
    let all: Vec<(u32, Token)> = (0..40).map(|n| (n, token(5, u64::from(n) + 1))).collect();
    assert_eq!(directives(&effects)[0], allocate(5, zero.clone(), &all));
    bench.started(zero.clone(), &all);
    bench.report(5, one.clone(), &[]);
    bench.coordinator.note_written(2, bench.now);
    let mut moved = 0;
    for _ in 0..100 {
        let effects = bench.effects();
        let mut stopped = Vec::new();
        let mut started = Vec::new();
        for effect in directives(&effects) {
            match effect {
                Effect::Send(_, Message::HandOff(directive)) => stopped.extend(directive.shards),
                Effect::Send(to, Message::Allocate(directive)) => {
                    assert_eq!(to, node(1));
                    started.extend(directive.shards);
                }
                _ => {}
            }
        }
        assert!(stopped.len() <= 8, "{}", stopped.len());
        moved += started.len();
        let stopped = Answer { host: zero.clone(), shards: stopped };
        let started = Answer { host: one.clone(), shards: started };
        bench.coordinator.receive(&node(0), Message::Stopped(stopped), bench.now);
        bench.coordinator.receive(&node(1), Message::Started(started), bench.now);
    }
    assert_eq!(moved, 20);
}

#[test]
fn whoever_does_not_reach_the_store_lets_others() {
    let mut bench = Bench::new(Setup::Lease, 2, 1);
    bench.effects();
    let mut second = Coordinator::new(node(1), Settings::new(Setup::Lease, 1));
    second.view(Some(bench.nodes.view(1)), bench.now);
    assert!(!second.is_candidate());
    bench.coordinator.able(false, bench.now);
    let unable = Message::Able(false);
    assert_eq!(bench.effects(), [Effect::Send(node(1), unable.clone()), Effect::Withdraw]);
    second.receive(&node(0), unable, bench.now);
    assert_eq!(effects_of(&mut second), [Effect::Contend { above: 0 }]);
    // What is not said again is forgotten.
    second.poll(bench.now + Duration::from_secs(10));
    assert_eq!(effects_of(&mut second), [Effect::Withdraw]);
}

/// However slowly they stop and start: what is on its way already is not moved again, and nothing besides.
#[test]
fn a_newcomer_gets_its_share_and_no_more_moves() {
    let mut bench = Bench::new(Setup::Lease, 2, 16);
    let [old, new] = bench.hosts();
    let all: Vec<(u32, Token)> = (0..16).map(|shard| (shard, token(4, 1))).collect();
    bench.won(5, std::slice::from_ref(&old));
    bench.report(5, old.clone(), &all);
    bench.report(5, new, &[]);
    bench.coordinator.note_written(1, bench.now);
    let mut orders: VecDeque<Effect> = directives(&bench.effects()).into();
    let mut moved = 0;
    while let Some(Effect::Send(_, order)) = orders.pop_front() {
        let (Message::HandOff(directive) | Message::Allocate(directive)) = &order else { continue };
        for (shard, token) in &directive.shards {
            let (host, shard) = (directive.host.clone(), [(shard.0, *token)]);
            let effects = match order {
                Message::HandOff(_) => {
                    assert_eq!(host, old);
                    moved += 1;
                    bench.stopped(host, &shard)
                }
                _ => bench.started(host, &shard),
            };
            orders.extend(directives(&effects));
        }
    }
    assert_eq!(moved, 8);
}

/// A region that is there without its session hosts nothing, whatever was heard of its shards last.
#[test]
fn no_home_is_named_where_the_session_is_lost() {
    let mut bench = Bench::settled(Setup::Sessions);
    let (shards, version) = (Vec::new(), Version::default());
    let report = Message::Report { term: 5, host: None, shards, version };
    bench.coordinator.receive(&node(1), report, bench.now);
    bench.effects();
    bench.coordinator.receive(&node(0), Message::Where(vec![Shard(0), Shard(1)]), bench.now);
    let homes = vec![(Shard(0), token(5, 1), node(0))];
    assert_eq!(bench.effects(), [Effect::Send(node(0), Message::Homes { term: 5, homes })]);
    // It waits until the shard is somewhere else.
    bench.coordinator.session_over(&session(1, 1), bench.now);
    let homes = vec![(Shard(1), token(5, 3), node(0))];
    let homes = Effect::Send(node(0), Message::Homes { term: 5, homes });
    assert!(bench.started(host(0, 1), &[(1, token(5, 3))]).contains(&homes));
}

/// Of shards that move one after the other everybody is told together; who has asked, at once.
#[test]
fn news_of_many_moves_are_told_together() {
    let mut bench = Bench::new(Setup::Lease, 2, 12);
    let [zero, one] = bench.hosts();
    bench.won(5, &[]);
    bench.report(5, zero.clone(), &[]);
    bench.report(5, one, &[]);
    bench.coordinator.note_written(1, bench.now);
    bench.coordinator.note_written(2, bench.now);
    bench.effects();
    let given: Vec<u32> = (0..12).step_by(2).collect();
    let news = |effects: Vec<Effect>| -> Vec<(Node, Vec<u32>)> {
        let homes = |effect| match effect {
            Effect::Send(to, Message::Homes { homes, .. }) => {
                Some((to, homes.iter().map(|(shard, ..)| shard.0).collect()))
            }
            _ => None,
        };
        effects.into_iter().filter_map(homes).collect()
    };
    let started = |bench: &mut Bench, shard: u32| {
        news(bench.started(zero.clone(), &[(shard, token(5, u64::from(shard) + 1))]))
    };
    // The first at once.
    let first = vec![given[0]];
    let told = started(&mut bench, given[0]);
    assert_eq!(told, [(node(0), first.clone()), (node(1), first)]);
    for shard in &given[1..3] {
        assert_eq!(started(&mut bench, *shard), []);
    }
    bench.coordinator.receive(&node(1), Message::Where(vec![Shard(given[3])]), bench.now);
    assert_eq!(started(&mut bench, given[3]), [(node(1), vec![given[3]])], "who has asked");
    assert_eq!(bench.coordinator.next_wake(), bench.now + Duration::from_millis(20));
    let rest: Vec<u32> = given[1..4].to_vec();
    let told = news(bench.pass(Duration::from_millis(20)));
    assert_eq!(told, [(node(0), rest.clone()), (node(1), rest)]);
    assert_eq!(news(bench.pass(Duration::from_millis(900))), []);
}

#[derive(Debug)]
struct Panics;

impl Placement for Panics {
    fn place(&self, _: Shard, _: &[Load]) -> Option<usize> {
        panic!("as it was told")
    }

    fn moves(&self, _: &[Load], _: &[(Shard, usize)], _: usize) -> Vec<Shard> {
        panic!("as it was told")
    }
}

/// What users wrote is asked again now and then, and told once.
#[test]
fn a_placement_that_panics_is_told_once() {
    let mut bench = Bench::new(Setup::Lease, 1, 2);
    bench.coordinator.settings.strategy = Strategy::custom(Panics);
    let [zero, _] = bench.hosts();
    assert!(!bench.won(5, &[]).contains(&Effect::Tell(Event::PlacementPanicked)), "of nobody");
    let mut effects = bench.report(5, zero, &[]);
    bench.coordinator.note_written(1, bench.now);
    effects.extend(bench.pass(Duration::from_secs(5)));
    let panicked = Effect::Tell(Event::PlacementPanicked);
    assert_eq!(effects.iter().filter(|it| **it == panicked).count(), 1, "{effects:?}");
    assert!(bench.coordinator.is_active(bench.now));
    bench.coordinator.settings.strategy = Strategy::LeastShards;
    let mut given = directives(&bench.pass(Duration::from_secs(1)));
    given.dedup(); // Nobody answers, so it is sent again.
    assert_eq!(given.len(), 1, "{given:?}");
}
