# shellcheck shell=bash
# What tests do to a server. Sourced by scripts/servers.

cmd_pause() { each_locked pause_server "$@"; }
cmd_resume() { each_locked resume_server "$@"; }
cmd_kill() { each_locked kill_server "$@"; }

pause_server() { pause_tree "$(running "$1")"; }
resume_server() { resume_tree "$(running "$1")"; }
kill_server() { kill_tree "$(running "$1")"; }

running() { pid_of "$1" || die "$1 does not run"; }

# The wait is without a lock: what it waits for may be another server that a test has paused.
cmd_restart() {
  local name names began=$EPOCHREALTIME
  each_locked restart_server "$@"
  names=$(expand "$@")
  for name in $names; do await_ready "$name" "$began"; done
}

restart_server() {
  [[ -e $STATE/ports/$1 ]] || die "$1 was never started"
  end_server "$1"
  "$(kind_of "$1")_launch" "$1"
}

each_locked() { # ACTION NAME…
  local action=$1 names name
  shift
  (($#)) || die "which server? See $0 help"
  names=$(expand "$@")
  for name in $names; do [[ -d $STATE/$name ]] || die "$name was never started"; done
  lock_state -s
  for name in $(echo "$names" | sort); do lock_server "$name"; done
  for name in $names; do "$action" "$name"; done
  unlock
}
