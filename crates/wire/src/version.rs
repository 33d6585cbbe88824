use std::fmt;

/// A version of the protocol between nodes.
///
/// Different majors refuse each other. Of two minors, the lower one is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Changes when nodes of both versions cannot be in one cluster.
    pub major: u16,
    /// Changes when something is added.
    pub minor: u16,
}

impl Version {
    /// What this build speaks.
    pub const OURS: Self = Self { major: 1, minor: 0 };

    /// What every version of our major understands: for a peer of which nothing is known yet.
    pub const FIRST: Self = Self { minor: 0, ..Self::OURS };

    /// The version that this process says it speaks: [`Version::OURS`], unless a test makes it another.
    pub fn announced() -> Self {
        #[cfg(feature = "planted")]
        {
            let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
            if let Some(major) = number("TENURE_PLANTED_MAJOR") {
                return Self { major, ..Self::OURS };
            }
            if crate::next::is_planted() {
                return crate::next::VERSION;
            }
        }
        Self::OURS
    }

    /// What two nodes speak with each other, if they can.
    pub fn agree(self, other: Self) -> Option<Self> {
        let minor = self.minor.min(other.minor);
        (self.major == other.major).then_some(Self { major: self.major, minor })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}
