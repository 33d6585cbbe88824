# shellcheck shell=bash
# Consul 1.16.3, the newest under the MPL, built from Go modules; the rest is as for consul.

consul116_home() { pinned consul "$(go_version consul github.com/hashicorp/consul)"; }

consul116_install() {
  local home
  home=$(consul116_home)
  [[ -d $home ]] || need go
  cached "${home##*/}" "${home##*/}: building from Go modules" \
    go_build consul '' consul=github.com/hashicorp/consul
}

consul116_prepare() { consul_configure consul116; }
consul116_launch() { consul_launch "$1"; }
consul116_ready() { consul_ready "$1"; }
consul116_settle() { :; }

consul116_env() {
  env_line CONSUL116 "127.0.0.1:$(port_of consul116)"
  env_line CONSUL116_BIN "$(consul116_home)/consul"
}
