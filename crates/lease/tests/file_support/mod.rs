//! What the tests of the embedded store share.
#![allow(dead_code)]

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tenure_lease::Nonce;

/// A directory that is deleted in the end.
pub(crate) struct Scratch {
    pub(crate) path: PathBuf,
    mounted: bool,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        let path = std::env::temp_dir().join(format!("tenure-file-{}", Nonce::random()));
        std::fs::create_dir(&path).unwrap();
        Self { path, mounted: false }
    }

    /// On a small file system of its own; `None`, and a word about it, where one cannot be mounted.
    pub(crate) fn mounted(size: &str) -> Option<Self> {
        let mut scratch = Self::new();
        let options = format!("size={size}");
        scratch.mounted = scratch.mount(&["-t", "tmpfs", "-o", &options, "tmpfs"]);
        if !scratch.mounted {
            println!("skipped: mounting a tmpfs needs root");
        }
        scratch.mounted.then_some(scratch)
    }

    pub(crate) fn mount(&self, arguments: &[&str]) -> bool {
        let status = Command::new("mount").args(arguments).arg(&self.path).status();
        status.is_ok_and(|status| status.success())
    }

    /// All files, sorted.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        fn walk(path: &Path, files: &mut Vec<PathBuf>) {
            for entry in std::fs::read_dir(path).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { walk(&path, files) } else { files.push(path) }
            }
        }
        let mut files = Vec::new();
        walk(&self.path, &mut files);
        files.sort();
        files
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.mounted {
            let _ = Command::new("umount").arg("-l").arg(&self.path).status();
        }
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Another process: this test program, in which the test `child` plays a role. Dropped, it is
/// killed.
pub(crate) struct Process {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Process {
    pub(crate) fn start(role: &str, directory: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"])
            .env("TENURE_TEST_ROLE", role)
            .env("TENURE_TEST_DIRECTORY", directory)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// Its next line of this kind, without the word itself.
    pub(crate) fn expect(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.lines.read_line(&mut line).unwrap(), 0, "it ended before {word:?}");
            // The test harness writes to the same place, and not always whole lines.
            if let Some((_, rest)) = line.split_once(&format!("<{word}>")) {
                return rest.trim().to_owned();
            }
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: &str) {
        let status = Command::new("kill").arg(signal).arg(self.pid().to_string()).status();
        assert!(status.unwrap().success());
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    pub(crate) fn reap(&mut self) {
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The role that this process is to play, if it was started to play one.
pub(crate) fn role() -> Option<(String, PathBuf)> {
    let role = std::env::var("TENURE_TEST_ROLE").ok()?;
    Some((role, std::env::var_os("TENURE_TEST_DIRECTORY")?.into()))
}
