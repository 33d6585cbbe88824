//! `tenure with` while its processes, it itself and its guardian are killed and stopped: never two at work, and
//! nothing is left. Two of them, as on two machines, with two workers each; in Python, Node and Go.
#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_methods, reason = "rounds that mostly wait run at the same time")]

mod common;
mod workers;

use std::sync::{Condvar, Mutex};
use std::thread;

use common::*;
use workers::*;

/// What happens to a machine whose worker leads; whether the machine is gone for good then.
type Harm = fn(&mut Machine, i32) -> bool;

fn at_once(all: &[(&str, Option<String>, Harm)]) {
    thread::scope(|scope| {
        for (name, worker, harm) in all {
            match worker {
                Some(worker) => {
                    drop(scope.spawn(move || rounds_in_a_directory(name, worker, *harm)))
                }
                None => println!("{name}: skipped, its language is not installed"),
            }
        }
    });
}

/// How many scenarios may begin now. Each has six processes and starts others all the time; a machine that has
/// no time for all of them is late with everything.
static PLACES: (Mutex<usize>, Condvar) = (Mutex::new(6), Condvar::new());

struct Place;

impl Place {
    fn take() -> Self {
        let (places, freed) = &PLACES;
        let free = places.lock().unwrap();
        *freed.wait_while(free, |free| *free == 0).unwrap() -= 1;
        Self
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let (places, freed) = &PLACES;
        *places.lock().unwrap() += 1;
        freed.notify_one();
    }
}

fn rounds_in_a_directory(name: &str, worker: &str, harm: Harm) {
    let _place = Place::take();
    let dir = Dir::new(&format!("with-{name}"));
    rounds_of(name, &dir, &dir.url(), worker, harm);
}

fn kill_worker(_: &mut Machine, leader: i32) -> bool {
    kill(leader, libc::SIGKILL);
    false
}

fn stop_worker(_: &mut Machine, leader: i32) -> bool {
    kill(leader, libc::SIGSTOP);
    // It holds others up until it is killed.
    until("the worker to be killed", SOON, || (!is_alive(leader)).then_some(()));
    false
}

/// Takes the lease away; a polite worker goes on to contend.
fn take_away(machine: &mut Machine, _: i32) -> bool {
    machine.break_lease();
    false
}

fn take_away_from_the_deaf(machine: &mut Machine, leader: i32) -> bool {
    machine.break_lease();
    until("the worker to be killed", SOON, || (!is_alive(leader)).then_some(()));
    false
}

fn kill_tenure(machine: &mut Machine, _: i32) -> bool {
    machine.signal(libc::SIGKILL);
    true
}

fn stop_tenure(machine: &mut Machine, leader: i32) -> bool {
    machine.signal(libc::SIGSTOP);
    until("the worker to be killed", SOON, || (!is_alive(leader)).then_some(()));
    true
}

fn kill_guardian(machine: &mut Machine, _: i32) -> bool {
    kill(machine.guardian(), libc::SIGKILL);
    assert_eq!(machine.end(), 137);
    true
}

fn stop_guardian(machine: &mut Machine, _: i32) -> bool {
    kill(machine.guardian(), libc::SIGSTOP);
    assert_eq!(machine.end(), 137);
    true
}

fn tell_tenure_to_stop(machine: &mut Machine, _: i32) -> bool {
    machine.signal(libc::SIGTERM);
    assert_eq!(machine.end(), 143);
    true
}

/// What counts overlaps can find one.
#[test]
fn a_worker_that_gives_back_before_its_work_has_ended_is_found() {
    let dir = Dir::new("with-hasty");
    let Some(worker) = python("hasty") else { return };
    let mut machine = Machine::start(&dir, &dir.url(), &worker);
    line(&dir, "log", "overlap", SOON);
    machine.stop();
}

#[test]
fn python_killed() {
    at_once(&[
        ("kill-worker", python("polite"), kill_worker),
        ("kill-async-worker", python("async"), kill_worker),
        ("kill-tenure", python("deaf"), kill_tenure),
        ("kill-guardian", python("deaf"), kill_guardian),
        ("tell-tenure", python("polite"), tell_tenure_to_stop),
    ]);
}

#[test]
fn python_stopped_or_lost() {
    at_once(&[
        ("stop-worker", python("polite"), stop_worker),
        ("take-away", python("polite"), take_away),
        ("take-away-async", python("async"), take_away),
        ("take-away-deaf", python("deaf"), take_away_from_the_deaf),
        // The worker is killed because it ignores the loss, and so is its child, which has the lock, too.
        ("take-away-family", python("family"), take_away_from_the_deaf),
        ("stop-tenure", python("deaf"), stop_tenure),
        ("stop-guardian", python("deaf"), stop_guardian),
    ]);
}

#[test]
fn node_and_go() {
    let dir = Dir::new("with-go");
    let (go_polite, go_deaf) = (go(&dir, "polite"), go(&dir, "deaf"));
    at_once(&[
        ("node-kill-worker", node("polite"), kill_worker),
        ("node-take-away", node("polite"), take_away),
        ("node-take-away-deaf", node("deaf"), take_away_from_the_deaf),
        ("node-kill-tenure", node("deaf"), kill_tenure),
        ("go-kill-worker", go_polite.clone(), kill_worker),
        ("go-take-away", go_polite, take_away),
        ("go-take-away-deaf", go_deaf.clone(), take_away_from_the_deaf),
        ("go-kill-tenure", go_deaf, kill_tenure),
    ]);
}
