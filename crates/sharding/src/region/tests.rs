use std::time::Duration;

use tenure_lease::{Moment, Token};

use super::{Effect, Leftover, Region, Unroutable, Way};
use crate::testing::{at, host, node, session};
use crate::wire::{Answer, Directive, Message, Refusal};
use crate::{Host, Settings, Setup, Shard, Version};

type Effects = Vec<Effect<&'static str>>;

const S: Shard = Shard(3);
const UNTIL: Moment = Moment::from_nanos(u64::MAX / 2);

struct Bench {
    region: Region<&'static str>,
    now: Moment,
}

impl Bench {
    /// The region of node 1, registered with the coordinator on node 0 of term 5.
    fn new(setup: Setup) -> Self {
        Self::with(Settings::new(setup, 8))
    }

    fn with(settings: Settings) -> Self {
        let has_sessions = settings.has_sessions();
        let mut bench = Self { region: Region::new(node(1), settings, true), now: at(1000) };
        if has_sessions {
            bench.region.session_won(session(1, 1), UNTIL, bench.now);
        }
        bench.region.reachable((0..3).map(node).collect(), bench.now);
        bench.greet(0, 5);
        bench
    }

    fn effects(&mut self) -> Effects {
        self.region.effects().collect()
    }

    fn greet(&mut self, from: usize, term: u64) -> Effects {
        self.receive(from, Message::Greeting { term, digest: None })
    }

    fn receive(&mut self, from: usize, message: Message) -> Effects {
        self.region.receive(&node(from), message, self.now);
        self.effects()
    }

    fn allocate(&mut self, term: u64, step: u64) -> Effects {
        let host = self.region.host().unwrap();
        self.receive(0, Message::Allocate(directive(host, term, step)))
    }

    fn hand_off(&mut self, term: u64, step: u64) -> Effects {
        let host = self.region.host().unwrap();
        self.receive(0, Message::HandOff(directive(host, term, step)))
    }

    fn stopped(&mut self, term: u64, step: u64) -> Effects {
        self.region.stopped(S, Token::new(term, step), self.now);
        self.effects()
    }

    fn send(&mut self, message: &'static str) -> Effects {
        self.region.send(S, message, message.len(), self.now);
        self.effects()
    }

    fn home(&mut self, index: usize, step: u64) -> Effects {
        let homes = vec![(S, Token::new(5, step), node(index))];
        self.receive(0, Message::Homes { term: 5, homes })
    }
}

fn directive(host: Host, term: u64, step: u64) -> Directive {
    Directive { term, host, shards: vec![(S, Token::new(term, step))] }
}

fn start(term: u64, step: u64) -> Effect<&'static str> {
    Effect::Start { shard: S, token: Token::new(term, step) }
}

fn stop(term: u64, step: u64) -> Effect<&'static str> {
    Effect::Stop { shard: S, token: Token::new(term, step) }
}

fn started(term: u64, step: u64) -> Effect<&'static str> {
    let shards = vec![(S, Token::new(term, step))];
    Effect::Send(node(0), Message::Started(Answer { host: host(1, 1), shards }))
}

fn stopped(term: u64, step: u64) -> Effect<&'static str> {
    let shards = vec![(S, Token::new(term, step))];
    Effect::Send(node(0), Message::Stopped(Answer { host: host(1, 1), shards }))
}

/// Said when the session is lost, and this shard stops.
fn without_session(term: u64, step: u64) -> Effect<&'static str> {
    let shards = vec![(S, Token::new(term, step))];
    let report = Message::Report { term, host: None, shards, version: Version::default() };
    Effect::Send(node(0), report)
}

fn refused(to: usize, refusal: Refusal) -> Effect<&'static str> {
    Effect::Send(node(to), Message::Refused(refusal))
}

fn ask() -> Effect<&'static str> {
    Effect::Send(node(0), Message::Where(vec![S]))
}

/// What a region asks that knows nothing.
fn ask_all() -> Effect<&'static str> {
    Effect::Send(node(0), Message::Where((0..8).map(Shard).collect()))
}

fn deliver(message: &'static str, step: u64) -> Effect<&'static str> {
    Effect::Deliver { shard: S, token: Token::new(5, step), message }
}

fn forward(to: usize, message: &'static str) -> Effect<&'static str> {
    Effect::Forward { to: node(to), shard: S, message }
}

#[test]
fn hosts_and_hands_off() {
    let mut bench = Bench::new(Setup::Sessions);
    assert_eq!(bench.allocate(5, 1), [start(5, 1), started(5, 1)]);
    // Again, because the answer was lost.
    assert_eq!(bench.allocate(5, 1), [started(5, 1)]);
    assert_eq!(bench.region.fence(S), Some(Token::new(5, 1)));
    assert_eq!(bench.hand_off(5, 1), [stop(5, 1)]);
    assert_eq!(bench.hand_off(5, 1), []);
    assert_eq!(bench.stopped(5, 1), [stopped(5, 1)]);
    assert_eq!(bench.hand_off(5, 1), [stopped(5, 1)]);
}

/// It says that it hosts nothing before it says what has stopped, and begins nothing any more.
#[test]
fn hosts_no_more_and_then_again() {
    let mut bench = Bench::new(Setup::Sessions);
    bench.allocate(5, 1);
    let host = bench.region.host().unwrap();
    bench.region.stop_hosting(bench.now);
    assert_eq!(bench.effects(), [stop(5, 1), without_session(5, 1)]);
    let late = bench.receive(0, Message::Allocate(directive(host, 5, 2)));
    assert_eq!(late, [refused(0, Refusal::OtherSession)]);
    assert_eq!(bench.stopped(5, 1), [stopped(5, 1), Effect::SessionEnded]);
    assert!(!bench.region.wants_session());
    bench.region.host_again(bench.now);
    assert!(bench.region.wants_session());
}

#[test]
fn what_cannot_work_here_is_given_back() {
    let mut bench = Bench::new(Setup::Sessions);
    bench.allocate(5, 2);
    bench.region.give_back(S, Token::new(5, 1), bench.now);
    assert_eq!(bench.effects(), [], "that was another allocation");
    for expected in [vec![stop(5, 2)], vec![]] {
        bench.region.give_back(S, Token::new(5, 2), bench.now);
        assert_eq!(bench.effects(), expected);
    }
    assert_eq!(bench.stopped(5, 2), [stopped(5, 2)]);
    assert_eq!(bench.allocate(5, 3), [start(5, 3), started(5, 3)]);
}

/// A hand-off has more time than a session that is lost.
#[test]
fn what_stops_already_is_hurried_when_the_session_is_lost() {
    let mut bench = Bench::new(Setup::Sessions);
    bench.allocate(5, 1);
    bench.hand_off(5, 1);
    bench.region.session_lost(bench.now);
    let hurry = Effect::Hurry { shard: S, token: Token::new(5, 1) };
    assert_eq!(bench.effects(), [hurry, without_session(5, 1)]);
}

#[test]
fn a_late_allocate_after_its_own_hand_off_is_not_obeyed() {
    let mut bench = Bench::new(Setup::Sessions);
    assert_eq!(bench.hand_off(5, 1), [stopped(5, 1)]);
    assert_eq!(bench.allocate(5, 1), [stopped(5, 1)]);
    assert_eq!(bench.region.counts().late, 1);
    assert_eq!(bench.allocate(5, 2), [start(5, 2), started(5, 2)]);
}

/// That it has started, and stopped, was lost: or it would be asked to start it for ever.
#[test]
fn an_allocation_that_is_over_is_said_to_be_so_again() {
    let mut bench = Bench::new(Setup::Sessions);
    bench.allocate(5, 1);
    bench.stopped(5, 1);
    assert_eq!(bench.allocate(5, 1), [stopped(5, 1)]);
    // While a former one stops here, a later one may not begin elsewhere.
    bench.allocate(5, 2);
    bench.hand_off(5, 3);
    assert_eq!(bench.allocate(5, 3), []);
}

#[test]
fn what_a_former_coordinator_wanted_is_not_begun() {
    let mut bench = Bench::new(Setup::Sessions);
    bench.allocate(5, 1);
    assert_eq!(bench.allocate(5, 2), [stop(5, 1)]);
    bench.greet(2, 6);
    let effects = bench.stopped(5, 1);
    assert!(!effects.contains(&start(5, 2)), "{effects:?}");
    assert_eq!(bench.region.shards().len(), 0);
}

#[test]
fn what_a_later_coordinator_says_counts() {
    let mut bench = Bench::new(Setup::Gossip);
    bench.home(2, 9);
    bench.greet(0, 6);
    let homes = vec![(S, Token::new(4, 1), node(0))];
    bench.receive(0, Message::Homes { term: 6, homes });
    bench.region.marked(&node(2), S);
    assert_eq!(bench.region.way(S), Way::There(node(0)));
}

#[test]
fn whatever_is_below_is_refused_and_said_so() {
    let mut bench = Bench::new(Setup::Sessions);
    bench.allocate(5, 1);
    let report = Message::Report {
        term: 6,
        host: Some(host(1, 1)),
        shards: vec![(S, Token::new(5, 1))],
        version: Version::default(),
    };
    assert_eq!(bench.greet(2, 6), [Effect::Send(node(2), report)]);
    let other = Refusal::OtherCoordinator { term: 6 };
    assert_eq!(bench.hand_off(5, 1), [refused(0, other)]);
    assert_eq!(bench.allocate(5, 9), [refused(0, other)]);
    assert_eq!(bench.greet(0, 5), [refused(0, other)]);
    // Of the same term from elsewhere, too: without a lease there may be two.
    assert_eq!(bench.greet(0, 6), [refused(0, other)]);
    assert_eq!(bench.region.counts().refused_coordinator, 4);
    // Nor does a term count that has not been greeted with.
    let ahead = directive(host(1, 1), 7, 1);
    assert_eq!(bench.receive(2, Message::Allocate(ahead)), [refused(2, other)]);
}

#[test]
fn a_directive_for_a_former_session_is_refused() {
    let mut bench = Bench::new(Setup::Sessions);
    bench.allocate(5, 1);
    bench.region.session_lost(bench.now);
    assert_eq!(bench.effects(), [stop(5, 1), without_session(5, 1)]);
    let to_former = directive(host(1, 1), 5, 2);
    let other = [refused(0, Refusal::OtherSession)];
    assert_eq!(bench.receive(0, Message::Allocate(to_former.clone())), other);
    // All has stopped: the session may be given back.
    assert_eq!(bench.stopped(5, 1), [stopped(5, 1), Effect::SessionEnded]);
    assert_eq!(bench.region.host(), None);
    bench.region.session_won(session(1, 2), UNTIL, bench.now);
    let report = Message::Report {
        term: 5,
        host: Some(host(1, 2)),
        shards: vec![],
        version: Version::default(),
    };
    assert_eq!(bench.effects(), [Effect::Send(node(0), report)]);
    assert_eq!(bench.receive(0, Message::Allocate(to_former)), other);
}

#[test]
fn a_session_whose_time_is_over_is_lost_without_being_told() {
    let mut bench = Bench::new(Setup::Sessions);
    bench.allocate(5, 1);
    bench.region.session_renewed(UNTIL + Duration::from_secs(1), bench.now);
    bench.now = UNTIL + Duration::from_secs(1);
    // A message is the first that it hears after having stood still.
    bench.region.forwarded(&node(2), S, "late", bench.now);
    let returned = Effect::Return { to: node(2), shard: S, message: "late" };
    assert_eq!(bench.effects(), [stop(5, 1), without_session(5, 1), returned]);
}

#[test]
fn no_session_no_shards() {
    let settings = Settings::new(Setup::Sessions, 8);
    let mut bench = Bench { region: Region::new(node(1), settings, true), now: at(1) };
    let report =
        Message::Report { term: 5, host: None, shards: vec![], version: Version::default() };
    assert_eq!(bench.greet(0, 5), [Effect::Send(node(0), report), ask_all()]);
    let directive = directive(host(1, 1), 5, 1);
    let other = [refused(0, Refusal::OtherSession)];
    assert_eq!(bench.receive(0, Message::Allocate(directive)), other);
}

#[test]
fn a_newer_allocation_waits_for_the_stop_of_the_older() {
    let mut bench = Bench::new(Setup::Sessions);
    bench.allocate(5, 1);
    assert_eq!(bench.allocate(5, 4), [stop(5, 1)]);
    assert_eq!(bench.stopped(5, 1), [stopped(5, 1), start(5, 4), started(5, 4)]);
}

#[test]
fn a_greeting_is_answered_only_if_it_is_wrong() {
    let mut bench = Bench::new(Setup::Sessions);
    bench.allocate(5, 1);
    let known = [(S, Token::new(5, 1))];
    let digest = Some(crate::wire::digest(Some(&host(1, 1)), known.into_iter()));
    assert_eq!(bench.receive(0, Message::Greeting { term: 5, digest }), []);
    let digest = Some(crate::wire::digest(Some(&host(1, 2)), known.into_iter()));
    assert_eq!(bench.receive(0, Message::Greeting { term: 5, digest }).len(), 1);
}

#[test]
fn leaving_waits_for_the_hand_off_then_for_nobody() {
    let mut bench = Bench::new(Setup::Sessions);
    bench.allocate(5, 1);
    bench.region.leave(bench.now);
    assert_eq!(bench.effects(), []);
    // Nothing new is taken.
    let host = host(1, 1);
    let another = Directive { term: 5, host, shards: vec![(Shard(4), Token::new(5, 2))] };
    let effects = bench.receive(0, Message::Allocate(another));
    assert!(matches!(effects[..], [Effect::Send(_, Message::Stopped(_))]), "{effects:?}");
    bench.now += Duration::from_secs(10);
    bench.region.poll(bench.now);
    assert_eq!(bench.effects(), [stop(5, 1)]);
    let expected = [stopped(5, 1), Effect::SessionEnded, Effect::HandedOver];
    assert_eq!(bench.stopped(5, 1), expected);
}

#[test]
fn the_end_stops_everything() {
    let mut bench = Bench::new(Setup::Lease);
    bench.allocate(5, 1);
    bench.region.send(Shard(7), "waits", 5, bench.now);
    bench.effects();
    bench.region.end(bench.now);
    let failed = Effect::Fail { message: "waits", why: Unroutable::Ended };
    assert_eq!(bench.effects(), [failed, stop(5, 1)]);
    assert_eq!(bench.send("x"), [Effect::Fail { message: "x", why: Unroutable::Ended }]);
}

#[test]
fn messages_wait_for_a_home_and_go_there_in_order() {
    let mut bench = Bench::new(Setup::Lease);
    assert_eq!(bench.send("a"), [ask()]);
    assert_eq!(bench.send("b"), []);
    assert_eq!(bench.home(2, 1), [forward(2, "a"), forward(2, "b")]);
    assert_eq!(bench.send("c"), [forward(2, "c")]);
}

#[test]
fn messages_wait_for_a_home_that_is_here() {
    let mut bench = Bench::new(Setup::Lease);
    bench.send("a");
    let effects = bench.allocate(5, 1);
    assert_eq!(effects[0], start(5, 1));
    assert_eq!(effects[2..], [deliver("a", 1)]);
    assert_eq!(bench.send("b"), [deliver("b", 1)]);
}

#[test]
fn what_comes_back_stays_before_what_came_later() {
    let mut bench = Bench::new(Setup::Lease);
    bench.home(2, 1);
    assert_eq!(bench.send("a"), [forward(2, "a")]);
    assert_eq!(bench.send("b"), [forward(2, "b")]);
    // The shard moves; both are on their way still.
    bench.region.returned(&node(2), S, "a", 1, bench.now);
    assert_eq!(bench.effects(), [Effect::Mark { to: node(2), shard: S }, ask()]);
    assert_eq!(bench.send("c"), []);
    // The new home is known before "b" is back.
    assert_eq!(bench.home(0, 2), []);
    bench.region.returned(&node(2), S, "b", 1, bench.now);
    assert_eq!(bench.effects(), []);
    bench.region.marked(&node(2), S);
    assert_eq!(bench.effects(), [forward(0, "a"), forward(0, "b"), forward(0, "c")]);
}

/// What was sent to a home that is unreachable for a while, or that takes too long, comes back when later
/// messages were sent to the next home: it must not follow them.
#[test]
fn what_comes_back_too_late_does_not_follow_later_ones() {
    for unreachable in [true, false] {
        let mut bench = Bench::new(Setup::Lease);
        bench.home(2, 1);
        assert_eq!(bench.send("one"), [forward(2, "one")]);
        let mark = || Effect::Mark { to: node(2), shard: S };
        if unreachable {
            bench.region.reachable((0..2).map(node).collect(), bench.now);
            assert_eq!(bench.home(0, 2), []);
        } else {
            assert_eq!(bench.home(0, 2), [mark()]);
            bench.now += Duration::from_secs(2);
            bench.region.poll(bench.now);
        }
        assert_eq!(bench.send("two"), [forward(0, "two")]);
        bench.region.reachable((0..3).map(node).collect(), bench.now);
        bench.effects();
        let fail = |message| [Effect::Fail { message, why: Unroutable::Late }];
        bench.region.returned(&node(2), S, "one", 3, bench.now);
        assert_eq!(bench.effects(), fail("one"), "unreachable: {unreachable}");
        assert_eq!(bench.send("three"), [forward(0, "three")]);
        // It is asked again for a mark. Once that is answered, what comes back is in order.
        bench.now = bench.region.next_wake();
        bench.region.poll(bench.now);
        assert_eq!(bench.effects(), [mark()]);
        bench.region.marked(&node(2), S);
        bench.home(2, 3);
        bench.region.marked(&node(0), S);
        assert_eq!(bench.send("four"), [forward(2, "four")]);
        bench.effects();
        bench.region.returned(&node(2), S, "four", 4, bench.now);
        assert_eq!(bench.effects(), [mark(), ask()], "it waits");
    }
}

/// As long as nothing was sent elsewhere, what comes back after a while is in order.
#[test]
fn what_comes_back_before_there_is_a_next_home_is_in_time() {
    let mut bench = Bench::new(Setup::Lease);
    bench.home(2, 1);
    assert_eq!(bench.send("one"), [forward(2, "one")]);
    bench.region.farewell(&node(2), bench.now);
    bench.send("two");
    bench.now += Duration::from_secs(3);
    bench.region.poll(bench.now);
    bench.region.returned(&node(2), S, "one", 3, bench.now);
    bench.region.marked(&node(2), S);
    bench.effects();
    assert_eq!(bench.home(0, 2), [forward(0, "one"), forward(0, "two")]);
}

#[test]
fn a_former_home_that_is_gone_is_not_waited_for() {
    for gone in [true, false] {
        let mut bench = Bench::new(Setup::Lease);
        bench.home(2, 1);
        bench.region.returned(&node(2), S, "a", 1, bench.now);
        bench.home(0, 2);
        bench.effects();
        bench.now += Duration::from_secs(2);
        match gone {
            true => bench.region.reachable((0..2).map(node).collect(), bench.now),
            false => bench.region.poll(bench.now),
        }
        bench.region.poll(bench.now);
        assert_eq!(bench.effects(), [forward(0, "a")], "gone: {gone}");
    }
}

#[test]
fn what_is_for_a_home_out_of_reach_waits() {
    let mut bench = Bench::new(Setup::Lease);
    bench.home(2, 1);
    bench.region.reachable((0..2).map(node).collect(), bench.now);
    assert_eq!(bench.send("a"), [ask()]);
    // The coordinator knows no better yet.
    assert_eq!(bench.home(2, 1), []);
    bench.region.reachable((0..3).map(node).collect(), bench.now);
    assert_eq!(bench.effects(), [forward(2, "a")]);
}

#[test]
fn an_overflow_is_an_error() {
    let settings =
        Settings { buffer_messages: 2, buffer_bytes: 10, ..Settings::new(Setup::Lease, 8) };
    let mut bench = Bench::with(settings);
    bench.send("12345678");
    let why = Unroutable::BufferFull { messages: 1, bytes: 8 };
    assert_eq!(bench.send("345"), [Effect::Fail { message: "345", why }]);
    assert_eq!(bench.send("9"), []);
    let why = Unroutable::BufferFull { messages: 2, bytes: 9 };
    assert_eq!(bench.send("0"), [Effect::Fail { message: "0", why }]);
    assert_eq!(bench.region.counts().overflows, 2);
}

#[test]
fn a_proxy_hosts_nothing_and_finds_everything() {
    let settings = Settings::new(Setup::Sessions, 8);
    let mut bench = Bench { region: Region::new(node(1), settings, false), now: at(1) };
    bench.region.reachable((0..3).map(node).collect(), bench.now);
    let report =
        Message::Report { term: 5, host: None, shards: vec![], version: Version::default() };
    assert_eq!(bench.greet(0, 5), [Effect::Send(node(0), report), ask_all()]);
    assert_eq!(bench.send("a"), [ask()]);
    assert_eq!(bench.home(2, 1), [forward(2, "a")]);
}

#[test]
fn a_new_coordinator_is_asked_again() {
    let mut bench = Bench::new(Setup::Lease);
    assert_eq!(bench.send("a"), [ask()]);
    bench.greet(2, 6);
    bench.region.poll(bench.now);
    assert_eq!(bench.effects(), [Effect::Send(node(2), Message::Where(vec![S]))]);
}

#[test]
fn what_a_shard_has_not_looked_at_goes_first() {
    let mut bench = Bench::new(Setup::Lease);
    bench.allocate(5, 1);
    bench.hand_off(5, 1);
    assert_eq!(bench.send("late"), [ask()]);
    let leftover = |from: Option<usize>, message: &'static str| Leftover {
        from: from.map(node),
        message,
        bytes: message.len(),
    };
    let left = vec![leftover(None, "one"), leftover(Some(2), "theirs"), leftover(None, "two")];
    bench.region.stopped_with(S, Token::new(5, 1), left, bench.now);
    let returned = Effect::Return { to: node(2), shard: S, message: "theirs" };
    assert!(bench.effects().contains(&returned));
    let sent = bench.home(0, 2);
    assert_eq!(sent, [forward(0, "one"), forward(0, "two"), forward(0, "late")]);
}

#[test]
fn a_home_that_moves_is_settled_before_the_next_is_sent_to() {
    let mut bench = Bench::new(Setup::Lease);
    bench.home(2, 1);
    assert_eq!(bench.region.way(S), Way::There(node(2)));
    assert_eq!(bench.send("first"), [forward(2, "first")]);
    assert_eq!(bench.home(0, 2), [Effect::Mark { to: node(2), shard: S }]);
    assert_eq!(bench.region.way(S), Way::Waits);
    assert_eq!(bench.send("second"), []);
    bench.region.returned(&node(2), S, "first", 5, bench.now);
    assert_eq!(bench.effects(), []);
    bench.region.marked(&node(2), S);
    assert_eq!(bench.effects(), [forward(0, "first"), forward(0, "second")]);
    assert_eq!(bench.region.way(S), Way::There(node(0)));
}

#[test]
fn a_shard_that_comes_here_waits_for_what_was_sent_to_its_former_home() {
    let mut bench = Bench::new(Setup::Lease);
    bench.home(2, 1);
    assert_eq!(bench.send("first"), [forward(2, "first")]);
    let effects = bench.allocate(5, 2);
    assert!(effects.contains(&Effect::Mark { to: node(2), shard: S }), "{effects:?}");
    assert_eq!(bench.send("second"), []);
    bench.region.returned(&node(2), S, "first", 5, bench.now);
    bench.effects();
    bench.region.marked(&node(2), S);
    assert_eq!(bench.effects(), [deliver("first", 2), deliver("second", 2)]);
    assert_eq!(bench.region.way(S), Way::Here(Token::new(5, 2)));
}

#[test]
fn a_node_that_goes_is_nobodys_home() {
    let mut bench = Bench::new(Setup::Lease);
    bench.home(2, 1);
    assert_eq!(bench.region.way(S), Way::There(node(2)));
    bench.region.farewell(&node(2), bench.now);
    assert!(bench.effects().contains(&Effect::Mark { to: node(2), shard: S }));
    assert!(bench.region.is_returning(&node(2)));
    bench.send("later");
    bench.region.marked(&node(2), S);
    assert!(!bench.region.is_returning(&node(2)));
    assert_eq!(bench.region.way(S), Way::Waits);
    let to = node(0);
    assert_eq!(bench.home(0, 2), [Effect::Forward { to, shard: S, message: "later" }]);
}

/// Others may have been told of a home that is as good as forgotten now, and are not told again.
#[test]
fn a_home_that_is_forgotten_is_asked_for_at_once() {
    let mut bench = Bench::new(Setup::Lease);
    bench.home(2, 1);
    bench.region.send(Shard(4), "waits", 5, bench.now);
    bench.effects();
    bench.region.returned(&node(2), S, "back", 4, bench.now);
    let wanted = Message::Where(vec![S, Shard(4)]);
    assert!(bench.effects().contains(&Effect::Send(node(0), wanted)));
}
