//! A node in the midst of peers of which one says whatever it likes, in messages that can be read.
#![no_main]

use std::sync::Arc;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use tenure_cluster::membership::Effect;
use tenure_cluster::{Membership, MembershipSettings, fuzzing};
use tenure_fuzz::{node, pieces};
use tenure_lease::Moment;

fuzz_target!(|input: &[u8]| {
    let Some((&first, rest)) = input.split_first() else { return };
    let mut now = Moment::ZERO + Duration::from_secs(1_000_000);
    let settings = MembershipSettings::default();
    // As in the stories that the first inputs come from.
    let peer = |place: u8| node(place.into(), u64::from(place) + 1);
    let joins = first & 1;
    let mut it = Membership::new(peer(joins), Arc::default(), Arc::from([]), settings, 7);
    if joins == 0 {
        it.form(1, now);
    } else {
        it.join(vec![peer(0).address], now);
    }
    let mut from = peer(1 - joins);
    for message in pieces(rest) {
        match fuzzing::control(message) {
            Some(message) => it.receive(&from, message, now),
            // What is no message says who speaks, and lets time pass.
            None => {
                from = peer(message.first().map_or(0, |byte| byte % 4));
                now += Duration::from_millis(200) * message.len() as u32;
            }
        }
        it.poll(now);
        let mut over = false;
        let count = it.effects().inspect(|e| over |= matches!(e, Effect::HandOver)).count();
        assert!(count < 1024, "{count} effects of one message");
        if over {
            it.handed_over(now);
        }
        assert!(it.is_ended() || it.next_wake() > now, "it is not due for ever");
    }
});
