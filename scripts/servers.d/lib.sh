# shellcheck shell=bash
# What every server needs: messages, locks, ports, waiting. Sourced by scripts/servers.

say() { printf 'servers: %s\n' "$*" >&2; }

die() {
  say "$*"
  exit 1
}

# step TEXT CMD…: runs CMD with its output in a log, and says how long it took. Never call it in a
# condition: bash would then run CMD on past its first error.
step() {
  local text=$1 began=$SECONDS log=$STATE/step-$$.log rc
  shift
  say "$text …"
  exec 6> >(heartbeat "$text")
  set +e
  (
    set -e
    "$@"
  ) >"$log" 2>&1 </dev/null 6>&-
  rc=$?
  set -e
  exec 6>&-
  if ((rc != 0)); then
    tail -n 30 "$log" >&2
    die "$text: failed after $((SECONDS - began)) s; all of it is in $log"
  fi
  rm -f "$log"
  say "$text: $((SECONDS - began)) s"
}

# Speaks twice a minute until the writing end of its stdin is closed, so it never outlives its step.
heartbeat() {
  local began=$SECONDS rc
  while true; do
    rc=0
    read -r -t 30 || rc=$?
    ((rc > 128)) || return 0
    say "$1: $((SECONDS - began)) s so far"
  done
}

# --- locks ----------------------------------------------------------------------------------------

# Their descriptors, which nothing that outlives its caller may inherit.
LOCKS=()
RUN_LOCK=

lock_state() { lock "$1" "$STATE/lock"; } # -x to start and stop, -s to hurt single servers
lock_server() { lock -x "$STATE/$1/lock"; }

lock_run() { # for the whole of a run, which ends by stopping the servers
  lock -x "$STATE/run.lock"
  RUN_LOCK=${LOCKS[0]}
  LOCKS=()
}

lock() {
  local fd
  mkdir -p "${2%/*}"
  exec {fd}>"$2"
  LOCKS+=("$fd")
  flock "$1" -n "$fd" || {
    say "waiting for someone else who uses $STATE"
    flock "$1" "$fd"
  }
}

unlock() {
  local fd
  for fd in "${LOCKS[@]}"; do exec {fd}>&-; done
  LOCKS=()
}

# detached CMD…: becomes CMD, without the locks.
detached() {
  unlock
  [[ -z $RUN_LOCK ]] || exec {RUN_LOCK}>&-
  exec "$@"
}

# --- ports ----------------------------------------------------------------------------------------

# port_of KEY: the port of that name in this state folder, chosen when first asked for. It stays
# the same until the folder is cleared, so that a restarted server is found where it was.
port_of() {
  local file=$STATE/ports/$1
  [[ -s $file ]] || {
    mkdir -p "$STATE/ports"
    pick_port >"$file"
  }
  cat "$file"
}

# Below the kernel's range for outgoing connections: one of those could take the port of a server
# that a test has killed.
pick_port() {
  local port
  while true; do
    port=$((20000 + RANDOM % 10000))
    if ! socket_on "$port" && claim_port "$port"; then
      echo "$port"
      return
    fi
  done
}

socket_on() {
  awk -v port="$(printf ':%04X' "$1")" \
    'substr($2, length($2) - 4) == port { found = 1 } END { exit !found }' /proc/net/{tcp,udp}{,6}
}

# Two state folders may choose at the same moment, or while one's server is down: claims tell.
claim_port() {
  local claim=$CACHE/ports/$1 owner
  if [[ -s $claim ]]; then
    owner=$(<"$claim")
    grep -qsxr "$1" "$owner/ports" || rm -f "$claim"
  fi
  (
    set -o noclobber
    echo "$STATE" >"$claim"
  ) 2>/dev/null
}

release_ports() {
  local file port
  for file in "$@"; do
    [[ -s $file ]] || continue
    port=$(<"$file")
    rm -f "$CACHE/ports/$port" "$file"
  done
}

# --- waiting --------------------------------------------------------------------------------------

# await SECONDS CMD…: tries CMD ten times a second until it succeeds.
await() {
  local last=$((SECONDS + $1))
  shift
  until "$@"; do
    ((SECONDS <= last)) || return 1
    sleep 0.1
  done
}

# answers PATTERN URL [CURL-OPTION…]: whether it does so; that it is not up yet is not worth a word.
answers() {
  local body
  body=$(curl -sS -m 2 --noproxy '*' "${@:2}" 2>/dev/null) && [[ $body =~ $1 ]]
}
