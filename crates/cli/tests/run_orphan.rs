//! `tenure run` when `tenure` itself is killed or stopped.
#![cfg(target_os = "linux")]

mod common;

use common::*;

fn rounds() -> usize {
    std::env::var("TENURE_ROUNDS").map_or(10, |rounds| rounds.parse().unwrap())
}

/// A job with a stubborn grandchild in a session of its own.
fn job() -> String {
    format!(
        "{PROBE} trap '' TERM; setsid sh -c 'trap \"\" TERM; while :; do sleep 0.05; done' & \
         while :; do sleep 0.05; done"
    )
}

/// Waits until the nth tenure has begun.
fn begun(dir: &Dir, count: usize) {
    until(&format!("tenure {count}"), SOON, || (terms(dir).len() >= count).then_some(()));
}

/// Takes a holder out, again and again, while another waits.
fn rounds_of(name: &str, options: &[&str], take_out: impl FnMut(&mut Process)) {
    rounds_of_job(name, options, &job(), rounds(), take_out);
}

fn rounds_of_job(
    name: &str,
    options: &[&str],
    job: &str,
    rounds: usize,
    mut take_out: impl FnMut(&mut Process),
) {
    let dir = Dir::new(name);
    let mut holder = Process::start(&mut tenure_run(&dir, options, job));
    begun(&dir, 1);
    for round in 1..=rounds {
        let next = Process::start(&mut tenure_run(&dir, options, job));
        // Some rounds before the other one waits, some after.
        if round % 2 == 0 {
            until("it to wait", SOON, || (threads(next.pid()) > 1).then_some(()));
        }
        take_out(&mut holder);
        begun(&dir, round + 1);
        holder = next;
    }
    holder.signal(libc::SIGTERM);
    holder.end(SOON);
    check_log(&dir);
}

fn threads(pid: i32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

const QUICK: [&str; 4] = ["--ttl", "5s", "--stop-budget", "200ms"];
const SHORT: [&str; 4] = ["--ttl", "2s", "--stop-budget", "200ms"];

#[test]
fn killed_nothing_of_the_command_is_left_when_another_starts() {
    rounds_of("kill", &QUICK, |holder| holder.signal(libc::SIGKILL));
}

#[test]
fn the_guardian_killed_nothing_of_the_command_is_left_when_another_starts() {
    rounds_of("kill-guardian", &QUICK, |holder| {
        kill(holder.child(), libc::SIGKILL);
        assert_eq!(code(holder.end(SOON)), 137);
    });
}

/// `pkill -9 tenure`: the guardian must not answer to that name.
#[test]
fn killed_by_name_nothing_of_the_command_is_left_when_another_starts() {
    rounds_of("kill-by-name", &QUICK, |holder| kill_matching(holder, "comm", "tenure"));
}

/// `pkill -9 -f mailer`: neither must it show the command's.
#[test]
fn killed_by_the_command_s_name_nothing_of_it_is_left_when_another_starts() {
    let job = format!(": mailer; {}", job());
    rounds_of_job("kill-by-command", &QUICK, &job, rounds(), |holder| {
        kill_matching(holder, "cmdline", "mailer");
    });
}

/// `kill -9 %1` in a shell: all of them are in one process group.
#[test]
#[allow(unsafe_code)]
fn killed_with_its_process_group_the_command_ends_before_another_starts() {
    let job = format!("{PROBE} while :; do sleep 0.05; done");
    rounds_of_job("kill-group", &QUICK, &job, rounds(), |holder| {
        let group = holder.pid();
        // SAFETY: takes two numbers; the group is that of a process that the test started.
        unsafe { libc::kill(-group, libc::SIGKILL) };
        assert_eq!(code(holder.end(SOON)), 137);
    });
}

/// Kills, of `tenure`, its guardian and the command, those in whose file of /proc this stands.
fn kill_matching(holder: &Process, file: &str, pattern: &str) {
    let guardian = holder.child();
    let matching = [holder.pid(), guardian, only_child(guardian)].into_iter().filter(|pid| {
        std::fs::read_to_string(format!("/proc/{pid}/{file}")).is_ok_and(|it| it.contains(pattern))
    });
    let matching: Vec<i32> = matching.collect();
    assert!(matching.contains(&holder.pid()));
    matching.into_iter().for_each(|pid| kill(pid, libc::SIGKILL));
}

/// The kernel kills the command with its guardian, and the lease is free only when the command, and
/// what holds the descriptors that it inherited, are gone.
#[test]
fn killed_together_with_the_guardian_the_command_ends_before_another_starts() {
    let job = format!("{PROBE} while :; do sleep 0.05; done");
    rounds_of_job("kill-both", &QUICK, &job, rounds().max(20), |holder| {
        let guardian = holder.child();
        kill(holder.pid(), libc::SIGKILL);
        kill(guardian, libc::SIGKILL);
    });
}

#[test]
fn the_guardian_told_to_stop_the_lease_is_given_back() {
    rounds_of("term-guardian", &QUICK, |holder| {
        kill(holder.child(), libc::SIGTERM);
        assert_eq!(code(holder.end(SOON)), 143);
    });
}

#[test]
fn stopped_the_command_ends_before_another_starts() {
    rounds_of("stop", &SHORT, |holder| holder.signal(libc::SIGSTOP));
}

#[test]
fn the_guardian_stopped_the_command_ends_before_another_starts() {
    rounds_of("stop-guardian", &SHORT, |holder| {
        kill(holder.child(), libc::SIGSTOP);
    });
}

#[test]
fn all_stopped_the_command_ends_before_another_starts() {
    let dir = Dir::new("stop-all");
    let job = format!("{PROBE} exec sleep 60");
    let holder = Process::start(&mut tenure_run(&dir, &SHORT, &job));
    begun(&dir, 1);
    let _next = Process::start(&mut tenure_run(&dir, &SHORT, &job));
    let guardian = holder.child();
    let command = only_child(guardian);
    for pid in [holder.pid(), guardian, command] {
        kill(pid, libc::SIGSTOP);
    }
    begun(&dir, 2);
    assert!(!is_alive(command));
    check_log(&dir);
}

#[test]
fn stopped_and_continued_in_time_it_contends_again() {
    let dir = Dir::new("stop-continue");
    let options = ["--ttl", "12s", "--stop-budget", "3500ms"];
    let job = format!("{PROBE} trap 'echo end >>log; exit' TERM; while :; do sleep 0.02; done");
    let mut run = Process::start(&mut tenure_run(&dir, &options, &job));
    begun(&dir, 1);
    run.signal(libc::SIGSTOP);
    // The guardian needs no help to stop the command.
    line(&dir, "log", "end", SOON);
    run.signal(libc::SIGCONT);
    begun(&dir, 2);
    run.signal(libc::SIGTERM);
    assert_eq!(code(run.end(SOON)), 143);
    check_log(&dir);
}

/// To process 1 of a namespace the kernel delivers no SIGKILL of a timer; the guardian is another one.
#[test]
#[allow(unsafe_code)]
fn as_process_1_stopped_the_command_ends_before_another_starts() {
    // SAFETY: takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: only root can make a PID namespace");
        return;
    }
    let dir = Dir::new("process-1");
    let job = format!("{PROBE} trap '' TERM; while :; do sleep 0.05; done");
    let inside = tenure_run(&dir, &SHORT, &job);
    let mut command = std::process::Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.arg(inside.get_program()).args(inside.get_args()).current_dir(dir.path());
    let outside = Process::start(&mut command);
    begun(&dir, 1);
    let _next = Process::start(&mut tenure_run(&dir, &SHORT, &job));
    kill(outside.child(), libc::SIGSTOP);
    begun(&dir, 2);
    check_log(&dir);
}
