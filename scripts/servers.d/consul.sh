# shellcheck shell=bash
# Consul, one server with its data on disk. Both versions are under the MPL; newer ones are not.

CONSUL_DEBIAN=1.8.7 # of the release bullseye, the last that has it

consul_home() {
  if [[ -d $CACHE/consul-$CONSUL_DEBIAN ]]; then
    echo "$CACHE/consul-$CONSUL_DEBIAN"
  else
    pinned consul "$(go_version consul github.com/hashicorp/consul)"
  fi
}

consul_install() {
  local home
  [[ ! -d $(consul_home) ]] || return 0
  step "consul-$CONSUL_DEBIAN: unpacking from Debian bullseye" consul_try_debian
  home=$(consul_home)
  [[ -d $home ]] || need go
  cached "${home##*/}" "${home##*/}: building from Go modules, for want of that package" \
    go_build consul '' consul=github.com/hashicorp/consul
}

consul_try_debian() { into_cache "consul-$CONSUL_DEBIAN" consul_from_debian || true; }

consul_from_debian() {
  apt_extract bullseye consul "$1/deb" && mv "$1/deb/usr/bin/consul" "$1" && rm -rf "$1/deb"
}

consul_prepare() {
  local dir=$STATE/consul grpc_tls=
  mkdir -p "$dir/tmp"
  [[ $(consul_home) == */consul-"$CONSUL_DEBIAN" ]] || grpc_tls='grpc_tls = -1' # since 1.14
  cat >"$dir/consul.hcl" <<END
node_name = "consul"
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
  http = $(port_of consul)
  server = $(port_of consul-server)
  serf_lan = $(port_of consul-serf-lan)
  serf_wan = $(port_of consul-serf-wan)
  dns = -1
  grpc = -1
  $grpc_tls
}
END
}

consul_launch() {
  spawn consul env TMPDIR="$STATE/consul/tmp" \
    "$(consul_home)/consul" agent -config-file "$STATE/consul/consul.hcl"
}

# Sessions need the node in the catalogue; a consistent read needs a leader that has settled in.
consul_ready() {
  local api
  api=http://127.0.0.1:$(port_of consul)/v1
  answers '"Status": ?"passing"' "$api/health/node/consul" &&
    answers '^(200|404)$' "$api/kv/?keys&consistent" -o /dev/null -w '%{http_code}'
}

consul_settle() { :; }

consul_env() {
  env_line CONSUL "127.0.0.1:$(port_of consul)"
  env_line CONSUL_BIN "$(consul_home)/consul"
}
