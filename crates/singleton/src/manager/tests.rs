//! The manager step by step: exactly what it says and does.

use tenure_cluster::{Incarnation, Member};

use super::*;
use crate::Placement;

const LEASE: bool = true;

fn at(seconds: f64) -> Moment {
    Moment::ZERO + Duration::from_secs_f64(seconds)
}

fn node(name: &str) -> Node {
    Node { address: format!("{name}:1").parse().unwrap(), incarnation: Incarnation(7) }
}

fn token(term: u64) -> Token {
    Token { term, step: 0 }
}

/// `"a b* c- d!"`: a is the oldest; b is exiting, c unreachable, d down. One that is `_` was removed.
fn view(text: &str) -> View {
    let (mut members, mut cuts) = (Vec::new(), Vec::new());
    for (index, word) in text.split(' ').enumerate().filter(|(_, word)| *word != "_") {
        let (name, mark) = word.split_at(1);
        let status = match mark {
            "*" => Status::Exiting,
            "!" => Status::Down,
            _ => Status::Up,
        };
        let member = Member {
            status,
            up_number: index as u64 + 1,
            roles: Default::default(),
            facts: Default::default(),
        };
        members.push((node(name), member));
        if mark == "-" {
            cuts.push((node("z"), node(name)));
        }
    }
    members.push((
        node("z"),
        Member {
            status: Status::Up,
            up_number: 99,
            roles: Default::default(),
            facts: Default::default(),
        },
    ));
    View::of(members, cuts)
}

struct Test(Manager, BTreeSet<Node>);

impl Test {
    fn new(me: &str, lease: bool) -> Self {
        let settings = Settings { role: None, ..Settings::default() };
        Self(Manager::new(node(me), "cron", lease, settings, at(0.0)), BTreeSet::new())
    }

    /// Everything but what is said.
    fn does(&mut self) -> Vec<Effect> {
        let says = |effect: &Effect| matches!(effect, Effect::Tell(..) | Effect::Ask(..));
        self.all().into_iter().filter(|effect| !says(effect)).collect()
    }

    fn all(&mut self) -> Vec<Effect> {
        std::iter::from_fn(|| self.0.next_effect()).collect()
    }

    /// A view; whoever is new in it has a manager, and says so.
    fn view(&mut self, now: f64, text: &str) -> Vec<Effect> {
        let (view, me) = (view(text), self.0.me.clone());
        self.0.view(at(now), &view);
        for (node, _) in view.members().filter(|(node, _)| **node != me) {
            if self.1.insert(node.clone()) {
                self.0.heard(at(now), node, &Word::State { hosting: None, able: true });
            }
        }
        self.does()
    }

    /// A view in which nobody says anything.
    fn silent_view(&mut self, now: f64, text: &str) -> Vec<Effect> {
        self.0.view(at(now), &view(text));
        self.does()
    }

    fn hear(&mut self, now: f64, from: &str, hosting: Option<Token>) -> Vec<Effect> {
        self.0.heard(at(now), &node(from), &Word::State { hosting, able: true });
        self.does()
    }

    fn pass(&mut self, until: f64) -> Vec<Effect> {
        while self.0.next_wake() <= at(until) {
            self.0.tick(self.0.next_wake());
        }
        self.0.tick(at(until));
        self.does()
    }
}

#[test]
fn with_a_lease_whoever_says_nothing_is_not_waited_for() {
    let mut b = Test::new("b", LEASE);
    assert_eq!(b.silent_view(0.0, "a b"), [Stand(Observing)]);
    assert_eq!(b.pass(9.9), []);
    assert_eq!(b.pass(10.0), [Stand(Allowed)], "a has a proxy, or an older program");
    // It is there after all: whoever hosts hands over to it, as always.
    b.0.won(at(11.0), token(5));
    b.does();
    b.hear(12.0, "a", None);
    assert_eq!(b.pass(22.0), [Stop(StopReason::HandOver(node("a")))]);
    let mut b = Test::new("b", LEASE);
    b.silent_view(0.0, "a b");
    b.hear(1.0, "a", None);
    assert_eq!(b.pass(600.0), [], "a has a manager, and is waited for");
}

#[test]
fn managers_introduce_themselves() {
    let mut b = Test::new("b", false);
    b.0.view(at(0.0), &view("a b"));
    let state = Word::State { hosting: None, able: true };
    let (a, z) = (node("a"), node("z"));
    assert_eq!(b.all(), [Tell(a.clone(), state.clone()), Tell(z.clone(), state.clone())]);
    b.0.heard(at(0.1), &z, &state);
    assert_eq!(b.all(), [Tell(z, state.clone())], "an answer");
    b.0.tick(at(1.0));
    assert_eq!(b.all(), [Ask(a.clone(), state.clone())], "without a lease it has to know");
    b.0.absent(at(1.1), &a);
    assert_eq!(b.does(), [Start(token(2))]);
    // With one it can wait.
    let mut b = Test::new("b", LEASE);
    b.0.view(at(0.0), &view("a b"));
    b.all();
    b.0.tick(at(1.0));
    assert!(b.all().contains(&Tell(a, state)));
}

#[test]
fn no_lease_members_without_a_manager_are_not_waited_for() {
    let mut b = Test::new("b", false);
    assert_eq!(b.silent_view(0.0, "a b c"), []);
    b.hear(0.1, "z", None);
    b.0.absent(at(0.1), &node("a"));
    assert_eq!(b.does(), [], "c might have been first");
    assert_eq!(b.pass(9.9), []);
    assert_eq!(b.pass(10.0), [Start(token(2))], "c says nothing at all");
    // One that has gone, and had none, is not waited for either.
    let mut b = Test::new("b", false);
    b.silent_view(0.0, "a b");
    b.hear(0.1, "z", None);
    b.0.absent(at(0.2), &node("a"));
    assert_eq!(b.does(), [Start(token(2))]);
}

#[test]
fn no_lease_one_that_is_slow_is_waited_for() {
    let mut b = Test::new("b", false);
    b.silent_view(0.0, "a b");
    b.hear(0.1, "z", None);
    b.hear(0.1, "a", None);
    assert_eq!(b.pass(600.0), []);
    let mut b = Test::new("b", false);
    b.silent_view(0.0, "a- b");
    b.hear(0.1, "z", None);
    assert_eq!(b.pass(600.0), [], "who is out of reach can say nothing");
}

#[test]
fn no_lease_an_older_one_that_comes_late_waits() {
    let mut a = Test::new("a", false);
    assert_eq!(a.silent_view(0.0, "a b"), [], "b may host it");
    a.hear(0.1, "z", None);
    a.hear(0.1, "b", Some(token(2)));
    assert_eq!(a.pass(60.0), []);
    assert!(a.0.why_not().contains("another node hosts it"), "{}", a.0.why_not());
    a.hear(60.5, "b", None);
    assert_eq!(a.pass(61.0), [], "it is stopping, perhaps");
    a.0.heard(at(62.0), &node("b"), &Word::HandedOver { token: token(2) });
    assert_eq!(a.does(), [Start(token(1))]);
    // One that has hosted, and was removed, counts for the margin.
    let mut a = Test::new("a", false);
    a.silent_view(0.0, "a b");
    a.hear(0.1, "z", None);
    a.hear(0.1, "b", Some(token(2)));
    assert_eq!(a.silent_view(5.0, "a _"), []);
    assert_eq!(a.pass(24.9), []);
    assert_eq!(a.pass(25.0), [Start(token(1))]);
}

use Effect::{Ask, Look, Over, Release, Stand, Start, Stop, Tell};
use Stance::{Allowed, Observing, Out};

#[test]
fn acquire_blocks_spawn() {
    let mut a = Test::new("a", LEASE);
    assert_eq!(a.view(0.0, "a b"), [Stand(Allowed)]);
    for second in 1..100 {
        a.0.tick(at(f64::from(second)));
    }
    assert_eq!(a.does(), [], "another holds it: the slot stays empty");
    assert!(a.0.why_not().contains("another node still holds"));
    a.0.won(at(100.0), token(5));
    assert_eq!(a.does(), [Start(token(5)), Stand(Out)]);
}

#[test]
fn on_lost_stops_entity() {
    let mut a = Test::new("a", LEASE);
    a.view(0.0, "a b");
    a.0.won(at(1.0), token(5));
    a.does();
    a.0.lost(at(9.0), Loss::Expired);
    assert_eq!(a.does(), [Stop(StopReason::LeaseLost(Loss::Expired))], "at once");
    a.0.tick(at(10.0));
    assert_eq!(a.does(), [], "nothing is given back before it has ended");
    a.0.ended(at(11.0));
    assert_eq!(a.does(), [Release]);
    a.0.released(at(11.1));
    // The store did not answer it: others may, so it only looks until it does.
    assert_eq!(a.does(), [Stand(Observing)]);
    a.0.store(at(12.0), true);
    assert_eq!(a.does(), [Stand(Allowed)]);
}

#[test]
fn release_on_leave() {
    let mut a = Test::new("a", LEASE);
    a.view(0.0, "a b");
    a.0.won(at(1.0), token(5));
    a.view(2.0, "a* b");
    a.0.leave(at(2.0));
    assert_eq!(a.does(), [Stop(StopReason::Leaving)]);
    a.0.ended(at(4.0));
    assert_eq!(a.does(), [Release]);
    a.0.released(at(4.1));
    let told = Tell(node("b"), Word::HandedOver { token: token(5) });
    let all = a.all();
    let place = |effect: &Effect| all.iter().position(|it| it == effect).unwrap();
    assert!(place(&told) < place(&Over), "the successor is told before the node goes: {all:?}");
    a.0.won(at(5.0), token(9));
    assert_eq!(a.does(), [Release], "it is over");
}

#[test]
fn retry_interval() {
    let mut a = Test::new("a", LEASE);
    a.view(0.0, "a b");
    a.0.refused(at(1.0));
    assert_eq!(a.0.next_wake(), at(2.0), "says that it is unable");
    a.does();
    a.0.tick(at(5.9));
    assert_eq!(a.does(), []);
    a.0.tick(at(6.0));
    assert_eq!(a.does(), [Stand(Allowed)]);
}

#[test]
fn no_lease_path() {
    let (mut a, mut b) = (Test::new("a", false), Test::new("b", false));
    assert_eq!(a.view(0.0, "a b"), [Start(token(1))], "the oldest, at once");
    assert_eq!(b.view(0.0, "a b"), []);
    assert_eq!(b.view(1.0, "a- b"), [], "unreachable is not gone");
    assert_eq!(b.view(2.0, "a! b"), []);
    assert_eq!(b.view(3.0, "_ b"), []);
    assert_eq!(b.0.next_wake(), at(23.0));
    b.0.tick(at(22.9));
    assert_eq!(b.does(), []);
    b.0.tick(at(23.0));
    assert_eq!(b.does(), [Start(token(2))], "removed, and the margin is over");
}

#[test]
fn no_lease_hand_over() {
    let (mut a, mut c) = (Test::new("a", false), Test::new("c", false));
    a.view(0.0, "a b c");
    c.view(0.0, "a b c");
    assert_eq!(c.view(1.0, "a* b* c"), []);
    c.0.heard(at(1.5), &node("b"), &Word::HandedOver { token: Token::default() });
    assert_eq!(c.does(), [], "b has stopped, a has not");
    a.view(1.0, "a* b* c");
    a.0.leave(at(2.0));
    assert_eq!(a.does(), [Stop(StopReason::Leaving)]);
    a.0.ended(at(4.0));
    assert_eq!(a.does(), [Over]);
    c.0.heard(at(4.0), &node("a"), &Word::HandedOver { token: token(1) });
    assert_eq!(c.does(), [Start(token(3))]);
}

#[test]
fn no_lease_one_who_leaves_waits_for_whom_it_waited() {
    let mut b = Test::new("b", false);
    b.view(0.0, "a b c");
    b.view(5.0, "_ b c");
    b.view(6.0, "_ b* c");
    b.0.leave(at(6.0));
    assert_eq!(b.does(), [], "c does not know of a");
    b.0.tick(at(25.0));
    assert_eq!(b.does(), [Over]);
}

#[test]
fn the_candidate_contends() {
    let mut b = Test::new("b", LEASE);
    assert_eq!(b.view(0.0, "a b c"), [Stand(Observing)]);
    assert_eq!(b.view(1.0, "a- b c"), [Stand(Allowed)], "a is unreachable");
    assert_eq!(b.view(2.0, "a b c"), [Stand(Observing)]);
    b.0.heard(at(3.0), &node("a"), &Word::State { hosting: None, able: false });
    assert_eq!(b.does(), [Stand(Allowed)], "a is unable");
    let mut e = Test::new("e", LEASE);
    assert_eq!(e.view(0.0, "a b c d e"), [], "only a few observe");
}

#[test]
fn handed_back_when_the_older_one_stays() {
    let mut b = Test::new("b", LEASE);
    b.view(0.0, "a- b");
    b.0.won(at(1.0), token(5));
    b.view(2.0, "a b");
    b.0.tick(at(8.0));
    b.view(8.0, "a- b");
    b.view(9.0, "a b");
    b.does();
    b.0.tick(at(18.9));
    assert_eq!(b.does(), [], "it was away again");
    b.0.tick(at(19.0));
    assert_eq!(b.does(), [Stop(StopReason::HandOver(node("a")))]);
    b.0.ended(at(19.5));
    assert_eq!(b.does(), [Release]);
    b.0.released(at(19.6));
    assert_eq!(b.does(), [Stand(Observing)]);
}

#[test]
fn an_operator_hands_it_over() {
    let mut a = Test::new("a", LEASE);
    a.view(0.0, "a b");
    assert!(a.0.hand_over(at(0.5)).unwrap_err().contains("does not host it"));
    a.0.won(at(1.0), token(5));
    a.does();
    assert_eq!(a.0.hand_over(at(2.0)), Ok(node("b")));
    assert_eq!(a.does(), [Stop(StopReason::HandOver(node("b")))]);
    a.0.ended(at(2.1));
    assert_eq!(a.does(), [Release]);
    a.0.released(at(2.2));
    assert_eq!(a.does(), [Stand(Observing)], "it leaves it to others");
    assert_eq!(a.0.word(), Word::State { hosting: None, able: false });
    assert!(a.0.why_not().contains("an operator"));
    let home = 2.0 + STAY_AWAY.as_secs_f64();
    a.0.tick(at(home - 0.1));
    assert_eq!(a.does(), []);
    a.0.tick(at(home));
    assert_eq!(a.does(), [Stand(Allowed)], "for a while");
}

#[test]
fn rather_back_than_nowhere() {
    let mut a = Test::new("a", LEASE);
    a.view(0.0, "a b");
    a.0.won(at(1.0), token(5));
    a.0.hand_over(at(2.0)).unwrap();
    a.0.ended(at(2.1));
    a.0.released(at(2.2));
    a.does();
    a.0.heard(at(3.0), &node("z"), &Word::State { hosting: None, able: false });
    assert_eq!(a.does(), []);
    assert_eq!(a.view(4.0, "a b-"), [Stand(Allowed)], "nobody else can");
    a.0.won(at(5.0), token(6));
    a.does();
    assert!(a.0.hand_over(at(6.0)).unwrap_err().contains("no other node"));
    let mut lonely = Test::new("a", false);
    lonely.view(0.0, "a b");
    assert!(lonely.0.hand_over(at(1.0)).unwrap_err().contains("without a lease"));
}

#[test]
fn what_is_lost_is_not_to_be_handed_over_any_more() {
    let mut b = Test::new("b", LEASE);
    b.view(0.0, "a- b");
    b.0.won(at(1.0), token(5));
    b.view(2.0, "a b");
    b.0.lost(at(9.0), Loss::Paused);
    b.0.tick(at(12.0));
    assert_eq!(b.0.next_wake(), Moment::NEVER, "no time that has passed");
    b.0.ended(at(13.0));
    b.0.released(at(13.1));
    b.view(14.0, "a- b");
    b.0.won(at(15.0), token(6));
    b.does();
    b.view(16.0, "a b");
    b.0.tick(at(17.0));
    assert_eq!(b.does(), [], "a must stay for as long as ever");
}

#[test]
fn a_late_hand_over_does_nothing() {
    let mut b = Test::new("b", LEASE);
    b.view(0.0, "a b");
    b.0.heard(at(1.0), &node("z"), &Word::State { hosting: Some(token(8)), able: true });
    b.0.heard(at(2.0), &node("a"), &Word::HandedOver { token: token(5) });
    assert_eq!(b.does(), []);
    b.0.heard(at(3.0), &node("z"), &Word::HandedOver { token: token(8) });
    assert_eq!(b.does(), [Look]);
}

#[test]
fn a_failing_singleton_is_tried_elsewhere() {
    let mut a = Test::new("a", LEASE);
    a.view(0.0, "a b");
    a.0.won(at(0.0), token(5));
    a.does();
    let mut now = 0.0;
    for pause in [1.0, 2.0, 4.0, 8.0] {
        a.0.ended(at(now));
        assert_eq!(a.does(), [], "under the same tenure");
        now += pause;
        assert_eq!(a.0.next_wake().since(at(now)), Duration::ZERO);
        a.0.tick(at(now));
        assert_eq!(a.does(), [Start(token(5))]);
    }
    a.0.ended(at(now));
    assert_eq!(a.does(), [Release]);
    a.0.released(at(now));
    let unable = Tell(node("b"), Word::State { hosting: None, able: false });
    let all = a.all();
    assert!(all.contains(&unable), "{all:?}");
    assert!(all.contains(&Stand(Observing)), "{all:?}");
    a.0.tick(at(now + 30.0));
    assert_eq!(a.does(), [Stand(Allowed)]);
}

#[test]
fn downed_stops_then_releases() {
    let mut a = Test::new("a", LEASE);
    a.view(0.0, "a b");
    a.0.won(at(1.0), token(5));
    a.does();
    assert_eq!(a.view(2.0, "a! b"), [Stop(StopReason::OutOfCluster)]);
    a.0.out(at(2.1));
    assert_eq!(a.does(), []);
    a.0.ended(at(4.0));
    assert_eq!(a.does(), [Release]);
    a.0.released(at(4.0));
    assert_eq!(a.does(), [Over]);
}

#[test]
fn spread_is_spread() {
    let names = ["a", "b", "c", "d", "e"];
    let mut counts = BTreeMap::<String, u32>::new();
    for singleton in 0..1000 {
        let settings = Settings { placement: Placement::Spread, ..Settings::default() };
        let name = format!("job-{singleton}");
        let mut manager = Manager::new(node("a"), &name, LEASE, settings, at(0.0));
        manager.view(at(0.0), &view(&names.join(" ")));
        *counts.entry(manager.candidate().unwrap().address.to_string()).or_default() += 1;
    }
    assert_eq!(counts.len(), 6);
    assert!(counts.values().all(|count| (100..250).contains(count)), "{counts:?}");
}

/// Nodes that have names, at these addresses.
fn named(nodes: &[(&str, &str)]) -> View {
    let members = nodes.iter().zip(1..).map(|((address, name), up_number)| {
        let facts = Arc::new([("name".into(), (*name).into())].into());
        let (status, roles) = (Status::Up, Default::default());
        (node(address), Member { status, up_number, roles, facts })
    });
    View::of(members, [])
}

#[test]
fn spread_picks_a_node_of_the_same_name_at_another_address() {
    let picked = |nodes: &[(&'static str, &'static str)], singleton: u32| {
        let settings = Settings { placement: Placement::Spread, ..Settings::default() };
        let name = format!("job-{singleton}");
        let mut manager = Manager::new(node(nodes[0].0), &name, LEASE, settings, at(0.0));
        manager.view(at(0.0), &named(nodes));
        let picked = manager.candidate().unwrap().clone();
        nodes.iter().find(|(address, _)| node(address) == picked).unwrap().to_owned()
    };
    for singleton in 0..100 {
        let before = picked(&[("a", "shop-0"), ("b", "shop-1"), ("c", "shop-2")], singleton);
        let after = picked(&[("f", "shop-2"), ("e", "shop-1"), ("d", "shop-0")], singleton);
        assert_eq!(before.1, after.1, "job-{singleton}");
        // A name that two of them have says nothing of either.
        let alike = picked(&[("a", "host"), ("b", "host")], singleton);
        assert_eq!(alike.0, picked(&[("a", "x"), ("b", "x")], singleton).0, "job-{singleton}");
    }
    let alike = (0..100).filter(|it| picked(&[("a", "host"), ("b", "host")], *it).0 == "a");
    assert!((20..80).contains(&alike.count()), "all on one node");
}
