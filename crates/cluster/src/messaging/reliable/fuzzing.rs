//! What a sender or a receiver of numbered messages may be told, checked for what must hold
//! whatever the other end says.

use std::collections::BTreeMap;

use bytes::Bytes;
use tenure_lease::Moment;

use super::incoming::{Incoming, Key};
use super::outgoing::Outgoing;
use super::packet::{Ack, Head, Packet};
use crate::messaging::Message;

/// A receiver gets these packets; `finish` says of each that it hands out what becomes of it: done
/// now (`Some(true)`), returned (`Some(false)`), or kept for later.
pub fn packets<'a>(
    packets: impl Iterator<Item = &'a [u8]>,
    mut finish: impl FnMut() -> Option<bool>,
) {
    let mut incoming = Incoming::default();
    let mut last: BTreeMap<Key, u64> = BTreeMap::new();
    for bytes in packets {
        let Ok(packet) = Packet::decode(bytes) else { continue };
        let mut again = Vec::new();
        packet.encode(&mut again).expect("a packet is always written");
        assert_eq!(Packet::decode(&again).expect("what was written is read"), packet);

        let numbers = packet.head.numbers;
        let key: Key = (packet.head.sender.into(), packet.head.stream);
        let (hand_out, ack) = incoming.packet(&key, numbers);
        if let Some(ack) = ack {
            assert!(ack.done < ack.next, "{ack:?}");
            assert!(ack.done >= numbers.base - 1, "its sender knows more: {ack:?} {numbers:?}");
        }
        if !hand_out {
            continue;
        }
        let before = last.insert(key.clone(), numbers.number);
        assert!(before < Some(numbers.number), "{numbers:?} was handed out after {before:?}");
        match finish() {
            Some(true) => {
                let ack = incoming.done(&key, numbers.number).expect("its stream is in hand");
                assert!(ack.done < ack.next, "{ack:?}");
            }
            Some(false) if incoming.returned(&key, numbers.number).is_some() => {
                last.insert(key, numbers.number - 1);
            }
            Some(false) | None => {}
        }
    }
}

/// A sender of `count` messages is told these acks, and sends in between as much as it may.
pub fn acks<'a>(count: u8, acks: impl Iterator<Item = &'a [u8]>) {
    let mut outgoing = Outgoing::new();
    for number in 0..count {
        outgoing.push(Bytes::copy_from_slice(&[number]));
    }
    let (mut now, mut sent, mut done) = (Moment::ZERO, 0, 0);
    for bytes in acks {
        now += STEP;
        for _ in 0..=count {
            let Some((numbers, payload)) = outgoing.next(now) else { break };
            assert_eq!(u64::from(payload[0]) + 1, numbers.number, "its own payload");
            assert_eq!(numbers.base, done + 1);
            sent = sent.max(numbers.number);
        }
        assert!(outgoing.next_wake(now).is_some() || done == sent, "what is open is sent again");
        let Ok(ack) = tenure_wire::decode::<Ack>(bytes) else { continue };
        let finished = outgoing.heard(ack, now).len() as u64;
        done += finished;
        assert_eq!(done, outgoing.done());
        assert!(done <= sent, "nothing is done that was not sent");
        assert_eq!(outgoing.last(), u64::from(count), "nothing is lost, nothing made up");
    }
}

/// Reads bytes as each message.
pub(crate) fn wire(bytes: &[u8]) {
    tenure_wire::samples::check_read::<Head>(bytes);
    tenure_wire::samples::check_read::<Ack>(bytes);
}

/// Between two acks.
const STEP: std::time::Duration = std::time::Duration::from_millis(50);
