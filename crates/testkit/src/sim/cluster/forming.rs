//! What a process does about the formation lease.

use tenure_cluster::Node;
use tenure_cluster::formation::FormationEffect;
use tenure_lease::Moment;

use super::Sim;
use super::process::{ASK_STORE, Lease};

impl Sim {
    /// Asks the store for the formation lease, or renews it.
    pub(super) fn tend_lease(&mut self, place: usize, which: usize, local: Moment) {
        let ttl = self.settings.formation_ttl;
        let reaches = self.places[place].store;
        let process = &mut self.places[place].processes[which];
        match &mut process.lease {
            Lease::Idle => {}
            Lease::Contending { next } => {
                *next = local + ASK_STORE;
                if !reaches {
                    return;
                }
                let note = self.store.note().cloned();
                match self.store.acquire(&process.node, self.now) {
                    Some(term) => {
                        process.formation.won(term, Ok(note), local);
                        let next = local + ttl / 3;
                        process.lease = Lease::Held { term, renewed: local, next };
                    }
                    None => process.formation.saw(&self.store.sight(), local),
                }
            }
            Lease::Held { term, renewed, next } => {
                *next = local + ttl / 3;
                let term = *term;
                let refused = reaches && !self.store.renew(&process.node, term, self.now);
                let expired = !reaches && local.since(*renewed) > ttl * 7 / 10;
                if reaches {
                    *renewed = local;
                    if let Some(note) = process.note.clone().filter(|_| !refused) {
                        self.store.write(&process.node, term, note.clone(), self.now);
                        process.note = None;
                        process.formation.wrote(note);
                    }
                }
                if refused || expired {
                    process.lease = Lease::Idle;
                    process.formation.lost();
                }
            }
        }
    }

    /// Takes note of whether a process should guard its cluster.
    pub(super) fn look_for_guard(&mut self, place: usize, which: usize) {
        let reaches = self.places[place].store;
        let now = self.now;
        let process = &mut self.places[place].processes[which];
        let leads = process.membership.leader().is_none_or(|leader| *leader == process.node);
        let guards = reaches && leads && !process.paused && process.is_full_member();
        match guards {
            true => drop(process.guards_since.get_or_insert(now)),
            false => process.guards_since = None,
        }
    }

    /// The processes that should guard their clusters, their clusters, and since when.
    fn guards(&self) -> impl Iterator<Item = (Node, u64, Moment)> {
        self.places.iter().flat_map(|place| &place.processes).filter_map(|process| {
            Some((process.node.clone(), process.membership.cluster()?, process.guards_since?))
        })
    }

    pub(super) fn form(
        &mut self,
        place: usize,
        which: usize,
        local: Moment,
        effect: FormationEffect,
    ) {
        let reaches = self.places[place].store;
        let process = &mut self.places[place].processes[which];
        match effect {
            FormationEffect::Join(contacts) => process.membership.join(contacts, local),
            FormationEffect::Contend => {
                if matches!(process.lease, Lease::Idle) {
                    process.lease = Lease::Contending { next: local };
                }
            }
            FormationEffect::Withdraw => {
                process.lease = Lease::Idle;
                if reaches {
                    self.store.release(&process.node);
                }
            }
            FormationEffect::Look => {
                if reaches {
                    process.formation.saw(&self.store.sight(), local);
                }
            }
            FormationEffect::Form(term) => {
                process.membership.form(term, local);
                let guards: Vec<_> = self.guards().collect();
                self.invariants.formed(self.now, term, &self.truth, &guards);
                self.meet("cluster formed");
            }
            FormationEffect::FormUnguarded => {} // Here there is always a lease.
            FormationEffect::WriteNote(note) => {
                process.note = Some(note);
                if let Lease::Held { next, .. } = &mut process.lease {
                    *next = local;
                }
            }
            FormationEffect::Meet(contacts) => process.membership.meet(&contacts),
        }
    }
}
