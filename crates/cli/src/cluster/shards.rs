//! Where shards are, as people and scripts see them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use tenure_manage::document::{Kind, Region, Regions};
use tenure_sharding::{ShardKey, shard_of};

use super::status::{address, table};
use crate::exit::Failure;

/// What is asked for.
#[derive(clap::Args)]
pub(super) struct Which {
    /// Only this kind, with each of its shards
    #[arg(long, value_name = "KIND")]
    kind: Option<String>,
    /// Which shard and node has this entity
    #[arg(long, value_name = "ID", requires = "kind")]
    entity: Option<String>,
}

/// What `--json` prints; its shape is stable. Nodes are `host:port#incarnation`.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Answer {
    Kinds { kinds: Vec<Shards> },
    Entity(Home),
}

/// The shards of one kind.
#[derive(Debug, Serialize)]
pub(super) struct Shards {
    kind: String,
    shards: usize,
    /// Who says where they are, and under which term.
    coordinator: Option<String>,
    term: Option<String>,
    nodes: Vec<Share>,
    /// How many are nowhere, as far as the node that was asked knows.
    nowhere: usize,
    /// Why that node does not coordinate, and hosts nothing, if that is so.
    why_not: Option<String>,
    /// With `--kind`.
    #[serde(skip_serializing_if = "Option::is_none")]
    places: Option<Vec<Place>>,
}

/// What one node has. What it did not say is `null`.
#[derive(Debug, Serialize)]
struct Share {
    node: String,
    shards: usize,
    entities: Option<usize>,
    /// How many messages wait there until their shard has a place.
    waiting: Option<usize>,
    /// Why it did not answer.
    error: Option<String>,
}

/// Where a shard is, and what its entities fence with.
#[derive(Clone, Debug, Serialize)]
struct Place {
    shard: u32,
    node: Option<String>,
    token: Option<String>,
}

/// Where an entity is, or would be.
#[derive(Debug, Serialize)]
pub(super) struct Home {
    kind: String,
    entity: String,
    #[serde(flatten)]
    place: Place,
}

impl Which {
    /// Out of what a node knows, and what all of them have said.
    pub(super) fn of(&self, kinds: &[Kind], said: &[Regions]) -> Result<Answer, Failure> {
        let regions = |kind: &Kind| {
            let said = said.iter().find(|it| it.kind == kind.kind);
            said.map_or(&[][..], |it| &it.regions[..])
        };
        let Some(name) = &self.kind else {
            let kinds = kinds.iter().map(|kind| Shards::new(kind, regions(kind))).collect();
            return Ok(Answer::Kinds { kinds });
        };
        let Some(kind) = kinds.iter().find(|it| it.kind == *name) else {
            let there: Vec<&str> = kinds.iter().map(|it| it.kind.as_str()).collect();
            let there = if there.is_empty() { "none".into() } else { there.join(", ") };
            return Err(Failure::usage(format!("no kind {name:?} is shown by this node: {there}")));
        };
        let places = places(kind, regions(kind));
        let Some(entity) = &self.entity else {
            let shards = Shards { places: Some(places), ..Shards::new(kind, regions(kind)) };
            return Ok(Answer::Kinds { kinds: vec![shards] });
        };
        let count = u32::try_from(kind.count).unwrap_or(u32::MAX);
        let shard = match std::env::var("TENURE_SHARD_KEY") {
            Ok(secret) => ShardKey::from_secret(&secret).shard_of(entity, count).0,
            Err(_) => shard_of(entity, count).0,
        };
        let place = places.into_iter().nth(shard as usize);
        let place = place.unwrap_or(Place { shard, node: None, token: None });
        Ok(Answer::Entity(Home { kind: kind.kind.clone(), entity: entity.clone(), place }))
    }
}

impl Shards {
    fn new(kind: &Kind, regions: &[Region]) -> Self {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (shard, _) in kind.map.iter().enumerate() {
            if let Some(node) = home(kind, shard) {
                *counts.entry(node).or_default() += 1;
            }
        }
        let said: BTreeMap<&str, &Region> =
            regions.iter().map(|region| (region.node.as_str(), region)).collect();
        let nodes: BTreeSet<&str> = counts.keys().chain(said.keys()).copied().collect();
        let share = |node: &str| {
            let region = said.get(node);
            let answered = region.filter(|region| region.error.is_none());
            Share {
                node: node.to_owned(),
                shards: counts.get(node).copied().unwrap_or(0),
                entities: answered.map(|it| it.entities),
                waiting: answered.map(|it| it.waiting),
                error: region.and_then(|it| it.error.clone()),
            }
        };
        Self {
            kind: kind.kind.clone(),
            shards: kind.count,
            coordinator: kind.coordinator.clone(),
            term: kind.term.clone(),
            nowhere: kind.map.len() - counts.values().sum::<usize>(),
            nodes: nodes.into_iter().map(share).collect(),
            why_not: kind.why_not.clone(),
            places: None,
        }
    }
}

/// Where the node that was asked believes a shard to be.
fn home(kind: &Kind, shard: usize) -> Option<&str> {
    let index = usize::try_from(*kind.map.get(shard)?).ok()?;
    kind.nodes.get(index).map(String::as_str)
}

/// Who hosts a shard knows better; of two who say so, the one with the higher token.
fn places(kind: &Kind, regions: &[Region]) -> Vec<Place> {
    let mut hosted: BTreeMap<u32, (Vec<u64>, &str, &str)> = BTreeMap::new();
    for region in regions {
        for it in &region.shards {
            let numbers = it.token.split('.').filter_map(|number| number.parse().ok()).collect();
            let mine = (numbers, region.node.as_str(), it.token.as_str());
            let known = hosted.entry(it.shard).or_insert_with(|| mine.clone());
            if known.0 < mine.0 {
                *known = mine;
            }
        }
    }
    let place = |shard: usize| {
        let number = u32::try_from(shard).unwrap_or(u32::MAX);
        let (node, token) = match hosted.get(&number) {
            Some((_, node, token)) => (Some(*node), Some(*token)),
            None => (home(kind, shard), None),
        };
        Place { shard: number, node: node.map(str::to_owned), token: token.map(str::to_owned) }
    };
    (0..kind.map.len()).map(place).collect()
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kinds { kinds } if kinds.is_empty() => {
                f.write_str("this node shows no shards (Manage::sharding)")
            }
            Self::Kinds { kinds } => {
                for (index, kind) in kinds.iter().enumerate() {
                    let gap = if index == 0 { "" } else { "\n\n" };
                    write!(f, "{gap}{kind}")?;
                }
                Ok(())
            }
            Self::Entity(Home { kind, entity, place }) => {
                let Place { shard, node, token } = place;
                write!(f, "{entity} of {kind} is in shard {shard}, ")?;
                match node {
                    Some(node) => write!(f, "on {node}")?,
                    None => f.write_str("which is nowhere, as far as is known")?,
                }
                token.iter().try_for_each(|token| write!(f, ", with token {token}"))
            }
        }
    }
}

impl fmt::Display for Shards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} shards, coordinated by ", self.kind, self.shards)?;
        match (&self.coordinator, &self.term) {
            (Some(node), Some(term)) => write!(f, "{} with term {term}", address(node))?,
            (Some(node), None) => f.write_str(address(node))?,
            (None, _) => f.write_str("nobody that is known")?,
        }
        if self.nowhere > 0 {
            write!(f, "; {} are nowhere", self.nowhere)?;
        }
        if let Some(why) = &self.why_not {
            write!(f, "\nnot on the node that was asked: {why}")?;
        }
        let heading = ["NODE", "SHARDS", "ENTITIES", "WAITING", ""];
        let mut rows = vec![heading.map(str::to_owned)];
        rows.extend(self.nodes.iter().map(Share::row));
        table(f, &rows)?;
        let Some(places) = &self.places else { return Ok(()) };
        f.write_str("\n")?;
        let mut rows = vec![["SHARD", "NODE", "TOKEN"].map(str::to_owned)];
        rows.extend(places.iter().map(|place| {
            let node = place.node.as_deref().map_or("nowhere", address);
            let token = place.token.as_deref().unwrap_or("-");
            [place.shard.to_string(), node.to_owned(), token.to_owned()]
        }));
        table(f, &rows)
    }
}

impl Share {
    fn row(&self) -> [String; 5] {
        let or_dash =
            |number: Option<usize>| number.map_or("-".to_owned(), |number| number.to_string());
        [
            address(&self.node).to_owned(),
            self.shards.to_string(),
            or_dash(self.entities),
            or_dash(self.waiting),
            self.error.clone().unwrap_or_default(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use tenure_manage::document::HostedShard;

    use super::*;

    fn kind() -> Kind {
        Kind {
            kind: "cart".into(),
            count: 4,
            coordinator: Some("a:1#07".into()),
            term: Some("9".into()),
            nodes: vec!["a:1#07".into(), "b:2#08".into()],
            map: vec![0, 1, 1, -1],
            hosted: 1,
            entities: 3,
            waiting: 0,
            why_not: None,
        }
    }

    fn region(node: &str, shards: &[(u32, &str)]) -> Region {
        let hosted = |(shard, token): &(u32, &str)| HostedShard {
            shard: *shard,
            token: (*token).to_owned(),
        };
        let shards = shards.iter().map(hosted).collect();
        Region { node: node.into(), shards, entities: 3, ..Region::default() }
    }

    fn said(which: &Which, regions: Vec<Region>) -> String {
        let said = Regions { kind: "cart".into(), regions };
        which.of(&[kind()], &[said]).unwrap().to_string()
    }

    #[test]
    fn counts_by_node_and_who_did_not_answer() {
        let silent = Region {
            node: "b:2#08".into(),
            error: Some("not within 2s".into()),
            ..Region::default()
        };
        let which = Which { kind: None, entity: None };
        let text = said(&which, vec![region("a:1#07", &[(0, "9.1")]), silent]);
        assert_eq!(
            text,
            "cart: 4 shards, coordinated by a:1 with term 9; 1 are nowhere\n\
             NODE  SHARDS  ENTITIES  WAITING\n\
             a:1   1       3         0\n\
             b:2   2       -         -        not within 2s"
        );
    }

    #[test]
    fn whoever_hosts_a_shard_knows_better_and_the_higher_token_more() {
        let which = Which { kind: Some("cart".into()), entity: None };
        let regions = vec![
            region("a:1#07", &[(0, "9.1"), (1, "9.10")]),
            region("b:2#08", &[(1, "9.9"), (2, "10.0")]),
        ];
        let text = said(&which, regions);
        let shards = text.split("SHARD  NODE     TOKEN\n").nth(1).unwrap();
        assert_eq!(
            shards,
            "0      a:1      9.1\n1      a:1      9.10\n2      b:2      10.0\n3      nowhere  -"
        );
    }

    #[test]
    fn an_entity_is_where_its_shard_is() {
        let shard = shard_of("anna", 4).0;
        let which = Which { kind: Some("cart".into()), entity: Some("anna".into()) };
        let text = said(&which, vec![region("b:2#08", &[(shard, "9.4")])]);
        assert_eq!(text, format!("anna of cart is in shard {shard}, on b:2#08, with token 9.4"));
        let wrong = Which { kind: Some("boat".into()), entity: None };
        let failure = wrong.of(&[kind()], &[]).unwrap_err();
        assert!(format!("{failure:?}").contains("cart"), "{failure:?}");
    }
}
