//! What can go wrong, one method each.

use std::time::Duration;

use super::Sim;

impl Sim {
    /// Cuts every link between the two groups, both ways.
    pub fn partition(&mut self, some: &[usize], others: &[usize]) {
        self.note(|| format!("cut between {some:?} and {others:?}"));
        for from in some {
            for to in others {
                self.network.cut(*from, *to);
                self.network.cut(*to, *from);
            }
        }
    }

    /// Cuts the links from one group to the other, and leaves the way back.
    pub fn partition_one_way(&mut self, from: &[usize], to: &[usize]) {
        self.note(|| format!("cut from {from:?} to {to:?}"));
        for from in from {
            for to in to {
                self.network.cut(*from, *to);
            }
        }
    }

    /// Mends one link, both ways.
    pub fn mend(&mut self, one: usize, other: usize) {
        self.network.mend(one, other);
        self.network.mend(other, one);
    }

    /// Mends every link.
    pub fn mend_all(&mut self) {
        self.note(|| "links are mended".into());
        self.network.mend_all();
    }

    /// Whether some link is cut.
    pub fn has_cuts(&self) -> bool {
        self.network.has_cuts()
    }

    /// Mends every link; the weather is fair again, everybody is quick and reaches the store.
    pub fn heal(&mut self) {
        self.note(|| "all is mended".into());
        self.network.heal();
        for place in &mut self.places {
            place.store = true;
        }
    }

    /// Whether a node reaches the store.
    pub fn reach_store(&mut self, node: usize, reaches: bool) {
        self.places[node].store = reaches;
        for which in 0..self.places[node].processes.len() {
            self.look_for_guard(node, which);
        }
    }

    /// Whether nobody reaches this node, nor it anybody: its certificate is of another authority,
    /// its port is blocked. What happens to the store is another matter.
    pub fn shut_out(&mut self, node: usize, shut_out: bool) {
        self.note(|| format!("n{node} is shut out: {shut_out}"));
        self.network.shut_out(node, shut_out);
    }

    /// Everything to and from this node takes longer by this.
    pub fn slow(&mut self, node: usize, by: Duration) {
        self.network.slow(node, by);
    }

    /// Ends the processes of a node, without a word.
    pub fn crash(&mut self, node: usize) {
        self.singleton_crashes(node);
        let processes = std::mem::take(&mut self.places[node].processes);
        self.places[node].newest_cluster = 0;
        for process in processes {
            self.note(|| format!("{} crashes", process.node));
            self.truth.change(&process.node, |facts| facts.dead = true);
            self.truth.forgets(process.id);
        }
    }

    /// Ends a node's processes, if any, and starts a new one at the same address.
    pub fn restart(&mut self, node: usize) {
        self.crash(node);
        self.start(node);
    }

    /// A node's processes stand still; their clocks run on, unless they are to stand still too.
    pub fn pause(&mut self, node: usize, clock_too: bool) {
        let now = self.now;
        for process in &mut self.places[node].processes {
            process.paused = true;
            process.guards_since = None;
            process.clock.freeze(now, clock_too);
        }
        self.singleton_pauses(node, clock_too);
        self.note(|| format!("n{node} stands still, clock too: {clock_too}"));
    }

    /// They go on, with what has arrived meanwhile.
    pub fn resume(&mut self, node: usize) {
        self.note(|| format!("n{node} goes on"));
        self.singleton_resumes(node);
        let now = self.now;
        let paused: Vec<u64> = self.places[node]
            .processes
            .iter_mut()
            .filter(|process| process.paused)
            .map(|process| {
                process.paused = false;
                process.clock.freeze(now, false);
                process.id
            })
            .collect();
        for id in paused {
            let which = |sim: &Self| sim.places[node].processes.iter().position(|p| p.id == id);
            // Timers that ran out fire first, as in a real process.
            let Some(first) = which(self) else { continue };
            self.poll(node, first);
            let inbox = which(self).map(|w| &mut self.places[node].processes[w].inbox);
            for (from, message) in inbox.map(std::mem::take).into_iter().flatten() {
                if let Some(which) = which(self) {
                    self.receive(node, which, &from, message);
                }
            }
        }
    }

    /// A node's process runs twice from now on, like a virtual machine that was copied. Messages
    /// reach either of the two.
    pub fn clone_process(&mut self, node: usize) {
        if let [process] = &self.places[node].processes[..] {
            let mut twin = process.clone();
            self.incarnations += 1;
            twin.id = self.incarnations;
            twin.wake_at = tenure_lease::Moment::NEVER;
            self.truth.change(&twin.node, |facts| facts.cloned = true);
            self.note(|| format!("n{node} runs twice"));
            self.places[node].processes.push(twin);
            self.set_timer(node, 1);
        }
    }

    /// Ends one of the two.
    pub fn end_clone(&mut self, node: usize) {
        if self.places[node].processes.len() > 1 {
            self.note(|| format!("n{node} runs once"));
            self.places[node].processes.pop();
        }
    }

    /// A node leaves.
    pub fn leave(&mut self, node: usize) {
        self.note(|| format!("n{node} leaves"));
        for which in (0..self.places[node].processes.len()).rev() {
            let now = self.now;
            let process = &mut self.places[node].processes[which];
            self.truth.change(&process.node, |facts| facts.leaving = true);
            let local = process.clock.read(now);
            process.membership.leave(local);
            self.settle(node, which);
        }
    }

    /// An operator at `by` declares every member at `node`'s address down that is not the process
    /// which runs there.
    pub fn down_dead(&mut self, by: usize, node: usize) {
        let address = self.places[node].address.clone();
        let running: Vec<_> =
            self.places[node].processes.iter().map(|process| process.node.clone()).collect();
        let Some(view) = self.view(by) else { return };
        let dead: Vec<_> = view
            .members()
            .map(|(node, _)| node.clone())
            .filter(|node| node.address == address && !running.contains(node))
            .collect();
        for node in dead {
            self.operator_down(by, &node);
        }
    }

    /// An operator at `by` declares everybody down whom that node calls unreachable.
    pub fn down_unreachable(&mut self, by: usize) {
        let Some(view) = self.view(by) else { return };
        let unreachable: std::collections::BTreeSet<tenure_cluster::Node> = view
            .observations()
            .map(|(_, subject)| subject.clone())
            .filter(|node| node.address != self.places[by].address)
            .collect();
        for node in unreachable {
            self.operator_down(by, &node);
        }
    }

    /// An operator at `by` declares the process at `node` down, whatever it does.
    pub fn down(&mut self, by: usize, node: usize) {
        if let Some(process) = self.places[node].processes.first() {
            let node = process.node.clone();
            self.operator_down(by, &node);
        }
    }

    fn operator_down(&mut self, by: usize, node: &tenure_cluster::Node) {
        self.note(|| format!("an operator at n{by} declares {node} down"));
        self.truth.change(node, |facts| facts.downed = true);
        if let Some(process) = self.process(node) {
            let process = process.id;
            self.truth.forgets(process);
        }
        let now = self.now;
        if let Some(process) = self.places[by].processes.first_mut() {
            let local = process.clock.read(now);
            process.membership.down(node, local);
            self.settle(by, 0);
        }
    }
}
