//! What a proxy knows: where the singleton is, and what waits for it. Pure.

use std::collections::VecDeque;

use tenure_cluster::{Node, Status, View};
use tenure_lease::Token;

use crate::settings::Rule;
use crate::{Settings, Word};

/// The way to a singleton, wherever it is. Messages wait while it is nowhere.
#[derive(Clone, Debug)]
pub struct Finder<M> {
    settings: Settings,
    host: Option<Host>,
    /// The highest token that any host has named: lower ones are late.
    highest: Token,
    waiting: VecDeque<(M, usize)>,
    bytes: usize,
    /// The one that was taken last is on its way: those behind it wait, or they would overtake it.
    under_way: bool,
    /// How many hosts there were.
    hosts: u64,
}

/// Who hosts a singleton, under which token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Where it is.
    pub node: Node,
    /// Under which token it runs there.
    pub token: Token,
}

/// What becomes of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Put<M> {
    /// Send it there now.
    Send(Node, M),
    /// It waits.
    Kept,
    /// There is no room.
    Full(M),
}

impl<M> Finder<M> {
    /// Knows of nobody, and nothing waits.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            host: None,
            highest: Token::default(),
            waiting: VecDeque::new(),
            bytes: 0,
            under_way: false,
            hosts: 0,
        }
    }

    /// Whether the host is not the first one.
    pub fn has_moved(&self) -> bool {
        self.hosts > 1
    }

    /// Who hosts it, as far as is known.
    pub fn host(&self) -> Option<&Host> {
        self.host.as_ref()
    }

    /// How many messages wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether a message may be sent to the host at once, with none before it.
    pub fn is_clear(&self) -> bool {
        self.host.is_some() && self.waiting.is_empty() && !self.under_way
    }

    /// Takes in what a node said; whether the host is another one now, or runs anew.
    pub fn heard(&mut self, from: &Node, word: &Word) -> bool {
        match word {
            Word::State { hosting: Some(token), .. } if *token >= self.highest => {
                self.highest = *token;
                self.set(Some(Host { node: from.clone(), token: *token }))
            }
            Word::State { hosting: None, .. } => self.not_there(from),
            Word::HandedOver { token } => match &self.host {
                Some(host) if host.token <= *token => self.not_there(from),
                _ => false,
            },
            Word::State { .. } | Word::Who => false,
        }
    }

    /// What this node believes of the cluster has changed; whether the host is gone.
    pub fn view(&mut self, view: &View) -> bool {
        let is_there = |node| view.member(node).is_some_and(|it| it.status < Status::Down);
        match &self.host {
            Some(host) if !is_there(&host.node) => self.set(None),
            _ => false,
        }
    }

    /// The node is not, or no longer, the host; whether it was taken for it.
    pub fn not_there(&mut self, node: &Node) -> bool {
        match &self.host {
            Some(host) if host.node == *node => self.set(None),
            _ => false,
        }
    }

    fn set(&mut self, host: Option<Host>) -> bool {
        if self.host == host {
            return false;
        }
        self.host = host;
        self.hosts += u64::from(self.host.is_some());
        if !self.settings.obeys(Rule::KeepWaiting) {
            self.waiting.clear();
            self.bytes = 0;
        }
        true
    }

    /// A message of this many bytes for the singleton.
    pub fn put(&mut self, message: M, bytes: usize) -> Put<M> {
        if let Some(host) = &self.host
            && self.is_clear()
        {
            return Put::Send(host.node.clone(), message);
        }
        let full = self.waiting.len() >= self.settings.buffer
            || self.bytes + bytes > self.settings.buffer_bytes;
        if full {
            return Put::Full(message);
        }
        self.bytes += bytes;
        self.waiting.push_back((message, bytes));
        Put::Kept
    }

    /// The next one that waits, if there is a host to send it to. Then: [`sent`](Self::sent) or
    /// [`unsent`](Self::unsent).
    pub fn take(&mut self) -> Option<(Node, M)> {
        let node = self.host.as_ref().filter(|_| !self.under_way)?.node.clone();
        let (message, bytes) = self.waiting.pop_front()?;
        self.bytes -= bytes;
        self.under_way = true;
        Some((node, message))
    }

    /// What was taken has been sent.
    pub fn sent(&mut self) {
        self.under_way = false;
    }

    /// What was taken certainly did not arrive: it is the first that waits, again.
    pub fn unsent(&mut self, message: M, bytes: usize) {
        self.under_way = false;
        self.bytes += bytes;
        self.waiting.push_front((message, bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> Node {
        Node {
            address: format!("{name}:1").parse().unwrap(),
            incarnation: tenure_cluster::Incarnation(7),
        }
    }

    fn hosts(term: u64) -> Word {
        Word::State { hosting: Some(Token { term, step: 0 }), able: true }
    }

    #[test]
    fn waits_and_is_sent_in_order() {
        let mut finder = Finder::new(Settings { buffer: 2, ..Settings::default() });
        assert_eq!(finder.put("one", 3), Put::Kept);
        assert_eq!(finder.put("two", 3), Put::Kept);
        assert_eq!(finder.put("three", 5), Put::Full("three"));
        assert!(finder.take().is_none());
        assert!(finder.heard(&node("a"), &hosts(1)));
        assert_eq!(finder.take(), Some((node("a"), "one")));
        assert_eq!(finder.put("three", 5), Put::Kept, "it must not overtake");
        assert!(finder.take().is_none(), "one at a time");
        finder.unsent("one", 3);
        assert!(finder.not_there(&node("a")));
        assert!(finder.heard(&node("b"), &hosts(2)));
        for expected in ["one", "two", "three"] {
            assert_eq!(finder.take(), Some((node("b"), expected)));
            finder.sent();
        }
        assert_eq!(finder.put("four", 4), Put::Send(node("b"), "four"));
    }

    #[test]
    fn bytes_are_bounded() {
        let mut finder = Finder::new(Settings { buffer_bytes: 10, ..Settings::default() });
        assert_eq!(finder.put("one", 8), Put::Kept);
        assert_eq!(finder.put("two", 3), Put::Full("two"));
        finder.heard(&node("a"), &hosts(1));
        assert!(finder.take().is_some());
        finder.sent();
        finder.not_there(&node("a"));
        assert_eq!(finder.put("two", 10), Put::Kept);
    }

    #[test]
    fn late_words_of_a_former_host_do_nothing() {
        let mut finder = Finder::<()>::new(Settings::default());
        finder.heard(&node("a"), &hosts(1));
        assert!(finder.heard(&node("b"), &hosts(2)));
        let handed_over = Word::HandedOver { token: Token { term: 1, step: 0 } };
        assert!(!finder.heard(&node("a"), &hosts(1)));
        assert!(!finder.heard(&node("a"), &handed_over));
        assert!(!finder.heard(&node("b"), &handed_over), "of an earlier tenure there");
        assert_eq!(finder.host().unwrap().node, node("b"));
    }

    #[test]
    fn a_restart_on_the_same_node_is_followed() {
        let mut finder = Finder::<()>::new(Settings::default());
        finder.heard(&node("a"), &hosts(1));
        assert!(finder.heard(&node("a"), &Word::State { hosting: None, able: true }));
        assert!(finder.host().is_none());
        assert!(finder.heard(&node("a"), &hosts(1)));
        assert!(finder.host().is_some());
    }
}
