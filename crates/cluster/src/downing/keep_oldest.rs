use super::count::{Count, Counts};
use super::situation::HasAddress;
use super::{Outcome, Side};

/// The side with the oldest member goes on, the others down themselves.
///
/// For clusters whose singletons are costly to move: they live on the oldest member, and stay.
/// How many are on each side does not matter, so that a small side can outlive a large one.
///
/// If the oldest is the only one on its side, and there are at least two others, the others go on
/// instead, unless `down_if_alone` is off: it has probably crashed, or lost its network. The others
/// do so only if it is all that they miss; with more out of reach they cannot know that it is alone,
/// and end. Without `down_if_alone` a crash of the oldest ends everybody.
///
/// The oldest is, for this purpose, the oldest of all that are counted, also if it is leaving, so
/// that the two sides do not look at different ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeepOldest {
    /// Whether an oldest that is alone downs itself in favour of the others. On unless you say
    /// otherwise.
    pub down_if_alone: bool,
    /// Look only at members with this role.
    pub role: Option<String>,
}

impl Default for KeepOldest {
    fn default() -> Self {
        Self { down_if_alone: true, role: None }
    }
}

impl KeepOldest {
    pub(super) fn judge<N: HasAddress>(&self, side: &Side<'_, N>) -> Outcome {
        Counts::of(side, self.role.as_deref()).judge(|count| self.wins(count))
    }

    fn wins<N: HasAddress>(&self, count: &Count<'_, N>) -> (bool, String) {
        let Some(oldest) = count.oldest() else {
            let role = self.role.as_deref().unwrap_or_default();
            return (false, format!("no member has the role {role}"));
        };
        let name = oldest.node.address();
        // Of two, the one is worth as much as the other: the oldest goes on.
        let expendable = self.down_if_alone && count.all() > 2;
        match oldest.here {
            true if expendable && count.here() == 1 => {
                (false, format!("the oldest member, {name}, is here, but alone"))
            }
            true => (true, format!("the oldest member, {name}, is here")),
            false if expendable && count.here() + 1 == count.all() => {
                (true, format!("the oldest member, {name}, is alone on the other side"))
            }
            false => (false, format!("the oldest member, {name}, is not here")),
        }
    }
}
