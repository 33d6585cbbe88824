//! When somebody becomes a full member, every member that counts has heard of it, and nobody else
//! has its age.
//!
//! Without it: both sides of a split let their newcomers become full members, and each counts
//! itself a majority.

use tenure_cluster::{Event, Node, Status};

use super::Told;

pub(super) fn check(told: &Told<'_>) -> Option<String> {
    let Event::Up(node) = told.event else { return None };
    let decided = told.truth.of(node).is_full_member(told.view.cluster());
    if decided || told.truth.twins_decided || told.truth.of(told.who).downed {
        return None; // This node has just heard of it, or has no say.
    }
    let number = told.view.member(node)?.up_number;
    // Somebody who is out had it perhaps, known to none but those who are out as well.
    let other = told.truth.with_up_number((told.view.cluster(), number));
    let is_out = |node: &&Node| told.truth.of(node).dead || told.truth.of(node).downed;
    if let Some(other) = other.filter(|other| !is_out(other)) {
        return Some(format!("{node} and {other} both have the up-number {number}"));
    }
    for (member, row) in told.view.members() {
        // Of one that runs twice, the other one may have heard.
        let cloned = told.truth.of(member).cloned;
        if row.status < Status::Down
            && !cloned
            && let Some(view) = (told.others)(member)
            && view.cluster() == told.view.cluster()
            && view.member(node).is_none()
        {
            return Some(format!("{node} is up at {}, and {member} has not heard of it", told.who));
        }
    }
    None
}
