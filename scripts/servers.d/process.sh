# shellcheck shell=bash
# Processes: started, recognised and signalled by pid and start time. Sourced by scripts/servers.

# spawn NAME CMD…: starts CMD in a session of its own, and records its pid and start time.
spawn() {
  local name=$1 pid began
  shift
  detached setsid -- "$@" </dev/null >>"$STATE/$name/log" 2>&1 &
  pid=$!
  disown
  began=$(start_time "$pid") || die "$name ended at once; see $STATE/$name/log"
  echo "$pid $began" >"$STATE/$name/pid"
}

# stat_of PID: the fields of /proc/PID/stat that follow the name (which may hold blanks and
# parentheses) in FIELDS; FIELDS[0] is field 3, the state.
stat_of() {
  local line
  { read -r line <"/proc/$1/stat"; } 2>/dev/null || return 1
  read -ra FIELDS <<<"${line##*) }"
}

start_time() { # field 22, in ticks since boot: tells a process from a later one with the same pid
  stat_of "$1" && echo "${FIELDS[19]}"
}

# is_process PID START: whether that very process still runs. A zombie has ended; only its parent
# has yet to hear of it.
is_process() {
  stat_of "$1" && [[ ${FIELDS[19]} == "$2" && ${FIELDS[0]} != [ZX] ]]
}

# pid_of NAME: the pid of the running server, or nothing and 1.
pid_of() {
  local pid began
  { read -r pid began <"$STATE/$1/pid"; } 2>/dev/null || return 1
  is_process "$pid" "$began" && echo "$pid"
}

state_of() {
  local pid
  if pid=$(pid_of "$1") && stat_of "$pid"; then
    [[ ${FIELDS[0]} == T ]] && echo paused || echo running
  elif [[ -e $STATE/$1/pid ]]; then
    echo dead
  else
    echo stopped
  fi
}

# PostgreSQL alone has children, each in a session of its own, so a process group will not do.
children_of() {
  local stat
  for stat in /proc/[0-9]*/stat; do
    stat=${stat#/proc/}
    if stat_of "${stat%/stat}" && [[ ${FIELDS[1]} == "$1" ]]; then echo "${stat%/stat}"; fi
  done
}

# The parent first, so that it neither starts nor reaps a child meanwhile: the children's pids
# cannot come to mean something else.
pause_tree() {
  local child
  kill -STOP "$1" 2>/dev/null || return 0
  await 2 is_paused "$1" || true
  for child in $(children_of "$1"); do pause_tree "$child"; done
}

is_paused() { ! stat_of "$1" || [[ ${FIELDS[0]} == [TZX] ]]; }

resume_tree() {
  local child
  for child in $(children_of "$1"); do resume_tree "$child"; done
  kill -CONT "$1" 2>/dev/null || true
}

kill_tree() {
  local pid all=() processes=()
  pause_tree "$1"
  for pid in $(tree_of "$1"); do all+=("$pid" "$(start_time "$pid")"); done
  processes=("${all[@]}")
  while ((${#all[@]})); do
    kill -KILL "${all[0]}" 2>/dev/null || true
    all=("${all[@]:2}")
  done
  await 10 none_is_process "${processes[@]}" || die "killed, and yet not ended: ${processes[*]}"
}

tree_of() {
  local child
  for child in $(children_of "$1"); do tree_of "$child"; done
  echo "$1"
}

none_is_process() {
  while (($#)); do
    ! is_process "$1" "$2" || return 1
    shift 2
  done
}
