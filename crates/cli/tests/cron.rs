//! `tenure cron`: real processes on a real store.
#![cfg(target_os = "linux")]

mod common;

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use common::*;
use serde_json::Value;

/// `tenure cron` of a shell script, in the test's directory, for the job `job`.
fn tenure_cron(dir: &Dir, at: &str, options: &[&str], script: &str) -> Command {
    let mut command = tenure();
    command
        .current_dir(dir.path())
        .process_group(0)
        .args(["cron", "--lease", &dir.url(), "--name", "job", "--at", at])
        .args(options)
        .args(["--", "sh", "-c", script]);
    command
}

/// What a command about the job prints.
fn ask(dir: &Dir, words: &[&str]) -> Value {
    let output = tenure()
        .args(["cron"])
        .args(words)
        .args(["--lease", &dir.url(), "--json"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{words:?}: {error}");
    serde_json::from_str(&text).unwrap()
}

fn history(dir: &Dir) -> Value {
    ask(dir, &["history", "job"])
}

/// Waits until the history shows something.
fn until_history<T>(dir: &Dir, what: &str, look: impl Fn(&Value) -> Option<T>) -> T {
    until("the first slot", SOON, || dir.join("leases/job").exists().then_some(()));
    until(what, SOON, || {
        let output = tenure()
            .args(["cron", "history", "job", "--json", "--lease", &dir.url()])
            .output()
            .unwrap();
        look(&serde_json::from_slice(&output.stdout).ok()?)
    })
}

const LOG: &str = "echo $TENURE_SLOT $TENURE_ATTEMPT $TENURE_TOKEN $TENURE_NAME >>log";

#[test]
fn of_three_machines_one_runs_each_slot() {
    let dir = Dir::new("cron-three");
    let options = ["--missed", "all", "--overlap", "queue"];
    let mut machines: Vec<Process> = (0..3)
        .map(|_| Process::start(&mut tenure_cron(&dir, "@every 1s", &options, LOG)))
        .collect();
    until("four slots", SOON, || (dir.lines("log").len() >= 4).then_some(()));
    for machine in &mut machines {
        machine.signal(libc::SIGTERM);
        assert_eq!(code(machine.end(SOON)), 143);
    }
    let lines = dir.lines("log");
    let mut slots: Vec<&str> = lines.iter().map(|line| line.split(' ').next().unwrap()).collect();
    slots.dedup();
    assert_eq!(slots.len(), lines.len(), "{lines:?}");
    assert!(lines.iter().all(|line| line.split(' ').nth(1) == Some("1")), "{lines:?}");
    let history = history(&dir);
    let totals = &history["totals"];
    let done = totals["done"].as_u64().unwrap();
    assert_eq!(done + u64::from(!history["open"].is_null()), lines.len() as u64, "{history}");
    assert_eq!((&totals["failed"], &totals["skipped"]), (&0.into(), &0.into()), "{history}");
}

#[test]
fn sigterm_hands_the_running_slot_over() {
    let dir = Dir::new("cron-term");
    let script = format!("{LOG}; test $TENURE_ATTEMPT = 2 || exec sleep 60");
    let mut first =
        Process::start(&mut tenure_cron(&dir, "@every 2s", &["--owner", "one"], &script));
    until("the start", SOON, || (!dir.lines("log").is_empty()).then_some(()));
    first.signal(libc::SIGTERM);
    assert_eq!(code(first.end(SOON)), 143);
    let open = &history(&dir)["open"];
    assert_eq!(open["state"]["interrupted"], "signal 15 to one", "{open}");
    let _second = Process::start(&mut tenure_cron(&dir, "@every 2s", &[], &script));
    until("the second attempt", SOON, || (dir.lines("log").len() >= 2).then_some(()));
    let lines = dir.lines("log");
    let fields = |line: &str| line.split(' ').take(2).map(str::to_owned).collect::<Vec<_>>();
    let [slot, attempt] = fields(&lines[1]).try_into().unwrap();
    assert_eq!((slot, attempt.as_str()), (fields(&lines[0])[0].clone(), "2"));
    until_history(&dir, "the slot to be done", |history| {
        let line = history["settled"].as_array()?.iter().find(|line| line["attempts"] == 2)?;
        (line["outcome"] == "done" && line["interrupted"] == 1).then_some(())
    });
}

#[test]
fn a_killed_machine_is_followed_by_another_and_nothing_overlaps() {
    let dir = Dir::new("cron-killed");
    let script = format!("{PROBE} test $TENURE_ATTEMPT = 2 || exec sleep 60; echo again >>log");
    let start = || Process::start(&mut tenure_cron(&dir, "@every 2s", &["--ttl", "2s"], &script));
    let first = start();
    line(&dir, "log", "start", SOON);
    let _second = start();
    first.signal(libc::SIGKILL);
    line(&dir, "log", "again", SOON);
    check_log(&dir);
}

#[test]
fn a_lost_lease_stops_the_command_before_the_next_runs() {
    let dir = Dir::new("cron-lost");
    let script = format!("{PROBE} test $TENURE_ATTEMPT = 2 || exec sleep 60; echo again >>log");
    let _machine = Process::start(&mut tenure_cron(&dir, "@every 2s", &["--ttl", "2s"], &script));
    line(&dir, "log", "start", SOON);
    let broken = tenure()
        .args(["lease", "break", "--yes", "--lease", &dir.url(), "--name", "job"])
        .status()
        .unwrap();
    assert!(broken.success());
    line(&dir, "log", "again", SOON);
    check_log(&dir);
}

#[test]
fn what_fails_is_retried_and_then_has_failed() {
    let dir = Dir::new("cron-fails");
    let options = ["--retries", "1", "--backoff", "50ms"];
    let _machine =
        Process::start(&mut tenure_cron(&dir, "@every 1s", &options, &format!("{LOG}; exit 3")));
    let line = until_history(&dir, "a failure", |history| {
        history["settled"].as_array()?.iter().find(|line| line["outcome"]["failed"] == 3).cloned()
    });
    assert_eq!(line["attempts"], 2, "{line}");
}

#[test]
fn a_command_that_is_missing_or_hangs_has_failed() {
    let dir = Dir::new("cron-missing");
    let mut command = tenure();
    command.args(["cron", "--lease", &dir.url(), "--name", "job", "--at", "@every 1s"]);
    let _machine = Process::start(command.args(["--", "./missing"]));
    until_history(&dir, "127", |history| {
        history["settled"].as_array()?.iter().find(|line| line["outcome"]["failed"] == 127).cloned()
    });
    let dir = Dir::new("cron-hangs");
    let _machine =
        Process::start(&mut tenure_cron(&dir, "@every 1s", &["--deadline", "200ms"], "sleep 60"));
    until_history(&dir, "124", |history| {
        history["settled"].as_array()?.iter().find(|line| line["outcome"]["failed"] == 124).cloned()
    });
}

#[test]
fn operators_pause_a_job_and_run_it_now() {
    let dir = Dir::new("cron-orders");
    let _machine = Process::start(&mut tenure_cron(&dir, "@every 1s", &[], LOG));
    until("a slot", SOON, || (!dir.lines("log").is_empty()).then_some(()));
    assert_eq!(ask(&dir, &["pause", "job"])["change"], "paused");
    assert_eq!(ask(&dir, &["pause", "job"])["change"], "none");
    assert_eq!(ask(&dir, &["next", "job"])["paused"], true);
    until_history(&dir, "a skipped slot", |history| {
        let lines = history["settled"].as_array()?;
        lines.iter().find(|line| line["outcome"]["skipped"] == "paused").map(|_| ())
    });
    assert_eq!(ask(&dir, &["run-now", "job"])["change"], "running");
    until("the ordered run", SOON, || {
        dir.lines("log").iter().any(|line| line.starts_with("ordered-1 1 ")).then_some(())
    });
    let ran = dir.lines("log").len();
    assert_eq!(ask(&dir, &["resume", "job"])["change"], "resumed");
    until("slots again", SOON, || (dir.lines("log").len() > ran).then_some(()));
}

#[test]
fn a_file_of_jobs_is_read_again_when_it_changes() {
    let dir = Dir::new("cron-file");
    let job = |name: &str| {
        format!(
            "[jobs.{name}]\nat = \"@every 1s\"\ncommand = [\"sh\", \"-c\", \"echo {name} >>log\"]\n"
        )
    };
    let write = |jobs: &str| {
        fs::write(dir.join("new.toml"), format!("lease = \"{}\"\n{jobs}", dir.url())).unwrap();
        fs::rename(dir.join("new.toml"), dir.join("jobs.toml")).unwrap();
    };
    let has = |name: &str| dir.lines("log").iter().any(|line| line == name).then_some(());
    write(&job("one"));
    let mut command = tenure();
    command.current_dir(dir.path()).args(["cron", "--config", "jobs.toml"]);
    let mut machine = Process::start(&mut command);
    until("the first job", SOON, || has("one"));
    write("[jobs.one]\nat = \"nonsense\"\ncommand = [\"true\"]\n");
    write(&(job("one") + &job("two")));
    until("the second job", SOON, || has("two"));
    write(&job("two"));
    let seen = || dir.lines("log").iter().filter(|line| *line == "one").count();
    // Each entry is looked at every second.
    until("the first job to end", SOON, || {
        let before = (seen(), dir.lines("log").len());
        until("two more of the other", SOON, || {
            (dir.lines("log").len() >= before.1 + 2).then_some(())
        });
        (seen() == before.0).then_some(())
    });
    machine.signal(libc::SIGTERM);
    assert_eq!(code(machine.end(SOON)), 143);
}

/// What a killed guardian leaves behind is ended, and nothing of the other job is.
#[test]
fn one_job_s_killed_guardian_leaves_the_other_job_alone() {
    let dir = Dir::new("cron-guardians");
    let script = |name: &str| {
        format!("echo {name} $PPID $$ >>log; sleep 60 & echo child-{name} $! >>log; wait")
    };
    let job = |name: &str| {
        format!(
            "[jobs.{name}]\nat = \"@every 1s\"\ncommand = [\"sh\", \"-c\", \"{}\"]\n",
            script(name)
        )
    };
    let jobs = format!("lease = \"{}\"\n{}{}", dir.url(), job("one"), job("two"));
    fs::write(dir.join("jobs.toml"), jobs).unwrap();
    let mut command = tenure();
    command.current_dir(dir.path()).args(["cron", "--config", "jobs.toml"]);
    let _machine = Process::start(&mut command);
    let numbers = |text: String| -> Vec<i32> {
        text.split(' ').map(|number| number.parse().unwrap()).collect()
    };
    let one = numbers(line(&dir, "log", "one ", SOON));
    let two = numbers(line(&dir, "log", "two ", SOON));
    let [child_one, child_two] =
        ["child-one ", "child-two "].map(|name| numbers(line(&dir, "log", name, SOON))[0]);
    kill(one[0], libc::SIGKILL);
    until("the orphan to end", SOON, || (!is_alive(child_one)).then_some(()));
    assert!(two.iter().all(|pid| is_alive(*pid)) && is_alive(child_two));
}

#[test]
fn what_is_wrong_is_said_in_a_line() {
    let dir = Dir::new("cron-wrong");
    for (words, hint) in [
        (&["--name", "job", "--at", "0 3 * *", "--", "true"][..], "five are needed"),
        (&["--name", "job", "--at", "0 3 * * *", "--tz", "Mars", "--", "true"], "no time zone"),
        (&["--name", "job", "--at", "@hourly", "--jitter", "2h", "--", "true"], "jitter"),
        (
            &["--name", "job", "--at", "@hourly", "--missed", "never", "--", "true"],
            "once, all, skip",
        ),
        (&["--name", "job", "--at", "@hourly"], "CMD"),
        (&["--config", "./missing.toml"], "missing.toml"),
        (&["history", "nobody"], "no job nobody"),
    ] {
        let mut command = tenure();
        command.env("TENURE_LEASE", dir.url()).arg("cron").args(words);
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(64) && text.contains(hint), "{words:?}: {text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}
