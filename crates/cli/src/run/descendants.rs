//! Everything that this process has started, however it tried to get away.
//!
//! This process is a subreaper: a descendant whose parent died becomes its child, also one that
//! called `setsid` or forked twice. So a process without children has no descendants, and the tree
//! below it, read from /proc, is all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::sys::{self, PidFd, Reaped};

/// A process as /proc shows it. The start time tells it from a later one with its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    /// Clock ticks since the machine booted.
    pub(crate) start: u64,
}

/// Asks all of them to end, as they are now. One that stands still is woken, or it could not act on
/// it.
pub(super) fn terminate_all() {
    for process in all() {
        process.signal(libc::SIGTERM);
        process.signal(libc::SIGCONT);
    }
}

/// Kills them until none is left. `alive` is called all the time.
///
/// Only children are killed: what a child leaves behind becomes our child at its end, so the tree is
/// taken away from its root, where nobody is left to start anything anew. A look at our own children
/// and a kill take far less time than a fork, so nobody forks faster than we kill; and the number of
/// a child cannot become another's before we have reaped it.
pub(super) fn end_all(mut alive: impl FnMut()) {
    let mut last = Vec::new();
    while any_left() {
        alive();
        let children = children();
        for &child in &children {
            sys::kill(child, libc::SIGKILL);
        }
        if children == last {
            sys::rest(REST);
        }
        last = children;
    }
}

/// Kills the children of this process that are no guardians, until none is left: what a guardian that was
/// killed has left behind. Guardians of other commands, and what they guard, are left alone.
///
/// Only children that are meant are reaped: the ends of guardians are waited for elsewhere.
pub(super) fn end_orphans() {
    let mut last = Vec::new();
    loop {
        let guardians = guardians();
        let orphans: Vec<i32> =
            children().into_iter().filter(|child| !guardians.contains(child)).collect();
        drop(guardians);
        if orphans.is_empty() {
            return;
        }
        for &orphan in &orphans {
            sys::kill(orphan, libc::SIGKILL);
            sys::reap_child(orphan);
        }
        if orphans == last {
            sys::rest(REST);
        }
        last = orphans;
    }
}

/// Whether this process stands still, by SIGSTOP or by a debugger.
pub(crate) fn is_stopped(pid: i32) -> bool {
    let stat = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = stat.iter().rposition(|&byte| byte == b')').map_or(0, |at| at + 1);
    matches!(stat.get(after_name..), Some([b' ', b'T' | b't', ..]))
}

/// Kills this process and everything below it. Returns a handle of each, to wait for its end.
///
/// All are stopped first, until no look finds one that is not: who is stopped starts nothing, and the children
/// of who is killed could not be told from those of others.
pub(crate) fn kill_tree(pid: i32, start: u64) -> Vec<PidFd> {
    let mut stopped: BTreeMap<(i32, u64), Process> = BTreeMap::new();
    for _ in 0..LOOKS_MAX {
        let Some(root) = Process::read(pid).filter(|root| root.start == start) else { break };
        let mut found = vec![root];
        let mut next = 0;
        while let Some(process) = found.get(next) {
            found.extend(children_of(process.pid).into_iter().filter_map(Process::read));
            next += 1;
        }
        found.retain(|it| !stopped.contains_key(&(it.pid, it.start)));
        if found.is_empty() {
            break;
        }
        for process in found {
            process.signal(libc::SIGSTOP);
            stopped.insert((process.pid, process.start), process);
        }
    }
    let handle = |process: &Process| {
        let handle = PidFd::open(process.pid).ok();
        process.signal(libc::SIGKILL);
        // The number may have been given to another process before the handle was opened.
        handle.filter(|_| Process::read(process.pid).is_some_and(|now| now.start == process.start))
    };
    stopped.values().filter_map(handle).collect()
}

/// This child of ours guards a command. To be called on the thread that started it, before anything else is
/// done there.
pub(super) fn add_guardian(pid: i32) {
    guardians().insert(pid);
}

/// This guardian has ended.
pub(super) fn remove_guardian(pid: i32) {
    guardians().remove(&pid);
}

fn guardians() -> MutexGuard<'static, BTreeSet<i32>> {
    static GUARDIANS: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());
    GUARDIANS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn any_left() -> bool {
    loop {
        match sys::reap() {
            Reaped::NoneLeft => return false,
            Reaped::Ended(..) => {}
            Reaped::Nothing => return true,
        }
    }
}

impl Process {
    pub(crate) fn read(pid: i32) -> Option<Self> {
        Self::parse(pid, &fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(pid: i32, stat: &[u8]) -> Option<Self> {
        // The second field is a name in parentheses that may contain anything, also parentheses.
        let after_name = stat.iter().rposition(|&byte| byte == b')')? + 1;
        let rest = str::from_utf8(&stat[after_name..]).ok()?;
        let mut fields = rest.split_ascii_whitespace();
        // The state comes first. It decides nothing: a process whose main thread has ended looks
        // like a zombie while its other threads work on.
        let parent = fields.nth(1)?.parse().ok()?;
        // The 22nd field of the file is the 18th after the parent.
        let start = fields.nth(17)?.parse().ok()?;
        Some(Self { pid, parent, start })
    }

    fn signal(&self, signal: i32) {
        let handle = PidFd::open(self.pid);
        // The number may have been given to another process before the handle was opened.
        if Self::read(self.pid).is_none_or(|now| now.start != self.start) {
            return;
        }
        match handle {
            Ok(handle) => handle.signal(signal),
            // An old kernel, or a sandbox that does not know the call.
            Err(_) => sys::kill(self.pid, signal),
        }
    }
}

fn all() -> Vec<Process> {
    let us = i32::try_from(std::process::id()).unwrap_or(0);
    below(us, everybody())
}

fn everybody() -> impl Iterator<Item = Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter_map(Process::read)
}

/// The children of this process, in the order of their numbers.
fn children() -> Vec<i32> {
    children_of(i32::try_from(std::process::id()).unwrap_or(0))
}

fn children_of(pid: i32) -> Vec<i32> {
    let mut children = listed_children(pid).unwrap_or_else(|_| {
        // A kernel that does not list them.
        everybody().filter(|process| process.parent == pid).map(|process| process.pid).collect()
    });
    children.sort_unstable();
    children
}

fn listed_children(pid: i32) -> io::Result<Vec<i32>> {
    let mut children = Vec::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let list = fs::read_to_string(thread?.path().join("children"))?;
        children.extend(list.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
    }
    Ok(children)
}

fn below(root: i32, everybody: impl Iterator<Item = Process>) -> Vec<Process> {
    let mut families: BTreeMap<i32, Vec<Process>> = BTreeMap::new();
    for process in everybody {
        families.entry(process.parent).or_default().push(process);
    }
    let mut found = families.remove(&root).unwrap_or_default();
    let mut next = 0;
    while let Some(process) = found.get(next) {
        found.extend(families.remove(&process.pid).unwrap_or_default());
        next += 1;
    }
    found
}

/// How often a tree that is to be killed is looked at: more often, it grows although it is stopped.
const LOOKS_MAX: usize = 100;
/// How long the kernel gets to end what was killed before we look again.
const REST: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_writes() {
        let stat = b"42 (a) b ( c)) S 7 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 5150 1 1 1";
        let process = Process { pid: 42, parent: 7, start: 5150 };
        assert_eq!(Process::parse(42, stat), Some(process));
        assert_eq!(Process::parse(42, b"42 (torn"), None);
        let us = std::process::id() as i32;
        assert_eq!(Process::read(us).map(|process| process.parent), Some(sys::parent()));
    }

    #[test]
    fn a_tree_is_killed_and_only_if_it_is_the_one_that_was_meant() {
        let mut root = std::process::Command::new("sh")
            .args(["-c", "sleep 60 & sleep 60 & wait"])
            .spawn()
            .unwrap();
        let pid = root.id() as i32;
        let children = loop {
            let found = below(pid, everybody());
            if found.len() == 2 {
                break found;
            }
            sys::rest(REST);
        };
        let start = Process::read(pid).unwrap().start;
        assert!(kill_tree(pid, start + 1).is_empty(), "the number is another's by now");
        assert!(root.try_wait().unwrap().is_none());
        assert!(!kill_tree(pid, start).is_empty());
        use std::os::unix::process::ExitStatusExt as _;
        assert_eq!(root.wait().unwrap().signal(), Some(libc::SIGKILL));
        let is_alive = |it: &Process| {
            let stat = fs::read_to_string(format!("/proc/{}/stat", it.pid)).unwrap_or_default();
            Process::parse(it.pid, stat.as_bytes()).is_some_and(|now| now.start == it.start)
                && !stat.contains(") Z ")
        };
        while children.iter().any(is_alive) {
            sys::rest(REST);
        }
    }

    #[test]
    fn finds_the_whole_tree_and_nothing_else() {
        let everybody = [(1, 0), (2, 1), (3, 2), (4, 3), (5, 1)].map(|(pid, parent)| Process {
            pid,
            parent,
            start: 1,
        });
        let found = below(2, everybody.into_iter());
        assert_eq!(found.iter().map(|process| process.pid).collect::<Vec<_>>(), [3, 4]);
    }
}
