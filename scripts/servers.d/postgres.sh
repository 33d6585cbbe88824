# shellcheck shell=bash
# PostgreSQL. It refuses to run as root: there it runs as the user that Debian's package makes.

postgres_install() { apt_packages postgres postgresql; }

as_postgres() {
  if ((EUID == 0)); then
    setpriv --reuid=postgres --regid=postgres --clear-groups -- "$@"
  else
    "$@"
  fi
}

# own_by_postgres DIR: makes DIR, for that user to write in.
own_by_postgres() {
  mkdir -p "$1"
  ((EUID == 0)) || return 0
  chown postgres: "$1"
  as_postgres test -w "$1" ||
    die "user postgres cannot reach $1; set TENURE_SERVERS_DIR to a folder that all can pass through"
}

postgres_prepare() {
  local dir=$STATE/postgres/data
  [[ ! -s $dir/PG_VERSION ]] || return 0
  own_by_postgres "$dir"
  as_postgres "$(server_path initdb)" -D "$dir" -A trust -U postgres --no-sync --locale=C.UTF-8 \
    >"$STATE/postgres/initdb.log" 2>&1 || die "initdb failed; see $STATE/postgres/initdb.log"
}

# In the words of `spawn` rather than through as_postgres: its pid must be the server's own.
spawn_as_postgres() {
  local name=$1 user=()
  shift
  ((EUID != 0)) || user=(setpriv --reuid=postgres --regid=postgres --clear-groups --)
  spawn "$name" "${user[@]}" "$@"
}

postgres_launch() {
  spawn_as_postgres postgres "$(server_path postgres)" -D "$STATE/postgres/data" \
    -h 127.0.0.1 -p "$(port_of postgres)" -c unix_socket_directories= -c max_connections=300
}

postgres_answers() { # URL
  [[ $(PGCONNECT_TIMEOUT=2 "$(server_path psql)" -XAtc 'SELECT 1' "$1" 2>/dev/null) == 1 ]]
}

postgres_url() { echo "postgres://postgres@127.0.0.1:$(port_of "$1")/postgres"; }

postgres_ready() { postgres_answers "$(postgres_url postgres)"; }

postgres_settle() { :; }

postgres_env() { env_line POSTGRES "$(postgres_url postgres)"; }
