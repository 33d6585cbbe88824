//! The first frame of a connection, from anybody.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tenure_cluster::transport::Local;
use tenure_cluster::transport::handshake::{Message, Names, judge_answer, judge_hello};
use tenure_fuzz::{node, room};

fuzz_target!(|input: &[u8]| {
    let decoded = room::within(room::for_input(input), || Message::decode(input));
    let message = match decoded {
        Ok(message) => message,
        Err(refusal) => return fits_a_log_line(&refusal.to_string()),
    };
    assert_eq!(Message::decode(&message.encode()).as_ref(), Ok(&message));

    let local = Local { cluster: "shop".into(), name: "shop-0".into(), node: node(0, 1) };
    for names in [Names::Any, Names::Only(vec!["shop-1".into()])] {
        match judge_hello(message.clone(), &local, &names) {
            Ok((_, hello)) => {
                assert_eq!(hello.cluster, local.cluster);
                assert!(names.covers(&hello.name));
                assert!(hello.node.address != local.node.address || hello.node == local.node);
            }
            Err(refusal) => fits_a_log_line(&refusal.to_string()),
        }
        match judge_answer(message.clone(), &local, &names) {
            Ok((_, accepted)) => assert_eq!(accepted.cluster, local.cluster),
            Err(refusal) => fits_a_log_line(&refusal.to_string()),
        }
    }
});

fn fits_a_log_line(text: &str) {
    assert!(!text.chars().any(char::is_control), "{text:?}");
    assert!(text.len() < 4096, "{} bytes for a log", text.len());
}
