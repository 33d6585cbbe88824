//! The account of every message.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_cluster::Address;
use tenure_cluster::messaging::{DeadLetter, Received};
use tenure_singleton::BoxError;

use super::{Id, Order, Probe, Question};

/// What happened to messages, as somebody outside of all nodes sees it.
#[derive(Clone, Default)]
pub(crate) struct Book(Arc<Mutex<Entries>>);

#[derive(Default)]
pub(super) struct Entries {
    pub(super) handled: BTreeSet<Id>,
    /// The last that was told, by sender and receiver.
    last: BTreeMap<(u64, u64), u64>,
    pub(super) wrong: Vec<String>,
    /// How much each node may have lost of what others sent there, refusals and messages that went back to it
    /// among them: cut connections are told on the node that sent, and not where the message first came from.
    cut_on_the_way_to: BTreeMap<Address, u64>,
    /// Nothing fails any more that is made to.
    is_calm: bool,
    /// One for each life of a node.
    pub(super) accounts: Vec<Account>,
}

#[derive(Default)]
pub(super) struct Account {
    pub(super) node: String,
    address: Option<Address>,
    pub(super) told: BTreeSet<Id>,
    pub(super) answered: u64,
    pub(super) not_done: BTreeSet<Id>,
    pub(super) unknown: u64,
    /// How many messages to each receiver were lost, as dead letters tell that name it.
    letters: BTreeMap<u64, u64>,
    /// What those tell that name no receiver, and may count messages that arrived.
    unnamed_letters: u64,
    /// Its process is gone, and with it what it knew.
    is_gone: bool,
}

impl Account {
    pub(super) fn of(node: String, address: Address) -> Self {
        Self { node, address: Some(address), ..Self::default() }
    }

    fn take_letter(&mut self, letter: &DeadLetter) {
        let is_till = letter.receiver.as_deref() == Some("tenure/singleton/till");
        let entity = letter.id.as_ref().and_then(|id| id.parse().ok());
        match entity.or(is_till.then_some(0)) {
            Some(receiver) => *self.letters.entry(receiver).or_default() += letter.count,
            None => self.unnamed_letters += letter.count,
        }
    }

    fn letters(&self) -> u64 {
        self.letters.values().sum::<u64>() + self.unnamed_letters
    }

    /// How many messages were lost beyond what dead letters tell, and one of them.
    fn lost_in_silence(&self, handled: &BTreeSet<Id>, cut_on_the_way: u64) -> Option<(u64, Id)> {
        let mut lost: BTreeMap<u64, Vec<Id>> = BTreeMap::new();
        for id in self.told.difference(handled) {
            lost.entry(id.receiver).or_default().push(*id);
        }
        let mut beyond = (0, None);
        for (receiver, ids) in lost {
            let named = self.letters.get(&receiver).copied().unwrap_or_default();
            let surplus = (ids.len() as u64).saturating_sub(named);
            if surplus > 0 {
                beyond = (beyond.0 + surplus, beyond.1.or(ids.first().copied()));
            }
        }
        let unnamed = self.unnamed_letters + cut_on_the_way;
        let (count, first) = (beyond.0.checked_sub(unnamed)?, beyond.1?);
        (count > 0).then_some((count, first))
    }
}

impl Book {
    pub(super) fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn handle(&self, received: Received<Order>) -> Result<(), BoxError> {
        let id = match received.message {
            Order::Do(id) | Order::Answer(id) => id,
            Order::Probe => {
                let _ = received.reply.answer::<Probe>(()).await;
                return Ok(());
            }
        };
        {
            let mut entries = self.entries();
            if !entries.handled.insert(id) {
                entries.wrong.push(format!("{id:?} was handled twice"));
            }
            if !id.asked {
                let before = entries.last.insert((id.sender, id.receiver), id.place);
                if before.is_some_and(|before| before > id.place) {
                    entries.wrong.push(format!("{before:?} was handled before {id:?}"));
                }
            }
        }
        if id.asked {
            // Whoever asked may be gone, which is no failure of whoever answers.
            let _ = received.reply.answer::<Question>(id).await;
        }
        Ok(())
    }

    /// What is wrong so far, whatever comes.
    pub(crate) fn wrong(&self) -> Vec<String> {
        let entries = self.entries();
        let mut wrong = entries.wrong.clone();
        for account in &entries.accounts {
            if let Some(id) = account.not_done.intersection(&entries.handled).next() {
                wrong.push(format!("{id:?} was said not to be done, and was handled"));
            }
        }
        wrong
    }

    /// Messages that were lost and of which no dead letter told, with senders that still run.
    pub(crate) fn lost_in_silence(&self) -> Vec<String> {
        let entries = self.entries();
        let mut wrong = Vec::new();
        for account in entries.accounts.iter().filter(|account| !account.is_gone) {
            let cut = account.address.as_ref().and_then(|it| entries.cut_on_the_way_to.get(it));
            let cut = cut.copied().unwrap_or_default();
            if let Some((count, first)) = account.lost_in_silence(&entries.handled, cut) {
                let (node, letters) = (&account.node, account.letters());
                wrong.push(format!(
                    "{node}: {count} were lost that none of {letters} dead letters tells of; one: {first:?}"
                ));
            }
        }
        wrong
    }

    pub(crate) fn totals(&self) -> String {
        let entries = self.entries();
        let told: usize = entries.accounts.iter().map(|it| it.told.len()).sum();
        let answered: u64 = entries.accounts.iter().map(|it| it.answered).sum();
        let unknown: u64 = entries.accounts.iter().map(|it| it.unknown).sum();
        let letters: u64 = entries.accounts.iter().map(Account::letters).sum();
        let handled = entries.handled.iter().filter(|id| !id.asked).count();
        format!(
            "told {told}, handled {handled}, dead letters {letters}; answered {answered}, unknown {unknown}"
        )
    }

    pub(crate) fn answered(&self) -> u64 {
        self.entries().accounts.iter().map(|it| it.answered).sum()
    }

    /// A dead letter of this sender's node.
    pub(super) fn take_letter(&self, sender: u64, letter: &DeadLetter) {
        let mut entries = self.entries();
        if letter.receiver.is_none() {
            *entries.cut_on_the_way_to.entry(letter.to.address.clone()).or_default() +=
                letter.count;
        }
        entries.accounts[sender as usize].take_letter(letter);
    }

    /// What is made to fail does not any more.
    pub(super) fn calm(&self) {
        self.entries().is_calm = true;
    }

    pub(super) fn is_calm(&self) -> bool {
        self.entries().is_calm
    }

    /// The process of this sender is gone.
    pub(super) fn gone(&self, sender: u64) {
        self.entries().accounts[sender as usize].is_gone = true;
    }
}
