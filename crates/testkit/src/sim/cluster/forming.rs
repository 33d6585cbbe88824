//! What a process does about the formation lease.

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
                        process.formation.won(term, note);
                        let next = local + ttl / 3;
                        process.lease = Lease::Held { term, renewed: local, next };
                    }
                    None => process.formation.read(note),
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
                        self.store.write(&process.node, term, note, self.now);
                        process.note = None;
                    }
                    process.formation.read(self.store.note().cloned());
                }
                if refused || expired {
                    process.lease = Lease::Idle;
                    process.formation.lost();
                }
            }
        }
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
                    process.formation.read(self.store.note().cloned());
                }
            }
            FormationEffect::Form(term) => {
                process.membership.form(term, local);
                self.invariants.formed(self.now, term, &self.truth);
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
