//! Writes the inputs that the targets begin with: what is really said, and some that are almost it.
//!
//! In this directory: `cargo run --example seed`

use std::mem::discriminant;
use std::path::Path;
use std::{fs, io};

use arbitrary::Unstructured;
use tenure_cluster::transport::Lane;
use tenure_cluster::transport::frame;
use tenure_cluster::transport::handshake::{Accepted, Hello, Message, Version};
use tenure_cluster::view::{Survivors, Verdict};
use tenure_cluster::wire::{Control, encode, encoded_len};
use tenure_fuzz::node;
use tenure_wire::samples::from_hex;
use tenure_fuzz::world::World;

fn main() -> io::Result<()> {
    write("frames", &frames())?;
    write("handshake", &greetings())?;
    let said = said();
    write("control", &said.iter().map(bytes).collect::<Vec<_>>())?;
    write("wire", &samples()?)?;
    write("peers", &[in_pieces(0, &said), in_pieces(1, &said)])?;
    write("gossip", &stories())?;
    write("messaging", &data_frames())?;
    write("reliable", &numbered())?;
    write("values", &values())?;
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

/// What nodes say to each other while one of them joins, leaves and is gone: one or two of each kind.
fn said() -> Vec<Control> {
    let mut said: Vec<Control> = Vec::new();
    let mut add = |message: &Control| {
        let is_alike = |other: &&Control| discriminant(*other) == discriminant(message);
        if encoded_len(message) < 256 && said.iter().filter(is_alike).count() < 2 {
            said.push(message.clone());
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

fn bytes(message: &Control) -> Vec<u8> {
    encode(message, Version::OURS).expect("a message is written").to_vec()
}

/// To the node at this place, from the other one.
fn in_pieces(to: u8, messages: &[Control]) -> Vec<u8> {
    // Whoever joins is welcomed first, and whoever is in is asked; the end comes last.
    let order = |message: &&Control| match (message, to) {
        (Control::Join(_), 0) | (Control::Welcome(..), 1) => 0,
        (Control::Removed { .. }, _) => 2,
        _ => 1,
    };
    let mut messages: Vec<_> = messages.iter().collect();
    messages.sort_by_key(order);
    let from_the_other = [1, 1 - to];
    let pieces = messages.into_iter().map(bytes).flat_map(|message| {
        [&from_the_other, &[message.len() as u8][..], &message].concat()
    });
    [to].into_iter().chain(pieces).collect()
}

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
    let (refused, dead) = (
        [b"\x05", &number[..], b"\x03no"].concat(),
        [b"\x07\x01", &number[..], b"\x01c\x01\0ano"].concat(),
    );
    vec![
        pieces(&[b"\x01\x07counterbody", b"\x01\x07countermore", b"\x02\x01cbody"]),
        pieces(&[&ask, &answer, &refused, &dead, b"\x63new"]),
    ]
}

/// The samples of all messages, as they are kept for ever.
fn samples() -> io::Result<Vec<Vec<u8>>> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let files = ["cluster/samples/control", "cluster/samples/clients", "cluster/samples/reliable"];
    let files = files.into_iter().chain(["sharding/samples/sharding", "singleton/samples/singleton"]);
    let mut samples = Vec::new();
    for file in files {
        let text = fs::read_to_string(crates.join(file).with_extension("txt"))?;
        samples.extend(text.lines().filter_map(|line| Some(from_hex(line.split_once(' ')?.1))));
    }
    Ok(samples)
}

/// Two packets of a stream, and an ack; see `messaging/reliable/packet.rs`.
fn numbered() -> Vec<Vec<u8>> {
    let packet = |number: u8| {
        let head = [b"\x83\xa1s\xa1s\xa1i\x05\xa1n\x83\xa1r\x01\xa1b\x01\xa1n", &[number][..]].concat();
        [&[head.len() as u8 + 2][..], &head, b"xy"].concat()
    };
    let ack = |round: u8, done: u8, next: u8| {
        let ack = [b"\x83\xa1r", &[round][..], b"\xa1d", &[done], b"\xa1n", &[next]].concat();
        [&[ack.len() as u8][..], &ack].concat()
    };
    vec![
        [&[0x6e][..], &packet(1), &packet(2), &packet(4), &packet(3)].concat(),
        [&[128 + 9][..], &ack(1, 2, 3), &ack(1, 3, 4), &ack(2, 9, 10)].concat(),
    ]
}

/// A cart of `fuzz_targets/values.rs` without its tag, and one of its next version.
fn values() -> Vec<Vec<u8>> {
    let items =
        b"\x93\xa4Gift\x81\xa5Piece\xd0\x80\x81\xa3Set\x82\xa5count\x07\xa5price\xcd\x01\xf4";
    let grown =
        b"\x92\x81\xa4Gift\x81\xa2to\xa1a\x81\xa3Set\x83\xa5price\x05\xa5count\x07\xa5color\xc0";
    let next = b"\x84\xa3sku\x02\xa4note\xc0\xa5items\x90\xa4next\xc0";
    vec![
        [b"\x84\xa3sku\x01\xa4note\xc1\xc0\xa5items", &items[..], b"\xa4next", next].concat(),
        [b"\x85\xa5items", &grown[..], b"\xa5total\x09\xa3sku\x01\xa4note\xa1x\xa4next", next]
            .concat(),
        [b"\x94\x01\xc1\xc0\x93\x00\x81\x01\xd0\x80\x81\x02\x92\x07\x05", &b"\xc0"[..]].concat(),
        b"\x01\x06Cart@2".to_vec(),
    ]
}
