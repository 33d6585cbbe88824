//! Where shards are, for the page: put together from what all processes say.

use std::collections::BTreeMap;

use tenure_lease::Token;
use tenure_manage::document::{HostedShard, Kind, Region, Regions};
use tenure_sharding::Shard;

use super::COUNTERS;
use super::counter::SHARDS;
use super::places::{Places, Share};

/// Where shards are: of two who say that they have one, the one with the higher token does.
pub(super) fn shards(places: &Places, name: impl Fn(usize) -> String) -> Kind {
    let mut map = vec![-1; SHARDS as usize];
    let mut tokens: BTreeMap<Shard, Token> = BTreeMap::new();
    for (index, share) in (0..).zip(places.nodes.values()) {
        for (shard, token) in &share.hosted {
            if tokens.get(shard).is_none_or(|known| known < token)
                && let Some(place) = map.get_mut(shard.0 as usize)
            {
                tokens.insert(*shard, *token);
                *place = index;
            }
        }
    }
    let coordinator = places.coordinator();
    let term = coordinator.and_then(|number| places.nodes.get(&number)?.coordinates);
    Kind {
        kind: COUNTERS.into(),
        count: map.len(),
        coordinator: coordinator.map(&name),
        term: term.map(|term| term.to_string()),
        nodes: places.nodes.keys().map(|number| name(*number)).collect(),
        map,
        // No node answers here.
        hosted: 0,
        entities: places.nodes.values().map(|share| share.entities).sum(),
        waiting: 0,
        why_not: None,
    }
}

/// What each process says.
pub(super) fn regions(places: &Places, name: impl Fn(usize) -> String) -> Regions {
    let region = |(number, share): (&usize, &Share)| Region {
        node: name(*number),
        shards: share
            .hosted
            .iter()
            .map(|(shard, token)| HostedShard { shard: shard.0, token: token.to_string() })
            .collect(),
        entities: share.entities,
        waiting: share.waiting,
        error: None,
    };
    Regions { kind: COUNTERS.into(), regions: places.nodes.iter().map(region).collect() }
}
