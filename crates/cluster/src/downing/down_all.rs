use super::Outcome;

/// Everybody ends, on every side.
///
/// For clusters that are quicker to start again than to argue, and that must never be two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DownAll;

impl DownAll {
    pub(super) fn judge(&self) -> Outcome {
        Outcome::EndAll("members are unreachable, and then everybody ends".into())
    }
}
