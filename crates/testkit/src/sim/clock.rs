use std::time::Duration;

use tenure_lease::Moment;

/// A process's own clock: runs at a rate of its own, begins anywhere, and may stand still.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    offset: u64,
    /// In millionths; 1,000,000 is true.
    rate: u64,
    /// True time up to which it has been read forward.
    anchor: Moment,
    local: u64,
    frozen: bool,
}

impl Clock {
    pub(crate) fn new(offset: u64, rate: u64) -> Self {
        Self { offset, rate, anchor: Moment::ZERO, local: 0, frozen: false }
    }

    fn advance(&mut self, now: Moment) {
        if !self.frozen {
            self.local += scale(now.since(self.anchor).as_nanos() as u64, self.rate);
        }
        self.anchor = now;
    }

    /// What it shows at this true time.
    pub(crate) fn read(&mut self, now: Moment) -> Moment {
        self.advance(now);
        Moment::from_nanos(self.offset + self.local)
    }

    /// It stands still from now on, or runs again.
    pub(crate) fn freeze(&mut self, now: Moment, frozen: bool) {
        self.advance(now);
        self.frozen = frozen;
    }

    /// The true time at which it will show `local`, if it runs on.
    pub(crate) fn when(&mut self, now: Moment, local: Moment) -> Moment {
        let left = local.since(self.read(now)).as_nanos() as u64;
        // One more, so that rounding never wakes anybody too early.
        now + Duration::from_nanos((left as u128 * MILLION / u128::from(self.rate)) as u64 + 1)
    }
}

fn scale(nanos: u64, rate: u64) -> u64 {
    (u128::from(nanos) * u128::from(rate) / MILLION) as u64
}

const MILLION: u128 = 1_000_000;
