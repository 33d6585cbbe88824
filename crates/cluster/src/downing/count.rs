//! Counting a side against a membership.

use super::situation::HasAddress;
use super::{Outcome, Side};
use crate::view::Roles;

/// How large a side is, compared with the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// More than half, on every membership that it was counted on.
    Majority,
    /// Half, or half on one membership and more on the other.
    Equal,
    /// Less than half, on every membership that it was counted on. Also a side on which nobody is
    /// counted.
    Minority,
    /// Less than half on one membership, and not on the other.
    Unsure,
}

impl Standing {
    fn on<N: HasAddress>(count: &Count<'_, N>) -> Self {
        let (here, all) = (count.here(), count.all());
        match (2 * here).cmp(&all) {
            _ if here == 0 => Self::Minority,
            std::cmp::Ordering::Greater => Self::Majority,
            std::cmp::Ordering::Equal => Self::Equal,
            std::cmp::Ordering::Less => Self::Minority,
        }
    }

    fn and(self, other: Self) -> Self {
        match (self, other) {
            (one, other) if one == other => one,
            (Self::Majority | Self::Equal, Self::Majority | Self::Equal) => Self::Equal,
            _ => Self::Unsure,
        }
    }
}

/// Those who are counted of one membership, in the order of addresses.
pub(super) struct Count<'a, N> {
    voters: Vec<Voter<'a, N>>,
}

/// One member that is counted.
#[derive(PartialEq)]
pub(super) struct Voter<'a, N> {
    pub(super) node: &'a N,
    pub(super) up_number: u64,
    /// Whether it is of this side.
    pub(super) here: bool,
}

impl<N: HasAddress> Count<'_, N> {
    pub(super) fn all(&self) -> usize {
        self.voters.len()
    }

    pub(super) fn here(&self) -> usize {
        self.voters.iter().filter(|voter| voter.here).count()
    }

    pub(super) fn standing(&self) -> Standing {
        Standing::on(self)
    }

    /// The one with the lowest address.
    pub(super) fn lowest(&self) -> Option<&Voter<'_, N>> {
        self.voters.first()
    }

    /// The one that has been up for longest.
    pub(super) fn oldest(&self) -> Option<&Voter<'_, N>> {
        self.voters.iter().min_by_key(|voter| (voter.up_number, voter.node))
    }

    /// Who is at an address.
    pub(super) fn at<'c>(&'c self, address: &'c str) -> impl Iterator<Item = &'c Voter<'c, N>> {
        self.voters.iter().filter(move |voter| voter.node.address() == address)
    }
}

/// This side, counted on the present membership, and on the last converged one if it was another.
pub(super) struct Counts<'a, N> {
    pub(super) present: Count<'a, N>,
    pub(super) converged: Option<Count<'a, N>>,
}

impl<'a, N: HasAddress> Counts<'a, N> {
    /// Counts the members with the role.
    pub(super) fn of(side: &Side<'a, N>, role: Option<&str>) -> Self {
        let seats = &side.situation.seats;
        let has_role = |roles: &Roles| role.is_none_or(|role| roles.contains(role));
        let present: Vec<Voter<'_, N>> = seats
            .iter()
            .zip(&side.is_here)
            .filter(|(seat, _)| seat.counts() && has_role(&seat.roles))
            .map(|(seat, here)| Voter { node: &seat.node, up_number: seat.up_number, here: *here })
            .collect();
        let converged = side.situation.converged.as_ref().map(|converged| {
            // Both are in the order of nodes.
            let mut now = seats.iter().zip(&side.is_here).peekable();
            let members = converged.members.iter().filter(|(_, (_, roles))| has_role(roles));
            let voter = |(node, (up_number, _)): (&'a N, &(u64, Roles))| {
                while now.next_if(|(seat, _)| seat.node != *node && seat.node < *node).is_some() {}
                let here =
                    now.next_if(|(seat, _)| seat.node == *node).is_some_and(|(_, here)| *here);
                Voter { node, up_number: *up_number, here }
            };
            members.map(voter).collect::<Vec<_>>()
        });
        let converged = converged.filter(|converged| *converged != present);
        Self {
            present: Count { voters: present },
            converged: converged.map(|voters| Count { voters }),
        }
    }

    /// How large this side is, all in all.
    pub(super) fn standing(&self) -> Standing {
        let present = self.present.standing();
        self.converged.as_ref().map_or(present, |other| present.and(other.standing()))
    }

    /// Goes on if this side wins on both memberships, ends if it does on neither, and otherwise
    /// waits. `wins` says so of one of them, and why; the reason of the present one is given.
    pub(super) fn judge(&self, wins: impl Fn(&Count<'a, N>) -> (bool, String)) -> Outcome {
        let (won, reason) = wins(&self.present);
        if let Some(converged) = &self.converged {
            let (before, other) = wins(converged);
            if before != won {
                return Outcome::Wait(format!(
                    "the membership is changing, and what it was ({other}) and what it becomes \
                     ({reason}) do not agree on who goes on"
                ));
            }
        }
        if won { Outcome::Survive(reason) } else { Outcome::End(reason) }
    }

    pub(super) fn each(&self) -> impl Iterator<Item = &Count<'a, N>> {
        std::iter::once(&self.present).chain(&self.converged)
    }
}

/// "3 of 5 members are here", "2 of 3 members with the role worker are here".
pub(super) fn say<N: HasAddress>(count: &Count<'_, N>, role: Option<&str>) -> String {
    let (here, all) = (count.here(), count.all());
    let is = if here == 1 { "is" } else { "are" };
    match role {
        None => format!("{here} of {all} members {is} here"),
        Some(role) => format!("{here} of {all} members with the role {role} {is} here"),
    }
}
