//! A store that does one thing after the other, and takes its time: renewals come first.

use std::collections::VecDeque;

use super::attached::Node;
use super::*;
use crate::MemoryStore;
use crate::backend::{Backend as _, StoreInfo};

/// A line of requests, of which the first is being served.
#[derive(Default)]
struct Line {
    requests: VecDeque<(SessionFlight, Request)>,
    served_at: Moment,
}

impl Line {
    fn put(&mut self, now: Moment, flight: SessionFlight, request: Request, takes: Duration) {
        if self.requests.is_empty() {
            self.served_at = now + takes;
        }
        self.requests.push_back((flight, request));
    }

    fn next_at(&self) -> Moment {
        if self.requests.is_empty() { Moment::NEVER } else { self.served_at }
    }
}

/// Runs a session until then at a store that serves requests in these lines, and says how long each takes.
fn run<const LINES: usize>(
    node: &mut Node,
    records: &mut MemoryRecords,
    end: Moment,
    line_of: impl Fn(&Request) -> (usize, Duration),
) {
    let mut lines = [(); LINES].map(|()| Line::default());
    let mut now = Moment::ZERO;
    while now < end {
        while let Some((flight, request)) = node.poll(now) {
            let (line, takes) = line_of(&request);
            lines[line].put(now, flight, request, takes);
        }
        while let Some(event) = node.session.next_event() {
            if event == SessionEvent::Session(Event::Ping) {
                node.session.pong(now);
            }
            node.events.push(event);
        }
        let served = lines.iter().map(Line::next_at).min().unwrap_or(Moment::NEVER);
        now = served.min(node.session.next_at()).max(now);
        for line in &mut lines {
            if line.next_at() <= now
                && let Some((flight, request)) = line.requests.pop_front()
            {
                let answer = records.apply(now, request);
                node.session.answer(now, flight, answer);
                let takes = line.requests.front().map(|(_, next)| line_of(next).1);
                line.served_at = now + takes.unwrap_or_default();
            }
        }
    }
}

/// Whether the session was lost, and how many leases.
fn lost(node: &Node) -> (bool, usize) {
    let session = |event: &SessionEvent| matches!(event, SessionEvent::Session(Event::Lost(_)));
    let lease = |event: &&SessionEvent| matches!(event, SessionEvent::Attached(_, Event::Lost(_)));
    (node.events.iter().any(session), node.events.iter().filter(lease).count())
}

/// Everything is in one line, and a renewal behind as many requests as may be under way would be late.
#[test]
fn attaching_many_leaves_room_for_renewals() {
    let mut records = MemoryRecords::observed();
    let mut node = Node::new(&mut records, "node-1", 1);
    let names = (0..1_000).map(|number| format!("lease-{number}"));
    let ids: Vec<_> = names.map(|lease| node.attach(Moment::ZERO, &lease, true)).collect();
    let takes = TTL / 50;
    run::<1>(&mut node, &mut records, Moment::ZERO + takes * 2_000, |_| (0, takes));
    assert_eq!(lost(&node), (false, 0));
    let won = ids.iter().filter(|id| node.won(**id)).count();
    assert_eq!(won, ids.len(), "all are attached in the end, at half of what the store can do");
}

/// A read of everything takes longer than the pause after which it would be sent again. Each one more delays
/// the others.
#[test]
fn a_slow_read_of_everything_is_not_made_slower_by_others() {
    let mut records = MemoryRecords::observed();
    let info = StoreInfo { reads_everything: true, kind: "slow", ..MemoryStore::default().info() };
    let mut node = Node::at_store(&mut records, "node-1", 1, Some(info));
    let ids: Vec<_> = (0..100)
        .map(|number| node.attach(Moment::ZERO, &format!("lease-{number}"), true))
        .collect();
    let line_of = |request: &Request| match request {
        Request::Read(_) => (0, TTL / 5),
        _ => (1, TTL / 1_000),
    };
    run::<2>(&mut node, &mut records, Moment::ZERO + TTL * 40, line_of);
    assert_eq!(lost(&node), (false, 0));
    assert!(ids.iter().all(|id| node.won(*id)));
}
