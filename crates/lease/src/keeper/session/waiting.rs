//! Those who wait for others.
//!
//! A lease that is attached to another session stands still while it is held; who waits for it
//! reads it and that session's record again and again. A node that stands by for another one waits
//! for thousands of such leases, all of the same session. So whoever is due to read takes along all
//! who are due soon, and the session's record is read once for all of them. What one finds out about
//! the session's end counts for all, and a push about a record finds its waiters in an index, not by
//! asking everybody.

use std::collections::{BTreeMap, BTreeSet};

use super::{AttachId, Contender, Phase, Session, SessionFlight};
use crate::LeaseName;
use crate::backend::{Answer, Request};
use crate::clock::Moment;
use crate::keeper::pace::BATCH;
use crate::record::{Nonce, SessionRef};

/// Who waits for what, and the reads under way for them.
#[derive(Default)]
pub(super) struct Waiting {
    on: BTreeMap<LeaseName, BTreeSet<AttachId>>,
    reads: BTreeMap<u64, Vec<Reader>>,
    number: u64,
}

/// What an attached lease that waits is listed under.
#[derive(Default)]
pub(super) struct Watched {
    lease: Option<LeaseName>,
    session: Option<LeaseName>,
}

/// One for whom a batch is read, and where in it its lease and that one's session are, if it has
/// one.
struct Reader {
    id: AttachId,
    flight: u64,
    lease: usize,
    session: Option<usize>,
}

impl Waiting {
    /// Those who wait for this record.
    pub(super) fn on(&self, name: &LeaseName) -> Vec<AttachId> {
        self.on.get(name).into_iter().flatten().copied().collect()
    }

    /// The records that somebody waits for.
    pub(super) fn names(&self) -> impl Iterator<Item = &LeaseName> {
        self.on.keys()
    }

    /// Lists it under what its contender waits for; `None`: it does not wait any more.
    pub(super) fn set(&mut self, id: AttachId, watched: &mut Watched, waits: Option<&Contender>) {
        let lease = waits.map(|contender| &contender.wish().name);
        let session = waits.and_then(Contender::attached_to).map(|session| &session.name);
        self.list(id, &mut watched.lease, lease);
        self.list(id, &mut watched.session, session);
    }

    fn list(&mut self, id: AttachId, under: &mut Option<LeaseName>, name: Option<&LeaseName>) {
        if under.as_ref() == name {
            return;
        }
        if let Some(former) = std::mem::replace(under, name.cloned())
            && let Some(ids) = self.on.get_mut(&former)
        {
            ids.remove(&id);
            if ids.is_empty() {
                self.on.remove(&former);
            }
        }
        if let Some(name) = name {
            self.on.entry(name.clone()).or_default().insert(id);
        }
    }
}

impl Session {
    /// If this one is due to read: reads for all who are due soon.
    pub(super) fn poll_waiting(
        &mut self,
        now: Moment,
        fresh: Nonce,
        first: AttachId,
    ) -> Option<(SessionFlight, Request)> {
        // Jitter spreads them over less than that, so those who once read together stay together.
        let soon = now + self.settings.renew_interval / 2;
        let others = self.timers.range(..=(soon, AttachId(u64::MAX))).map(|(_, id)| *id);
        let mut names: Vec<LeaseName> = Vec::new();
        let mut sessions: BTreeMap<LeaseName, usize> = BTreeMap::new();
        let mut readers = Vec::new();
        for id in std::iter::once(first).chain(others.take(LOOKS_MAX)) {
            let Some(attached) = self.attached.get_mut(&id) else { continue };
            let contending = matches!(attached.phase, Phase::Contending);
            let read = contending.then(|| attached.contender.poll_look(now, soon, fresh)).flatten();
            if let Some((flight, session)) = read {
                let lease = names.len();
                names.push(attached.contender.wish().name.clone());
                let session = session.map(|session| {
                    *sessions.entry(session).or_insert_with_key(|session| {
                        names.push(session.clone());
                        names.len() - 1
                    })
                });
                readers.push(Reader { id, flight, lease, session });
            }
            // Without the first there is no need; and one more may be two more names.
            if readers.is_empty() || names.len() + 2 > BATCH {
                break;
            }
        }
        if readers.is_empty() {
            return None;
        }
        for reader in &readers {
            self.index(reader.id);
        }
        self.flights += 1;
        self.waiting.number += 1;
        self.waiting.reads.insert(self.waiting.number, readers);
        Some((SessionFlight::Waiting(self.waiting.number), Request::Read(names)))
    }

    /// One has found that a session is over: so it is for all who wait for it.
    pub(super) fn session_ended(&mut self, now: Moment, ended: &SessionRef) {
        for id in self.waiting.on(&ended.name) {
            if let Some(attached) = self.attached.get_mut(&id) {
                attached.contender.session_ended(now, ended);
            }
            self.index(id);
        }
    }

    pub(super) fn waiting_answer(&mut self, now: Moment, number: u64, answer: Answer) {
        let Answer::Read(records) = answer else {
            unreachable!("the answer does not fit the request")
        };
        let Some(readers) = self.waiting.reads.remove(&number) else { return };
        self.flights -= 1;
        for Reader { id, flight, lease, session } in readers {
            let records = match &records {
                Ok(records) => {
                    let record = |index| records.get(index).cloned().flatten();
                    Ok(std::iter::once(lease).chain(session).map(record).collect())
                }
                Err(error) => Err(error.clone()),
            };
            self.attached_answer(now, id, flight, Answer::Read(records));
        }
    }
}

/// How many of those who are due soon are looked at for one batch.
const LOOKS_MAX: usize = 2 * BATCH;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Event, Owner, SessionEvent, Wish};
    use super::*;
    use crate::Settings;
    use crate::backend::Acquire;
    use crate::memory::MemoryRecords;

    const TTL: Duration = Duration::from_secs(10);

    fn name(name: &str) -> LeaseName {
        LeaseName::new(name).unwrap()
    }

    /// A session, and what it has asked for.
    struct Node {
        session: Session,
        drawn: u128,
        asked: Vec<Request>,
    }

    impl Node {
        fn new(node: &str, number: u64) -> Self {
            let owner = Owner { name: node.into(), incarnation: number };
            let wish = Wish::new(name(node), owner);
            let session = Session::new(wish, Settings::new(TTL), number, Moment::ZERO);
            Self { session, drawn: u128::from(number) << 64, asked: Vec::new() }
        }

        /// Does all there is to do now, and says how many attached leases it has won.
        fn run(&mut self, records: &mut MemoryRecords, now: Moment) -> usize {
            let mut won = 0;
            loop {
                self.drawn += 1;
                if let Some((flight, request)) =
                    self.session.poll(now, Nonce::from_bits(self.drawn))
                {
                    self.asked.push(request.clone());
                    self.session.answer(now, flight, records.apply(now, request));
                } else if let Some(event) = self.session.next_event() {
                    match event {
                        SessionEvent::Session(Event::Ping) => self.session.pong(now),
                        SessionEvent::Attached(_, Event::Won { .. }) => won += 1,
                        _ => {}
                    }
                } else {
                    return won;
                }
            }
        }

        fn attach(&mut self, now: Moment) {
            for lease in ["x", "y", "z"] {
                self.session.attach(now, name(lease), None).unwrap();
            }
        }

        fn acquired(&self, lease: &str) -> usize {
            let wanted = |request: &&Request| match request {
                Request::Acquire(Acquire { name, .. }) => name.as_str() == lease,
                _ => false,
            };
            self.asked.iter().filter(wanted).count()
        }
    }

    /// Two nodes of which the first holds what the second waits for.
    fn nodes() -> (MemoryRecords, Node, Node) {
        let mut records = MemoryRecords::observed();
        let (mut holder, mut standby) = (Node::new("node-1", 1), Node::new("node-2", 2));
        for node in [&mut holder, &mut standby] {
            node.run(&mut records, Moment::ZERO);
            node.attach(Moment::ZERO);
            node.run(&mut records, Moment::ZERO);
            node.asked.clear();
        }
        (records, holder, standby)
    }

    #[test]
    fn those_who_wait_for_one_session_are_read_together() {
        let (mut records, mut holder, mut standby) = nodes();
        let end = Moment::ZERO + TTL * 3;
        let mut now = Moment::ZERO;
        while now < end {
            assert_eq!(standby.run(&mut records, now), 0, "it is held all the time");
            holder.run(&mut records, now);
            now = standby.session.next_at().min(holder.session.next_at());
        }
        let reads: Vec<_> =
            standby.asked.iter().filter(|request| matches!(request, Request::Read(_))).collect();
        let all: BTreeSet<_> = ["x", "y", "z", "node-1"].map(name).into();
        for read in &reads {
            let Request::Read(names) = read else { unreachable!() };
            assert_eq!(names.len(), 4, "each once: {names:?}");
            assert_eq!(names.iter().cloned().collect::<BTreeSet<_>>(), all);
        }
        // At least every look interval, at most twice in it.
        assert!((36..=120).contains(&reads.len()), "{} reads", reads.len());
    }

    #[test]
    fn a_dead_session_frees_all_that_was_attached_to_it() {
        let (mut records, _dead, mut standby) = nodes();
        let mut now = Moment::ZERO;
        let mut won = 0;
        while won < 3 {
            won += standby.run(&mut records, now);
            now = standby.session.next_at();
            assert!(now < Moment::ZERO + TTL * 3, "{won} were won");
        }
        assert!(now > Moment::ZERO + TTL, "not before it has stood still for its ttl");
        assert_eq!(standby.acquired("node-1"), 1, "taken over once, for all");
    }
}
