//! Who sees whom as what, for people.

use std::collections::BTreeMap;

use tenure_cluster::{Event, Node, Status, View};

use super::Sim;

impl Sim {
    /// What the process at this place believes, in one line: who is what, and who cannot reach whom.
    pub fn show(&self, index: usize) -> String {
        let Some(process) = self.places[index].processes.first() else {
            return "does not run".into();
        };
        let Some(view) = process.membership.view() else {
            return "is in no cluster".into();
        };
        let shown = view.members().map(|(node, member)| {
            let name = self.name(node);
            match (member.status, member.up_number) {
                (Status::Joining, _) | (_, 0) => format!("{name} {}", member.status),
                (status, number) => format!("{name} {status} {number}"),
            }
        });
        let mut line = shown.collect::<Vec<_>>().join(", ");
        let mut cut: BTreeMap<&Node, Vec<String>> = BTreeMap::new();
        for (observer, subject) in view.observations() {
            cut.entry(observer).or_default().push(self.name(subject));
        }
        for (observer, subjects) in cut {
            line += &format!("; {} cannot reach {}", self.name(observer), subjects.join(" "));
        }
        line
    }

    /// `n0`, or `n0'` for its second process, and so on.
    pub(super) fn name(&self, node: &Node) -> String {
        let host = node.address.host();
        let generation = self.truth.generation(node);
        if generation <= 3 {
            format!("{host}{}", "'".repeat(generation))
        } else {
            format!("{host}'{generation}")
        }
    }

    /// What a node told, in a few words.
    pub(super) fn describe(&self, event: &Event) -> String {
        let who = |node: &Option<Node>| node.as_ref().map_or("nobody".into(), |n| self.name(n));
        let (node, what) = match event {
            Event::Joined(node) => (node, "joined"),
            Event::Up(node) => (node, "is up"),
            Event::Leaving(node) => (node, "leaves"),
            Event::Exiting(node) => (node, "hands over"),
            Event::Downed(node) => (node, "is down"),
            Event::Removed(node) => (node, "is removed"),
            Event::Unreachable(node) => (node, "is unreachable"),
            Event::Reachable(node) => (node, "is reachable"),
            Event::LeaderChanged(node) => return format!("{} leads", who(node)),
            Event::OldestChanged(node) => return format!("{} is the oldest", who(node)),
            Event::Decided(decided) => return decided.to_string(),
            Event::Missed(count) => return format!("{count} events were missed"),
        };
        format!("{} {what}", self.name(node))
    }

    /// What everybody believes.
    pub(super) fn show_all(&self) -> String {
        let lines = self.running().map(|index| {
            let cluster = self.view(index).map_or(0, View::cluster);
            let clones = match self.places[index].processes.len() {
                1 => "",
                _ => " (runs twice)",
            };
            format!("n{index}{clones} in {cluster}: {}", self.show(index))
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}
