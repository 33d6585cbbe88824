//! A kind that is stopped on this node, which stays in the cluster, and started again.
//!
//! The order is: stop the shards and say that none will be hosted here, so that whoever coordinates
//! gives them to others; then, if that is this node, give up the coordinator's lease; then let the
//! session go, unless something else in this process uses it.

use tokio::sync::{mpsc, oneshot};

use tenure_cluster::messaging::Message;
use tenure_lease::Moment;

use super::control::{Control, Spawn, observer, set_up};
use super::guard::{Guard, Guards};
use crate::{Coordinator, Setup};

/// What this node is to do about the shards of a kind, from now on.
pub(super) enum Hosting<M> {
    /// Host some, as it did before it was told to stop.
    Start(Spawn<M>, Box<Guards>),
    /// Host none; whoever waits is told when nothing is left here.
    Stop(oneshot::Sender<()>),
}

/// A kind that is being stopped on this node.
pub(super) struct Stopping {
    since: Moment,
    waiting: Vec<oneshot::Sender<()>>,
}

impl<M: Message> Control<M> {
    /// Takes a wish of users; says with what to begin again, should control fail.
    pub(super) fn hosting(&mut self, hosting: Hosting<M>) -> (Option<Spawn<M>>, Guards) {
        let now = Moment::now();
        match (hosting, &mut self.stopping) {
            (Hosting::Stop(waiting), Some(stopping)) => stopping.waiting.push(waiting),
            (Hosting::Stop(waiting), None) if self.spawn.take().is_some() => {
                self.stopping = Some(Stopping { since: now, waiting: vec![waiting] });
                self.region.stop_hosting(now);
            }
            (Hosting::Stop(waiting), None) => drop(waiting.send(())), // It hosts none.
            (Hosting::Start(spawn, guards), _) => {
                let guards = *guards;
                let (tell, guarded) = mpsc::unbounded_channel();
                let observer = observer(&self.shared, &guards);
                self.guard = Guard::new(guards.clone(), observer, None, tell);
                self.setup = set_up(&self.shared, &guards, true);
                (self.guarded, self.guards, self.spawn) = (guarded, guards, Some(spawn));
                (self.withdrawn, self.elsewhere) = (false, false);
                self.open_crews();
                self.region.host_again(now);
                let (me, settings) = (&self.me, &self.shared.settings);
                let new = || Coordinator::new(me.clone(), settings.clone());
                self.coordinator.get_or_insert_with(new).able(true, now);
            }
        }
        (self.spawn.clone(), self.guards.clone())
    }

    /// Goes on with it, if the kind is being stopped here.
    pub(super) fn go_on_stopping(&mut self) {
        let (now, patience) = (Moment::now(), self.shared.settings.patience);
        let Some(stopping) = &mut self.stopping else { return };
        if !self.shards.is_empty() || self.session.is_some() {
            return;
        }
        if let Some(coordinator) = &mut self.coordinator
            && self.shared.settings.setup != Setup::Gossip
            && !self.withdrawn
        {
            let placed = coordinator.homes().count() == self.shared.settings.shards as usize;
            if coordinator.is_active(now) && !placed && now < stopping.since + patience {
                return; // Nobody gives shards away faster than who knows where they were.
            }
            self.withdrawn = true;
            return coordinator.able(false, now);
        }
        if *self.guard.holding().borrow() {
            return;
        }
        let waiting = std::mem::take(&mut stopping.waiting);
        self.stopping = None;
        self.guard.let_session_rest();
        let (tell, guarded) = mpsc::unbounded_channel();
        self.guards = Guards::default();
        self.guard = Guard::new(Guards::default(), None, None, tell);
        self.guarded = guarded;
        self.shared.set_stopped();
        for waiting in waiting {
            let _ = waiting.send(()); // Whoever waited may be gone.
        }
    }
}
