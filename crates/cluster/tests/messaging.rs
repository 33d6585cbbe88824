//! Messages between real nodes on loopback.
#![allow(clippy::disallowed_methods, reason = "these tests run in real time, over real sockets")]

mod kit;
mod nodes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nodes::{agree, eventually, nodes, nodes_behind_proxies, sees_up, soon};
use serde::{Deserialize, Serialize};
use tenure_cluster::messaging::{
    Ask, AskError, CodecError, DeadLetter, Json, Lost, Message, NotDone, PATIENCE, Received,
    Receiver, ReceiverError, Unknown, telemetry,
};
use tenure_cluster::transport::{Handles, Local, Security, Transport, TransportSettings};
use tenure_cluster::{Cluster, Incarnation, Node};
use tokio::time::timeout;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Counter {
    Add(u64),
    Get,
    Ignore,
}

struct Get;
impl Ask for Get {
    type Reply = u64;
}
impl From<Get> for Counter {
    fn from(_: Get) -> Self {
        Self::Get
    }
}

struct Ignore;
impl Ask for Ignore {
    type Reply = ();
}
impl From<Ignore> for Counter {
    fn from(_: Ignore) -> Self {
        Self::Ignore
    }
}

const SECOND: Duration = Duration::from_secs(1);

async fn count(mut receiver: Receiver<Counter>) {
    let (mut total, mut kept) = (0, Vec::new());
    while let Some(received) = receiver.recv().await {
        match received.message {
            Counter::Add(count) => total += count,
            Counter::Get => received.reply.answer::<Get>(total).await.unwrap(),
            Counter::Ignore => kept.push(received.reply),
        }
    }
}

async fn next<M: Message>(receiver: &mut Receiver<M>) -> Received<M> {
    soon(receiver.recv()).await.expect("the node is in the cluster")
}

/// The first dead letter of this kind, and how many messages all of them were until so many.
async fn dead(letters: &mut tenure_cluster::messaging::DeadLetters, why: Lost, count: u64) {
    let mut seen = 0;
    while seen < count {
        let letter = soon(letters.next()).await.unwrap();
        assert_eq!(letter.why, why, "{letter}");
        seen += letter.count;
    }
    assert_eq!(seen, count);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_arrive_in_order_and_once() {
    const EACH: u64 = 100_000;
    let clusters = nodes(2).await;
    let node = clusters[0].me();
    let mut receiver = clusters[0].receiver::<(usize, u64)>("numbers").unwrap();
    for (index, cluster) in clusters.iter().enumerate() {
        let sender = cluster.to::<(usize, u64)>(&node, "numbers");
        tokio::spawn(async move {
            for number in 0..EACH {
                sender.tell((index, number)).await.unwrap();
            }
        });
    }
    let mut expected = [0, 0];
    let mut batch = Vec::new();
    while expected.iter().sum::<u64>() < 2 * EACH {
        assert!(soon(receiver.recv_many(&mut batch, 1000)).await <= 1000);
        for Received { message: (index, number), from, reply } in batch.drain(..) {
            assert_eq!(from, clusters[index].me());
            assert_eq!(number, expected[index]);
            assert!(!reply.is_wanted());
            expected[index] += 1;
        }
    }
    assert!(receiver.try_recv().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn questions_have_the_same_outcomes_near_and_far() {
    let clusters = nodes(2).await;
    for asked in 0..2 {
        let node = clusters[asked].me();
        tokio::spawn(count(clusters[asked].receiver("counter").unwrap()));
        let counter = clusters[0].to::<Counter>(&node, "counter");
        counter.tell(Counter::Add(2)).await.unwrap();
        counter.try_tell(Counter::Add(3)).unwrap();
        assert_eq!(counter.ask(Get).within(10 * SECOND).await, Ok(5));

        let within = SECOND / 2;
        let no_answer = counter.ask(Ignore).within(within).await;
        assert_eq!(no_answer, Err(AskError::Unknown(Unknown::NoAnswer(within))));

        let nobody = clusters[0].to::<Counter>(&node, "nobody");
        let error = nobody.ask(Get).within(10 * SECOND).await.unwrap_err();
        assert_eq!(error, AskError::NotDone(NotDone::NoSuchReceiver("nobody".into())));

        let other_type = clusters[0].to::<(String, String)>(&node, "counter");
        struct Names;
        impl Ask for Names {
            type Reply = ();
        }
        impl From<Names> for (String, String) {
            fn from(_: Names) -> Self {
                ("a".repeat(50), "b".into())
            }
        }
        let error = other_type.ask(Names).within(10 * SECOND).await.unwrap_err();
        let detail = format!("sent a type without a name, expected Counter@1 (on {node})").into();
        let unreadable = NotDone::Unreadable { receiver: "counter".into(), detail };
        assert_eq!(error, AskError::NotDone(unreadable));

        // Dropping the reply says so, and so does dropping the receiver.
        let mut dropped = clusters[asked].receiver::<Counter>("dropped").unwrap();
        let sender = clusters[0].to::<Counter>(&node, "dropped");
        let question = |sender: &tenure_cluster::messaging::Sender<Counter>| {
            let sender = sender.clone();
            tokio::spawn(async move { sender.ask(Get).within(10 * SECOND).await })
        };
        let unanswered = question(&sender);
        drop(next(&mut dropped).await);
        assert_eq!(soon(unanswered).await.unwrap(), Err(AskError::Unknown(Unknown::Unanswered)));
        sender.tell(Counter::Add(1)).await.unwrap();
        let refused = question(&sender);
        next(&mut dropped).await; // The question comes after it, perhaps into the mailbox.
        eventually(|| dropped.try_recv().is_none()).await;
        drop(dropped);
        let error = soon(refused).await.unwrap().unwrap_err();
        assert!(
            error == AskError::NotDone(NotDone::NoSuchReceiver("dropped".into()))
                || error == AskError::Unknown(Unknown::Unanswered),
            "{error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_sent_is_not_done() {
    let clusters = nodes(2).await;
    let node = clusters[1].me();
    let long = clusters[0].to::<Vec<u8>>(&node, "bytes");
    assert!(matches!(
        long.tell(vec![0; 2 << 20]).await,
        Err(NotDone::TooLong { len, max }) if len > max
    ));
    let stranger = Node { incarnation: Incarnation(1), ..node.clone() };
    let error = clusters[0].to::<u64>(&stranger, "x").tell(1).await.unwrap_err();
    assert_eq!(error, NotDone::NotAMember(stranger));
    // Keys of a JSON map are text.
    type Keys = Json<std::collections::BTreeMap<(u8, u8), u8>>;
    let keys = clusters[0].to::<Keys>(&node, "x");
    let error = keys.tell(Json([((1, 2), 3)].into())).await.unwrap_err();
    assert!(matches!(error, NotDone::Encoding(_)), "{error}");
    soon(clusters[1].leave()).await;
    let gone = clusters[1].to::<u64>(&clusters[0].me(), "x").tell(1).await.unwrap_err();
    assert!(matches!(gone, NotDone::Closed(_)), "{gone}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_travels_as_json() {
    let clusters = nodes(2).await;
    let mut receiver = clusters[1].receiver::<Json<Vec<String>>>("names").unwrap();
    let sender = clusters[0].to::<Json<Vec<String>>>(&clusters[1].me(), "names");
    sender.tell(Json(vec!["a".into()])).await.unwrap();
    assert_eq!(next(&mut receiver).await.message.0, ["a"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_belongs_to_one_receiver_at_a_time() {
    let clusters = nodes(1).await;
    let first = clusters[0].receiver::<u64>("one").unwrap();
    let error = clusters[0].receiver::<String>("one").unwrap_err();
    assert_eq!(error, ReceiverError::Taken("one".into()));
    drop(first);
    let mut second = clusters[0].receiver::<String>("one").unwrap();
    assert_eq!(clusters[0].receiver::<u64>("").unwrap_err(), ReceiverError::Name(0));
    let long = clusters[0].receiver::<u64>(&"x".repeat(256)).unwrap_err();
    assert_eq!(long, ReceiverError::Name(256));
    soon(clusters[0].leave()).await;
    assert!(soon(second.recv()).await.is_none());
    assert_eq!(clusters[0].receiver::<u64>("two").unwrap_err(), ReceiverError::Ended);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_messages_are_told_to_the_node_that_sent_them() {
    let clusters = nodes(2).await;
    let node = clusters[1].me();
    let mut letters = clusters[0].dead_letters();
    let nobody = clusters[0].to::<u64>(&node, "nobody");
    nobody.tell(1).await.unwrap();
    let letter = soon(letters.next()).await.unwrap();
    let why = Lost::NoSuchReceiver;
    let receiver = Some("nobody".into());
    let (to, detail) = (node.clone(), None);
    assert_eq!(letter, DeadLetter { to, receiver, id: None, count: 1, why, detail });

    let mut texts = clusters[1].receiver::<String>("texts").unwrap();
    let wrong = clusters[0].to::<Vec<u8>>(&node, "texts");
    wrong.tell(vec![0xff; 3]).await.unwrap();
    clusters[0].to::<String>(&node, "texts").tell("right".into()).await.unwrap();
    assert_eq!(next(&mut texts).await.message, "right");
    dead(&mut letters, Lost::Unreadable, 1).await;

    // What is still in the mailbox when its receiver goes.
    let sender = clusters[0].to::<String>(&node, "texts");
    for _ in 0..100 {
        sender.tell("unread".into()).await.unwrap();
    }
    next(&mut texts).await;
    drop(texts);
    dead(&mut letters, Lost::NoSuchReceiver, 99).await;
    assert_eq!(letters.missed(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_mailbox_refuses_what_does_not_wait() {
    let clusters = nodes(2).await;
    for sending in 0..2 {
        let mut slow = clusters[1].receiver_with_room::<Counter>("slow", 2).unwrap();
        let mut letters = clusters[sending].dead_letters();
        let sender = clusters[sending].to::<Counter>(&clusters[1].me(), "slow");
        let near = sending == 1;
        sender.tell(Counter::Add(1)).await.unwrap();
        sender.tell(Counter::Add(2)).await.unwrap();
        // Two may have been read in one go, or one after the other.
        let refused = sender.ask(Get).within(10 * SECOND).await.unwrap_err();
        assert_eq!(refused, AskError::NotDone(NotDone::Full));
        match sender.try_tell(Counter::Add(3)) {
            Err(NotDone::Full) if near => {}
            Ok(()) if !near => dead(&mut letters, Lost::Full, 1).await,
            other => panic!("{other:?}"),
        }
        assert_eq!(next(&mut slow).await.message, Counter::Add(1));
        assert_eq!(next(&mut slow).await.message, Counter::Add(2));
        let answer = tokio::spawn(async move { sender.ask(Get).within(10 * SECOND).await });
        next(&mut slow).await.reply.answer::<Get>(7).await.unwrap();
        assert_eq!(soon(answer).await.unwrap(), Ok(7));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_posted_overtakes_what_waits() {
    let clusters = nodes(2).await;
    let node = clusters[1].me();
    let mut words = clusters[1].receiver::<u64>("words").unwrap();
    // More than the lane can carry, whoever it is for: those who send wait.
    let flood = clusters[0].to::<Vec<u8>>(&node, "nobody");
    let flooding: Vec<_> = (0..8)
        .map(|_| {
            let flood = flood.clone();
            tokio::spawn(async move { while flood.tell(vec![0; 1_000_000]).await.is_ok() {} })
        })
        .collect();
    let sender = clusters[0].to::<u64>(&node, "words");
    eventually(|| (0..100).all(|_| sender.try_tell(0) == Err(NotDone::Full))).await;
    for word in 1..=100 {
        sender.post(word).unwrap();
    }
    for word in 1..=100 {
        let received = loop {
            // A zero was told before the lane was full, and may still be on its way.
            let received = next(&mut words).await;
            if received.message != 0 {
                break received;
            }
        };
        assert_eq!((received.message, received.from), (word, clusters[0].me()));
    }
    flooding.iter().for_each(|task| task.abort());

    // To oneself, to nobody, and to a stranger.
    clusters[1].to::<u64>(&node, "words").post(7).unwrap();
    assert_eq!(next(&mut words).await.message, 7);
    clusters[0].to::<u64>(&node, "nobody").post(1).unwrap();
    let stranger = Node { incarnation: Incarnation(1), ..node };
    let refused = clusters[0].to::<u64>(&stranger, "words").post(1).unwrap_err();
    assert!(matches!(refused, NotDone::NotAMember(_)), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_receiver_makes_its_senders_wait_and_a_stuck_one_does_not_stop_the_others() {
    const SENT: u64 = 20_000;
    let clusters = nodes(2).await;
    let node = clusters[1].me();
    let mut letters = clusters[0].dead_letters();
    let mut stuck = clusters[1].receiver_with_room::<(u64, Vec<u8>)>("stuck", 10).unwrap();
    let mut other = clusters[1].receiver::<u64>("other").unwrap();

    // Slow, but not stuck: everything arrives, and much more than fits on the way was sent.
    let sender = clusters[0].to::<(u64, Vec<u8>)>(&node, "stuck");
    let sending = tokio::spawn(async move {
        for number in 0..SENT {
            sender.tell((number, vec![0; 1000])).await.unwrap();
        }
        sender
    });
    for number in 0..SENT {
        if number % 4000 == 0 {
            tokio::time::sleep(PATIENCE / 4).await;
        }
        assert_eq!(next(&mut stuck).await.message.0, number);
    }
    let sender = soon(sending).await.unwrap();

    // Stuck: what comes behind it waits for a moment, not for ever.
    for number in 0..SENT {
        sender.tell((number, vec![0; 100])).await.unwrap();
    }
    let began = Instant::now();
    clusters[0].to::<u64>(&node, "other").tell(1).await.unwrap();
    assert_eq!(next(&mut other).await.message, 1);
    assert!(began.elapsed() < 5 * PATIENCE, "{:?}", began.elapsed());
    let mut taken = 0;
    while stuck.try_recv().is_some() {
        taken += 1;
    }
    assert!(taken >= 10, "{taken}");
    dead(&mut letters, Lost::Full, SENT - taken).await;
    sender.tell((1, Vec::new())).await.unwrap();
    assert_eq!(next(&mut stuck).await.message.0, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_makes_questions_unknown_and_messages_dead_letters() {
    let (clusters, proxies) = nodes_behind_proxies(2).await;
    let node = clusters[1].me();
    let mut letters = clusters[0].dead_letters();
    let mut receiver = clusters[1].receiver::<Counter>("counter").unwrap();
    let counter = clusters[0].to::<Counter>(&node, "counter");
    let asking = counter.clone();
    let asked = tokio::spawn(async move { asking.ask(Get).within(60 * SECOND).await });
    let question = next(&mut receiver).await;
    proxies[1].cut();
    assert_eq!(soon(asked).await.unwrap(), Err(AskError::Unknown(Unknown::Cut)));
    // The answer comes when nobody waits any more.
    question.reply.answer::<Get>(1).await.unwrap();

    // Numbers through cuts, until some are lost: each at most once and in order, and what is
    // missing was told.
    let enough = Arc::new(AtomicBool::new(false));
    let (sender, stop) = (counter.clone(), enough.clone());
    let sending = tokio::spawn(async move {
        let mut number = 0;
        while !stop.load(Relaxed) {
            number += 1;
            sender.tell(Counter::Add(number)).await.unwrap();
        }
        number
    });
    let (mut last, mut seen, mut cuts) = (0, 0, 0);
    let receiving = async {
        while let Ok(received) = timeout(5 * SECOND, receiver.recv()).await {
            let Counter::Add(number) = received.unwrap().message else { panic!() };
            assert!(number > last);
            (last, seen) = (number, seen + 1);
            if seen % 15_000 == 0 && !enough.load(Relaxed) {
                proxies[1].cut();
                cuts += 1;
                enough.store(cuts >= 10 && seen < last, Relaxed);
            }
        }
    };
    soon(receiving).await;
    let sent = soon(sending).await.unwrap();
    assert!(seen < sent);
    let mut told = 0;
    while told < sent - seen {
        let letter = soon(letters.next()).await.unwrap();
        assert_eq!(letter.why, Lost::Cut);
        told += letter.count;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_declared_down_comes_back_with_its_receivers() {
    let store = tenure_lease::Store::new(tenure_lease::MemoryStore::default());
    let mut settings: Vec<_> =
        nodes::addresses(2).iter().map(|address| nodes::plain(address, &store)).collect();
    settings[1].rejoin = true;
    let clusters = nodes::join_all(settings).await;
    agree(&clusters, 2).await;
    let before = clusters[1].me();
    tokio::spawn(count(clusters[1].receiver("counter").unwrap()));
    let (old, back) = (
        clusters[0].to::<Counter>(&before, "counter"),
        clusters[1].to::<u64>(&clusters[0].me(), "back"),
    );
    let mut receiver = clusters[0].receiver::<u64>("back").unwrap();
    assert_eq!(old.ask(Get).within(10 * SECOND).await, Ok(0));
    back.tell(1).await.unwrap();
    assert_eq!(next(&mut receiver).await.message, 1);

    clusters[0].down(&before).await;
    eventually(|| clusters[1].me() != before).await;
    let after = clusters[1].me();
    sees_up(&clusters[0], &after).await;
    sees_up(&clusters[1], &clusters[0].me()).await;
    eventually(|| clusters[0].view().member(&before).is_none()).await;
    let error = old.ask(Get).within(10 * SECOND).await.unwrap_err();
    assert_eq!(error, AskError::NotDone(NotDone::NotAMember(before)));
    let counter = clusters[0].to::<Counter>(&after, "counter");
    assert_eq!(counter.ask(Get).within(10 * SECOND).await, Ok(0));
    // The same handle as before: the node that it leads to has not changed.
    back.tell(2).await.unwrap();
    let received = next(&mut receiver).await;
    assert_eq!((received.message, received.from), (2, after));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_of_a_newer_version_are_ignored_and_counted() {
    let mut kit = kit::Kit::new();
    let clusters = nodes(2).await;
    let mut receiver = clusters[0].receiver::<u8>("bytes").unwrap();
    let Handles { control, data } = kit.handles();
    // It passes for the other member: messages of anybody else are not read.
    let local = Local { cluster: "shop".into(), name: "node".into(), node: clusters[1].me() };
    let (events, _told) = tokio::sync::mpsc::channel(256);
    let listen = Some("127.0.0.1:0".parse().unwrap());
    let newer = Transport::bind(
        TransportSettings { listen, ..TransportSettings::default() },
        Security::PlaintextWithoutAnyProtection,
        local,
        Handles { control, data },
        events,
    )
    .unwrap();
    let before = kit::counted(telemetry::IGNORED, "");
    let lane = newer.data(&clusters[0].me());
    for frame in [&[200, 1, 2][..], &[1], &[3, 5, b'b', b'y', b't', b'e', b's', 1]] {
        lane.send_with(|out| out.extend_from_slice(frame)).await.unwrap();
    }
    lane.send_with(|out| out.extend_from_slice(b"\x01\x05bytes\x01\x00\x07")).await.unwrap();
    assert_eq!(next(&mut receiver).await.message, 7);
    assert_eq!(kit::counted(telemetry::IGNORED, "") - before, 3);
}

/// Another process that is killed while it is asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_leaves_its_questions_unknown_and_its_successor_answers() {
    let addresses = nodes::addresses(2);
    let here = soon(Cluster::join(seeded(&addresses, 0))).await.unwrap();
    for round in 0..2 {
        let child = Child::start(&addresses);
        let node = child.node(&here, &addresses[1]).await;
        let counter = here.to::<Counter>(&node, "counter");
        let asking = counter.clone();
        let asked = tokio::spawn(async move { asking.ask(Ignore).within(60 * SECOND).await });
        assert!(counter.ask(Get).within(10 * SECOND).await.is_ok(), "it has the question");
        drop(child);
        let error = soon(asked).await.unwrap().unwrap_err();
        assert_eq!(error, AskError::Unknown(Unknown::Cut), "round {round}");
        here.down(&node).await;
        eventually(|| here.view().member(&node).is_none()).await;
        let error = counter.ask(Get).within(SECOND).await.unwrap_err();
        assert_eq!(error, AskError::NotDone(NotDone::NotAMember(node)));
    }
}

/// Another process that is killed with messages in its mailboxes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_process_had_in_its_memory_is_counted_by_its_sender() {
    const LEFT: u64 = 1000;
    let addresses = nodes::addresses(2);
    let here = soon(Cluster::join(seeded(&addresses, 0))).await.unwrap();
    let mut letters = here.dead_letters();
    for by_successor in [false, true] {
        let child = Child::start(&addresses);
        let node = child.node(&here, &addresses[1]).await;
        let counter = here.to::<Counter>(&node, "counter");
        for number in 0..LEFT {
            counter.tell(Counter::Add(number)).await.unwrap();
        }
        let total = soon(counter.ask(Get).within(10 * SECOND)).await.unwrap();
        assert_eq!(total, LEFT * (LEFT - 1) / 2);
        // All of those were handled. What follows is not.
        let left = here.to::<Counter>(&node, "left");
        for number in 0..LEFT {
            left.tell(Counter::Add(number)).await.unwrap();
        }
        assert!(counter.ask(Get).within(10 * SECOND).await.is_ok(), "they have arrived");
        // It is known here that they have, and that those before are done with.
        tokio::time::sleep(Duration::from_millis(500)).await;
        drop(child);
        let _successor = match by_successor {
            true => Some(Child::start(&addresses)),
            false => {
                here.down(&node).await;
                None
            }
        };
        let mut lost = 0;
        while lost < LEFT {
            lost += soon(letters.next()).await.unwrap().count;
        }
        assert!(lost < 2 * LEFT, "also of what was handled: {lost}");
    }
}

fn seeded(addresses: &[tenure_cluster::Address], own: usize) -> tenure_cluster::Settings {
    let mut settings =
        tenure_cluster::Settings::new("shop").name("node").address(addresses[own].clone());
    for seed in addresses {
        settings = settings.discover(seed.to_string().parse().unwrap());
    }
    settings.plaintext_without_any_protection = true;
    settings.seed_patience = Duration::from_millis(200);
    settings
}

/// Killed when it is dropped.
struct Child(std::process::Child);

impl Child {
    fn start(addresses: &[tenure_cluster::Address]) -> Self {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["child_process", "--exact", "--nocapture"])
            .env(CHILD, addresses.iter().map(|a| a.as_str()).collect::<Vec<_>>().join(" "))
            .spawn();
        Self(child.unwrap())
    }

    /// It, once it answers.
    async fn node(&self, here: &Cluster, address: &tenure_cluster::Address) -> Node {
        let found = || {
            let view = here.view();
            let mut at = view.members().filter(|(node, _)| node.address == *address);
            at.find(|(_, member)| member.status == tenure_cluster::Status::Up)
                .map(|(node, _)| node.clone())
        };
        eventually(|| found().is_some()).await;
        let node = found().unwrap();
        let counter = here.to::<Counter>(&node, "counter");
        // Its receiver opens a moment after it is up.
        soon(async {
            while counter.ask(Get).within(SECOND).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        node
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

const CHILD: &str = "TENURE_TEST_CHILD";

/// Not a test of its own: what the child process of the one above runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_process() {
    let Ok(addresses) = std::env::var(CHILD) else { return };
    let addresses: Vec<_> = addresses.split(' ').map(|a| a.parse().unwrap()).collect();
    let cluster = Cluster::join(seeded(&addresses, 1)).await.unwrap();
    let _left = cluster.receiver::<Counter>("left").unwrap();
    count(cluster.receiver("counter").unwrap()).await;
}

/// Reads one byte, and not every one.
#[derive(Debug, PartialEq)]
struct Fragile(u8);

impl Message for Fragile {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        out.push(self.0);
        Ok(())
    }

    fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        assert_ne!(bytes, [0], "as it was sent");
        Ok(Self(bytes[0]))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_cannot_be_read_costs_itself_alone() {
    let clusters = nodes(2).await;
    let node = clusters[1].me();
    let mut letters = clusters[0].dead_letters();
    let mut fragile = clusters[1].receiver::<Fragile>("fragile").unwrap();
    let sender = clusters[0].to::<Fragile>(&node, "fragile");
    for byte in [1, 0, 2] {
        sender.tell(Fragile(byte)).await.unwrap();
    }
    assert_eq!(next(&mut fragile).await.message, Fragile(1));
    assert_eq!(next(&mut fragile).await.message, Fragile(2));
    dead(&mut letters, Lost::Unreadable, 1).await;

    // A newer program has put a field between two others.
    let mut payments = clusters[1].receiver::<(u64, u64)>("payments").unwrap();
    clusters[0].to::<(u64, u64, u64)>(&node, "payments").tell((17, 900_000, 5)).await.unwrap();
    clusters[0].to::<(u64, u64)>(&node, "payments").tell((17, 5)).await.unwrap();
    assert_eq!(next(&mut payments).await.message, (17, 5));
    dead(&mut letters, Lost::Unreadable, 1).await;
}
