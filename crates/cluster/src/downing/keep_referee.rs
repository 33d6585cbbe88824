use super::count::Counts;
use super::situation::HasAddress;
use super::{Outcome, Side};

/// The side with the referee goes on, the others down themselves.
///
/// For clusters with one node that matters more than the rest, or that is sure to be where the
/// clients are. If the referee crashes, everybody ends; if it is not a member at all, nobody
/// decides anything and everybody stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeepReferee {
    /// The referee's address.
    pub address: String,
    /// End everybody, the referee too, if fewer members than this are left with it. Default 1:
    /// never.
    pub down_all_if_less_than: usize,
}

impl KeepReferee {
    /// With this referee, however few are left with it.
    pub fn new(address: impl Into<String>) -> Self {
        Self { address: address.into(), down_all_if_less_than: 1 }
    }

    pub(super) fn judge<N: HasAddress>(&self, side: &Side<'_, N>) -> Outcome {
        let referee = &self.address;
        let counts = Counts::of(side, None);
        if counts.each().any(|count| count.at(referee).next().is_none()) {
            return Outcome::Wait(format!("the referee, {referee}, is not a member"));
        }
        let outcome = counts.judge(|count| {
            let here = count.at(referee).any(|voter| voter.here);
            let not = if here { "" } else { "not " };
            (here, format!("the referee, {referee}, is {not}here"))
        });
        // The smaller count decides: members that are on their way in or out are no help.
        let here = counts.each().map(|count| count.here()).min().unwrap_or_default();
        let least = self.down_all_if_less_than;
        match outcome {
            Outcome::Survive(reason) if here < least => Outcome::EndAll(format!(
                "{reason}, but with {here} of the {least} members that it takes to go on"
            )),
            other => other,
        }
    }
}
