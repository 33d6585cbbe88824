use super::count::{Counts, say};
use super::situation::HasAddress;
use super::{Outcome, Side};

/// The side with at least `size` members goes on, the others down themselves.
///
/// For clusters whose size does not change. It needs no more than a number, and whichever way the
/// network falls apart, at most one side has that many, as long as there are no more than
/// `2 × size − 1` members: with more, two sides could both have enough. In a cluster that has
/// outgrown its quorum it therefore refuses to decide, and everybody stays.
///
/// A cluster that is still starting, with fewer members than `size`, is left in peace: only
/// a member that is unreachable makes it decide. With fewer than `size` left, it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticQuorum {
    /// How many members a side must have. More than half of the cluster at its largest; the
    /// smaller, the fewer must survive. At least 1.
    pub size: usize,
    /// Count only members with this role.
    pub role: Option<String>,
}

impl StaticQuorum {
    /// With this many members, of any role.
    pub fn new(size: usize) -> Self {
        Self { size, role: None }
    }

    pub(super) fn judge<N: HasAddress>(&self, side: &Side<'_, N>) -> Outcome {
        let role = self.role.as_deref();
        let (size, decides_up_to) = (self.size, (2 * self.size).saturating_sub(1));
        let counts = Counts::of(side, role);
        let most = counts.each().map(|count| count.all()).max().unwrap_or_default();
        if most > decides_up_to {
            return Outcome::Wait(format!(
                "there are {most} members, and a quorum of {size} decides for up to \
                 {decides_up_to}: two sides could both have it; raise the quorum to {}",
                most / 2 + 1
            ));
        }
        counts.judge(|count| {
            let enough = count.here() >= size;
            let not = if enough { "" } else { "not " };
            (enough, format!("{}, {not}enough for the quorum of {size}", say(count, role)))
        })
    }
}
