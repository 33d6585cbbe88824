//! Where messages go.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_cluster::Node;
use tenure_lease::{Moment, Token};

use super::buffer::{Buffer, Unroutable};
use super::{Effect, Home, Leftover, Overdue, Region, Stage, Way};
use crate::Shard;
use crate::settings::Rule;
use crate::wire::Message;

impl<M> Region<M> {
    /// Somebody on this node sends a message of this size to an entity of a shard.
    pub fn send(&mut self, shard: Shard, message: M, bytes: usize, now: Moment) {
        self.tick(now);
        let refused = match (self.stage, shard.0 < self.settings.shards) {
            (Stage::Ended, _) => Some(Unroutable::Ended),
            (_, false) => Some(Unroutable::NoSuchShard { shards: self.settings.shards }),
            _ => None,
        };
        if let Some(why) = refused {
            self.effects.push(Effect::Fail { message, why });
            return;
        }
        if !self.buffers.contains_key(&shard) {
            if let Some(token) = self.running(shard) {
                self.effects.push(Effect::Deliver { shard, token, message });
                return;
            }
            if let Some(to) = self.home(shard) {
                self.effects.push(Effect::Forward { to, shard, message });
                return;
            }
        }
        self.changed.insert(shard);
        let buffer = self.buffers.entry(shard).or_insert_with(Buffer::new);
        if let Err(message) = buffer.push(message, bytes, &self.settings) {
            let why = buffer.full();
            self.counts.overflows += 1;
            self.effects.push(Effect::Fail { message, why });
        }
        self.ask_soon(now);
    }

    /// Whether there is room for a message of this size that has to wait for its shard.
    pub fn has_room(&self, shard: Shard, bytes: usize) -> bool {
        self.buffers.get(&shard).is_none_or(|buffer| buffer.has_room(bytes, &self.settings))
    }

    /// Keeps only these of what waits for a shard; nobody is told of the others.
    pub fn retain_waiting(&mut self, shard: Shard, keep: impl Fn(&M) -> bool) {
        if let Some(buffer) = self.buffers.get_mut(&shard) {
            buffer.retain(keep);
        }
    }

    /// Where the next message to a shard goes. Whoever drives this may take that way without asking
    /// each time, until it changes.
    pub fn way(&self, shard: Shard) -> Way {
        if self.stage == Stage::Ended || self.buffers.contains_key(&shard) {
            return Way::Waits;
        }
        match (self.running(shard), self.home(shard)) {
            // One by one: it depends on who sends.
            (Some(_), _) if self.returned_to.iter().any(|(it, _)| *it == shard) => Way::Waits,
            (Some(token), _) => Way::Here(token),
            (None, Some(node)) => Way::There(node),
            (None, None) => Way::Waits,
        }
    }

    /// Keeps what senders of this node had sent to a shard that has stopped; the rest comes back, and
    /// goes back to where it came from.
    pub(super) fn keep_leftovers(
        &mut self,
        shard: Shard,
        leftovers: Vec<Leftover<M>>,
    ) -> Vec<(Node, M)> {
        let (mut own, mut from_others) = (Vec::new(), Vec::new());
        for Leftover { from, message, bytes } in leftovers {
            match from {
                Some(node) => from_others.push((node, message)),
                None if self.stage == Stage::Ended => {
                    self.effects.push(Effect::Fail { message, why: Unroutable::Ended });
                }
                None => own.push((message, bytes)),
            }
        }
        if !own.is_empty() {
            self.changed.insert(shard);
            self.buffers.entry(shard).or_insert_with(Buffer::new).put_back(own);
        }
        from_others
    }

    /// A shard has a new home. What this region sent to the former one may still come back from
    /// there: nothing is sent to the new one before that is settled.
    pub(super) fn move_home(&mut self, shard: Shard, token: Token, node: Node, now: Moment) {
        self.changed.insert(shard);
        let said = self.term().unwrap_or_default();
        let former = self.homes.insert(shard, Home { said, token, node: node.clone() });
        let is_elsewhere = |former: &Node| *former != node && *former != self.me;
        let Some(former) = former.map(|former| former.node).filter(is_elsewhere) else { return };
        match self.reachable.contains(&former) {
            true => self.expect_back(shard, &former, now),
            false => self.give_up_on(shard, former, now),
        }
    }

    /// A message arrived from another region, for a shard that should be here.
    pub fn forwarded(&mut self, from: &Node, shard: Shard, message: M, now: Moment) {
        self.tick(now);
        match self.running(shard).filter(|_| self.takes(from, shard)) {
            Some(token) => self.effects.push(Effect::Deliver { shard, token, message }),
            None => {
                if self.settings.obeys(Rule::ReturnsUntilTheMark) {
                    self.returned_to.insert((shard, from.clone()));
                    self.changed.insert(shard);
                }
                self.effects.push(Effect::Return { to: from.clone(), shard, message });
            }
        }
    }

    /// Whether a message that arrives from there now would be delivered.
    pub fn takes(&self, from: &Node, shard: Shard) -> bool {
        self.running(shard).is_some() && !self.returned_to.contains(&(shard, from.clone()))
    }

    /// A message came back: its shard is not there any more.
    pub fn returned(&mut self, from: &Node, shard: Shard, message: M, bytes: usize, now: Moment) {
        self.tick(now);
        if self.stage == Stage::Ended {
            self.effects.push(Effect::Fail { message, why: Unroutable::Ended });
            return;
        }
        let overdue = self.overdue.get(&(shard, from.clone()));
        let is_late = overdue.is_some_and(|overdue| overdue.is_late);
        if is_late && self.settings.obeys(Rule::LateReturnsAreLost) {
            self.effects.push(Effect::Fail { message, why: Unroutable::Late });
            return;
        }
        self.changed.insert(shard);
        let forgets = self.homes.get(&shard).is_some_and(|home| home.node == *from);
        if forgets {
            self.homes.remove(&shard);
        }
        let buffer = self.buffers.entry(shard).or_insert_with(Buffer::new);
        if let Err(message) = buffer.push_returned(message, bytes, &self.settings) {
            let why = buffer.full();
            self.counts.overflows += 1;
            self.effects.push(Effect::Fail { message, why });
        }
        self.expect_back(shard, from, now);
        match forgets {
            // What is forgotten is not said again by itself.
            true => self.ask(now),
            false => self.ask_soon(now),
        }
    }

    /// Another region asks to be told when it has back everything that it had sent before.
    pub fn mark(&mut self, from: &Node, shard: Shard) {
        if self.returned_to.remove(&(shard, from.clone())) {
            self.changed.insert(shard);
        }
        self.effects.push(Effect::Marked { to: from.clone(), shard });
    }

    /// Everything that was sent there before the question is back, or was delivered.
    pub fn marked(&mut self, from: &Node, shard: Shard) {
        self.overdue.remove(&(shard, from.clone()));
        if let Some(buffer) = self.buffers.get_mut(&shard) {
            buffer.returning.take_if(|(node, _)| node == from);
            self.flush(shard);
        }
    }

    /// A node hosts nothing any more, and goes as soon as [`is_returning`](Self::is_returning) is false
    /// for it: it is nobody's home from now on.
    pub fn farewell(&mut self, from: &Node, now: Moment) {
        self.tick(now);
        let left: Vec<Shard> =
            self.homes().filter(|(_, home)| *home == from).map(|(shard, _)| shard).collect();
        for shard in left {
            self.homes.remove(&shard);
            self.expect_back(shard, from, now);
        }
        self.ask_soon(now);
    }

    /// Whether something may still come back from there.
    pub fn is_returning(&self, from: &Node) -> bool {
        let returning =
            |buffer: &Buffer<M>| buffer.returning.as_ref().is_some_and(|it| it.0 == *from);
        self.buffers.values().any(returning)
    }

    /// What was sent there may come back: nothing is sent elsewhere before that is settled.
    fn expect_back(&mut self, shard: Shard, from: &Node, now: Moment) {
        self.changed.insert(shard);
        let buffer = self.buffers.entry(shard).or_insert_with(Buffer::new);
        if buffer.returning.is_none() {
            buffer.returning = Some((from.clone(), now + self.settings.patience));
            self.effects.push(Effect::Mark { to: from.clone(), shard });
        }
    }

    /// These nodes are members and within reach, and no others: what is elsewhere waits.
    pub fn reachable(&mut self, nodes: BTreeSet<Node>, now: Moment) {
        self.tick(now);
        if self.reachable != nodes {
            self.all_changed();
        }
        self.reachable = nodes;
        let reachable = self.reachable.clone();
        self.returned_to.retain(|(_, node)| reachable.contains(node));
        self.stop_waiting(now, |from, _| !reachable.contains(from));
        let waiting: Vec<Shard> = self.buffers.keys().copied().collect();
        for shard in waiting {
            self.flush(shard);
        }
        self.ask_soon(now);
    }

    pub(super) fn receive_homes(
        &mut self,
        from: &Node,
        term: u64,
        homes: Vec<(Shard, Token, Node)>,
        now: Moment,
    ) {
        if self.registered != Some((term, from.clone())) {
            return;
        }
        for (shard, token, node) in homes {
            let known = self.homes.get(&shard);
            let is_old = known.is_some_and(|known| (term, token) < (known.said, known.token));
            if is_old || shard.0 >= self.settings.shards {
                continue;
            }
            self.move_home(shard, token, node, now);
            self.flush(shard);
        }
        self.ask_soon(now);
    }

    /// The token of a shard that takes messages here.
    fn running(&self, shard: Shard) -> Option<Token> {
        let hosted = self.shards.get(&shard)?;
        (!hosted.stopping).then_some(hosted.token)
    }

    /// Where else a shard is, as far as is known and within reach.
    fn home(&self, shard: Shard) -> Option<Node> {
        let Home { node, .. } = self.homes.get(&shard)?;
        (*node != self.me && self.reachable.contains(node)).then(|| node.clone())
    }

    /// Sends what waits for a shard, if it can be sent.
    fn flush(&mut self, shard: Shard) {
        let Some(buffer) = self.buffers.get(&shard) else { return };
        let running = self.running(shard);
        let elsewhere = self.home(shard);
        if buffer.returning.is_some() || running.is_none() && elsewhere.is_none() {
            return;
        }
        let Some(buffer) = self.buffers.remove(&shard) else { return };
        self.changed.insert(shard);
        for ((overdue, from), it) in &mut self.overdue {
            it.is_late |= *overdue == shard;
            if *overdue == shard && elsewhere.as_ref() == Some(from) && running.is_none() {
                // So that it takes what follows.
                self.effects.push(Effect::Mark { to: from.clone(), shard });
            }
        }
        for message in buffer.into_messages() {
            self.effects.push(match (running, &elsewhere) {
                (Some(token), _) => Effect::Deliver { shard, token, message },
                (None, Some(to)) => Effect::Forward { to: to.clone(), shard, message },
                (None, None) => return,
            });
        }
    }

    /// Hands over what waits for shards that are here now.
    pub(super) fn flush_local(&mut self) {
        let here: Vec<Shard> =
            self.buffers.keys().copied().filter(|shard| self.running(*shard).is_some()).collect();
        for shard in here {
            self.flush(shard);
        }
    }

    /// What has not come back by now will not.
    pub(super) fn wait_no_longer(&mut self, now: Moment) {
        self.stop_waiting(now, |_, until| until <= now);
    }

    fn stop_waiting(&mut self, now: Moment, is_vain: impl Fn(&Node, Moment) -> bool) {
        let mut due = Vec::new();
        for (shard, buffer) in &mut self.buffers {
            let vain = buffer.returning.take_if(|(from, until)| is_vain(from, *until));
            due.extend(vain.map(|(from, _)| (*shard, from)));
        }
        for (shard, from) in due {
            self.give_up_on(shard, from, now);
            self.flush(shard);
        }
    }

    /// What was sent there is not waited for any longer, and may come back nevertheless.
    fn give_up_on(&mut self, shard: Shard, from: Node, now: Moment) {
        // While messages wait, none is sent elsewhere.
        let is_late = !self.buffers.contains_key(&shard);
        let mark_at = now + self.settings.patience;
        let overdue = Overdue { is_late, mark_at, until: now + OVERDUE };
        let known = self.overdue.entry((shard, from)).or_insert(overdue);
        *known = Overdue { is_late: known.is_late || is_late, ..overdue };
    }

    /// Asks former homes again, since a mark may be lost.
    pub(super) fn mark_overdue(&mut self, now: Moment) {
        self.overdue.retain(|_, overdue| now < overdue.until);
        for ((shard, from), overdue) in &mut self.overdue {
            if overdue.mark_at <= now && self.reachable.contains(from) {
                overdue.mark_at = now + self.settings.patience;
                self.effects.push(Effect::Mark { to: from.clone(), shard: *shard });
            }
        }
    }

    /// When one of them is to be asked.
    pub(super) fn next_overdue(&self) -> Moment {
        let due = self.overdue.iter().filter(|((_, from), _)| self.reachable.contains(from));
        due.map(|(_, overdue)| overdue.mark_at).min().unwrap_or(Moment::NEVER)
    }

    pub(super) fn ask_soon(&mut self, now: Moment) {
        if self.buffers.is_empty() {
            self.ask_at = Moment::NEVER;
        } else if self.ask_at == Moment::NEVER {
            self.ask(now);
        }
    }

    /// Asks the coordinator where the shards are that somebody waits for.
    pub(super) fn ask(&mut self, now: Moment) {
        let is_wanted =
            |shard: &Shard| self.home(*shard).is_none() && self.running(*shard).is_none();
        let wanted: Vec<Shard> = self.buffers.keys().copied().filter(is_wanted).collect();
        if !wanted.is_empty() {
            self.tell(Message::Where(wanted));
        }
        self.ask_at = match self.buffers.is_empty() {
            true => Moment::NEVER,
            false => now + self.settings.resend_interval,
        };
    }

    pub(super) fn fail_all(&mut self) {
        for (shard, buffer) in std::mem::take(&mut self.buffers) {
            self.changed.insert(shard);
            for message in buffer.into_messages() {
                self.effects.push(Effect::Fail { message, why: Unroutable::Ended });
            }
        }
    }
}

/// For how long a former home that nothing is heard of is remembered. Its connections are long gone then.
const OVERDUE: Duration = Duration::from_secs(600);
