//! A cluster as people and scripts see it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use tenure_cluster::view::MemberVersions;
use tenure_cluster::{Node, NotReady, Status as Member, View};
use tenure_manage::document::{self, Cut};

/// What `--json` prints; its shape is stable. Nodes are `host:port#incarnation`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Status {
    /// The name of the cluster.
    cluster: String,
    /// Its id; `null` while this node is in none.
    id: Option<u64>,
    /// This node, and what people call it.
    node: String,
    name: String,
    /// Whether it can do its part now; if not, why.
    ready: bool,
    not_ready: Option<String>,
    /// What somebody should look at although it does.
    #[serde(default)]
    warnings: Vec<String>,
    leader: Option<String>,
    oldest: Option<String>,
    /// Whether every member that is not down is known to see exactly this.
    converged: bool,
    /// Who is.
    seen_by: Vec<String>,
    members: Vec<MemberStatus>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct MemberStatus {
    node: String,
    status: Member,
    /// The order in which members became full ones; 0 until then.
    up_number: u64,
    roles: Vec<String>,
    /// The version of the protocol that it speaks, and of the application, if it says.
    #[serde(default)]
    protocol: String,
    #[serde(default)]
    version: Option<String>,
    /// Who cannot reach it.
    unreachable_from: Vec<String>,
}

impl Status {
    pub(crate) fn new(
        cluster: &str,
        name: &str,
        me: &Node,
        view: &View,
        seen: &BTreeSet<Node>,
    ) -> Self {
        let mut observers: BTreeMap<&Node, Vec<String>> = BTreeMap::new();
        for (observer, subject) in view.observations() {
            observers.entry(subject).or_default().push(observer.to_string());
        }
        let members = view.members().map(|(node, member)| {
            let MemberVersions { protocol, application: version } = member.versions();
            MemberStatus {
                node: node.to_string(),
                status: member.status,
                up_number: member.up_number,
                roles: member.roles.iter().map(ToString::to_string).collect(),
                protocol,
                version,
                unreachable_from: observers.remove(node).unwrap_or_default(),
            }
        });
        let members: Vec<_> = members.collect();
        let mut counted = view.members().filter(|(_, member)| member.status < Member::Down);
        Self {
            cluster: cluster.into(),
            id: Some(view.cluster()).filter(|_| !members.is_empty()),
            node: me.to_string(),
            name: name.into(),
            ready: false,
            not_ready: None,
            warnings: Vec::new(),
            leader: view.leader().map(ToString::to_string),
            oldest: view.oldest(None).map(ToString::to_string),
            converged: !members.is_empty() && counted.all(|(node, _)| seen.contains(node)),
            seen_by: seen.iter().map(ToString::to_string).collect(),
            members,
        }
    }

    /// As a node's management API tells it.
    pub(crate) fn told(told: &document::Cluster) -> Self {
        let mut observers: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for Cut { from, to } in &told.unreachable {
            observers.entry(to).or_default().push(from.clone());
        }
        let members = told.nodes.iter().filter_map(|node| {
            Some(MemberStatus {
                // Those that are gone, or outside, are no members.
                status: serde_json::from_value(node.status.as_str().into()).ok()?,
                node: node.node.clone(),
                up_number: node.up_number,
                roles: node.roles.clone(),
                protocol: node.protocol.clone(),
                version: node.version.clone(),
                unreachable_from: observers.remove(node.node.as_str()).unwrap_or_default(),
            })
        });
        Self {
            cluster: told.cluster.clone(),
            id: told.id.as_ref().and_then(|id| id.parse().ok()),
            node: told.me.clone().unwrap_or_default(),
            name: told.name.clone().unwrap_or_default(),
            ready: told.ready,
            not_ready: told.not_ready.clone(),
            warnings: told.warnings.clone(),
            leader: told.leader.clone(),
            oldest: told.oldest.clone(),
            converged: told.converged,
            seen_by: told.nodes.iter().filter(|it| it.seen).map(|it| it.node.clone()).collect(),
            members: members.collect(),
        }
    }

    /// With what the node says of itself.
    pub(crate) fn readiness(self, ready: Result<(), NotReady>, warnings: &[String]) -> Self {
        let (is_ready, not_ready) = (ready.is_ok(), ready.err().map(|NotReady(why)| why));
        Self { ready: is_ready, not_ready, warnings: warnings.to_vec(), ..self }
    }

    /// Those whose part it is to have seen it, and who are not known to have.
    fn unseen(&self) -> Vec<&str> {
        let counted = self.members.iter().filter(|member| member.status < Member::Down);
        counted
            .filter(|member| !self.seen_by.contains(&member.node))
            .map(|member| address(&member.node))
            .collect()
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_nobody =
            |node: &Option<String>| node.as_deref().map_or("nobody", address).to_owned();
        match self.id {
            Some(id) => writeln!(f, "cluster    {}, id {id}", self.cluster)?,
            None => writeln!(f, "cluster    {}: in none yet, looking for it", self.cluster)?,
        }
        writeln!(f, "this node  {}, {}", self.name, self.node)?;
        match &self.not_ready {
            Some(why) => write!(f, "ready      no: {why}")?,
            None => write!(f, "ready      yes")?,
        }
        for warning in &self.warnings {
            write!(f, "\nwarning    {warning}")?;
        }
        if self.members.is_empty() {
            return Ok(());
        }
        writeln!(f, "\nleader     {}", or_nobody(&self.leader))?;
        writeln!(f, "oldest     {}", or_nobody(&self.oldest))?;
        match &self.unseen()[..] {
            [] => writeln!(f, "converged  yes: all members see the same")?,
            some => writeln!(f, "converged  no: not known to see the same: {}", list(some))?,
        }
        let heading =
            ["MEMBER", "INCARNATION", "STATUS", "UP", "ROLES", "PROTOCOL", "VERSION", "REACHABLE"];
        let mut rows = vec![heading.map(str::to_owned)];
        rows.extend(self.members.iter().map(MemberStatus::row));
        table(f, &rows)
    }
}

impl MemberStatus {
    fn row(&self) -> [String; 8] {
        let or_dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
        let from: Vec<&str> = self.unreachable_from.iter().map(|node| address(node)).collect();
        let reachable = match &from[..] {
            [] if self.status == Member::Down => "-".to_owned(),
            [] => "yes".to_owned(),
            some => format!("no, not from {}", list(some)),
        };
        let incarnation = self.node.split_once('#').map_or("", |(_, incarnation)| incarnation);
        let up = if self.up_number == 0 { String::new() } else { self.up_number.to_string() };
        [
            address(&self.node).to_owned(),
            incarnation.to_owned(),
            self.status.to_string(),
            or_dash(up),
            or_dash(self.roles.join(",")),
            or_dash(self.protocol.clone()),
            or_dash(self.version.clone().unwrap_or_default()),
            reachable,
        ]
    }
}

pub(super) fn table<const N: usize>(
    f: &mut fmt::Formatter<'_>,
    rows: &[[String; N]],
) -> fmt::Result {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        write!(f, "\n{}", line.trim_end())?;
    }
    Ok(())
}

pub(super) fn address(node: &str) -> &str {
    node.split_once('#').map_or(node, |(address, _)| address)
}

/// A few of them, and how many more.
fn list(nodes: &[&str]) -> String {
    let (shown, more) = nodes.split_at(nodes.len().min(SHOWN));
    let shown = shown.join(", ");
    if more.is_empty() { shown } else { format!("{shown} and {} more", more.len()) }
}

const SHOWN: usize = 5;
