use serde::{Deserialize, Serialize};

use super::{Member, Row, Status, Verdict, View};
use crate::Node;

/// A number that is the same for views that say the same.
///
/// It covers what every version of the protocol knows, and nothing else: what a later version adds to a member
/// or a row does not count.
///
/// The sum of a number for each row, so that a change costs one row, not a thousand. It guards
/// against chance, not against malice: whoever can send one is a member already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Digest(u128);

impl Digest {
    /// Of a view in which nobody is yet, with no verdict.
    pub(super) fn of_cluster(cluster: u64) -> Self {
        let mut new = Self(Mix::new(CLUSTER).number(cluster).finish());
        new.add(of_verdict(&Verdict::default()));
        new.add(of_asked(0));
        new.add(of_highest_up(0));
        new.add(of_skipped_up(0));
        new
    }

    pub(super) fn add(&mut self, row: u128) {
        self.0 = self.0.wrapping_add(row);
    }

    pub(super) fn remove(&mut self, row: u128) {
        self.0 = self.0.wrapping_sub(row);
    }
}

pub(super) fn of_member(node: &Node, member: &Member) -> u128 {
    Mix::new(MEMBER).node(node).number(member.status as u64).number(member.up_number).finish()
}

pub(super) fn of_row(observer: &Node, row: &Row) -> u128 {
    // The content too: a node that was resumed twice writes two rows with one number.
    let mix = Mix::new(ROW).node(observer).number(row.version);
    row.unreachable.iter().fold(mix, Mix::node).finish()
}

pub(super) fn of_verdict(verdict: &Verdict) -> u128 {
    let survivors = &verdict.survivors;
    let mix = Mix::new(VERDICT).number(verdict.generation).number(survivors.salt().into());
    mix.bytes(survivors.to_bytes()).finish()
}

/// Of one survivor of a verdict, to be known by.
pub(super) fn of_survivor(salt: u32, node: &Node) -> u128 {
    Mix::new(SURVIVOR).number(salt.into()).node(node).finish()
}

pub(super) fn of_highest_up(highest_up: u64) -> u128 {
    Mix::new(HIGHEST).number(highest_up).finish()
}

pub(super) fn of_skipped_up(skipped_up: u64) -> u128 {
    Mix::new(SKIPPED).number(skipped_up).finish()
}

pub(super) fn of_asked(asked: u64) -> u128 {
    Mix::new(ASKED).number(asked).finish()
}

/// Of who is there, how far each has come, and who cannot reach whom: what a decision depends on.
pub(super) fn of_picture(view: &View) -> u128 {
    // Joining members have no say, and come and go while a split lasts.
    let counts = |node: &Node| view.member(node).is_some_and(|it| it.status > Status::Joining);
    let mut mix = Mix::new(MEMBER);
    for (node, member) in view.members.iter().filter(|(node, _)| counts(node)) {
        mix = mix.node(node).number(member.status as u64);
    }
    for (observer, subject) in view.observations() {
        if counts(observer) && counts(subject) {
            mix = mix.node(observer).node(subject);
        }
    }
    mix.finish()
}

/// Two multiply-and-fold lanes. Written out, because every node must get the same result, whatever
/// version of the standard library it was built with.
struct Mix(u64, u64);

impl Mix {
    fn new(kind: u64) -> Self {
        Self(kind, !kind)
    }

    fn number(mut self, number: u64) -> Self {
        self.0 = fold(self.0 ^ number, 0x9e37_79b9_7f4a_7c15);
        self.1 = fold(self.1 ^ number.rotate_left(32), 0xd6e8_feb8_6659_fd93);
        self
    }

    fn node(mut self, node: &Node) -> Self {
        self = self.bytes(node.address.as_str().as_bytes());
        self.number(node.incarnation.0)
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self = self.number(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self = self.number(u64::from_le_bytes(word));
        }
        self
    }

    fn finish(self) -> u128 {
        let high = fold(self.0 ^ self.1.rotate_left(17), 0xa076_1d64_78bd_642f);
        let low = fold(self.1 ^ high, 0xe703_7ed1_a0b4_28db);
        u128::from(high) << 64 | u128::from(low)
    }
}

fn fold(a: u64, b: u64) -> u64 {
    // Adding a constant keeps zero from being a sink.
    let product = u128::from(a.wrapping_add(b)) * u128::from(b | 1);
    (product as u64) ^ ((product >> 64) as u64) ^ a.rotate_left(29)
}

const CLUSTER: u64 = 0x636c_7573_7465_7200;
const MEMBER: u64 = 0x6d65_6d62_6572_0000;
const VERDICT: u64 = 0x7665_7264_6963_7400;
const SURVIVOR: u64 = 0x7375_7276_6976_6572;
const HIGHEST: u64 = 0x6869_6768_6573_7400;
const SKIPPED: u64 = 0x736b_6970_7065_6400;
const ASKED: u64 = 0x6173_6b65_6400_0000;
const ROW: u64 = 0x726f_7700_0000_0000;
