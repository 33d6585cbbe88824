//! What is served now, and how it came to be. Pure but for its locks, which are held for a copy.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde_json::{Value, json};
use tenure_lease::Moment;
use tokio::sync::watch;

use crate::document::{Cluster, Entry, EntryKind, Kind, Lease, Singleton, Versions};

/// The four documents and the timeline. Whoever watches a node, or plays a demonstration, writes them;
/// the routes read them.
#[derive(Debug, Default)]
pub struct Board {
    documents: Mutex<Documents>,
    timeline: Mutex<Timeline>,
    versions: watch::Sender<Versions>,
    last: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Documents {
    cluster: Cluster,
    leases: Vec<Lease>,
    singletons: Vec<Singleton>,
    shards: Vec<Kind>,
}

/// What happened lately.
#[derive(Debug, Default)]
struct Timeline {
    entries: VecDeque<Entry>,
    last: u64,
}

/// Something that happened, before it has a number.
#[derive(Clone, Debug)]
pub struct Note {
    /// What it is about.
    pub kind: EntryKind,
    /// A sentence.
    pub text: String,
    /// Whom it is about.
    pub node: Option<String>,
    /// Why, in one word.
    pub reason: Option<Cow<'static, str>>,
}

impl Note {
    /// About nobody in particular.
    pub fn new(kind: EntryKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), node: None, reason: None }
    }

    /// About this node.
    pub fn node(self, node: impl ToString) -> Self {
        Self { node: Some(node.to_string()), ..self }
    }

    /// For this reason, in a word.
    pub fn reason(self, reason: &'static str) -> Self {
        Self { reason: Some(reason.into()), ..self }
    }
}

impl Board {
    /// Replaces the cluster's document; if it says something new, its version rises.
    pub fn set_cluster(&self, cluster: Cluster) {
        self.set(|it| &mut it.cluster, cluster, |versions| &mut versions.cluster);
    }

    /// The same for leases.
    pub fn set_leases(&self, leases: Vec<Lease>) {
        self.set(|it| &mut it.leases, leases, |versions| &mut versions.leases);
    }

    /// The same for singletons.
    pub fn set_singletons(&self, singletons: Vec<Singleton>) {
        self.set(|it| &mut it.singletons, singletons, |versions| &mut versions.singletons);
    }

    /// The same for shards.
    pub fn set_shards(&self, shards: Vec<Kind>) {
        self.set(|it| &mut it.shards, shards, |versions| &mut versions.shards);
    }

    fn set<T: PartialEq>(
        &self,
        place: impl Fn(&mut Documents) -> &mut T,
        news: T,
        version: impl Fn(&mut Versions) -> &mut u64,
    ) {
        let mut documents = lock(&self.documents);
        let known = place(&mut documents);
        if *known != news {
            *known = news;
            self.versions.send_modify(|versions| *version(versions) += 1);
        }
    }

    /// Notes something, at this time; the oldest is forgotten when there are too many.
    pub fn note(&self, time_ms: u64, note: Note) {
        let mut timeline = lock(&self.timeline);
        timeline.last += 1;
        let Note { kind, text, node, reason } = note;
        let reason = reason.map(Cow::into_owned);
        let entry = Entry { id: timeline.last, time_ms, kind, text, node, reason };
        timeline.entries.push_back(entry);
        if timeline.entries.len() > REMEMBERED {
            timeline.entries.pop_front();
        }
        self.last.send_replace(timeline.last);
    }

    /// What happened after this one, at most so many of the last, and how many were left out.
    pub fn after(&self, id: Option<u64>, most: usize) -> (u64, Vec<Entry>) {
        let timeline = lock(&self.timeline);
        // A number that was never given is from before a restart.
        let id = id.filter(|id| *id <= timeline.last);
        let from = timeline.entries.partition_point(|entry| id.is_some_and(|id| entry.id <= id));
        let from = from.max(timeline.entries.len().saturating_sub(most));
        let entries: Vec<Entry> = timeline.entries.range(from..).cloned().collect();
        let first = entries.first().map_or(timeline.last + 1, |entry| entry.id);
        (id.map_or(0, |id| first - 1 - id), entries)
    }

    /// The versions, now and whenever they change.
    pub fn versions(&self) -> watch::Receiver<Versions> {
        self.versions.subscribe()
    }

    /// The number of the last entry, now and whenever there is another.
    pub fn last(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }

    /// The cluster's document, as it was set.
    pub fn cluster(&self) -> Cluster {
        lock(&self.documents).cluster.clone()
    }

    /// The singletons, as they were set.
    pub fn singletons(&self) -> Vec<Singleton> {
        lock(&self.documents).singletons.clone()
    }

    pub(crate) fn cluster_json(&self, time_ms: u64) -> Value {
        let documents = lock(&self.documents);
        let version = self.versions.borrow().cluster;
        let mut value = json(&documents.cluster);
        if let Value::Object(fields) = &mut value {
            fields.insert("version".into(), version.into());
            fields.insert("time_ms".into(), time_ms.into());
        }
        value
    }

    pub(crate) fn leases_json(&self, time_ms: u64, now: Moment) -> Value {
        let mut leases = lock(&self.documents).leases.clone();
        for lease in &mut leases {
            let left = lease.ends.map(|ends| ends.since(now).as_millis());
            lease.remaining_ms = left.map(|left| u64::try_from(left).unwrap_or(u64::MAX));
        }
        let version = self.versions.borrow().leases;
        json!({"version": version, "time_ms": time_ms, "leases": json(&leases)})
    }

    pub(crate) fn singletons_json(&self, time_ms: u64) -> Value {
        let documents = lock(&self.documents);
        let version = self.versions.borrow().singletons;
        json!({"version": version, "time_ms": time_ms, "singletons": json(&documents.singletons)})
    }

    pub(crate) fn shards_json(&self, time_ms: u64) -> Value {
        let documents = lock(&self.documents);
        let version = self.versions.borrow().shards;
        json!({"version": version, "time_ms": time_ms, "kinds": json(&documents.shards)})
    }
}

fn json(document: &impl Serialize) -> Value {
    // Our own types have string keys and no fallible parts.
    serde_json::to_value(document).expect("a document is JSON")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is guarded is replaced whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How much of the past is remembered.
pub const REMEMBERED: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    fn note(board: &Board, count: usize) {
        for number in 0..count {
            board.note(7, Note::new(EntryKind::Other, number.to_string()));
        }
    }

    #[test]
    fn versions_rise_only_with_news() {
        let board = Board::default();
        let cluster = Cluster { cluster: "shop".into(), ..Cluster::default() };
        board.set_cluster(cluster.clone());
        board.set_cluster(cluster);
        assert_eq!(*board.versions().borrow(), Versions { cluster: 1, ..Versions::default() });
        assert_eq!(board.cluster_json(5)["version"], 1);
        assert_eq!(board.cluster_json(5)["time_ms"], 5);
    }

    #[test]
    fn the_timeline_is_bounded_and_says_what_is_missing() {
        let board = Board::default();
        note(&board, 10);
        let ids = |id, most| {
            let (missed, entries) = board.after(id, most);
            (missed, entries.iter().map(|entry| entry.id).collect::<Vec<_>>())
        };
        assert_eq!(ids(None, 3), (0, vec![8, 9, 10]));
        assert_eq!(ids(Some(8), 100), (0, vec![9, 10]));
        assert_eq!(ids(Some(10), 100), (0, vec![]));
        assert_eq!(ids(Some(5), 2), (3, vec![9, 10]));
        assert_eq!(ids(Some(99), 2), (0, vec![9, 10]), "of another server");
        note(&board, REMEMBERED);
        let (missed, entries) = board.after(Some(2), usize::MAX);
        assert_eq!((missed, entries.len()), (8, REMEMBERED));
    }
}
