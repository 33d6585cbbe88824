use super::count::{Counts, Standing, say};
use super::situation::HasAddress;
use super::{Outcome, Side};

/// The side with more than half of the members goes on, the others down themselves.
///
/// For clusters whose size changes. Of two halves the one with the lowest address goes on, which
/// both can tell without asking anybody. If the network falls into three or more, perhaps no side
/// has enough, and everybody ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeepMajority {
    /// Count only members with this role.
    pub role: Option<String>,
}

impl KeepMajority {
    pub(super) fn judge<N: HasAddress>(&self, side: &Side<'_, N>) -> Outcome {
        let role = self.role.as_deref();
        Counts::of(side, role).judge(|count| {
            let said = say(count, role);
            match (count.standing(), count.lowest()) {
                (Standing::Majority, _) => (true, format!("{said}, a majority")),
                (Standing::Equal, Some(lowest)) => {
                    let not = if lowest.here { "" } else { "not " };
                    let lowest_name = lowest.node.address();
                    let why = format!("half, {not}with the lowest address, {lowest_name}");
                    (lowest.here, format!("{said}, {why}"))
                }
                _ => (false, format!("{said}, a minority")),
            }
        })
    }
}
