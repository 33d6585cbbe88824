# shellcheck shell=bash
# PostgreSQL. It refuses to run as root: there it runs as the user that Debian's package makes.

postgres_install() { :; } # from apt

postgres_program() { # initdb, postgres and psql of one and the same version
  local server
  server=$(realpath "$(server_path postgres)")
  echo "${server%/*}/$1"
}

AS_POSTGRES=() # replaces itself by the program, so that the pid is the server's own
((EUID != 0)) || AS_POSTGRES=(setpriv --reuid=postgres --regid=postgres --clear-groups --)

# own_by_postgres DIR: makes DIR, for that user to write in.
own_by_postgres() {
  mkdir -p "$1"
  ((EUID == 0)) || return 0
  chown postgres: "$1"
  "${AS_POSTGRES[@]}" test -w "$1" ||
    die "user postgres cannot reach $1; set TENURE_SERVERS_DIR to where all may pass"
}

postgres_prepare() {
  local dir=$STATE/postgres/data log=$STATE/postgres/initdb.log
  [[ ! -s $dir/PG_VERSION ]] || return 0
  own_by_postgres "$dir"
  "${AS_POSTGRES[@]}" "$(postgres_program initdb)" -D "$dir" -A trust -U postgres --no-sync \
    --locale=C.UTF-8 >"$log" 2>&1 || die "initdb failed; see $log"
}

postgres_launch() {
  spawn postgres "${AS_POSTGRES[@]}" "$(postgres_program postgres)" -D "$STATE/postgres/data" \
    -h 127.0.0.1 -p "$(port_of postgres)" -c unix_socket_directories= -c max_connections=300
}

postgres_answers() { # URL
  [[ $(timeout 2 "$(postgres_program psql)" -XAtc 'SELECT 1' "$1" 2>/dev/null) == 1 ]]
}

postgres_url() { echo "postgres://postgres@127.0.0.1:$(port_of "$1")/postgres"; }

postgres_ready() { postgres_answers "$(postgres_url postgres)"; }

postgres_settle() { :; }

postgres_env() { env_line POSTGRES "$(postgres_url postgres)"; }
