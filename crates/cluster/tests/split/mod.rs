//! Splits in a line of text: `a b | c d?` is a cluster of four whose halves do not reach each
//! other, and in which `d` is only joining.
#![allow(dead_code)]

use std::collections::BTreeSet;
use std::sync::Arc;

use tenure_cluster::Status;
use tenure_cluster::downing::*;

/// One member: its name, and what everybody believes about it.
#[derive(Clone, Debug)]
pub(crate) struct Who {
    pub(crate) name: String,
    pub(crate) status: Status,
    pub(crate) up_number: u64,
    pub(crate) roles: BTreeSet<Arc<str>>,
    pub(crate) side: usize,
}

/// Names by letter, as old as the alphabet says. After a name: `?` joining, `-` leaving,
/// `!` exiting, `x` down, `/role` a role.
pub(crate) fn cluster(text: &str) -> Vec<Who> {
    let mut who: Vec<Who> = Vec::new();
    for (side, names) in text.split('|').enumerate() {
        for word in names.split_whitespace() {
            let (word, role) = word.split_once('/').map_or((word, None), |(w, r)| (w, Some(r)));
            let (name, status) = match word.chars().last().unwrap() {
                '?' => (&word[..word.len() - 1], Status::Joining),
                '-' => (&word[..word.len() - 1], Status::Leaving),
                '!' => (&word[..word.len() - 1], Status::Exiting),
                'x' if word.len() > 1 => (&word[..word.len() - 1], Status::Down),
                _ => (word, Status::Up),
            };
            let age = name.bytes().next_back().map_or(0, u64::from);
            who.push(Who {
                name: name.into(),
                status,
                up_number: if status == Status::Joining { 0 } else { age },
                roles: role.into_iter().map(Arc::from).collect(),
                side,
            });
        }
    }
    who.sort_by(|a, b| a.name.cmp(&b.name));
    who
}

pub(crate) fn seats(who: &[Who], seen: impl Fn(&Who) -> bool) -> Vec<Seat<String>> {
    let seat = |one: &Who| Seat {
        node: one.name.clone(),
        status: one.status,
        up_number: one.up_number,
        roles: Arc::new(one.roles.clone()),
        seen: seen(one),
    };
    who.iter().map(seat).collect()
}

pub(crate) fn converged(who: &[Who]) -> Arc<Converged<String>> {
    Arc::new(Converged::new(
        who.iter()
            .map(|one| (one.name.clone(), one.status, one.up_number, Arc::new(one.roles.clone()))),
    ))
}

/// What the members of one side believe: each of them finds each of the others unreachable, and
/// each of them has seen that.
pub(crate) fn belief(
    who: &[Who],
    side: usize,
    before: Option<Arc<Converged<String>>>,
) -> Situation<String> {
    let me = &who.iter().find(|one| one.side == side).unwrap().name;
    let ours = || who.iter().filter(|one| one.side == side);
    let theirs = || who.iter().filter(|one| one.side != side);
    let cuts = ours().flat_map(|a| theirs().map(|b| (a.name.clone(), b.name.clone())));
    Situation::new(me, seats(who, |one| one.side == side), cuts, before).unwrap()
}

/// What becomes of a side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Survives,
    Ends,
    Waits,
    Asks,
}

pub(crate) fn fate(situation: &Situation<String>, decision: &Decision<String>) -> Fate {
    match decision {
        Decision::Stay { .. } => Fate::Waits,
        Decision::AskLease { .. } => Fate::Asks,
        Decision::Down { nodes, .. } => {
            let side = situation.side().unwrap();
            let ended = side.here.iter().filter(|seat| nodes.contains(&seat.node)).count();
            assert!(ended == 0 || ended == side.here.len(), "a side is not torn: {decision:?}");
            if ended == 0 { Fate::Survives } else { Fate::Ends }
        }
    }
}

/// What the sides of a clean split do, in their order.
pub(crate) fn fates(strategy: &Strategy, who: &[Who]) -> Vec<Fate> {
    let sides = who.iter().map(|one| one.side).max().unwrap() + 1;
    let fate = |side| {
        let situation = belief(who, side, None);
        fate(&situation, &strategy.decide(&situation))
    };
    (0..sides).map(fate).collect()
}

/// The same in one word each, for a split in a line of text: `down` for a side that ends.
pub(crate) fn play(strategy: &Strategy, text: &str) -> String {
    let words = fates(strategy, &cluster(text)).into_iter().map(|fate| match fate {
        Fate::Survives => "live",
        Fate::Ends => "down",
        Fate::Waits => "stay",
        Fate::Asks => "ask",
    });
    words.collect::<Vec<_>>().join(" | ")
}

/// A belief by hand: the members, who has seen it, who cannot reach whom.
pub(crate) fn situation(me: &str, text: &str, seen: &str, cuts: &str) -> Situation<String> {
    let seen: BTreeSet<&str> = seen.split_whitespace().collect();
    let cuts = cuts.split_whitespace().map(|cut| {
        let (observer, subject) = cut.split_once('>').unwrap();
        (observer.to_owned(), subject.to_owned())
    });
    let who = cluster(text);
    Situation::new(&me.into(), seats(&who, |one| seen.contains(&*one.name)), cuts, None).unwrap()
}

pub(crate) fn majority() -> Strategy {
    Strategy::KeepMajority(KeepMajority::default())
}

pub(crate) fn ties() -> Strategy {
    Strategy::LeaseMajority(LeaseMajority::default())
}

pub(crate) fn always() -> Strategy {
    Strategy::LeaseMajority(LeaseMajority { mode: Mode::Always, ..LeaseMajority::default() })
}

pub(crate) fn quorum(size: usize) -> Strategy {
    Strategy::StaticQuorum(StaticQuorum::new(size))
}

pub(crate) fn oldest(down_if_alone: bool) -> Strategy {
    Strategy::KeepOldest(KeepOldest { down_if_alone, role: None })
}

pub(crate) fn referee(address: &str, least: usize) -> Strategy {
    let down_all_if_less_than = least;
    Strategy::KeepReferee(KeepReferee { address: address.into(), down_all_if_less_than })
}

pub(crate) fn down_all() -> Strategy {
    Strategy::DownAll(DownAll)
}
