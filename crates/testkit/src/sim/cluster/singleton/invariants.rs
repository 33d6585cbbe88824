//! What must hold for a singleton, whatever happens. One file each.

pub(super) mod found_by_all;
pub(super) mod kept_is_sent;
pub(super) mod no_stale_effect;
pub(super) mod one_at_a_time;
pub(super) mod received_in_order;
pub(super) mod slot_is_filled;
pub(super) mod stop_then_release;
pub(super) mod time_passes;

/// Those that remember something.
#[derive(Debug, Default)]
pub(super) struct Invariants {
    pub(super) kept_is_sent: kept_is_sent::Memory,
    pub(super) received_in_order: received_in_order::Memory,
}
