//! What `tenure` and its guardian say to each other, in messages of one size.
#![cfg_attr(not(target_os = "linux"), allow(dead_code))]

use std::time::Duration;

use tenure_lease::{Moment, Settings, Tenure};

/// How long a message is.
pub(super) const SIZE: usize = 32;

/// From `tenure` to the guardian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The lease was won or renewed.
    Deadlines(Deadlines),
    /// Stop the command; what has not ended by this moment is to be killed.
    Stop(Moment),
    /// Keep the lifeline that comes along, if one does, under this number, and confirm it: everything that
    /// was ordered before is in force then.
    Keep(u64),
    /// Close the lifeline of this number.
    LetGo(u64),
}

/// When what must happen unless the lease is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadlines {
    /// The lease is lost: the stop begins.
    pub(crate) stop: Moment,
    /// What has not stopped is killed; early enough for all of it to be gone, and for `tenure` to
    /// notice, by `dead`.
    pub(crate) kill: Moment,
    /// Nothing may be left: the kernel ends the guardian, and `tenure`.
    pub(crate) dead: Moment,
}

impl Deadlines {
    /// Nothing must happen: no lease is held.
    pub(crate) const NEVER: Self =
        Self { stop: Moment::NEVER, kill: Moment::NEVER, dead: Moment::NEVER };

    pub(crate) fn of(tenure: &Tenure, settings: &Settings) -> Self {
        let dead = tenure.kill_deadline();
        Self { stop: tenure.deadline(), kill: dead - reserve(settings.stop_budget), dead }
    }
}

/// The end of the stop budget, which killing and noticing may take.
pub(crate) fn reserve(stop_budget: Duration) -> Duration {
    (stop_budget / 4).min(Duration::from_millis(500))
}

/// From the guardian to `tenure`; all but [`Report::Kept`] are its last word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// The command ended by itself, with this wait status.
    Exited(i32),
    /// The command was stopped, because `tenure` said so or the lease ran out.
    Stopped,
    /// The command was stopped, because the guardian itself was told to.
    Signalled,
    /// The command could not be started: the system's error number.
    NotStarted(i32),
    /// It has carried out [`Order::Keep`] with this number, and every order before it.
    Kept(u64),
}

impl Order {
    pub(super) fn to_bytes(self) -> [u8; SIZE] {
        match self {
            Self::Deadlines(Deadlines { stop, kill, dead }) => {
                pack([1, stop.as_nanos(), kill.as_nanos(), dead.as_nanos()])
            }
            Self::Stop(kill) => pack([2, kill.as_nanos(), 0, 0]),
            Self::Keep(number) => pack([3, number, 0, 0]),
            Self::LetGo(number) => pack([4, number, 0, 0]),
        }
    }

    pub(super) fn from_bytes(bytes: [u8; SIZE]) -> Option<Self> {
        match unpack(bytes) {
            [1, stop, kill, dead] => Some(Self::Deadlines(Deadlines {
                stop: Moment::from_nanos(stop),
                kill: Moment::from_nanos(kill),
                dead: Moment::from_nanos(dead),
            })),
            [2, kill, ..] => Some(Self::Stop(Moment::from_nanos(kill))),
            [3, number, ..] => Some(Self::Keep(number)),
            [4, number, ..] => Some(Self::LetGo(number)),
            _ => None,
        }
    }
}

impl Report {
    pub(super) fn to_bytes(self) -> [u8; SIZE] {
        match self {
            Self::Exited(status) => pack([1, status as u64, 0, 0]),
            Self::Stopped => pack([2, 0, 0, 0]),
            Self::Signalled => pack([3, 0, 0, 0]),
            Self::NotStarted(error) => pack([4, error as u64, 0, 0]),
            Self::Kept(number) => pack([5, number, 0, 0]),
        }
    }

    pub(super) fn from_bytes(bytes: [u8; SIZE]) -> Option<Self> {
        match unpack(bytes) {
            [1, status, ..] => Some(Self::Exited(status as i32)),
            [2, ..] => Some(Self::Stopped),
            [3, ..] => Some(Self::Signalled),
            [4, error, ..] => Some(Self::NotStarted(error as i32)),
            [5, number, ..] => Some(Self::Kept(number)),
            _ => None,
        }
    }
}

fn pack(words: [u64; SIZE / 8]) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn unpack(bytes: [u8; SIZE]) -> [u64; SIZE / 8] {
    let mut words = [0; SIZE / 8];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        // A chunk of eight bytes is eight bytes.
        *word = u64::from_le_bytes(chunk.try_into().expect("chunks_exact(8)"));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_as_they_were_sent() {
        let deadlines = Deadlines {
            stop: Moment::from_nanos(1),
            kill: Moment::from_nanos(2),
            dead: Moment::NEVER,
        };
        for order in [
            Order::Deadlines(deadlines),
            Order::Stop(Moment::from_nanos(7)),
            Order::Keep(8),
            Order::LetGo(9),
        ] {
            assert_eq!(Order::from_bytes(order.to_bytes()), Some(order));
        }
        for report in [
            Report::Exited(9),
            Report::Stopped,
            Report::Signalled,
            Report::NotStarted(2),
            Report::Kept(3),
        ] {
            assert_eq!(Report::from_bytes(report.to_bytes()), Some(report));
        }
        assert_eq!(Order::from_bytes([9; SIZE]), None);
    }
}
