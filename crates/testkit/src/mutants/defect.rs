//! The defects, and the checks that must notice each.

/// Lists the defects: what is wrong, its name, and the checks that fail.
macro_rules! defects {
    ($($(#[$doc:meta])+ $name:ident: $($check:ident)+;)+) => {
        /// One rule broken.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Defect {
            $($(#[$doc])+ $name),+
        }

        impl Defect {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// The checks of the conformance suite that must fail.
            pub fn caught_by(self) -> &'static [&'static str] {
                match self {
                    $(Self::$name => &[$(stringify!($check)),+]),+
                }
            }
        }
    };
}

defects! {
    /// Between looking at a record and writing it, others may write it.
    NotAtomic: race_on_absent race_on_released race_on_expired race_by_takeover;

    /// Terms are counted from 1, and again after a deletion.
    FirstTermIsOne: first_term_is_not_one terms_rise_over_deletion;
    /// Every name's terms begin at the same number.
    FirstTermRepeats: terms_rise_over_deletion;
    /// A released lease is won under its old term.
    TermKeptAfterRelease: terms_rise_over_release terms_rise_over_a_new_client
        a_keeper_holds_by_renewing;
    /// An expired one is.
    TermKeptAfterExpiry: terms_rise_over_expiry a_lease_ends_after_its_ttl;
    /// One that is taken over is.
    TermKeptAtTakeover: terms_rise_over_takeover;
    /// One that its last owner wins again is.
    TermKeptForSameOwner: terms_rise_for_the_same_owner;
    /// Each client counts terms for itself.
    TermPerClient: terms_rise_over_a_new_client;
    /// Nobody can raise a term.
    AboveIgnored: terms_rise_above_what_was_asked;
    /// The store lives in memory only.
    ForgetsAtRestart: terms_rise_over_a_restart;
    /// A release forgets the token.
    TokenDroppedOnRelease: release_frees_at_once terms_rise_over_release;

    /// A claim that has won wins again.
    AcquireRepeats: a_claim_wins_once;
    /// Whoever has the lease gets it once more.
    ReentrantForOwner: two_claims_of_one_process_are_two a_read_back_goes_by_the_claim;
    /// A no says only no.
    LostWithoutRecord: lost_shows_the_record a_claim_wins_once a_repeated_request_counts_once;
    /// A refused attempt leaves a trace in the record.
    LostWrites: a_held_lease_is_not_given;
    /// A yes says only yes.
    FormerMissing: won_shows_the_former_record;
    /// Readers do not learn whose claim it is.
    ClaimNotShown: lost_shows_the_record a_lost_reply_to_acquire_is_adopted;
    /// An absent record is created by everybody.
    CreateIgnored: an_absent_record_is_not_created_unasked;
    /// A deleted record looks like a released one.
    DeletionLooksReleased: a_vanished_record_is_waited_out;
    /// That there was no record is no condition.
    ExpectedAbsentIgnored: expected_absent_is_obeyed a_keeper_obeys_what_was_expected;
    /// That it had a certain term is no condition.
    ExpectedTermIgnored: expected_term_is_obeyed a_keeper_obeys_what_was_expected;
    /// Whoever names any version takes over.
    TakeoverIgnoresVersion: takeover_needs_the_current_version takeover_is_refused_after_a_renewal
        race_by_takeover attached_records_are_taken_by_version;

    /// Anybody's renewal will do.
    RenewIgnoresClaim: renew_needs_the_claim renew_after_takeover_is_refused
        a_thief_ends_it_at_once work_that_overruns_is_dropped;
    /// So will one under another token.
    RenewIgnoresToken: renew_needs_the_token;
    /// So will a clone's.
    RenewIgnoresNonce: renew_needs_a_known_nonce renew_refuses_an_old_nonce
        a_clone_ends_it_at_once preflight_passes_and_changes_nothing;
    /// Whatever the tenure once wrote is good for ever.
    RenewAcceptsPastNonces: renew_refuses_an_old_nonce a_clone_ends_it_at_once;
    /// Of the known nonces only the first is compared.
    RenewTakesFirstKnown: renew_accepts_either_known_nonce a_lost_reply_to_renew_deposes_nobody;
    /// Only the last is.
    RenewTakesLastKnown: renew_accepts_either_known_nonce a_lost_reply_to_renew_deposes_nobody;
    /// A renewal does not write its nonce.
    RenewForgetsNonce: renew_writes_its_nonce a_keeper_holds_by_renewing;
    /// A renewal leaves the version as it was.
    RenewKeepsVersion: takeover_is_refused_after_a_renewal;
    /// A renewal buys no time.
    RenewDoesNotProlong: renew_prolongs a_long_outage_ends_it_before_the_next;
    /// A renewal brings a released tenure back.
    RenewRevives: renew_of_a_released_record_is_refused;
    /// A renewal asks whether the client lives, not whether the record is there.
    RenewTrustsSession: renew_of_a_deleted_record_is_refused a_deletion_ends_it_at_once;
    /// A refusal does not say who has it.
    RefusedWithoutRecord: renew_needs_the_claim a_thief_ends_it_at_once;
    /// A renewal is refused although the ttl is not over.
    LateRenewalRefused: a_short_outage_keeps_the_tenure renew_prolongs;

    /// Anybody may release.
    ReleaseIgnoresClaim: release_needs_the_claim release_after_takeover_is_refused
        a_late_request_harms_nobody;
    /// A clone may.
    ReleaseIgnoresNonce: release_needs_a_known_nonce;
    /// A release is acknowledged, and the lease ends by time.
    ReleaseDoesNotFree: release_frees_at_once a_dropped_tenure_is_given_back
        a_panicking_task_gives_back a_runtime_that_ends_gives_back work_stops_before_the_release
        an_abandoned_acquire_leaves_no_orphan a_waiter_polls_when_the_watch_is_dead
        a_released_session_frees_what_was_attached a_dropped_session_is_given_back
        an_attached_lease_is_released_alone;
    /// What is not there to release is an error.
    ReleaseTwiceFails: a_second_release_is_refused a_lost_reply_to_release_frees;

    /// An acquisition does not write its note.
    NoteIgnoredByAcquire: note_is_written_with_the_acquisition;
    /// A release forgets the note.
    NoteDroppedOnRelease: note_outlives_release;
    /// An expiry does.
    NoteDroppedOnExpiry: note_outlives_expiry;
    /// A takeover does.
    NoteDroppedOnTakeover: note_outlives_takeover attached_leases_die_with_their_session;
    /// A renewal without a note does.
    NoteDroppedByRenew: note_outlives_a_renewal_without_one renew_writes_its_nonce;
    /// A renewal does not write its note.
    NoteIgnoredByRenew: note_is_replaced_by_a_renewal a_keeper_replaces_its_note;
    /// A note is text.
    NoteAsText: note_keeps_every_byte;
    /// A note is short.
    NoteTruncated: note_keeps_every_byte;
    /// A note may be longer than other stores can keep.
    NoteUnbounded: a_longer_note_is_refused;
    /// An empty note is taken for none.
    EmptyNoteIsNone: an_empty_note_replaces;

    /// An attached record does not say to what.
    SessionDropped: attached_records_name_their_session attached_leases_die_with_their_session;
    /// An attached record ends by time.
    AttachedExpires: attached_records_do_not_expire;
    /// An attached record is nobody's.
    AttachedIsFree: attached_records_are_taken_by_version an_attached_lease_is_released_alone;

    /// Records are read in the order of the index.
    ReadOutOfOrder: reads_are_in_order;
    /// A read returns one page.
    ReadTruncated: reads_of_many_are_whole;
    /// A read leaves a trace in the record.
    ReadWrites: reads_change_nothing;
    /// A client reads what it read before.
    StaleReads: reads_are_fresh a_deleted_attached_record_is_noticed
        a_stolen_attached_record_is_noticed;

    /// Names are folded into keys that collide.
    NamesFolded: names_do_not_collide;
    /// Of an owner's name only plain letters are kept.
    OwnerAsWord: owners_come_back_whole;

    /// A lease ends before its time.
    ExpiresEarly: a_lease_lasts_for_its_ttl renew_prolongs a_long_outage_ends_it_before_the_next
        a_late_reply_prolongs_from_the_send beliefs_never_overlap;
    /// A lease never ends by itself.
    NeverExpires: a_lease_ends_after_its_ttl terms_rise_over_expiry note_outlives_expiry
        race_on_expired;
    /// A lease that no process stands behind never does.
    UnattendedNeverExpires: an_unattended_lease_ends_by_time;
    /// A ttl is rounded without a word.
    TtlRounded: the_record_says_the_ttl lost_shows_the_record;
    /// The store says that the time is over while it is not.
    RemainingUnsaid: the_record_says_the_ttl;
    /// Any ttl is taken.
    BoundsAbsent: ttl_bounds_are_refused;

    /// A watch does not say that it stands.
    WatchSaysNothingAtFirst: a_watch_says_when_it_stands;
    /// A watch dies without a word.
    WatchNeverFires: a_watch_wakes_on_release a_waiter_is_woken;
    /// A watch does not see deletions.
    WatchMissesDeletes: a_watch_wakes_on_deletion;
    /// A watch fires all the time.
    WatchStorms: a_waiter_asks_seldom;
    /// There is no watch, although the store says so.
    WatchPromisedOnly: a_watch_says_when_it_stands a_watch_wakes_on_release;

    /// A record of a newer release is overwritten.
    NewerFormatOverwritten: a_newer_format_is_left_alone;
    /// A holder without a claim is none.
    ForeignIgnored: a_foreign_holder_is_respected;
    /// A server that cannot be reached is understood as a no.
    UnknownIsNo: silence_is_unknown;
    /// A dry run is none.
    DryRunWrites: preflight_passes_and_changes_nothing;
}
