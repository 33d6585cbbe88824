//! What a proxy knows: where the singleton is, and what waits for it. Pure.

use std::collections::VecDeque;

use tenure_cluster::{Node, Status, View};
use tenure_lease::Token;

use crate::settings::Rule;
use crate::{Settings, Word};

/// The way to a singleton, wherever it is. Messages wait while it is nowhere.
///
/// A node that hosts the singleton no more sends back what arrives for it. So that messages stay in
/// order, nothing is sent to the next host before the former one has said that everything is back: it
/// is sent a mark for that ([`next_mark`](Self::next_mark)).
#[derive(Clone, Debug)]
pub struct Finder<M> {
    settings: Settings,
    host: Option<Host>,
    /// The highest token that any host has named: lower ones are late.
    highest: Token,
    /// Where messages were sent, if what it does not handle could still come back from there.
    used: Option<Node>,
    /// A former host from which messages may still come back: nothing is sent until they have.
    returning: Option<Returning>,
    /// What came back from there. It goes before what waits.
    returned: VecDeque<(M, usize)>,
    waiting: VecDeque<(M, usize)>,
    /// Of both.
    bytes: usize,
    /// The one that was taken last is on its way: those behind it wait, or they would overtake it.
    under_way: bool,
    /// How many hosts there were.
    hosts: u64,
}

#[derive(Clone, Debug)]
struct Returning {
    from: Node,
    /// It was sent a mark.
    marked: bool,
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
            used: None,
            returning: None,
            returned: VecDeque::new(),
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
        self.returned.len() + self.waiting.len()
    }

    /// Where messages may be sent at once, with none before them, until that changes.
    pub fn way(&mut self) -> Option<&Node> {
        let clear = self.waiting() == 0 && !self.under_way && self.returning.is_none();
        let host = self.host.as_ref().filter(|_| clear)?;
        self.used = Some(host.node.clone());
        Some(&host.node)
    }

    /// A former host that is to be sent a mark, after everything that was sent there. Then:
    /// [`marked`](Self::marked).
    pub fn next_mark(&mut self) -> Option<Node> {
        let returning = self.returning.as_mut()?;
        let is_first = !std::mem::replace(&mut returning.marked, true);
        is_first.then(|| returning.from.clone())
    }

    /// Everything that was sent there is back or was handled, or will not come back in time.
    pub fn marked(&mut self, from: &Node) {
        if self.returning.take_if(|returning| returning.from == *from).is_some() {
            while let Some(last) = self.returned.pop_back() {
                self.waiting.push_front(last);
            }
        }
    }

    /// Whether something may still come back from there.
    pub fn is_returning(&self, from: &Node) -> bool {
        self.returning.as_ref().is_some_and(|returning| returning.from == *from)
    }

    /// A message came back: its receiver does not host the singleton. It comes back to the caller if it
    /// is too late for it: later ones were sent elsewhere, and it must not follow them.
    pub fn returned(&mut self, from: &Node, message: M, bytes: usize) -> Result<(), M> {
        if self.used.as_ref() == Some(from) {
            self.not_there(from);
        }
        if !self.is_returning(from) || self.returned.len() >= RETURNED_MAX {
            return Err(message);
        }
        self.bytes += bytes;
        self.returned.push_back((message, bytes));
        Ok(())
    }

    /// Gives up what waits; how much that is.
    pub fn give_up(&mut self) -> usize {
        let waiting = self.waiting();
        self.returned.clear();
        self.waiting.clear();
        self.bytes = 0;
        waiting
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
        let is_out = |node: &Node| view.observations().any(|(_, subject)| subject == node);
        let is_there = |node: &Node| view.member(node).is_some_and(|it| it.status < Status::Down);
        let is_gone = match &self.host {
            Some(host) if !is_there(&host.node) => self.set(None),
            _ => false,
        };
        let returning = self.returning.as_ref().map(|returning| returning.from.clone());
        if let Some(from) = returning.filter(|from| !is_there(from) || is_out(from)) {
            self.marked(&from); // Nothing comes back from there any more.
        }
        is_gone
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
        let is_used = |host: &Host| self.used.as_ref() == Some(&host.node);
        if !host.as_ref().is_some_and(is_used)
            && let Some(from) = self.used.take()
        {
            self.returning = Some(Returning { from, marked: false });
        }
        self.host = host;
        self.hosts += u64::from(self.host.is_some());
        if !self.settings.obeys(Rule::KeepWaiting) {
            self.give_up();
        }
        true
    }

    /// A message of this many bytes for the singleton.
    pub fn put(&mut self, message: M, bytes: usize) -> Put<M> {
        if let Some(node) = self.way() {
            return Put::Send(node.clone(), message);
        }
        let full = self.waiting() >= self.settings.buffer
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
        let may_send = !self.under_way && self.returning.is_none();
        let node = self.host.as_ref().filter(|_| may_send)?.node.clone();
        let (message, bytes) = self.waiting.pop_front()?;
        self.used = Some(node.clone());
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

/// More than an inbox holds, so that a peer cannot return without end.
const RETURNED_MAX: usize = 1 << 16;

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
        finder.marked(&node("a"));
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
    fn what_comes_back_goes_first_and_nothing_before_all_is_back() {
        let mut finder = Finder::new(Settings::default());
        finder.heard(&node("a"), &hosts(1));
        assert_eq!(finder.put("one", 3), Put::Send(node("a"), "one"));
        assert_eq!(finder.put("two", 3), Put::Send(node("a"), "two"));
        assert!(finder.next_mark().is_none());
        // It comes back before the word that the host is another one.
        assert_eq!(finder.returned(&node("a"), "one", 3), Ok(()));
        assert_eq!(finder.next_mark(), Some(node("a")));
        assert!(finder.next_mark().is_none(), "one is enough");
        assert!(finder.heard(&node("b"), &hosts(2)));
        assert_eq!(finder.put("three", 5), Put::Kept);
        assert!(finder.take().is_none() && finder.way().is_none());
        assert_eq!(finder.returned(&node("a"), "two", 3), Ok(()));
        assert_eq!(finder.waiting(), 3);
        finder.marked(&node("a"));
        for expected in ["one", "two", "three"] {
            assert_eq!(finder.take(), Some((node("b"), expected)));
            finder.sent();
        }
        assert_eq!(finder.put("four", 4), Put::Send(node("b"), "four"));
    }

    #[test]
    fn what_comes_back_too_late_is_not_sent_after_later_ones() {
        let mut finder = Finder::new(Settings::default());
        finder.heard(&node("a"), &hosts(1));
        assert_eq!(finder.put("one", 3), Put::Send(node("a"), "one"));
        finder.heard(&node("b"), &hosts(2));
        assert_eq!(finder.next_mark(), Some(node("a")));
        finder.marked(&node("a")); // It was not waited for any longer.
        assert_eq!(finder.put("two", 3), Put::Send(node("b"), "two"));
        assert_eq!(finder.returned(&node("a"), "one", 3), Err("one"));
        assert_eq!(finder.put("three", 5), Put::Send(node("b"), "three"));
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
