//! The notes in the records of the formation lease and of the resolver's lease.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tenure_cluster::formation::FormationNote;
use tenure_cluster::resolver::Sighting;
use tenure_fuzz::room;

fuzz_target!(|input: &[u8]| {
    room::within(room::for_input(input), || {
        if let Ok(Some(note)) = FormationNote::parse(input) {
            assert_eq!(FormationNote::parse(&note.to_bytes()), Ok(Some(note)));
        }
        if let Ok(sighting) = Sighting::new(Some(1), input) {
            let note = sighting.verdict.to_note();
            assert_eq!(Sighting::new(Some(1), &note).as_ref(), Ok(&sighting));
            assert!(sighting.verdict.generation.checked_add(1).is_some(), "there is always a next");
        }
    });
});
