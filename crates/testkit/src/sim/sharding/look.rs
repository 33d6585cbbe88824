//! Looks at everybody from outside.

use tenure_cluster::Node;
use tenure_sharding::Shard;

use super::World;

impl World {
    /// Checks what everybody believes.
    pub fn look(&mut self) {
        let now = self.sim.now();
        let mut active: Vec<Node> = Vec::new();
        let mut stale = false;
        for shell in self.shells.values_mut() {
            let local = shell.clock.read(now);
            if shell.coordinator.is_active(local) {
                match shell.lease_impaired {
                    true => stale = true,
                    false => active.push(shell.node.clone()),
                }
            }
        }
        if stale && !active.is_empty() {
            self.meet("deposed coordinator believes");
        }
        if self.is_removed_and_lives(&active) {
            self.meet("region removed while its session lives");
        }
        let active: Vec<&Node> = active.iter().collect();
        self.invariants.coordinate(now, &active);
    }

    /// Whether a region hosts shards under a session of its own that is no member any more for one
    /// of these coordinators.
    fn is_removed_and_lives(&self, coordinators: &[Node]) -> bool {
        let view = |node: &Node| self.sim.place_of(node).and_then(|place| self.sim.view(place));
        let views: Vec<_> = coordinators.iter().filter_map(view).collect();
        self.shells.values().any(|shell| {
            let lives = shell.region.host().is_some_and(|host| host.session.is_some());
            let is_gone = || views.iter().any(|view| view.member(&shell.node).is_none());
            lives && !shell.entities.is_empty() && is_gone()
        })
    }

    /// The processes that are members, or want to be.
    pub(super) fn processes(&self) -> Vec<u64> {
        self.shells.iter().filter(|(_, shell)| !shell.ended).map(|(id, _)| *id).collect()
    }

    /// Whether every shard is active in one place, in a process that stays, and has read what it
    /// needs.
    pub fn is_served(&mut self) -> bool {
        (0..self.settings.shards).map(Shard).all(|shard| {
            let mut active = self.invariants.active(shard);
            let (Some((id, token)), None) = (active.next(), active.next()) else { return false };
            let shell = self.shells.get(&id).filter(|shell| !shell.ended && !shell.paused);
            let entity = shell.and_then(|shell| shell.entities.get(&shard));
            entity.is_some_and(|entity| entity.token == token && entity.known.is_some())
        })
    }

    /// Where each shard is, for people: node by node.
    pub fn show(&self) -> String {
        let mut lines = Vec::new();
        for (id, shell) in &self.shells {
            let shards: Vec<String> =
                shell.region.shards().map(|(shard, token)| format!("{shard}@{token}")).collect();
            let purposes: Vec<String> =
                shell.keepers.values().map(|kept| format!("{:?}", kept.purpose)).collect();
            lines.push(format!(
                "process {id} {} host {:?} obeys {:?} ended {} paused {} candidate {} recovered {}: {} | {}",
                shell.node,
                shell.region.host(),
                shell.region.coordinator(),
                shell.ended,
                shell.paused,
                shell.coordinator.is_candidate(),
                shell.coordinator.is_recovered(),
                shards.join(" "),
                purposes.join(" "),
            ));
        }
        lines.join("\n")
    }
}
