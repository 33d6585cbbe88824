//! No two activations overlap: from the start of an instance until it has ended there is no other.
//!
//! With a lease this holds whatever happens, except for processes that stand still for longer than the
//! margin. Without one, for as long as nobody is declared down who lives.

use tenure_lease::Token;

use super::super::agent::Agent;

pub(in super::super) const NAME: &str = "one at a time";

pub(in super::super) fn check(starting: &Agent, token: Token, active: &[u64]) -> Option<String> {
    let other = active.first()?;
    Some(format!("{} starts under {token} while it is active in process {other}", starting.node))
}
