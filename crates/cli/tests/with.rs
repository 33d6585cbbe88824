//! `tenure with`: its socket, its API, and how it ends.
#![cfg(target_os = "linux")]

mod common;
mod workers;

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use common::*;
use workers::*;

/// The whole answer to one request, asked by this process, which is not below `tenure`.
fn ask(socket: &str, request: &str, body: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    let length = body.len();
    write!(
        stream,
        "{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn the_api_answers_as_described() {
    let dir = Dir::new("with-api");
    let script = script("api.py");
    let mut command = tenure_with(&dir, &dir.url(), &[], &["python3", &script]);
    let output = command.stdout(Stdio::piped()).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    println!("{said}");
    assert!(output.status.success() && said.ends_with("done\n"), "{said}");
}

#[test]
fn the_command_gets_a_private_socket_and_its_exit_code_is_passed_on() {
    let dir = Dir::new("with-exit");
    let script = "echo $TENURE_SOCKET; stat -c %a $TENURE_SOCKET; exit 7";
    let mut command = tenure_with(&dir, &dir.url(), &[], &["sh", "-c", script]);
    let output = command.output().unwrap();
    assert_eq!(code(output.status), 7, "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    let (socket, mode) = said.trim().split_once('\n').unwrap();
    assert_eq!(mode, "600");
    let socket = std::path::Path::new(socket);
    assert!(socket.is_absolute() && !socket.exists() && !socket.parent().unwrap().exists());
    for (command, expected) in [("no-such-command", 127), ("/", 126)] {
        let mut command = tenure_with(&dir, &dir.url(), &[], &[command]);
        assert_eq!(code(command.output().unwrap().status), expected);
    }
}

#[test]
fn strangers_may_look_and_hold_nothing() {
    let dir = Dir::new("with-stranger");
    let options = ["--socket", "here.sock"];
    let mut with = Process::start(&mut tenure_with(&dir, &dir.url(), &options, &["sleep", "600"]));
    let socket = dir.join("here.sock").display().to_string();
    until("the socket", SOON, || UnixStream::connect(&socket).ok());
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let answer = ask(&socket, "GET /v1/leader/x", "");
    assert!(answer.starts_with("HTTP/1.1 404") && answer.contains("nobody"), "{answer}");
    let answer = ask(&socket, "POST /v1/leases", r#"{"name":"x"}"#);
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("not_below"), "{answer}");
    // Of two with one path, the second says so.
    let output = tenure_with(&dir, &dir.url(), &options, &["true"]).output().unwrap();
    assert_eq!(code(output.status), 64, "{output:?}");
    with.signal(libc::SIGTERM);
    assert_eq!(code(with.end(SOON)), 143);
    assert!(!std::path::Path::new(&socket).exists());
}

/// Nobody but its own user gets an answer, whatever the mode of the socket is.
#[test]
#[allow(unsafe_code)]
fn another_user_is_refused() {
    // SAFETY: takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: only root can become another user");
        return;
    }
    let dir = Dir::new("with-user");
    let socket = dir.join("s").display().to_string();
    let options = ["--socket", &socket];
    // Below the command, and yet another user.
    let ask = "import os, socket, sys; s = socket.socket(socket.AF_UNIX); os.setuid(65534); \
               s.connect(sys.argv[1]); print(s.recv(9999).decode())";
    let script = format!("chmod 755 . && chmod 777 {socket} && exec python3 -c '{ask}' {socket}");
    let output = tenure_with(&dir, &dir.url(), &options, &["sh", "-c", &script]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.starts_with("HTTP/1.1 403") && said.contains("wrong_user"), "{said}");
}

#[test]
fn a_store_of_one_process_is_refused() {
    let dir = Dir::new("with-memory");
    let output = tenure_with(&dir, "memory:", &[], &["true"]).output().unwrap();
    assert_eq!(code(output.status), 64);
}

/// What stands in the first block of this language in a README.
fn example<'a>(readme: &'a str, language: &str) -> &'a str {
    let begin = format!("```{language}\n");
    readme.split(&begin).nth(1).unwrap().split("```").next().unwrap()
}

/// Runs the example of a README, as it stands there.
fn run_example(dir: &Dir, command: &[&str]) {
    let output = tenure_with(dir, &dir.url(), &[], command).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let is_whole = said.contains("leads with token") && said.contains("part 2");
    assert!(output.status.success() && is_whole, "{output:?}");
}

#[test]
fn the_example_of_the_python_client_runs() {
    let example = example(include_str!("../../../clients/python/README.md"), "python");
    assert!(example.lines().count() <= 10, "ten lines");
    let dir = Dir::new("with-readme-python");
    std::fs::write(dir.join("app.py"), example).unwrap();
    run_example(&dir, &["python3", "app.py"]);
}

#[test]
fn the_example_of_the_node_client_runs() {
    if node("").is_none() {
        println!("skipped: node is not installed");
        return;
    }
    let example = example(include_str!("../../../clients/node/README.md"), "js");
    assert!(example.lines().count() <= 10, "ten lines");
    let dir = Dir::new("with-readme-node");
    std::fs::write(dir.join("app.mjs"), example).unwrap();
    // As npm installs it.
    std::fs::create_dir(dir.join("node_modules")).unwrap();
    let package = concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/node");
    std::os::unix::fs::symlink(package, dir.join("node_modules/tenure")).unwrap();
    run_example(&dir, &["node", "app.mjs"]);
}

#[test]
fn the_example_of_the_go_client_runs() {
    let dir = Dir::new("with-readme-go");
    let example = example(include_str!("../../../clients/go/README.md"), "go");
    std::fs::write(dir.join("app.go"), example).unwrap();
    let Some(program) = go_build(&dir, dir.join("app.go").to_str().unwrap()) else {
        println!("skipped: go is not installed");
        return;
    };
    run_example(&dir, &[&program]);
}

/// As a package is built: what is in it is all that is needed.
#[test]
fn the_python_client_works_as_it_is_packaged() {
    let dir = Dir::new("with-package");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/python");
    // What is built is built outside of the sources.
    let copied = Command::new("cp").args(["-r", source]).arg(dir.join("source")).status().unwrap();
    assert!(copied.success());
    let mut build = Command::new("python3");
    build.args(["-c", "import setuptools; setuptools.setup()", "--quiet", "build", "--build-lib"]);
    let output = build.arg(dir.join("built")).current_dir(dir.join("source")).output().unwrap();
    if String::from_utf8_lossy(&output.stderr).contains("No module named 'setuptools'") {
        println!("skipped: setuptools is not installed");
        return;
    }
    assert!(output.status.success(), "{output:?}");
    let script = "import tenure; print(tenure.__file__); tenure.lease('x', wait=5).release()";
    let mut command = tenure_with(&dir, &dir.url(), &[], &["python3", "-c", script]);
    let output = command.env("PYTHONPATH", dir.join("built")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8(output.stdout).unwrap().contains("built"));
}
