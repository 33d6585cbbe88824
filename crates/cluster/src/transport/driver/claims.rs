//! Who may say that it is at an address.
//!
//! A peer that dials us only claims its address: its certificate is for a name. A peer that answers
//! when its address is dialed has proven it. So each address has one name: that of the first who
//! claims it, until somebody is found there by dialing. Whoever claims it under another name is
//! refused, and the address is dialed to see who is there: the next attempt of an honest peer that
//! was given the address of another one succeeds.
//!
//! A claim that nobody has proven is kept for as long as there are links of it, so there are no more
//! of them than links. Certificates for certain names have few links, whatever addresses they claim;
//! one that is for all names may be that of every node.

use std::collections::HashMap;
use std::sync::Arc;

use tenure_lease::Moment;

use super::{Shared, lock};
use crate::Address;
use crate::transport::handshake::Names;
use crate::transport::refusal::Refusal;

#[derive(Debug, Default)]
pub(super) struct Claims {
    by_address: HashMap<Address, Claim>,
    /// How many incoming links there are with a certificate for certain names.
    by_certificate: HashMap<String, usize>,
}

#[derive(Debug)]
struct Claim {
    name: String,
    /// When the name was last found there by dialing.
    proven: Option<Moment>,
    /// How many incoming links claim the address.
    links: usize,
}

impl Claims {
    /// Somebody with a certificate for `certified` wants to open a link as `name` at `address`.
    fn admit(
        &mut self,
        address: &Address,
        name: &str,
        certified: Option<&str>,
        links_max: usize,
    ) -> Result<(), Refusal> {
        if let Some(certified) = certified
            && self.by_certificate.get(certified).is_some_and(|links| *links >= links_max)
        {
            return Err(Refusal::TooMany("links with its certificate (links_per_certificate_max)"));
        }
        match self.by_address.get_mut(address) {
            Some(claim) if claim.name == name => claim.links += 1,
            Some(claim) => {
                return Err(Refusal::OtherName {
                    address: address.clone(),
                    claimed: name.into(),
                    known: claim.name.clone(),
                });
            }
            None => {
                let claim = Claim { name: name.into(), proven: None, links: 1 };
                self.by_address.insert(address.clone(), claim);
            }
        }
        if let Some(certified) = certified {
            *self.by_certificate.entry(certified.into()).or_default() += 1;
        }
        Ok(())
    }

    /// One of those links is no more.
    fn release(&mut self, address: &Address, name: &str, certified: Option<&str>) {
        // Who was found to be at the address may have taken the claim over; then its links are not
        // those of this name.
        if let Some(claim) = self.by_address.get_mut(address)
            && claim.name == name
        {
            claim.links = claim.links.saturating_sub(1);
            if claim.links == 0 && claim.proven.is_none() {
                self.by_address.remove(address);
            }
        }
        if let Some(certified) = certified
            && let Some(links) = self.by_certificate.get_mut(certified)
        {
            *links -= 1;
            if *links == 0 {
                self.by_certificate.remove(certified);
            }
        }
    }

    /// Dialing `address` found `name` there; says whether another name had claimed it. At most
    /// `max` addresses are remembered, those that were dialed last.
    pub(super) fn prove(&mut self, address: &Address, name: &str, now: Moment, max: usize) -> bool {
        let replaced = match self.by_address.get_mut(address) {
            Some(claim) if claim.name == name => {
                claim.proven = Some(now);
                false
            }
            Some(claim) => {
                *claim = Claim { name: name.into(), proven: Some(now), links: 0 };
                true
            }
            None => {
                let claim = Claim { name: name.into(), proven: Some(now), links: 0 };
                self.by_address.insert(address.clone(), claim);
                false
            }
        };
        if self.by_address.len() > max {
            let unused = self.by_address.iter().filter(|(_, claim)| claim.links == 0);
            let oldest = unused.min_by_key(|(_, claim)| claim.proven).map(|(it, _)| it.clone());
            if let Some(oldest) = oldest {
                self.by_address.remove(&oldest);
            }
        }
        replaced
    }

    /// Whether dialing `address` has found `name` there.
    pub(super) fn is_proven(&self, address: &Address, name: &str) -> bool {
        let claim = self.by_address.get(address);
        claim.is_some_and(|claim| claim.name == name && claim.proven.is_some())
    }

    /// Nobody at this address is a member any more.
    pub(super) fn forget(&mut self, address: &Address) {
        if let Some(claim) = self.by_address.get_mut(address) {
            claim.proven = None;
            if claim.links == 0 {
                self.by_address.remove(address);
            }
        }
    }
}

/// The right to one incoming link; given back when dropped.
#[derive(Debug)]
pub(super) struct Admission {
    shared: Arc<Shared>,
    address: Address,
    name: String,
    certified: Option<String>,
}

impl Admission {
    /// Asks for a link of `name`, which a certificate for `names` covers, at `address`.
    pub(super) fn new(
        shared: &Arc<Shared>,
        address: &Address,
        name: &str,
        names: &Names,
    ) -> Result<Self, Refusal> {
        let certified = match names {
            Names::Any => None,
            Names::Only(_) => Some(names.to_string()),
        };
        let max = shared.settings.links_per_certificate_max;
        lock(&shared.claims).admit(address, name, certified.as_deref(), max)?;
        let (address, name) = (address.clone(), name.to_owned());
        Ok(Self { shared: shared.clone(), address, name, certified })
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let certified = self.certified.as_deref();
        lock(&self.shared.claims).release(&self.address, &self.name, certified);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> Address {
        format!("127.0.0.1:{port}").parse().unwrap()
    }

    #[test]
    fn an_address_has_one_name_until_another_is_found_there() {
        let mut claims = Claims::default();
        let admit = |claims: &mut Claims, name| claims.admit(&address(1), name, None, 9);
        admit(&mut claims, "one").unwrap();
        assert!(!claims.is_proven(&address(1), "one"), "it only says so");
        let error = admit(&mut claims, "two").unwrap_err().to_string();
        assert!(error.contains("\"two\"") && error.contains("\"one\""), "{error}");
        assert!(claims.prove(&address(1), "two", Moment::ZERO, 9), "another one is there");
        assert!(claims.is_proven(&address(1), "two"));
        admit(&mut claims, "two").unwrap();
        admit(&mut claims, "one").unwrap_err();
        // The end of the link that was let in first takes nothing from the other name.
        claims.release(&address(1), "one", None);
        claims.release(&address(1), "two", None);
        assert!(claims.is_proven(&address(1), "two"), "also when it has no link");
        claims.forget(&address(1));
        assert!(claims.by_address.is_empty());
    }

    #[test]
    fn claims_end_with_their_links_and_certificates_have_few() {
        let mut claims = Claims::default();
        for port in 1..=3 {
            claims.admit(&address(port), "one", Some("\"one\""), 3).unwrap();
        }
        let error = claims.admit(&address(4), "one", Some("\"one\""), 3).unwrap_err();
        assert_eq!(error.reason(), "too_many");
        claims.admit(&address(4), "two", Some("\"two\""), 3).unwrap();
        claims.release(&address(1), "one", Some("\"one\""));
        claims.admit(&address(5), "one", Some("\"one\""), 3).unwrap();
        for port in [2, 3, 5] {
            claims.release(&address(port), "one", Some("\"one\""));
        }
        claims.release(&address(4), "two", Some("\"two\""));
        assert!(claims.by_address.is_empty() && claims.by_certificate.is_empty());
    }

    #[test]
    fn those_that_were_found_longest_ago_are_forgotten() {
        let mut claims = Claims::default();
        for port in 1..=4 {
            let at = Moment::ZERO + std::time::Duration::from_secs(port.into());
            claims.prove(&address(port), "one", at, 3);
        }
        assert!(!claims.is_proven(&address(1), "one"));
        assert!(claims.is_proven(&address(4), "one"));
        assert_eq!(claims.by_address.len(), 3);
    }
}
