//! The head of a lease: its state, written as a file's name. Pure.

use std::fmt;

use crate::clock::Moment;
use crate::record::{FORMAT, Nonce};

/// What the name of a lease's one head file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Rises with every change.
    pub(super) number: u64,
    /// Held, or released.
    pub(super) held: bool,
    /// The claim of the last tenure.
    pub(super) claim: Nonce,
    /// The name of its record.
    pub(super) record: Nonce,
    /// What the last renewal wrote.
    pub(super) nonce: Nonce,
    /// When the tenure ends by itself, on the clock that the record names.
    pub(super) expires: Moment,
}

/// What a file's name is, if it is no head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoHead {
    /// Some other file.
    Other,
    /// The head of a newer release.
    Newer(u32),
    /// A head that makes no sense.
    Damaged,
}

impl Head {
    /// The next one, by a renewal.
    pub(super) fn renewed(&self, nonce: Nonce, expires: Moment) -> Self {
        Self { number: self.number.saturating_add(1), nonce, expires, ..self.clone() }
    }

    /// The next one, by a release. `nonce` only makes it unique.
    pub(super) fn released(&self, nonce: Nonce) -> Self {
        Self { held: false, ..self.renewed(nonce, Moment::ZERO) }
    }

    /// Reads a file's name.
    pub(super) fn parse(name: &str) -> Result<Self, NoHead> {
        let (format, fields) = name
            .strip_prefix(PREFIX)
            .ok_or(NoHead::Other)?
            .split_once('-')
            .ok_or(NoHead::Damaged)?;
        match format.parse::<u32>() {
            Ok(FORMAT) => {}
            Ok(newer) if newer > FORMAT => return Err(NoHead::Newer(newer)),
            _ => return Err(NoHead::Damaged),
        }
        let head = Self::parse_fields(fields).ok_or(NoHead::Damaged)?;
        // Only what we would write ourselves: the name must be found again.
        if head.to_string() == name { Ok(head) } else { Err(NoHead::Damaged) }
    }

    fn parse_fields(fields: &str) -> Option<Self> {
        let mut fields = fields.split('-');
        let held = match fields.next()? {
            HELD => true,
            FREE => false,
            _ => return None,
        };
        let number = u64::from_str_radix(fields.next()?, 16).ok()?;
        let mut nonce = || fields.next()?.parse().ok();
        let (claim, record, nonce) = (nonce()?, nonce()?, nonce()?);
        let expires = Moment::from_nanos(u64::from_str_radix(fields.next()?, 16).ok()?);
        Some(Self { number, held, claim, record, nonce, expires })
    }
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, held, claim, record, nonce, expires } = self;
        let state = if *held { HELD } else { FREE };
        let expires = expires.as_nanos();
        write!(f, "{PREFIX}{FORMAT}-{state}-{number:010x}-{claim}-{record}-{nonce}-{expires:016x}")
    }
}

/// The name of the file that a holder keeps locked.
pub(super) fn alive_name(claim: Nonce, id: Nonce) -> String {
    format!("{ALIVE}.{claim}.{id}")
}

/// The claim whose alive file has this name.
pub(super) fn alive_claim(name: &str) -> Option<Nonce> {
    let (claim, _) = name.strip_prefix(ALIVE)?.strip_prefix('.')?.split_once('.')?;
    claim.parse().ok()
}

const PREFIX: &str = "lease";
const HELD: &str = "held";
const FREE: &str = "free";
const ALIVE: &str = "alive";

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tenure_wire::samples;

    use super::*;

    fn head() -> Head {
        Head {
            number: 42,
            held: true,
            claim: Nonce::from_bits(1),
            record: Nonce::from_bits(u128::MAX),
            nonce: Nonce::from_bits(3),
            expires: Moment::from_nanos(77),
        }
    }

    #[test]
    fn names_print_and_parse() {
        for head in [head(), head().released(Nonce::from_bits(9))] {
            let name = head.to_string();
            assert_eq!(Head::parse(&name), Ok(head));
            // The shortest limit in use (eCryptfs).
            assert!(name.len() <= 143, "{}", name.len());
        }
        assert_eq!(alive_claim(&alive_name(Nonce::from_bits(7), Nonce::from_bits(8))), {
            Some(Nonce::from_bits(7))
        });
    }

    #[test]
    fn every_write_has_a_name_of_its_own() {
        let renewed = head().renewed(head().nonce, head().expires);
        assert_ne!(renewed.to_string(), head().to_string());
        assert_ne!(renewed.released(head().nonce).to_string(), renewed.to_string());
    }

    #[test]
    fn other_names_are_told_apart() {
        assert_eq!(Head::parse("records"), Err(NoHead::Other));
        assert_eq!(Head::parse("alive.1.2"), Err(NoHead::Other));
        assert_eq!(Head::parse("lease2-sealed-1"), Err(NoHead::Newer(2)));
        let name = head().to_string();
        for cut in 5..name.len() {
            assert_eq!(Head::parse(&name[..cut]), Err(NoHead::Damaged), "{}", &name[..cut]);
        }
        assert_eq!(Head::parse(&format!("{name}-1")), Err(NoHead::Damaged));
        assert_eq!(Head::parse(&name.replace("held", "Held")), Err(NoHead::Damaged));
    }

    #[test]
    fn samples_of_names_can_be_read() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/records.txt");
        let released = head().released(Nonce::from_bits(9));
        for (name, head) in [("FileHead::held", head()), ("FileHead::released", released)] {
            let current = vec![(name.to_owned(), head.to_string().into_bytes())];
            samples::check_bytes(&file, name, current, |bytes| {
                match Head::parse(&String::from_utf8_lossy(bytes)) {
                    Ok(read) if read == head => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            });
        }
        let (claim, id) = (Nonce::from_bits(7), Nonce::from_bits(u128::MAX));
        let current = vec![("FileAlive".to_owned(), alive_name(claim, id).into_bytes())];
        samples::check_bytes(&file, "FileAlive", current, |bytes| {
            let read = alive_claim(&String::from_utf8_lossy(bytes));
            if read == Some(claim) { Ok(()) } else { Err(format!("{read:?}")) }
        });
    }
}
