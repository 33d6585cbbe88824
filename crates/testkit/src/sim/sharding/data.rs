//! The database that shards write to: of each shard a cell with a fence, and one without.
//!
//! A shard reads its cell when it starts, after it has raised the fence, and then writes again and
//! again without reading. A write that is not based on what stands there overwrites something that
//! was acknowledged to somebody else.

use tenure_lease::Token;
use tenure_sharding::Shard;

#[derive(Clone, Debug, Default)]
struct Cell {
    fence: Token,
    fenced: u64,
    unfenced: u64,
}

#[derive(Debug)]
pub(super) struct Data {
    cells: Vec<Cell>,
    /// The number of the last write; each is the content of its cell.
    writes: u64,
}

/// What a shard asks of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Op {
    pub(super) shard: Shard,
    /// The allocation that asks.
    pub(super) token: Token,
    /// What it fences with.
    pub(super) fence: Token,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Raise the fence and read.
    Open,
    /// Write something new, based on these.
    Write { fenced: u64, unfenced: u64 },
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Done {
    /// What stands there now; `None` if it was refused.
    pub(super) result: Option<(u64, u64)>,
    pub(super) lost_fenced: bool,
    pub(super) lost_unfenced: bool,
}

impl Data {
    pub(super) fn new(shards: u32) -> Self {
        Self { cells: vec![Cell::default(); shards as usize], writes: 0 }
    }

    pub(super) fn apply(&mut self, op: &Op) -> Done {
        let cell = &mut self.cells[op.shard.0 as usize];
        let mut done = Done::default();
        self.writes += 1;
        if let Kind::Write { unfenced, .. } = op.kind {
            done.lost_unfenced = unfenced != cell.unfenced;
            cell.unfenced = self.writes;
        }
        if op.fence < cell.fence {
            return done;
        }
        match op.kind {
            Kind::Open => cell.fence = op.fence,
            Kind::Write { fenced, .. } => {
                done.lost_fenced = fenced != cell.fenced;
                cell.fenced = self.writes;
            }
        }
        done.result = Some((cell.fenced, cell.unfenced));
        done
    }
}
