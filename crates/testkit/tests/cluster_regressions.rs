//! What campaigns once found, one by one, without a network.

use std::sync::Arc;
use std::time::Duration;

use tenure_cluster::wire::{Control, Join};
use tenure_cluster::{
    Address, Effect, Event, Incarnation, Membership, MembershipSettings, Node, Roles, Status,
};
use tenure_lease::Moment;

fn node(name: &str, incarnation: u64) -> Node {
    let address = Address::new(&format!("{name}:7400")).unwrap();
    Node { address, incarnation: Incarnation(incarnation) }
}

fn membership(me: &Node) -> Membership {
    let settings = MembershipSettings::default();
    Membership::new(me.clone(), Roles::default(), Arc::new([]), settings, me.incarnation.0)
}

/// The only member of a cluster.
fn founder(me: &Node) -> Membership {
    let mut founder = membership(me);
    founder.form(7, at(1.0));
    founder.effects().for_each(drop);
    founder
}

fn at(seconds: f64) -> Moment {
    Moment::ZERO + Duration::from_secs_f64(seconds)
}

fn ask(who: &mut Membership, from: &Node, proof: u64, now: Moment) -> Option<Control> {
    let join =
        Join { roles: Roles::default(), facts: Default::default(), settings: Arc::new([]), proof };
    who.receive(from, Control::Join(join), now);
    who.effects().find_map(|effect| match effect {
        Effect::Send(to, message) if to == *from => Some(message),
        _ => None,
    })
}

fn proof(who: &mut Membership, from: &Node, now: Moment) -> u64 {
    match ask(who, from, 0, now) {
        Some(Control::Prove(proof)) => proof,
        other => panic!("{other:?}"),
    }
}

fn status(who: &Membership, node: &Node) -> Option<Status> {
    who.view().and_then(|view| view.member(node)).map(|member| member.status)
}

/// A process is asked for a proof, answers, and dies; its answer is late. Meanwhile the next process
/// at its address has come in, and must not be thrown out by it.
#[test]
fn a_late_proof_replaces_nobody() {
    let mut founder = founder(&node("n0", 1));
    let (dead, alive) = (node("n1", 2), node("n1", 3));
    let late = proof(&mut founder, &dead, at(2.0));
    let right = proof(&mut founder, &alive, at(2.1));
    assert!(matches!(ask(&mut founder, &alive, right, at(2.2)), Some(Control::Welcome(..))));
    assert!(matches!(ask(&mut founder, &dead, late, at(2.3)), Some(Control::Prove(_))));
    assert_eq!(status(&founder, &alive), Some(Status::Joining));
    assert_eq!(status(&founder, &dead), None);
}

/// A proof is not worth anything for ever: its process may be long gone, and its tombstone too.
#[test]
fn a_proof_runs_out() {
    let mut founder = founder(&node("n0", 1));
    let joins = node("n1", 2);
    let early = proof(&mut founder, &joins, at(2.0));
    assert!(matches!(ask(&mut founder, &joins, early, at(12.0)), Some(Control::Prove(_))));
}

/// Two that hold each other to be down answered each other's views for ever.
#[test]
fn two_that_do_not_listen_to_each_other_fall_silent() {
    let (one, other) = (node("n0", 1), node("n1", 2));
    let mut first = founder(&one);
    let right = proof(&mut first, &other, at(2.0));
    let Some(Control::Welcome(state, converged)) = ask(&mut first, &other, right, at(2.0)) else {
        panic!("it is let in");
    };
    let mut second = membership(&other);
    second.join(vec![one.address.clone()], at(2.0));
    second.receive(&one, Control::Welcome(state, converged), at(2.0));
    second.effects().for_each(drop);
    first.down(&other, at(3.0));
    second.down(&one, at(3.0));
    first.effects().for_each(drop);
    second.effects().for_each(drop);
    first.poll(at(5.0));
    let mut messages: Vec<(bool, Control)> = sent(&mut first, &other, true);
    for _ in 0..10 {
        let mut answers = Vec::new();
        for (to_second, message) in messages.drain(..) {
            let (who, from, back) =
                if to_second { (&mut second, &one, &one) } else { (&mut first, &other, &other) };
            who.receive(from, message, at(5.0));
            answers.extend(sent(who, back, !to_second));
        }
        messages = answers;
    }
    assert!(messages.is_empty(), "{messages:?}");
}

fn sent(who: &mut Membership, to: &Node, to_second: bool) -> Vec<(bool, Control)> {
    who.effects()
        .filter_map(|effect| match effect {
            Effect::Send(receiver, message) if receiver == *to => Some((to_second, message)),
            _ => None,
        })
        .collect()
}

/// A member that leaves before it was up was announced as up.
#[test]
fn who_leaves_while_joining_was_never_up() {
    let mut founder = founder(&node("n0", 1));
    let joins = node("n1", 2);
    let right = proof(&mut founder, &joins, at(2.0));
    ask(&mut founder, &joins, right, at(2.0));
    founder.ask_to_leave(&joins, at(2.1));
    let told: Vec<Event> = founder
        .effects()
        .filter_map(|effect| match effect {
            Effect::Tell(event) => Some(event),
            _ => None,
        })
        .collect();
    assert!(told.contains(&Event::Leaving(joins.clone())), "{told:?}");
    assert!(!told.contains(&Event::Up(joins)), "{told:?}");
}
