//! Writes the inputs that the targets begin with: what is really said, and some that are almost it.
//!
//! In this directory: `cargo run --example seed`

use std::path::Path;
use std::{fs, io};

use arbitrary::Unstructured;
use tenure_cluster::message::Control;
use tenure_cluster::transport::Lane;
use tenure_cluster::transport::frame;
use tenure_cluster::transport::handshake::{Accepted, Hello, Message, Version};
use tenure_cluster::view::{Survivors, Verdict};
use tenure_fuzz::node;
use tenure_fuzz::world::World;

fn main() -> io::Result<()> {
    write("frames", &frames())?;
    write("handshake", &greetings())?;
    let said = said();
    write("control", &said)?;
    write("peers", &[in_pieces(0, &said), in_pieces(1, &said)])?;
    write("gossip", &stories())?;
    write("messaging", &data_frames())?;
    write("reliable", &numbered())?;
    write(
        "notes",
        &[
            br#"{"cluster":7,"contacts":["shop-0.shop:7400","10.0.0.1:7400"]}"#.to_vec(),
            verdict().to_note(),
        ],
    )?;
    let addresses = ["shop-0.shop:7400", "dns:shop.default.svc:7400", "[::1]:7400", "10.0.0.1:1"];
    write("addresses", &addresses.map(|text| text.as_bytes().to_vec()))?;
    write("lease_file", &tenure_lease::fuzzing::samples())
}

fn verdict() -> Verdict {
    let survivors = Survivors::new([&node(1, 5), &node(2, 7)], [&node(3, 1)]);
    Verdict { cluster: 7, generation: 2, survivors: survivors.into() }
}

fn write(target: &str, inputs: &[Vec<u8>]) -> io::Result<()> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    fs::create_dir_all(&dir)?;
    for (number, input) in inputs.iter().enumerate() {
        fs::write(dir.join(format!("seed-{number}")), input)?;
    }
    Ok(())
}

fn frames() -> Vec<Vec<u8>> {
    let stream = |bodies: &[&[u8]]| {
        let mut out = vec![7];
        for body in bodies {
            frame::append(&mut out, 96, |out| out.extend_from_slice(body)).expect("short enough");
        }
        out
    };
    let mut cut = stream(&[b"whole", &[1; 96]]);
    cut.truncate(60);
    vec![stream(&[b"a", b"second"]), stream(&[&[2; 96]]), cut]
}

fn greetings() -> Vec<Vec<u8>> {
    let (cluster, name) = ("shop".to_owned(), "shop-1".to_owned());
    let hello = Hello {
        cluster: cluster.clone(),
        name: name.clone(),
        node: node(1, 5),
        lane: Lane::Control,
    };
    let accepted = Accepted { cluster, name, node: node(1, 5) };
    let newer = Version { major: 2, minor: 3 };
    [
        Message::Hello(Version::OURS, hello),
        Message::Accepted(Version::OURS, accepted),
        Message::Refused(Version::OURS, "another cluster".into()),
        Message::Foreign(newer),
    ]
    .map(|message| message.encode())
    .into()
}

/// What nodes say to each other while one of them joins, leaves and is gone: one of each kind.
fn said() -> Vec<Vec<u8>> {
    let mut said: Vec<Vec<u8>> = Vec::new();
    let mut add = |message: &Control| {
        let bytes = postcard::to_stdvec(message).expect("a message is written");
        if bytes.len() < 256 && said.iter().filter(|other| other[0] == bytes[0]).count() < 2 {
            said.push(bytes);
        }
    };
    for story in stories() {
        let (mut input, mut world) = (Unstructured::new(&story), World::default());
        while !input.is_empty() {
            world.step(&mut input);
            world.messages().for_each(&mut add);
        }
    }
    said
}

/// To the node at this place, from the other one.
fn in_pieces(to: u8, messages: &[Vec<u8>]) -> Vec<u8> {
    // Whoever joins is welcomed first, and whoever is in is asked; the end comes last.
    let order = |message: &&Vec<u8>| match (message[0], to) {
        (JOIN, 0) | (WELCOME, 1) => 0,
        (REMOVED, _) => 2,
        _ => 1,
    };
    let mut messages: Vec<_> = messages.iter().collect();
    messages.sort_by_key(order);
    let from_the_other = [1, 1 - to];
    let pieces = messages
        .into_iter()
        .flat_map(|message| [&from_the_other, &[message.len() as u8][..], message].concat());
    [to].into_iter().chain(pieces).collect()
}

// The places of these in `Control`.
const JOIN: u8 = 4;
const WELCOME: u8 = 5;
const REMOVED: u8 = 8;

/// See `World::step`: what, where, and whom or which.
fn stories() -> Vec<Vec<u8>> {
    const START: u8 = 0;
    const DIE: u8 = 2;
    const LEAVE: u8 = 3;
    const DOWN: u8 = 4;
    const DECIDE: u8 = 5;
    const CUT: u8 = 7;
    const DAY: u8 = 13;
    const GO_ON: u8 = 15;
    let begin = [START, 0, START, 1, START, 2, GO_ON, 3, GO_ON, 3];
    let story = |rest: &[u8]| [&begin[..], rest].concat();
    vec![
        story(&[LEAVE, 1, GO_ON, 3, GO_ON, 3, START, 1, GO_ON, 3]),
        story(&[DIE, 2, START, 2, GO_ON, 3, GO_ON, 3, GO_ON, 3]),
        story(&[
            CUT, 0, 2, CUT, 1, 2, GO_ON, 3, GO_ON, 3, DECIDE, 0, GO_ON, 3, CUT, 0, 2, GO_ON, 3,
        ]),
        story(&[CUT, 0, 2, DOWN, 0, 2, GO_ON, 3, GO_ON, 3, DAY, 0, CUT, 0, 2, GO_ON, 3, START, 3]),
    ]
}

fn data_frames() -> Vec<Vec<u8>> {
    let pieces = |bodies: &[&[u8]]| -> Vec<u8> {
        bodies.iter().flat_map(|body| [&[body.len() as u8][..], body].concat()).collect()
    };
    let number = [9, 0, 0, 0, 0, 0, 0, 0];
    let (ask, answer) =
        ([b"\x03\x01c", &number[..], b"?"].concat(), [b"\x04", &number[..]].concat());
    let (refused, dead) =
        ([b"\x05", &number[..], b"\x02"].concat(), [b"\x07\x01", &number[..], b"\x01c"].concat());
    vec![
        pieces(&[b"\x01\x07counterbody", b"\x01\x07countermore", b"\x02\x01cbody"]),
        pieces(&[&ask, &answer, &refused, &dead, b"\x63new"]),
    ]
}

/// Two packets of a stream, and an ack; see `messaging/reliable/packet.rs`.
fn numbered() -> Vec<Vec<u8>> {
    let packet = |number: u8| [8, 1, b's', 5, 1, 1, number, b'x', b'y'];
    vec![
        [&[0x6e][..], &packet(1), &packet(2), &packet(4), &packet(3)].concat(),
        [&[128 + 9][..], &[4, 1, 2, 3, 0], &[4, 1, 3, 4, 1], &[4, 2, 9, 10, 0]].concat(),
    ]
}
