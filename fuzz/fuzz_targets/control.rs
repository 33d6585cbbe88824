//! A frame of the control lane: what is read is what was meant, and a view that is read is one that
//! could be believed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tenure_cluster::transport::Version;
use tenure_cluster::wire::{Control, encode, encoded_len};
use tenure_cluster::{Status, View, fuzzing};
use tenure_fuzz::room;

fuzz_target!(|input: &[u8]| {
    let Some(message) = room::within(room::for_input(input), || fuzzing::control(input)) else {
        return;
    };
    let bytes = encode(&message, Version::OURS).expect("what was read is written");
    assert_eq!(encoded_len(&message), bytes.len());
    let again = fuzzing::control(&bytes).expect("what was written is read");
    assert_eq!(encode(&again, Version::OURS).expect("written again"), bytes);
    match (&message, &again) {
        (Control::State(one), Control::State(other))
        | (Control::Welcome(one, _), Control::Welcome(other, _)) => {
            believable(&one.view);
            assert_eq!(one.view.digest(), other.view.digest());
            assert!(one.view.says_the_same(&other.view));
        }
        _ => {}
    }
});

fn believable(view: &View) {
    for (node, member) in view.members() {
        assert!(member.up_number <= view.highest_up(), "{node}");
        assert!(member.status != Status::Up || member.up_number > 0, "{node}");
    }
    for (observer, subject) in view.observations() {
        assert!(view.member(observer).is_some() && view.member(subject).is_some());
    }
    assert!(view.asked() >= view.verdict().generation);
    for next in [view.next_up(), view.asked(), view.verdict().generation] {
        assert!(next.checked_add(1).is_some(), "there is always a next number");
    }
    let _ = (view.leader(), view.oldest(None));
}
