//! Messages of another node that panic where they are read or dropped, before their entity has them.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod kit;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kit::{LONG, SHARDS, World, settings, soon, until};
use tenure_cluster::messaging::{Ask, AskError, CodecError, Lost, Message, NotDone, Received};
use tenure_sharding::{BoxError, Entity, Hosted, Settings, Sharding, Shardings as _, shard_of};
use tokio::time::timeout;

enum Odd {
    Number(u64),
    /// Keeps the entity's thread until it may go on.
    Hold,
    /// Panics when it is read.
    Unreadable,
    /// Panics when it is dropped where it was received.
    Bomb {
        #[allow(dead_code, reason = "its end is what matters")]
        bomb: Bomb,
    },
}

struct Bomb {
    armed: bool,
}

/// How many were dropped where they were received.
static EXPLODED: AtomicUsize = AtomicUsize::new(0);

impl Drop for Bomb {
    fn drop(&mut self) {
        EXPLODED.fetch_add(usize::from(self.armed), SeqCst);
        assert!(!self.armed || std::thread::panicking(), "as it was told");
    }
}

impl Message for Odd {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        match self {
            Self::Number(number) => out.extend_from_slice(&number.to_le_bytes()),
            Self::Unreadable => out.push(1),
            Self::Bomb { .. } => out.push(2),
            Self::Hold => out.push(3),
        }
        Ok(())
    }

    fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        Ok(match bytes {
            [2] => Self::Bomb { bomb: Bomb { armed: true } },
            [3] => Self::Hold,
            _ => Self::Number(u64::from_le_bytes(bytes.try_into().expect("as it was told"))),
        })
    }
}

struct Count;

impl Ask for Count {
    type Reply = usize;
}

impl From<Count> for Odd {
    fn from(_: Count) -> Self {
        Self::Number(u64::MAX)
    }
}

struct Misread;

impl Ask for Misread {
    type Reply = usize;
}

impl From<Misread> for Odd {
    fn from(_: Misread) -> Self {
        Self::Unreadable
    }
}

#[derive(Default)]
struct Book {
    numbers: Mutex<Vec<u64>>,
    holds: AtomicBool,
}

struct Counter {
    book: Arc<Book>,
}

impl Entity for Counter {
    type Message = Odd;

    async fn receive(&mut self, received: Received<Odd>, _: &Hosted) -> Result<(), BoxError> {
        match received.message {
            Odd::Number(u64::MAX) => {
                let count = self.book.numbers.lock().unwrap().len();
                received.reply.answer::<Count>(count).await?;
            }
            Odd::Number(number) => self.book.numbers.lock().unwrap().push(number),
            Odd::Hold => {
                self.book.holds.store(true, SeqCst);
                while self.book.holds.load(SeqCst) {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            Odd::Unreadable | Odd::Bomb { .. } => {}
        }
        Ok(())
    }
}

/// Two nodes, and the id of an entity that the second one hosts.
async fn two(settings: Settings) -> (World, [Sharding<Odd>; 2], Arc<Book>, String) {
    let (world, book) = (World::new(2).await, Arc::<Book>::default());
    let odd = [0, 1].map(|place| {
        let book = book.clone();
        let kind = world.clusters[place].sharding("odd").settings(settings.clone());
        kind.start(move |_| Counter { book: book.clone() }).unwrap()
    });
    until("both to host", || odd.iter().all(|it| it.status().hosted.len() >= 8)).await;
    let here = odd[1].status().hosted;
    let at_home = |id: &String| here.iter().any(|(shard, _)| *shard == shard_of(id, SHARDS));
    let id = (0..).map(|id| id.to_string()).find(at_home).unwrap();
    (world, odd, book, id)
}

/// The kind goes on, for others and for the sender: what comes before and after it is received in order,
/// from other nodes and from its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_panics_when_it_is_read_costs_itself_alone() {
    let (world, odd, book, id) = two(settings()).await;
    let mut letters = world.clusters[0].dead_letters();
    let there = odd[0].entity(&id);
    for number in 0..100 {
        there.tell(Odd::Number(number)).await.unwrap();
        if number % 10 == 5 {
            there.tell(Odd::Unreadable).await.unwrap();
        }
    }
    let asked = soon(there.ask(Misread).within(LONG)).await;
    assert!(matches!(asked, Err(AskError::NotDone(NotDone::Unreadable { .. }))), "{asked:?}");
    assert_eq!(soon(there.ask(Count).within(LONG)).await, Ok(100), "from the other node");
    assert_eq!(soon(odd[1].entity(&id).ask(Count).within(LONG)).await, Ok(100), "from its own");
    assert_eq!(*book.numbers.lock().unwrap(), (0..100).collect::<Vec<_>>());
    let mut unreadable = 0;
    while unreadable < 10 {
        let letter = soon(letters.next()).await.unwrap();
        assert_eq!(letter.why, Lost::Unreadable, "{letter:?}");
        unreadable += letter.count;
    }
    world.end().await;
}

/// There is no room for messages that panic when they are dropped, which they are by the task that takes what
/// comes from other nodes. It goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_message_that_panics_where_there_is_no_room_costs_itself_alone() {
    let (world, odd, book, id) = two(Settings { buffer_messages: 4, ..settings() }).await;
    let mut letters = world.clusters[0].dead_letters();
    let there = odd[0].entity(&id);
    there.tell(Odd::Hold).await.unwrap();
    until("it to hold", || book.holds.load(SeqCst)).await;
    // Until there is no room.
    let (mut told, mut lost) = (0, 0);
    while lost == 0 {
        there.tell(Odd::Number(told)).await.unwrap();
        told += 1;
        let letter = timeout(Duration::ZERO, letters.next()).await;
        lost += letter.map_or(0, |letter| letter.unwrap().count);
    }
    for _ in 0..10 {
        there.tell(Odd::Bomb { bomb: Bomb { armed: false } }).await.unwrap();
    }
    // All of them: one that comes when there is room again is the entity's to drop.
    until("them to be dropped", || EXPLODED.load(SeqCst) == 10).await;
    book.holds.store(false, SeqCst);
    let handled = soon(there.ask(Count).within(LONG)).await.unwrap();
    let own = odd[1].entity(&id);
    assert_eq!(soon(own.ask(Count).within(LONG)).await, Ok(handled), "asked on its own node");
    while lost < told + 10 - handled as u64 {
        let letter = soon(letters.next()).await.unwrap();
        assert_eq!(letter.why, Lost::Full, "{letter:?}");
        lost += letter.count;
    }
    world.end().await;
}
