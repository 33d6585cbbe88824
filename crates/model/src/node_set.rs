//! Sets of nodes, in one byte.

use std::fmt;
use std::iter;
use std::ops::{BitAnd, BitOr, Sub};

/// A set of up to eight nodes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct NodeSet(u8);

impl NodeSet {
    pub(crate) const EMPTY: Self = Self(0);

    /// The nodes from 0 up to `count`, which is left out.
    pub(crate) fn first(count: usize) -> Self {
        (0..count).collect()
    }

    pub(crate) fn contains(self, node: usize) -> bool {
        self.0 & 1 << node != 0
    }

    pub(crate) fn insert(&mut self, node: usize) {
        self.0 |= 1 << node;
    }

    pub(crate) fn remove(&mut self, node: usize) {
        self.0 &= !(1 << node);
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    pub(crate) fn is_subset_of(self, other: Self) -> bool {
        (self - other).is_empty()
    }

    pub(crate) fn lowest(self) -> Option<usize> {
        (!self.is_empty()).then(|| self.0.trailing_zeros() as usize)
    }

    /// Greater for the set that has the lowest node which the other has not.
    pub(crate) fn seniority(self) -> u8 {
        self.0.reverse_bits()
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self;
        iter::from_fn(move || {
            let node = rest.lowest()?;
            rest.remove(node);
            Some(node)
        })
    }

    /// All of its subsets, the empty one and itself among them.
    pub(crate) fn subsets(self) -> impl Iterator<Item = Self> {
        (0..=self.0).map(Self).filter(move |subset| subset.is_subset_of(self))
    }
}

impl iter::FromIterator<usize> for NodeSet {
    fn from_iter<I: IntoIterator<Item = usize>>(nodes: I) -> Self {
        let mut set = Self::EMPTY;
        nodes.into_iter().for_each(|node| set.insert(node));
        set
    }
}

impl BitAnd for NodeSet {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl BitOr for NodeSet {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl Sub for NodeSet {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl fmt::Debug for NodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// `{0,2,3}`.
impl fmt::Display for NodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<String> = self.iter().map(|node| node.to_string()).collect();
        write!(f, "{{{}}}", nodes.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_a_set() {
        let set: NodeSet = [0, 2, 3].into_iter().collect();
        assert_eq!(set.to_string(), "{0,2,3}");
        assert_eq!(set.len(), 3);
        assert_eq!(set - NodeSet::first(1), [2, 3].into_iter().collect());
        assert_eq!((set - NodeSet::first(1)).lowest(), Some(2));
        assert_eq!(set & NodeSet::first(2), NodeSet::first(1));
        assert_eq!(NodeSet::EMPTY.lowest(), None);
        assert!(set.seniority() > NodeSet::from_iter([0, 3]).seniority());
    }

    #[test]
    fn has_two_subsets_for_each_node() {
        let set: NodeSet = [0, 2, 7].into_iter().collect();
        let subsets: Vec<_> = set.subsets().collect();
        assert_eq!(subsets.len(), 8);
        assert!(subsets.contains(&set) && subsets.contains(&NodeSet::EMPTY));
    }
}
