//! Words and messages between processes: in order while a connection lives, at most once.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_cluster::{Incarnation, Node};
use tenure_lease::Moment;
use tenure_singleton::{Put, Word};

use super::super::Sim;
use super::super::queue::What;
use super::agent::{Agent, Membership};
use super::drive::{Arrival, Step};
use super::invariants::{kept_is_sent, received_in_order};

/// What is sent.
#[derive(Clone, Debug)]
pub(in super::super) enum Mail {
    Word(Word),
    /// A client's message, with its number.
    Message(u64),
    /// A message came to one that does not host the singleton.
    NotHere,
}

/// The connections, by the sending process and the receiving node.
#[derive(Debug, Default)]
pub(super) struct Connections(BTreeMap<(u64, Node), Connection>);

#[derive(Clone, Copy, Debug)]
struct Connection {
    /// Counts the connections between the two.
    number: u64,
    /// Nothing arrives before what was sent before it.
    last: Moment,
}

impl Connections {
    fn of(&mut self, from: u64, to: &Node) -> &mut Connection {
        let new = Connection { number: 0, last: Moment::ZERO };
        self.0.entry((from, to.clone())).or_insert(new)
    }

    /// What is on its way over it is lost.
    fn breaks(&mut self, from: u64, to: &Node) {
        self.of(from, to).number += 1;
    }
}

impl Sim {
    /// To a node, itself included.
    pub(super) fn send_mail(&mut self, agent: &mut Agent, to: &Node, mail: Mail) {
        if *to == agent.node {
            agent.inbox.push_back(Arrival::Mail(to.clone(), agent.id, mail));
        } else {
            self.post(agent, to, mail);
        }
    }

    fn post(&mut self, agent: &Agent, to: &Node, mail: Mail) {
        let Some(place) = self.by_address.get(&to.address).copied() else { return };
        if self.network.is_cut(agent.place, place) {
            if matches!(mail, Mail::Message(_)) {
                self.meet("singleton: message lost at a cut");
            }
            return self.singletons.connections.breaks(agent.id, to);
        }
        let mut takes = self.network.journey(agent.place, place, &mut self.random);
        let loss = self.network.weather.loss;
        while loss > 0 && self.random.within(0..1000) < loss {
            takes += RESENT;
        }
        let connection = self.singletons.connections.of(agent.id, to);
        connection.last = connection.last.max(self.now + takes);
        let step = Step::Mail {
            from: (agent.id, agent.node.clone()),
            place,
            to: to.incarnation,
            connection: connection.number,
            mail,
        };
        self.queue.push(connection.last, What::Singleton(step));
    }

    /// Something arrives, unless the connection broke or nobody is there any more.
    pub(super) fn singleton_mail(
        &mut self,
        from: (u64, Node),
        place: usize,
        to: Incarnation,
        connection: u64,
        mail: Mail,
    ) {
        let node = Node { address: self.places[place].address.clone(), incarnation: to };
        let (process, sender) = from;
        let origin = self.by_address.get(&sender.address).copied();
        let cut = origin.is_none_or(|origin| self.network.is_cut(origin, place));
        let lives = self.places[place].processes.iter().find(|process| process.node == node);
        let Some(receiver) = lives.filter(|_| !cut).map(|process| process.id) else {
            return self.singletons.connections.breaks(process, &node);
        };
        if self.singletons.connections.of(process, &node).number == connection {
            self.singleton_arrives(receiver, Arrival::Mail(sender, process, mail));
        }
    }

    pub(super) fn read_mail(
        &mut self,
        agent: &mut Agent,
        local: Moment,
        from: &Node,
        process: u64,
        mail: Mail,
    ) {
        match mail {
            Mail::Word(word) => {
                agent.finder.heard(from, &word);
                agent.manager.heard(local, from, &word);
            }
            Mail::Message(number) => match agent.instance.as_ref().filter(|_| agent.serves()) {
                Some(instance) => {
                    let received = &mut self.singletons.invariants.received_in_order;
                    let found = received.check(instance.run, process, number);
                    self.invariants.report(self.now, [(received_in_order::NAME, found)]);
                }
                None => {
                    self.meet("singleton: message for one that does not host");
                    self.post(agent, from, Mail::NotHere);
                }
            },
            Mail::NotHere => drop(agent.finder.not_there(from)),
        }
    }

    /// The client says something, and what waits is sent; whether there was anything.
    pub(super) fn tend_client(&mut self, agent: &mut Agent, local: Moment) -> bool {
        if agent.membership != Membership::In {
            return false;
        }
        if local >= agent.client.at {
            agent.client.at = local + self.random.up_to(TELLS);
            agent.client.next += 1;
            let number = agent.client.next;
            match agent.finder.put(number, 8) {
                Put::Send(to, number) => self.deliver_message(agent, &to, number),
                Put::Kept => {
                    self.meet("singleton: nobody hosts, messages wait");
                    self.singletons.invariants.kept_is_sent.kept(agent.id, number);
                }
                Put::Full(_) => {}
            }
            return true;
        }
        if agent.finder.host().is_none() && local >= agent.client.ask_at {
            agent.client.ask_at = local + ASKS;
            self.ask_who(agent);
            return true;
        }
        if local < agent.client.retry_at {
            return false;
        }
        // The way of marks is not simulated: everything comes back at once, or never.
        if let Some(former) = agent.finder.next_mark() {
            agent.finder.marked(&former);
        }
        let Some((to, number)) = agent.finder.take() else { return false };
        let place = self.by_address.get(&to.address).copied();
        let closed = place.is_some_and(|place| self.network.is_cut(agent.place, place));
        if closed && self.random.percent(50) {
            agent.finder.unsent(number, 8);
            agent.client.retry_at = local + RESENT;
        } else {
            self.meet("singleton: messages that waited were sent");
            self.deliver_message(agent, &to, number);
            agent.finder.sent();
        }
        true
    }

    fn deliver_message(&mut self, agent: &mut Agent, to: &Node, number: u64) {
        let found = self.singletons.invariants.kept_is_sent.sent(agent.id, number);
        self.invariants.report(self.now, [(kept_is_sent::NAME, found)]);
        self.send_mail(agent, to, Mail::Message(number));
    }

    /// Asks everybody who may host it.
    fn ask_who(&mut self, agent: &mut Agent) {
        let process = self.places[agent.place].processes.iter().find(|one| one.id == agent.id);
        let view = process.and_then(|process| process.membership.view());
        let members: Vec<Node> = view
            .into_iter()
            .flat_map(|view| view.members())
            .map(|(node, _)| node.clone())
            .collect();
        for node in members {
            self.send_mail(agent, &node, Mail::Word(Word::Who));
        }
    }
}

/// How often a client says something, at least.
const TELLS: Duration = Duration::from_secs(2);
/// How often a client asks who hosts it while it does not know.
const ASKS: Duration = Duration::from_millis(250);
/// After what time TCP sends again what was lost.
const RESENT: Duration = Duration::from_millis(200);
