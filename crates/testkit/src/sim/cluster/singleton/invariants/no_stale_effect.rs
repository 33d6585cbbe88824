//! No effect of an instance is accepted after one of a newer instance.
//!
//! Not even of one that stood still for an hour: its token is lower, and the fence refuses it.

use tenure_lease::Token;

pub(in super::super) const NAME: &str = "no stale effect";

pub(in super::super) fn check(process: u64, token: Token, newer: Option<u64>) -> Option<String> {
    let newer = newer?;
    Some(format!("an effect of process {process} under {token} was accepted after run {newer}"))
}
