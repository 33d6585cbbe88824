# shellcheck shell=bash
# PgBouncer before PostgreSQL, pooling by transaction, as the same user.

pgbouncer_install() { :; } # from apt

pgbouncer_prepare() {
  own_by_postgres "$STATE/pgbouncer/data"
  cat >"$STATE/pgbouncer/pgbouncer.ini" <<END
[databases]
postgres = host=127.0.0.1 port=$(port_of postgres) user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $(port_of pgbouncer)
unix_socket_dir =
auth_type = any
pool_mode = transaction
max_client_conn = 1000
server_login_retry = 1
END
}

pgbouncer_launch() {
  spawn pgbouncer "${AS_POSTGRES[@]}" "$(server_path pgbouncer)" "$STATE/pgbouncer/pgbouncer.ini"
}

pgbouncer_ready() { postgres_answers "$(postgres_url pgbouncer)"; }

pgbouncer_settle() { :; }

pgbouncer_env() { env_line PGBOUNCER "$(postgres_url pgbouncer)"; }
