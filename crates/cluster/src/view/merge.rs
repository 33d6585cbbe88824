use std::time::Duration;

use tenure_lease::Moment;

use super::{Member, Status, View};
use crate::Node;
use crate::settings::{MembershipSettings, Rule};

/// What a merge, or an action of this node, changed about a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Whose status it is.
    pub node: Node,
    /// What it was; `None` for a member that was not known.
    pub before: Option<Status>,
    /// What it is; `None` for a member that was removed.
    pub after: Option<Status>,
}

impl View {
    /// Takes in what another member of the same cluster believes, and says what that changed.
    ///
    /// `tombstones` are the incarnations that the other one knows to be removed, and for how long.
    ///
    /// Tombstones are collected after a day, and still nobody comes back from the dead: up-numbers
    /// are given in order and views travel whole, so a view that knows of up-number 7 has heard of
    /// whoever got 6. If it does not list that member, it has seen it removed. On whichever side of
    /// a merge such a *ghost* stands, it goes.
    ///
    /// A verdict travels whole: a member that only the view with the older verdict knows, and that
    /// is not among the newer one's survivors, is down.
    ///
    /// Merging is commutative and idempotent, and statuses only rise, so all who hear of each other come to
    /// believe the same. It is associative as well, but for one who was let in on both sides of a verdict (it
    /// asks every contact point): down if the older side's word meets a view that has not heard of it yet, and
    /// a member otherwise. Where these two meet, it is down.
    pub(crate) fn merge(
        &mut self,
        other: &Self,
        tombstones: &[(Node, Duration)],
        now: Moment,
        settings: &MembershipSettings,
    ) -> Vec<Change> {
        assert_eq!(self.cluster, other.cluster, "views of two clusters do not merge");
        let mut changes = Vec::new();
        for (node, age) in tombstones {
            // One that is about to be forgotten still says why the other does not list this member.
            if *age < settings.keep_removed || self.members.contains_key(node) {
                self.bury(node, now - *age, &mut changes);
            }
        }
        if self.digest == other.digest {
            return changes;
        }
        let known_up = self.highest_up;
        self.raise_highest_up(other.highest_up);
        self.raise_skipped_up(other.skipped_up);
        let refuses = settings.obeys(Rule::RefuseGhosts);
        let ours_is_newer = self.verdict.generation > other.verdict.generation;
        if other.verdict.generation > self.verdict.generation {
            self.down_unknown_losers(other, &mut changes);
            self.set_verdict(other.verdict.clone());
        }
        self.announce(other.asked);
        for (node, theirs) in &other.members {
            let Some(ours) = self.members.get(node) else {
                let ghost = (1..=known_up).contains(&theirs.up_number);
                if !(refuses && (ghost || self.is_removed(node))) {
                    let mut theirs = theirs.clone();
                    if ours_is_newer && !self.verdict.survivors.contains(node) {
                        theirs.status = Status::Down;
                    }
                    let after = Some(theirs.status);
                    self.set_member(node, theirs);
                    changes.push(Change { node: node.clone(), before: None, after });
                }
                continue;
            };
            let joined = ours.join(theirs);
            if joined != *ours {
                let (before, after) = (Some(ours.status), Some(joined.status));
                self.set_member(node, joined);
                if before != after {
                    changes.push(Change { node: node.clone(), before, after });
                }
            }
        }
        if refuses && self.members.len() > other.members.len() {
            let known_up = other.highest_up;
            let is_ghost = |(node, ours): &(&Node, &Member)| {
                (1..=known_up).contains(&ours.up_number) && !other.members.contains_key(*node)
            };
            let ghosts: Vec<Node> =
                self.members.iter().filter(is_ghost).map(|(node, _)| node.clone()).collect();
            for node in ghosts {
                self.bury(&node, now, &mut changes);
            }
        }
        for (observer, theirs) in &other.rows {
            let newer = self.rows.get(observer).is_none_or(|ours| ours < theirs);
            if newer && self.members.contains_key(observer) {
                self.set_row(observer, theirs.clone());
            }
        }
        changes
    }

    /// The other view has a newer verdict; what it knows nothing of was not on the side that won.
    fn down_unknown_losers(&mut self, other: &Self, changes: &mut Vec<Change>) {
        let is_loser = |(node, member): &(&Node, &Member)| {
            member.status < Status::Down
                && !other.members.contains_key(*node)
                && !other.verdict.survivors.contains(node)
        };
        let losers: Vec<(Node, Member)> = self
            .members
            .iter()
            .filter(is_loser)
            .map(|(node, member)| (node.clone(), member.clone()))
            .collect();
        for (node, member) in losers {
            let before = Some(member.status);
            self.set_member(&node, Member { status: Status::Down, ..member });
            changes.push(Change { node, before, after: Some(Status::Down) });
        }
    }

    fn bury(&mut self, node: &Node, since: Moment, changes: &mut Vec<Change>) {
        let before: Option<Status> = self.members.get(node).map(|member| member.status);
        self.remove(node, since);
        if before.is_some() {
            changes.push(Change { node: node.clone(), before, after: None });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Incarnation;
    use crate::view::{Survivors, Verdict};

    #[test]
    fn a_tombstone_older_than_a_day_still_counts_for_who_missed_it() {
        let settings = MembershipSettings::default();
        let node = |at: &str| Node { address: at.parse().unwrap(), incarnation: Incarnation(1) };
        let (here, joiner) = (node("a:1"), node("b:1"));
        let joining = Member::joining(Arc::default(), Arc::default());
        let mut missed = View::new(1);
        missed.set_member(&here, Member { status: Status::Up, up_number: 1, ..joining.clone() });
        missed.set_member(&joiner, Member { status: Status::Down, ..joining });
        let mut knows = missed.clone();
        let removed = Moment::from_nanos(7);
        knows.remove(&joiner, removed);

        let now = removed + 2 * settings.keep_removed;
        let mut one = missed.clone();
        one.merge(&knows, &knows.removed(now), now, &settings);
        let mut other = knows.clone();
        other.merge(&missed, &missed.removed(now), now, &settings);
        assert_eq!(one.digest(), other.digest());
        assert!(one.is_removed(&joiner) && one.says_the_same(&other));
    }

    /// It asked every contact point, and two of them let it in: one before it heard of a verdict, and one after.
    #[test]
    fn who_was_let_in_on_both_sides_of_a_verdict_is_settled_the_same_everywhere() {
        let settings = MembershipSettings::default();
        let node = |at: &str| Node { address: at.parse().unwrap(), incarnation: Incarnation(1) };
        let (here, joiner) = (node("a:1"), node("b:1"));
        let joining = Member::joining(Arc::default(), Arc::default());
        let mut before = View::new(1);
        before.set_member(&here, Member { status: Status::Up, up_number: 1, ..joining.clone() });
        let mut after = before.clone();
        let survivors = Arc::new(Survivors::new([&here], []));
        after.set_verdict(Verdict { cluster: 1, generation: 1, survivors });
        let unaware = after.clone();
        before.set_member(&joiner, joining.clone());
        after.set_member(&joiner, joining);

        let now = Moment::from_nanos(7);
        let merged = |one: &View, other: &View| {
            let mut merged = one.clone();
            merged.merge(other, &[], now, &settings);
            merged
        };
        let older_first = merged(&merged(&before, &unaware), &after);
        let newer_first = merged(&before, &merged(&unaware, &after));
        let status = |view: &View| view.member(&joiner).map(|member| member.status);
        assert_eq!(status(&older_first), Some(Status::Down));
        assert_eq!(status(&newer_first), Some(Status::Joining));
        assert!(merged(&newer_first, &older_first).says_the_same(&older_first));
        assert!(merged(&older_first, &newer_first).says_the_same(&older_first));
        for heard in [&before, &unaware, &after] {
            assert!(merged(&newer_first, heard).says_the_same(&newer_first));
            assert!(merged(&older_first, heard).says_the_same(&older_first));
        }
    }

    /// Whoever declares somebody down skips numbers: the winners of a split, who then let others in,
    /// and a loser that has not heard of it and lets its neighbours restart.
    #[test]
    fn numbers_that_were_only_skipped_make_no_ghosts() {
        let settings = MembershipSettings::default();
        let node = |at: &str| Node { address: at.parse().unwrap(), incarnation: Incarnation(1) };
        let up = |number| Member {
            status: Status::Up,
            up_number: number,
            ..Member::joining(Arc::default(), Arc::default())
        };
        let mut winner = View::new(1);
        winner.set_member(&node("a:1"), up(1));
        winner.set_member(&node("b:1"), up(2));
        let mut loser = winner.clone();
        winner.skip_up_numbers();
        winner.set_member(&node("c:1"), up(winner.next_up()));
        for joining in ["d:1", "e:1", "f:1"] {
            loser.set_member(&node(joining), Member::joining(Arc::default(), Arc::default()));
        }
        loser.skip_up_numbers();
        assert!(loser.next_up() > winner.next_up());

        let now = Moment::from_nanos(7);
        let (mut one, mut other) = (winner.clone(), loser.clone());
        assert!(one.merge(&loser, &[], now, &settings).iter().all(|change| change.after.is_some()));
        other.merge(&winner, &[], now, &settings);
        assert!(one.says_the_same(&other) && one.member(&node("c:1")).is_some());
    }
}
