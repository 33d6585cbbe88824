//! The survivors of a verdict, small enough for the note of a lease however many they are.
//!
//! A verdict must say of *every* node whether it goes on, also of those that its writer has never
//! heard of: sides know different members, and a list of losers would let the others live. So it
//! lists survivors; but ten thousand addresses with incarnations are ten times what a note holds.
//! What stands there instead is a *mark* of each survivor, 48 bits of a hash of its address and its
//! incarnation. Whoever has none there is down.
//!
//! A loser whose mark happens to be a survivor's would go on. The writer sees to it that no loser
//! that it knows of has such a mark, by hashing with another salt. For a node that it does not
//! know, one that has joined beyond the cut for instance, the odds are one to 28,000 million among
//! ten thousand survivors.

use serde::{Deserialize, Serialize};

use super::digest;
use crate::Node;

/// Who goes on by a verdict.
///
/// ```
/// use tenure_cluster::view::Survivors;
/// use tenure_cluster::{Incarnation, Node};
/// let node = |at: &str| Node { address: at.parse().unwrap(), incarnation: Incarnation(1) };
/// let survivors = Survivors::new([&node("a:1"), &node("b:1")], [&node("c:1")]);
/// assert!(survivors.contains(&node("a:1")) && !survivors.contains(&node("c:1")));
/// assert_eq!(survivors.len(), 2);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Parts", into = "Parts")]
pub struct Survivors {
    /// What all marks are hashed with; the least one with which no known loser has a mark.
    salt: u32,
    /// The marks, one after the other, sorted, each once.
    marks: Vec<u8>,
}

/// A [`Survivors`] that was not checked.
#[derive(Serialize, Deserialize)]
struct Parts {
    #[serde(rename = "s")]
    salt: u32,
    #[serde(rename = "m", with = "tenure_wire::bytes")]
    marks: Vec<u8>,
}

/// Bytes that cannot be the marks of survivors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the marks of the survivors are damaged")]
pub struct SurvivorsError;

impl Survivors {
    /// These, and in no case those.
    ///
    /// # Panics
    ///
    /// If somebody is both.
    pub fn new<'a>(
        survivors: impl IntoIterator<Item = &'a Node>,
        losers: impl IntoIterator<Item = &'a Node>,
    ) -> Self {
        Self::with_marks(survivors, losers, mark)
    }

    fn with_marks<'a>(
        survivors: impl IntoIterator<Item = &'a Node>,
        losers: impl IntoIterator<Item = &'a Node>,
        mark: impl Fn(u32, &Node) -> Mark,
    ) -> Self {
        let survivors: Vec<&Node> = survivors.into_iter().collect();
        let losers: Vec<&Node> = losers.into_iter().collect();
        for salt in 0..SALTS_MAX {
            let mut marks: Vec<Mark> = survivors.iter().map(|node| mark(salt, node)).collect();
            marks.sort_unstable();
            marks.dedup();
            if !losers.iter().any(|node| marks.binary_search(&mark(salt, node)).is_ok()) {
                return Self { salt, marks: marks.concat() };
            }
        }
        // Each salt fails with a probability of one to thousands at most.
        panic!("somebody is both a survivor and a loser")
    }

    /// Of a salt and marks as [`to_bytes`](Self::to_bytes) wrote them.
    pub fn parse(salt: u32, marks: &[u8]) -> Result<Self, SurvivorsError> {
        Self::try_from(Parts { salt, marks: marks.to_vec() })
    }

    /// Whether this node goes on.
    pub fn contains(&self, node: &Node) -> bool {
        self.all().binary_search(&mark(self.salt, node)).is_ok()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all().len()
    }

    /// Whether nobody goes on.
    pub fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// What the marks are hashed with.
    pub fn salt(&self) -> u32 {
        self.salt
    }

    /// The marks: six bytes for each survivor.
    pub fn to_bytes(&self) -> &[u8] {
        &self.marks
    }

    fn all(&self) -> &[Mark] {
        self.marks.as_chunks().0
    }
}

impl TryFrom<Parts> for Survivors {
    type Error = SurvivorsError;

    fn try_from(Parts { salt, marks }: Parts) -> Result<Self, SurvivorsError> {
        let (all, rest) = marks.as_chunks::<MARK>();
        if !rest.is_empty() || !all.is_sorted_by(|one, next| one < next) {
            return Err(SurvivorsError);
        }
        Ok(Self { salt, marks })
    }
}

impl From<Survivors> for Parts {
    fn from(Survivors { salt, marks }: Survivors) -> Self {
        Self { salt, marks }
    }
}

type Mark = [u8; MARK];

fn mark(salt: u32, node: &Node) -> Mark {
    let hash = digest::of_survivor(salt, node).to_be_bytes();
    std::array::from_fn(|index| hash[index])
}

const MARK: usize = 6;
const SALTS_MAX: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Incarnation;

    fn node(index: u64) -> Node {
        let address = format!("10.{}.{}.{}:7400", index >> 16, index >> 8 & 255, index & 255);
        Node { address: address.parse().unwrap(), incarnation: Incarnation(index) }
    }

    #[test]
    fn each_of_ten_thousand_is_told_from_ten_thousand_others() {
        let (here, there): (Vec<Node>, Vec<Node>) =
            ((0..10_000).map(node).collect(), (10_000..20_000).map(node).collect());
        // The writer knows of half of the losers.
        let survivors = Survivors::new(&here, &there[..5000]);
        assert_eq!((survivors.len(), survivors.salt()), (10_000, 0));
        assert!(here.iter().all(|node| survivors.contains(node)));
        assert!(!there.iter().any(|node| survivors.contains(node)));
        // Another process at the same address is another node.
        let again = Node { incarnation: Incarnation(7 << 50), ..here[3].clone() };
        assert!(!survivors.contains(&again));
    }

    #[test]
    fn a_loser_with_the_mark_of_a_survivor_changes_the_salt() {
        let (survivors, loser) = ([node(1), node(2)], node(3));
        let alike = |salt: u32, node: &Node| if salt < 3 { [7; MARK] } else { mark(salt, node) };
        let chosen = Survivors::with_marks(&survivors, [&loser], alike);
        assert_eq!((chosen.salt(), chosen.len()), (3, 2));
        assert!(survivors.iter().all(|node| chosen.contains(node)) && !chosen.contains(&loser));
    }

    #[test]
    fn damaged_marks_are_refused() {
        let two = Survivors::new([&node(1), &node(2)], []);
        let bytes = two.to_bytes();
        assert_eq!(Survivors::parse(0, bytes), Ok(two.clone()));
        let turned: Vec<u8> = bytes[6..].iter().chain(&bytes[..6]).copied().collect();
        for damaged in [&bytes[..11], &turned[..], &[bytes, bytes].concat()[..]] {
            assert_eq!(Survivors::parse(0, damaged), Err(SurvivorsError));
        }
    }
}
