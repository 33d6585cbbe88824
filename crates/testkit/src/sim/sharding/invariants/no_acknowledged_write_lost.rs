//! Where there is a fence, no write overwrites one that was acknowledged and that it has not read.

use super::super::Tally;
use super::super::data::{Done, Kind, Op};

pub(super) fn count(tally: &mut Tally, op: &Op, done: &Done) {
    if matches!(op.kind, Kind::Write { .. }) {
        tally.writes += 1;
        tally.refused += u64::from(done.result.is_none());
        tally.lost_fenced += u64::from(done.lost_fenced);
        tally.lost_unfenced += u64::from(done.lost_unfenced);
    }
}

pub(super) fn check(op: &Op, done: &Done) -> Option<String> {
    done.lost_fenced.then(|| format!("{op:?} overwrites what it has not read"))
}
