//! What a store keeps of a lease, and the small words that it is made of.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::LeaseName;

/// The fencing token of a tenure: `(term, step)`, compared in this order.
///
/// A lease's terms only ever rise for its name, across release, expiry, deletion of the record and
/// restart. `step` is 0 except for shards. Whatever a tenure writes to should remember the highest
/// token that it has seen and refuse lower ones: see [`fence`](crate::fence).
///
/// ```
/// use tenure_lease::Token;
/// assert!(Token::new(7, 0) < Token::new(7, 1));
/// assert!(Token::new(7, 9) < Token::new(8, 0));
/// assert_eq!("8.0".parse(), Ok(Token::new(8, 0)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Token {
    /// The number of the tenure.
    pub term: u64,
    /// The number of the allocation within it; 0 for a plain lease.
    pub step: u64,
}

/// Readable where people read it; just the two numbers where nodes do.
impl Serialize for Token {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { term, step } = *self;
        if serializer.is_human_readable() {
            return TokenFields { term, step }.serialize(serializer);
        }
        (term, step).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (term, step) = if deserializer.is_human_readable() {
            let TokenFields { term, step } = TokenFields::deserialize(deserializer)?;
            (term, step)
        } else {
            Deserialize::deserialize(deserializer)?
        };
        Ok(Self { term, step })
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename = "Token")]
struct TokenFields {
    term: u64,
    step: u64,
}

impl Token {
    /// A token.
    pub const fn new(term: u64, step: u64) -> Self {
        Self { term, step }
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.term, self.step)
    }
}

impl FromStr for Token {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (term, step) = text.split_once('.').unwrap_or((text, "0"));
        Ok(Self::new(term.parse()?, step.parse()?))
    }
}

/// Who holds: a name that people recognise, and the random id of this very process, so that two
/// processes with one name are two owners.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Owner {
    /// What people call it: a pod, a host.
    pub name: String,
    /// Random, of this process.
    pub incarnation: u64,
}

impl Owner {
    /// This process, under a name of your choice.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), incarnation: driver::incarnation() }
    }

    /// This process, under the name `POD_NAME`, else `HOSTNAME`, else the host's name.
    pub fn this_process() -> Self {
        #[cfg(feature = "simulation")]
        if let Some(world) = crate::world::here() {
            return Self::named(world.process().0);
        }
        static NAME: OnceLock<String> = OnceLock::new();
        Self::named(NAME.get_or_init(|| {
            let from = |key| std::env::var(key).ok().filter(|name| !name.is_empty());
            from("POD_NAME").or_else(|| from("HOSTNAME")).unwrap_or_else(driver::host_name)
        }))
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.incarnation {
            // A foreign elector, whose identity is all of its name.
            0 => f.write_str(&self.name),
            incarnation => write!(f, "{}#{incarnation:016x}", self.name),
        }
    }
}

impl FromStr for Owner {
    type Err = ();

    /// The reverse of `Display`; what is not of that form (a foreign elector's identity) is an
    /// `Err`.
    fn from_str(text: &str) -> Result<Self, ()> {
        let (name, incarnation) = text.rsplit_once('#').ok_or(())?;
        let incarnation = u64::from_str_radix(incarnation, 16).map_err(|_| ())?;
        Ok(Self { name: name.to_owned(), incarnation })
    }
}

/// 128 random bits from the operating system, drawn at the moment of sending.
///
/// Each attempt to acquire is a *claim* and has one as its id; each renewal writes a new one. Drawn
/// so late because a process can be cloned (a VM resumed twice): the clones share everything that
/// was drawn before, so a number drawn early would be "mine" to both.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Nonce(u128);

impl Nonce {
    /// A fresh one. Only drivers draw it.
    pub fn random() -> Self {
        driver::random()
    }

    /// A given one, for tests, simulations and stores that read it back.
    pub const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// Its bits.
    pub const fn bits(self) -> u128 {
        self.0
    }
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl FromStr for Nonce {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u128::from_str_radix(text, 16).map(Self)
    }
}

impl TryFrom<String> for Nonce {
    type Error = std::num::ParseIntError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Nonce> for String {
    fn from(nonce: Nonce) -> Self {
        nonce.to_string()
    }
}

/// The version of a record: differs after every write by anybody, and never recurs. Opaque; a store
/// makes it of what it has (a revision, a nonce, an ETag).
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Version(pub String);

/// The tenure of a session that an attached lease lives and dies with.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct SessionRef {
    /// The lease name of the session.
    pub name: LeaseName,
    /// The term under which it was held when the lease was attached.
    pub term: u64,
}

/// When a record that is held becomes free although nobody releases it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expiry {
    /// The store itself frees it, by a clock that does not jump, after about this long.
    ByStore(Duration),
    /// Whoever wants it watches it by their own clock: free once it has not changed for its ttl.
    ByObservation,
}

/// What a store knows of one lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Changes with every write.
    pub version: Version,
    /// The token of the last tenure.
    pub token: Token,
    /// Whose tenure it is; `None` once it was released.
    pub holder: Option<Holder>,
    /// How long the tenure lasts after each renewal. Of the last tenure, if it was released.
    pub ttl: Duration,
    /// How it ends without a release.
    pub expiry: Expiry,
    /// Bytes that outlive the tenure.
    pub note: Vec<u8>,
}

/// The holding side of a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Who; a foreign elector's identity has incarnation 0.
    pub owner: Owner,
    /// The claim that won. `None` if a foreign tool wrote the record.
    pub claim: Option<Nonce>,
    /// What the last renewal wrote; the claim's own id before the first. `None` as above.
    pub nonce: Option<Nonce>,
    /// The session that it is attached to.
    pub session: Option<SessionRef>,
}

impl Record {
    /// Whether the record belongs to this claim.
    pub fn is_of(&self, claim: Nonce) -> bool {
        self.holder.as_ref().is_some_and(|holder| holder.claim == Some(claim))
    }

    /// The owner, while it is held.
    pub fn owner(&self) -> Option<&Owner> {
        self.holder.as_ref().map(|holder| &holder.owner)
    }

    /// The session that the record is attached to.
    pub fn session(&self) -> Option<&SessionRef> {
        self.holder.as_ref()?.session.as_ref()
    }
}

/// The longest note, in bytes.
pub const NOTE_MAX: usize = 64 * 1024;

/// The version of the records that this release writes. A store that reads a higher one refuses to
/// touch the record.
pub const FORMAT: u32 = 1;

mod driver {
    //! Entropy and the host's name come from the operating system.
    #![allow(clippy::disallowed_methods)]

    use std::sync::OnceLock;

    use super::Nonce;

    pub(super) fn random() -> Nonce {
        let mut bytes = [0; 16];
        // The kernel's generator fails only before it is seeded, early in boot; there is no way on.
        crate::world::fill(&mut bytes).expect("the operating system has no random numbers");
        Nonce(u128::from_le_bytes(bytes))
    }

    pub(super) fn incarnation() -> u64 {
        #[cfg(feature = "simulation")]
        if let Some(world) = crate::world::here() {
            return world.process().1;
        }
        static INCARNATION: OnceLock<u64> = OnceLock::new();
        // Never 0: that marks a foreign elector.
        *INCARNATION.get_or_init(|| (random().bits() as u64).max(1))
    }

    #[allow(unsafe_code)]
    pub(super) fn host_name() -> String {
        let mut buffer = [0_u8; 256];
        // SAFETY: the buffer is writable for the length given, and is cut at its first NUL below.
        let result = unsafe { libc::gethostname(buffer.as_mut_ptr().cast(), buffer.len() - 1) };
        let length = buffer.iter().position(|&byte| byte == 0).unwrap_or(0);
        let name = String::from_utf8_lossy(&buffer[..length]).into_owned();
        if result != 0 || name.is_empty() { "localhost".to_owned() } else { name }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_print_and_parse() {
        let owner = Owner::named("pod#1");
        assert_eq!(owner.to_string().parse(), Ok(owner));
        assert_eq!("some-foreign-elector_6f1c".parse::<Owner>(), Err(()));
    }

    #[test]
    fn nonces_print_and_parse() {
        let nonce = Nonce::random();
        assert_ne!(nonce, Nonce::random());
        assert_eq!(nonce.to_string().parse(), Ok(nonce));
    }
}
