//! Places with a network of their own, made by `scripts/lab`.
#![allow(dead_code)]

use std::path::Path;
use std::process::Command;

/// The places, taken away at the end.
pub(crate) struct Net(pub(crate) String);

impl Net {
    pub(crate) fn new(name: &str, places: u8) -> Self {
        let prefix =
            std::env::var("TENURE_LAB").unwrap_or_else(|_| format!("lab{}", std::process::id()));
        script(&["can"]);
        let net = Self(format!("{prefix}{name}"));
        net.tell("up", &[&places.to_string()]);
        net
    }

    pub(crate) fn tell(&self, command: &str, arguments: &[&str]) -> String {
        script(&[&[command, &self.0], arguments].concat())
    }

    pub(crate) fn cut(&self, one: &str, other: &str) {
        self.tell("cut", &[one, other]);
    }

    pub(crate) fn heal(&self) {
        self.tell("heal", &[]);
    }

    /// What a program is started with in a place, counted from 1, before its own name.
    pub(crate) fn inside(&self, place: usize) -> Vec<String> {
        let place = format!("{}-{place}", self.0);
        ["ip", "netns", "exec", &place].map(str::to_owned).into()
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        let _ = lab(&["down", &self.0]).status();
    }
}

/// Where the node of this place, counted from 1, is reached.
pub(crate) fn at(place: u8) -> String {
    format!("10.99.0.{place}:7400")
}

fn lab(arguments: &[&str]) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/lab");
    let mut command = Command::new(script);
    command.args(arguments);
    command
}

fn script(arguments: &[&str]) -> String {
    let done = lab(arguments).output().unwrap();
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}
