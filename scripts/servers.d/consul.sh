# shellcheck shell=bash
# Consul, one server with its data on disk: an old one, as Debian has it. The current one is consul116.

CONSUL_DEBIAN=1.8.7 # of the release bullseye, the last that has it

consul_home() {
  if [[ -d $CACHE/consul-$CONSUL_DEBIAN ]]; then
    echo "$CACHE/consul-$CONSUL_DEBIAN"
  else
    consul116_home
  fi
}

consul_install() {
  [[ ! -d $(consul_home) ]] || return 0
  step "consul-$CONSUL_DEBIAN: unpacking from Debian bullseye" consul_try_debian
  [[ -d $(consul_home) ]] || {
    say "consul: the current one has to do, for want of that package"
    consul116_install
  }
}

consul_try_debian() { into_cache "consul-$CONSUL_DEBIAN" consul_from_debian || true; }

consul_from_debian() {
  apt_extract bullseye consul "$1/deb" && mv "$1/deb/usr/bin/consul" "$1" && rm -rf "$1/deb"
}

consul_prepare() { consul_configure consul; }

# consul_configure NAME: for consul and consul116.
consul_configure() {
  local name=$1 dir=$STATE/$1 grpc_tls=
  mkdir -p "$dir/tmp"
  [[ $("${name}_home") == */consul-"$CONSUL_DEBIAN" ]] || grpc_tls='grpc_tls = -1' # since 1.14
  cat >"$dir/consul.hcl" <<END
node_name = "$name"
server = true
bootstrap_expect = 1
data_dir = "$dir/data"
bind_addr = "127.0.0.1"
client_addr = "127.0.0.1"
disable_update_check = true
log_level = "warn"
performance {
  raft_multiplier = 1
}
ports {
  http = $(port_of "$name")
  server = $(port_of "$name-server")
  serf_lan = $(port_of "$name-serf-lan")
  serf_wan = $(port_of "$name-serf-wan")
  dns = -1
  grpc = -1
  $grpc_tls
}
END
}

consul_launch() {
  spawn "$1" env TMPDIR="$STATE/$1/tmp" \
    "$("$1_home")/consul" agent -config-file "$STATE/$1/consul.hcl"
}

# Sessions need the node in the catalogue; a consistent read needs a leader that has settled in.
consul_ready() {
  local api
  api=http://127.0.0.1:$(port_of "$1")/v1
  answers '"Status": ?"passing"' "$api/health/node/$1" &&
    answers '^(200|404)$' "$api/kv/?keys&consistent" -o /dev/null -w '%{http_code}'
}

consul_settle() { :; }

consul_env() {
  env_line CONSUL "127.0.0.1:$(port_of consul)"
  env_line CONSUL_BIN "$(consul_home)/consul"
}
