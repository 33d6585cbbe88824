# shellcheck shell=bash
# A command with servers around it. Sourced by scripts/servers.

cmd_run() {
  local only=() names
  while (($#)); do
    case $1 in
      --only) IFS=, read -ra only <<<"${2:?--only needs names}" && shift 2 ;;
      --only=*) IFS=, read -ra only <<<"${1#*=}" && shift ;;
      --) shift && break ;;
      -*) die "no such option: $1; see $0 help" ;;
      *) break ;;
    esac
  done
  (($#)) || die "run what? See $0 help"
  names=$(with_needs "${only[@]}")
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  lock_run
  mapfile -t RUN <<<"$names"
  trap end_run EXIT
  clear_ended "${RUN[@]}"
  cmd_start "${RUN[@]}"
  # shellcheck source=/dev/null
  source "$STATE/env"
  attend "$@"
}

end_run() {
  trap '' INT TERM HUP
  unlock
  lock_state -x
  stop_all "${RUN[@]}"
  clear_all "${RUN[@]}"
  unlock
}

# What an earlier run left behind when it was killed.
clear_ended() {
  local name
  [[ -d $STATE ]] || return 0
  for name in "$@"; do has_ended "$name" || return 0; done
  clear_all "$@"
}

# attend CMD…: runs CMD so that a request to stop reaches it at once, and ends as it ended. Ctrl-C
# reaches it by itself, if only it does not ignore that, as bash would have it. One `wait`, at the
# end: a `wait` that a signal interrupts can lose the answer or hang the next (bash 5.2).
attend() {
  local pid began rc=0
  detached env --default-signal=INT,QUIT -- "$@" <&0 &
  pid=$!
  began=$(start_time "$pid") || began=
  trap : INT
  trap 'kill -TERM "$pid" 2>/dev/null || true' TERM HUP
  while is_process "$pid" "$began"; do sleep 0.1 || true; done
  wait "$pid" || rc=$?
  exit "$rc"
}
