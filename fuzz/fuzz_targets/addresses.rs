//! Addresses and ways to find nodes, from settings and from peers.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tenure_cluster::{Address, Discovery};

fuzz_target!(|text: &str| {
    match Address::new(text) {
        Ok(address) => {
            assert_eq!(address.as_str(), text);
            let (host, port) = (address.host(), address.port());
            assert!(port > 0 && !host.is_empty(), "{address}");
            let again = [format!("{host}:{port}"), format!("[{host}]:{port}")];
            assert!(again.iter().any(|again| again == text), "{address} is {again:?}");
            assert!(!text.chars().any(|c| c.is_control() || c == ' '));
        }
        Err(error) => assert!(error.to_string().len() < 1024, "an error that fits a line"),
    }
    if let Ok(found) = text.parse::<Discovery>() {
        assert_eq!(found.to_string(), text);
        let json = serde_json::to_string(&found).expect("a text is JSON");
        assert_eq!(serde_json::from_str::<Discovery>(&json).expect("read again"), found);
    }
});
