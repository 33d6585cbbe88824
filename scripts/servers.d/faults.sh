# shellcheck shell=bash
# What tests do to a server. Sourced by scripts/servers.

cmd_pause() { each_locked pause_server "$@"; }
cmd_resume() { each_locked resume_server "$@"; }
cmd_kill() { each_locked kill_server "$@"; }

pause_server() { with_pid pause_tree "$1"; }
resume_server() { with_pid resume_tree "$1"; }

# PostgreSQL's own pid file would keep it from starting while its former self is a zombie.
kill_server() {
  with_pid kill_tree "$1"
  [[ $1 != postgres ]] || rm -f "$STATE/postgres/data/postmaster.pid"
}

with_pid() { # ACTION NAME
  local pid
  pid=$(pid_of "$2") || die "$2 does not run"
  "$1" "$pid"
}

# All stop before the first starts. The wait is without a lock: what it waits for may be another
# server that a test has paused.
cmd_restart() {
  local name names began=$EPOCHREALTIME
  (($#)) || die "which server? See $0 help"
  names=$(expand "$@")
  # shellcheck disable=SC2046,SC2086 # one word per name
  {
    each_locked end_known $(echo "$names" | tac)
    each_locked launch $names
  }
  for name in $names; do await_ready "$name" "$began"; done
}

end_known() {
  [[ -e $STATE/ports/$1 ]] || die "$1 was never started"
  end_server "$1"
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
