//! When all is mended and everybody reaches the store, there is a cluster: somebody has survived, or
//! formation brings one back soon.

use std::time::Duration;

use tenure_lease::Moment;

use super::Sim;

/// A time in which nothing is broken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Calm {
    /// When there last was a full member of a cluster, or nobody to form one, or when the calm began.
    seen: Moment,
    /// The longest time without.
    without: Duration,
}

impl Sim {
    /// Nothing is broken from now on.
    pub(super) fn calm_begins(&mut self) {
        self.calm = Some(Calm { seen: self.now, without: Duration::ZERO });
    }

    /// Something may break again.
    pub(super) fn calm_ends(&mut self) {
        self.calm = None;
    }

    /// Whether there is a cluster, if there must be one.
    pub(super) fn look_for_cluster(&mut self) {
        let now = self.now;
        let is_up = self.somebody_is_up() || !self.somebody_is_outside();
        let asked = self.settings.formation_ttl + self.settings.membership.detection();
        let most = asked + SOON;
        let Some(calm) = &mut self.calm else { return };
        if is_up {
            calm.seen = now;
            return;
        }
        let without = now.since(calm.seen);
        let before = std::mem::replace(&mut calm.without, without);
        if before <= most && without > most {
            let what = format!("nobody is a full member for {without:?}:\n{}", self.show_all());
            self.invariants.report(now, [("a cluster comes back", Some(what))]);
        }
    }

    /// Whether somebody is in no cluster, and could form one. Who is joining one that is gone has to
    /// find that out first.
    fn somebody_is_outside(&self) -> bool {
        let mut processes = self.places.iter().flat_map(|place| &place.processes);
        processes.any(|process| process.membership.view().is_none())
    }

    /// Whether somebody is a full member of a cluster, as far as it knows.
    fn somebody_is_up(&self) -> bool {
        let mut processes = self.places.iter().flat_map(|place| &place.processes);
        processes.any(|process| process.is_full_member())
    }
}

/// What formation takes besides the ttl of a lease whose holder is gone, and the detection time in
/// which a member would have answered.
const SOON: Duration = Duration::from_secs(3);
