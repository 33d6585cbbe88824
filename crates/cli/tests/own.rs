//! Completions and manual pages name every command.
#![allow(clippy::disallowed_methods)]

mod common;

use std::fs;

use common::*;

/// The commands that are not hidden, as the help lists them.
fn commands() -> Vec<String> {
    let help = tenure().arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let list = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let names = list.lines().filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

#[test]
fn completions_know_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let output = tenure().args(["completions", shell]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let script = String::from_utf8(output.stdout).unwrap();
        for name in commands() {
            assert!(script.contains(&name), "{shell}: {name}");
        }
    }
    let wrong = tenure().args(["completions", "abacus"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(64));
}

#[test]
fn every_command_has_a_manual_page() {
    let dir = Dir::new("man");
    let output = tenure().arg("man").arg(dir.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let whole = fs::read_to_string(dir.join("tenure.1")).unwrap();
    for name in commands() {
        assert!(whole.contains(&name.replace('-', "\\-")), "{name}");
        let page = fs::read_to_string(dir.join(&format!("tenure-{name}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS"), "{name}");
    }
    let nowhere = tenure().args(["man", "/nowhere"]).output().unwrap();
    assert!(!nowhere.status.success());
    assert!(String::from_utf8(nowhere.stderr).unwrap().contains("/nowhere"));
}
