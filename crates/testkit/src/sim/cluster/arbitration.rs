//! The resolver's lease: a record that keeps its verdict, and requests that take their time, arrive
//! late, or whose answers are lost.

use std::time::Duration;

use tenure_cluster::downing::Strategy;
use tenure_cluster::resolver::{Asked, RecordRead, ResolverEffect, Sighting};
use tenure_cluster::view::Verdict;
use tenure_lease::backend::Expected;
use tenure_lease::{Moment, check_note};

use super::Sim;
use super::queue::What;

/// The record of the arbitration lease, as the store keeps it.
#[derive(Debug, Default)]
pub(super) struct Arbitration {
    /// Rises with every acquisition; `None` while there is no record.
    term: Option<u64>,
    /// The process that holds it, and when it was last heard of.
    holder: Option<(u64, Moment)>,
    /// What stands in the record, as it is written there.
    note: Vec<u8>,
    /// How long the store takes for an answer, at most, each way.
    pub(super) delay: Duration,
}

/// What a process asks of the store.
#[derive(Clone, Debug)]
pub(super) enum Request {
    Read,
    Ask { expected: Option<Expected>, verdict: Verdict },
    Release,
}

/// What the store answers.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    Read(RecordRead),
    Asked(Asked),
}

impl Arbitration {
    fn sighting(&self) -> Sighting {
        Sighting::new(self.term, &self.note).expect("what was written can be read")
    }

    fn apply(
        &mut self,
        process: u64,
        request: Request,
        ttl: Duration,
        now: Moment,
    ) -> Option<Reply> {
        match request {
            Request::Read => Some(Reply::Read(RecordRead::Seen(self.sighting()))),
            Request::Ask { expected, verdict } => {
                let note = verdict.to_note();
                if check_note(Some(&note)).is_err() {
                    // As every store refuses it, and a driver says that it does not know.
                    return Some(Reply::Asked(Asked::Unknown));
                }
                let free = self
                    .holder
                    .is_none_or(|(holder, seen)| holder == process || now.since(seen) >= ttl);
                if !free || expected.is_some_and(|expected| expected != self.sighting().expected) {
                    return Some(Reply::Asked(Asked::Lost(self.sighting())));
                }
                self.term = Some(self.term.unwrap_or(1000) + 1);
                self.holder = Some((process, now));
                self.note = note;
                Some(Reply::Asked(Asked::Won))
            }
            Request::Release => {
                self.holder.take_if(|(holder, _)| *holder == process);
                None
            }
        }
    }

    /// A process that lives and reaches the store renews what it knows that it holds.
    pub(super) fn renew(&mut self, process: u64, now: Moment) {
        if let Some((holder, seen)) = &mut self.holder
            && *holder == process
        {
            *seen = now;
        }
    }
}

impl Sim {
    /// Asks what the resolver of a process wants, and does it; whether there was anything.
    pub(super) fn resolve(&mut self, place: usize, which: usize, local: Moment) -> bool {
        let process = &mut self.places[place].processes[which];
        let Some(resolver) = &mut process.resolver else { return false };
        let effects = resolver.poll(&process.membership, local);
        let any = !effects.is_empty();
        for effect in effects {
            self.carry_out(place, which, local, effect);
        }
        any
    }

    fn carry_out(&mut self, place: usize, which: usize, local: Moment, effect: ResolverEffect) {
        let process = &mut self.places[place].processes[which];
        let (node, id) = (process.node.clone(), process.id);
        match effect {
            ResolverEffect::Down { nodes, reason } => {
                process.membership.down_all(&nodes, local);
                for downed in &nodes {
                    self.truth.change(downed, |facts| facts.downed = true);
                }
                self.meet("decided without the lease");
                self.note(|| format!("{node} declares {nodes:?} down: {reason}"));
            }
            ResolverEffect::Adopt { verdict, reason } => {
                let members = process.membership.view().into_iter().flat_map(|view| view.members());
                let losers: Vec<_> = members
                    .map(|(member, _)| member.clone())
                    .filter(|member| !verdict.survivors.contains(member))
                    .collect();
                process.membership.adopt(&verdict, local);
                for loser in losers {
                    self.truth.change(&loser, |facts| facts.downed = true);
                }
                self.meet(match reason.contains("won") {
                    true if reason.contains("another") => "lost, and followed the verdict",
                    true => "won the lease",
                    false => "read a newer verdict",
                });
                self.note(|| format!("{node} follows {verdict:?}: {reason}"));
            }
            ResolverEffect::Announce(generation) => {
                process.membership.announce(generation, local);
                self.note(|| format!("{node} announces {generation}"));
            }
            ResolverEffect::Read => self.request(place, id, Request::Read),
            ResolverEffect::Ask { expected, verdict } => {
                if let Some(view) = process.membership.view() {
                    self.invariants.asks(self.now, &node, view, &verdict);
                }
                self.note(|| format!("{node} asks for {verdict:?}"));
                self.request(place, id, Request::Ask { expected, verdict });
            }
            ResolverEffect::Release => {
                process.arbitrates = false;
                self.request(place, id, Request::Release);
            }
        }
    }

    fn request(&mut self, place: usize, process: u64, request: Request) {
        let timeout = match &self.settings.downing {
            Some(Strategy::LeaseMajority(strategy)) => strategy.acquire_timeout,
            _ => return,
        };
        // Whoever asks gives up by itself; a reply that comes later finds nobody.
        let unknown = match &request {
            Request::Read => Some(Reply::Read(RecordRead::Unknown)),
            Request::Ask { .. } => Some(Reply::Asked(Asked::Unknown)),
            Request::Release => None,
        };
        self.places[place].flights += 1;
        let flight = self.places[place].flights;
        if let Some(reply) = unknown {
            self.queue.push(self.now + timeout, What::Answer { place, process, flight, reply });
        }
        if self.places[place].store {
            let at = self.now + self.random.up_to(self.arbitration.delay + STORE);
            self.queue.push(at, What::Apply { place, process, flight, request });
        } else {
            self.meet("store unreachable in a split");
        }
    }

    /// A request reaches the store.
    pub(super) fn apply(&mut self, place: usize, process: u64, flight: u64, request: Request) {
        let ttl = self.settings.formation_ttl;
        let gone = self.places[place].processes.iter().all(|one| one.id != process);
        if gone && matches!(request, Request::Ask { .. }) {
            self.meet("asked, and died before it was applied");
        }
        let reply = self.arbitration.apply(process, request, ttl, self.now);
        let Some(reply) = reply else { return };
        if let Reply::Asked(Asked::Lost(sighting)) = &reply {
            let own = self.places[place].processes.iter().find(|one| one.id == process);
            let known = own.and_then(|one| one.membership.view()).map(|v| v.verdict().generation);
            if known.is_some_and(|known| sighting.verdict.generation <= known) {
                self.meet("lost without a newer verdict");
            }
        }
        if self.places[place].store {
            let at = self.now + self.random.up_to(self.arbitration.delay + STORE);
            self.queue.push(at, What::Answer { place, process, flight, reply });
        } else {
            self.meet("the store's answer is lost");
        }
    }

    /// An answer reaches a process, or it gives up waiting.
    pub(super) fn answer(&mut self, place: usize, process: u64, flight: u64, reply: Reply) {
        let Some(which) = self.places[place].processes.iter().position(|one| one.id == process)
        else {
            return;
        };
        let one = &mut self.places[place].processes[which];
        if one.answered >= flight || one.paused {
            return;
        }
        one.answered = flight;
        let local = one.clock.read(self.now);
        let Some(resolver) = &mut one.resolver else { return };
        match reply {
            Reply::Read(read) => resolver.read(read, local),
            Reply::Asked(asked) => {
                one.arbitrates = asked == Asked::Won;
                let effects = resolver.answered(asked, &one.membership, local);
                for effect in effects {
                    self.carry_out(place, which, local, effect);
                }
            }
        }
        self.settle(place, which);
    }

    /// What the record of the resolver's lease says.
    pub(super) fn show_verdict(&self) -> String {
        let Verdict { generation, survivors, .. } = self.arbitration.sighting().verdict;
        if generation == 0 {
            return "no verdict".into();
        }
        let nodes = self.truth.nodes().filter(|node| survivors.contains(node));
        let survivors: Vec<String> = nodes.map(|node| self.name(node)).collect();
        let held = match self.arbiter() {
            Some(place) => format!("held by n{place}"),
            None => "held by nobody who runs".into(),
        };
        format!("verdict {generation}: {} survive; {held}", survivors.join(" "))
    }

    /// Whether somebody who runs holds the resolver's lease.
    pub fn somebody_arbitrates(&self) -> bool {
        self.arbiter().is_some()
    }

    /// Ends the process that does.
    pub fn crash_arbiter(&mut self) {
        if let Some(place) = self.arbiter() {
            self.crash(place);
        }
    }

    fn arbiter(&self) -> Option<usize> {
        let (holder, _) = self.arbitration.holder?;
        let holds =
            |index: &usize| self.places[*index].processes.iter().any(|one| one.id == holder);
        (0..self.places.len()).find(holds)
    }

    /// How long the store takes for requests of resolvers, at most, each way.
    pub fn slow_store(&mut self, delay: Duration) {
        self.arbitration.delay = delay;
    }
}

/// How long a store takes on a good day.
const STORE: Duration = Duration::from_millis(5);
