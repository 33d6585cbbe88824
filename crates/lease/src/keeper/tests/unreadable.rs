//! One record that cannot be read costs its own lease, and no other.

use super::attached::Node;
use super::*;
use crate::backend::StoreErrorKind;
use crate::record::SessionRef;

/// Answers as the store does when the record of `damaged` cannot be read.
fn apply(records: &mut MemoryRecords, now: Moment, request: Request, damaged: &str) -> Answer {
    let is_asked = match &request {
        Request::Read(names) => names.contains(&name(damaged)),
        Request::Acquire(acquire) => acquire.name == name(damaged),
        _ => false,
    };
    if is_asked {
        return request.unanswered(StoreError::new(StoreErrorKind::Damaged, "not a record"));
    }
    records.apply(now, request)
}

#[test]
fn a_sweep_proves_all_others() {
    let mut records = MemoryRecords::observed();
    let mut node = Node::new(&mut records, "node-1", 1);
    let names: Vec<String> = (0..50).map(|number| format!("lease-{number:02}")).collect();
    let ids: Vec<_> = names.iter().map(|lease| node.attach(Moment::ZERO, lease, true)).collect();
    node.run(&mut records, Moment::ZERO);
    assert!(ids.iter().all(|id| node.won(*id)));

    let end = seconds(100.0);
    node.run_until_by(end, |now, request| apply(&mut records, now, request, "lease-17"));
    let lost = node.events.iter().filter_map(|event| match event {
        SessionEvent::Attached(id, Event::Lost(loss)) => Some((*id, loss.clone())),
        _ => None,
    });
    assert_eq!(lost.collect::<Vec<_>>(), [(ids[17], Loss::Expired)]);

    // Nor does it keep what is attached later from being held.
    let late = node.attach(end, "late", true);
    node.run_until_by(seconds(200.0), |now, request| apply(&mut records, now, request, "lease-17"));
    assert!(node.won(late));
    let of_late = |event: &&SessionEvent| matches!(event, SessionEvent::Attached(id, Event::Lost(_)) if *id == late);
    assert_eq!(node.events.iter().find(of_late), None);
}

#[test]
fn those_who_wait_for_others_are_served() {
    let mut records = MemoryRecords::observed();
    let mut holder = Node::new(&mut records, "node-1", 1);
    for lease in ["x", "y", "z"] {
        holder.attach(Moment::ZERO, lease, true);
    }
    holder.run(&mut records, Moment::ZERO);
    let mut node = Node::new(&mut records, "node-2", 2);
    let [x, y, z] = ["x", "y", "z"].map(|lease| node.attach(Moment::ZERO, lease, true));
    node.run_until(&mut records, seconds(3.0));
    // The holder is dead, and y cannot be read any more.
    let mut spoiled = 0;
    node.run_until_by(seconds(60.0), |now, request| {
        let reads_y = |names: &[LeaseName]| names.contains(&name("y"));
        let reads_others =
            |names: &[LeaseName]| names.contains(&name("x")) || names.contains(&name("z"));
        if matches!(&request, Request::Read(names) if reads_y(names) && reads_others(names)) {
            spoiled += 1;
        }
        apply(&mut records, now, request, "y")
    });
    assert_eq!(spoiled, 1, "after that it is read alone");
    assert!(node.won(x) && node.won(z) && !node.won(y));
    let term = node.session.keeper().token().unwrap().term;
    let record = records.read(seconds(60.0), &name("x")).unwrap();
    assert_eq!(record.session(), Some(&SessionRef { name: name("node-2"), term }));
}
