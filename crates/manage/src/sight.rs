//! What a node's view and a lease's record become for people to see. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure_cluster::messaging::AskError;
use tenure_cluster::view::MemberVersions;
use tenure_cluster::{Address, Decided, Event, Node, NotReady, Status, View};
use tenure_lease::record::Expiry;
use tenure_lease::{Moment, Owner, Record, Token};
use tenure_sharding::{RegionStats, Shard};

use crate::board::Note;
use crate::document::{self, Cut, Decision, Downing, EntryKind};

/// What is remembered of a cluster beyond its view: since when, and why.
#[derive(Debug)]
pub struct ClusterSight {
    name: String,
    cluster: String,
    strategy: Option<&'static str>,
    known: BTreeMap<Node, Known>,
    last: Option<Decision>,
    generation: u64,
}

#[derive(Clone, Debug)]
struct Known {
    status: Option<Status>,
    since_ms: u64,
    up_number: u64,
    roles: Vec<String>,
    versions: Option<MemberVersions>,
    why: Option<String>,
}

impl ClusterSight {
    /// Of the node of this name, in the cluster of this name, with this strategy.
    pub fn new(name: &str, cluster: &str, strategy: Option<&'static str>) -> Self {
        Self {
            name: name.into(),
            cluster: cluster.into(),
            strategy,
            known: BTreeMap::new(),
            last: None,
            generation: 0,
        }
    }

    /// Takes in what happened, and says it.
    pub fn happened(&mut self, now_ms: u64, me: &Node, event: &Event) -> Option<Note> {
        let note = |kind, node: &Node| Some(Note::new(kind, event.to_string()).node(node));
        match event {
            Event::Joined(node)
            | Event::Up(node)
            | Event::Leaving(node)
            | Event::Exiting(node)
            | Event::Removed(node) => note(EntryKind::Member, node),
            Event::Downed(node) => {
                let known = self.known.get(node).and_then(|known| known.why.clone());
                let why = known.unwrap_or_else(|| "another node or an operator said so".into());
                Some(Note::new(EntryKind::Member, format!("{event}: {why}")).node(node))
            }
            Event::Unreachable(node) | Event::Reachable(node) => {
                note(EntryKind::Reachability, node)
            }
            Event::LeaderChanged(node) | Event::OldestChanged(node) => Some(Note {
                node: node.as_ref().map(ToString::to_string),
                ..Note::new(EntryKind::Leader, event.to_string())
            }),
            Event::Decided(decided) => {
                let Decided { survives, down, reason } = decided;
                for node in down {
                    if let Some(known) = self.known.get_mut(node) {
                        known.why = Some(reason.clone());
                    }
                }
                let outcome = outcome(*survives);
                self.last = Some(Decision {
                    time_ms: now_ms,
                    by: Some(me.to_string()),
                    outcome: outcome.into(),
                    down: down.iter().map(ToString::to_string).collect(),
                    text: reason.clone(),
                });
                let text = format!("{} decided: {decided}", me.address);
                Some(Note::new(EntryKind::Decision, text).node(me).reason(outcome))
            }
            Event::Missed(_) => Some(Note::new(EntryKind::Other, event.to_string())),
        }
    }

    /// What the cluster looks like now. `seen` are those who believe the same.
    pub fn look(
        &mut self,
        now_ms: u64,
        me: &Node,
        view: &View,
        seen: &BTreeSet<Node>,
        ready: Result<(), NotReady>,
    ) -> document::Cluster {
        self.heard_of_verdict(now_ms, me, view);
        self.remember(now_ms, view);
        let mut counted = view.members().filter(|(_, member)| member.status < Status::Down);
        let converged = view.members().len() > 0 && counted.all(|(node, _)| seen.contains(node));
        let versions = |known: &Known| known.versions.clone();
        let nodes = self.known.iter().map(|(node, known)| document::Node {
            node: node.to_string(),
            address: node.address.to_string(),
            name: (node == me).then(|| self.name.clone()),
            status: known.status.map_or("gone", Status::word).into(),
            up_number: known.up_number,
            roles: known.roles.clone(),
            protocol: versions(known).map(|it| it.protocol).unwrap_or_default(),
            version: versions(known).and_then(|it| it.application),
            since_ms: known.since_ms,
            seen: seen.contains(node),
            why: known.why.clone().filter(|_| known.status.is_none_or(|it| it == Status::Down)),
        });
        let cut = |(from, to): (&Node, &Node)| Cut { from: from.to_string(), to: to.to_string() };
        document::Cluster {
            cluster: self.cluster.clone(),
            id: Some(view.cluster().to_string()).filter(|_| view.members().len() > 0),
            me: Some(me.to_string()),
            name: Some(self.name.clone()),
            ready: ready.is_ok(),
            not_ready: ready.err().map(|NotReady(why)| why),
            warnings: Vec::new(),
            leader: view.leader().map(ToString::to_string),
            oldest: view.oldest(None).map(ToString::to_string),
            converged,
            nodes: nodes.collect(),
            unreachable: view.observations().map(cut).collect(),
            downing: Downing {
                strategy: self.strategy.map(str::to_owned),
                last: self.last.clone(),
            },
            demo: None,
        }
    }

    /// A verdict of which this node only heard is a decision all the same.
    fn heard_of_verdict(&mut self, now_ms: u64, me: &Node, view: &View) {
        let verdict = view.verdict();
        if verdict.generation <= self.generation {
            return;
        }
        self.generation = verdict.generation;
        let down: Vec<&Node> = view
            .members()
            .filter(|(node, member)| {
                member.status == Status::Down && !verdict.survivors.contains(node)
            })
            .map(|(node, _)| node)
            .collect();
        let down: Vec<String> = down.into_iter().map(ToString::to_string).collect();
        let is_own = self.last.as_ref().is_some_and(|last| {
            last.by.is_some() && now_ms.saturating_sub(last.time_ms) < OWN_VERDICT_MS
        });
        if !is_own && !down.is_empty() {
            let outcome = outcome(verdict.survivors.contains(me));
            let text = "a verdict in the arbitration lease says who goes on".to_owned();
            let outcome = outcome.into();
            self.last = Some(Decision { time_ms: now_ms, by: None, outcome, down, text });
        }
    }

    fn remember(&mut self, now_ms: u64, view: &View) {
        let decided = self.last.clone();
        for (node, member) in view.members() {
            let known = self.known.entry(node.clone()).or_insert_with(|| Known {
                status: Some(member.status),
                since_ms: now_ms,
                up_number: 0,
                roles: Vec::new(),
                versions: None,
                why: None,
            });
            if known.status != Some(member.status) {
                (known.status, known.since_ms) = (Some(member.status), now_ms);
            }
            known.up_number = member.up_number;
            known.roles = member.roles.iter().map(ToString::to_string).collect();
            known.versions = Some(member.versions());
            if member.status == Status::Down && known.why.is_none() {
                let named = |last: &Decision| last.down.iter().any(|it| *it == node.to_string());
                let sentence =
                    decided.as_ref().filter(|last| named(last)).map(|it| it.text.clone());
                let otherwise = "another node or an operator declared it down";
                known.why = Some(sentence.unwrap_or_else(|| otherwise.into()));
            }
        }
        let present: BTreeSet<&Address> = view
            .members()
            .filter(|(_, member)| member.status < Status::Down)
            .map(|(node, _)| &node.address)
            .collect();
        self.known.retain(|node, known| {
            if view.member(node).is_some() {
                return true;
            }
            if let Some(status) = known.status.take() {
                known.since_ms = now_ms;
                if known.why.is_none() {
                    known.why = Some(match status {
                        Status::Joining => "it was joining, and is not any more".into(),
                        Status::Up | Status::Down => "it was removed".into(),
                        Status::Leaving | Status::Exiting => "it left".into(),
                    });
                }
            }
            let old = now_ms.saturating_sub(known.since_ms) > GONE_MS;
            !old && !present.contains(&node.address)
        });
        while self.known.values().filter(|known| known.status.is_none()).count() > GONE {
            let gone = self.known.iter().filter(|(_, known)| known.status.is_none());
            let oldest = gone.min_by_key(|(_, known)| known.since_ms).map(|(node, _)| node.clone());
            oldest.map(|node| self.known.remove(&node));
        }
    }
}

fn outcome(survives: bool) -> &'static str {
    if survives { "survive" } else { "down_self" }
}

/// What a node knows of the shards of one kind.
pub(crate) fn shards(kind: &str, status: tenure_sharding::Status) -> document::Kind {
    let nodes: BTreeSet<&Node> = status.homes.iter().map(|(_, node)| node).collect();
    let nodes: Vec<&Node> = nodes.into_iter().collect();
    let mut map = vec![-1; status.shards as usize];
    for (shard, node) in &status.homes {
        let index = nodes.binary_search(&node).ok().and_then(|it| i32::try_from(it).ok());
        if let (Some(place), Some(index)) = (map.get_mut(shard.0 as usize), index) {
            *place = index;
        }
    }
    let (coordinator, term) = status.coordinator.unzip();
    document::Kind {
        kind: kind.into(),
        count: map.len(),
        coordinator: coordinator.map(|node| node.to_string()),
        term: term.map(|term| term.to_string()),
        nodes: nodes.into_iter().map(Node::to_string).collect(),
        map,
        hosted: status.hosted.len(),
        entities: status.entities,
        waiting: status.waiting,
        why_not: status.why_not,
    }
}

/// What regions answered.
pub(crate) fn regions(
    kind: &str,
    answers: Vec<(Node, Result<RegionStats, AskError>)>,
) -> document::Regions {
    let region = |(node, answer): (Node, Result<RegionStats, AskError>)| {
        let (stats, error) = match answer {
            Ok(stats) => (stats, None),
            Err(error) => (RegionStats::default(), Some(error.to_string())),
        };
        let hosted = |(shard, token): (Shard, Token)| document::HostedShard {
            shard: shard.0,
            token: token.to_string(),
        };
        document::Region {
            node: node.to_string(),
            shards: stats.shards.into_iter().map(hosted).collect(),
            entities: stats.entities,
            waiting: stats.waiting,
            error,
        }
    };
    document::Regions { kind: kind.into(), regions: answers.into_iter().map(region).collect() }
}

/// The member with this address, or with this address and incarnation.
pub fn find(view: &View, text: &str) -> Result<Node, String> {
    let alive = view.members().filter(|(_, member)| member.status < Status::Down);
    let found: Vec<&Node> = alive
        .map(|(node, _)| node)
        .filter(|node| node.address.as_str() == text || node.to_string() == text)
        .collect();
    match found[..] {
        [node] => Ok(node.clone()),
        [] => Err(format!("{text:?} is no member; name one as `tenure cluster status` shows it")),
        _ => {
            let all: Vec<String> = found.iter().map(ToString::to_string).collect();
            Err(format!("which of them: {}?", all.join(", ")))
        }
    }
}

/// What is remembered of one lease: when its record last changed, by our own clock.
#[derive(Clone, Debug)]
pub struct LeaseSight {
    document: document::Lease,
    record: Option<Record>,
    /// It was looked at before.
    looked: bool,
}

impl LeaseSight {
    /// Of a lease in a store of this kind.
    pub fn new(name: &str, store: &str, purpose: Option<String>, ttl: Duration) -> Self {
        let document = document::Lease {
            name: name.into(),
            store: store.into(),
            purpose,
            holder: None,
            token: None,
            ttl_ms: millis(ttl),
            remaining_ms: None,
            held_here: false,
            since_ms: 0,
            error: None,
            ends: None,
        };
        Self { document, record: None, looked: false }
    }

    /// Takes in what the store said, at this time by both clocks; what there is to say about it, if
    /// somebody else holds it now.
    pub fn saw(
        &mut self,
        now: Moment,
        now_ms: u64,
        said: Result<Option<Record>, String>,
    ) -> Option<Note> {
        let record = match said {
            Ok(record) => record,
            Err(error) => {
                self.document.error = Some(error);
                return None;
            }
        };
        self.document.error = None;
        let same = |a: &Record| record.as_ref().is_some_and(|b| a.version == b.version);
        if self.looked && self.record.as_ref().map_or(record.is_none(), same) {
            return None;
        }
        let document = &mut self.document;
        let before = (document.holder.clone(), document.token.clone());
        document.holder = record.as_ref().and_then(Record::owner).map(ToString::to_string);
        document.token = record.as_ref().map(|record| record.token.to_string());
        if let Some(record) = &record {
            document.ttl_ms = millis(record.ttl);
        }
        let owner = record.as_ref().and_then(Record::owner);
        document.held_here =
            owner.is_some_and(|it| it.incarnation == Owner::this_process().incarnation);
        let overdue = document.ends.is_some_and(|ends| now + SLACK >= ends);
        document.ends = record.as_ref().filter(|record| record.holder.is_some()).map(|record| {
            now + match record.expiry {
                Expiry::ByStore(left) => left.min(record.ttl),
                Expiry::ByObservation => record.ttl,
            }
        });
        let after = (document.holder.clone(), document.token.clone());
        let first = !std::mem::replace(&mut self.looked, true);
        self.record = record;
        if after == before {
            return None;
        }
        document.since_ms = now_ms;
        // Of its own leases this process tells better.
        if first || document.held_here {
            return None;
        }
        let (name, token) = (&document.name, document.token.as_deref().unwrap_or("none"));
        let (text, reason) = match (&before.0, &document.holder) {
            (Some(old), Some(new)) if overdue => (
                format!("{new} holds {name}, with token {token}: {old}'s tenure had expired"),
                Some("expired"),
            ),
            (_, Some(new)) => (format!("{new} holds {name}, with token {token}"), None),
            (Some(old), None) => (format!("{old} gave {name} back"), Some("released")),
            (None, None) => return None,
        };
        let note = Note::new(EntryKind::Lease, text);
        Some(Note { reason: reason.map(Into::into), ..note })
    }

    /// What there is to show.
    pub fn document(&self) -> document::Lease {
        self.document.clone()
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A verdict that comes so soon after a decision of this node is that decision.
const OWN_VERDICT_MS: u64 = 10_000;
/// For how long those that are gone are shown, and how many of them.
const GONE_MS: u64 = 10 * 60 * 1000;
const GONE: usize = 100;
/// How late a change is noticed.
const SLACK: Duration = Duration::from_millis(1500);

#[cfg(test)]
mod tests;
