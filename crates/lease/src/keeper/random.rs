use std::time::Duration;

/// Chance from a seed (SplitMix64). Decides nothing that matters for safety.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Evenly between zero and `most`.
    pub fn up_to(&mut self, most: Duration) -> Duration {
        most.mul_f64((self.next() >> 11) as f64 / (1_u64 << 53) as f64)
    }

    /// 80 to 120 % of it.
    pub fn around(&mut self, middle: Duration) -> Duration {
        middle.mul_f64(0.8) + self.up_to(middle.mul_f64(0.4))
    }

    /// The pause after the nth failure: doubling, between half and all of it, at most `most`.
    pub fn backoff(&mut self, failures: u32, most: Duration) -> Duration {
        let whole = (FIRST * 2_u32.saturating_pow(failures.saturating_sub(1).min(16))).min(most);
        whole / 2 + self.up_to(whole / 2)
    }
}

const FIRST: Duration = Duration::from_millis(50);
