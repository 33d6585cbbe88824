# shellcheck shell=bash
# etcd, built from its Go modules: a cluster of three, and a single one behind kube-apiserver.

ETCD_MEMBERS=(etcd-1 etcd-2 etcd-3)

etcd_home() { pinned etcd "$(go_version etcd go.etcd.io/etcd/server/v3)"; }

etcd_install() {
  local home
  home=$(etcd_home)
  [[ -d $home ]] || need go
  cached "${home##*/}" "${home##*/}: building from Go modules" go_build etcd '' \
    etcd=go.etcd.io/etcd/server/v3 \
    etcdctl=go.etcd.io/etcd/etcdctl/v3 \
    etcdutl=go.etcd.io/etcd/etcdutl/v3
}

etcd_prepare() { :; }

etcd_launch() { etcd_spawn "$1" "$(etcd_home)" "${ETCD_MEMBERS[@]}"; }

# etcd_spawn NAME HOME MEMBER…: NAME as one of those members, of the etcd in HOME.
etcd_spawn() {
  local name=$1 home=$2 client peer member cluster=
  shift 2
  for member in "$@"; do cluster+=",$member=http://127.0.0.1:$(port_of "$member-peer")"; done
  client=http://127.0.0.1:$(port_of "$name")
  peer=http://127.0.0.1:$(port_of "$name-peer")
  spawn "$name" "$home/etcd" --name "$name" --data-dir "$STATE/$name/data" \
    --listen-client-urls "$client" --advertise-client-urls "$client" \
    --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" \
    --initial-cluster "${cluster#,}" --initial-cluster-token "${cluster#,}" --log-level warn
}

# A member without a majority serves no client; then it has to do that it serves its peers.
etcd_ready() {
  local member running=0
  for member in "${ETCD_MEMBERS[@]}"; do
    [[ $(state_of "$member") != running ]] || running=$((running + 1))
  done
  if ((running >= 2)); then
    etcd_serves "$1"
  else
    answers etcdserver "http://127.0.0.1:$(port_of "$1-peer")/version"
  fi
}

etcd_serves() { answers '^ok$' "http://127.0.0.1:$(port_of "$1")/readyz"; }

etcd_settle() { :; }

etcd_env() {
  local member list=
  for member in "${ETCD_MEMBERS[@]}"; do list+=",127.0.0.1:$(port_of "$member")"; done
  env_line ETCD "${list#,}"
  env_line ETCDCTL "$(etcd_home)/etcdctl"
  env_line ETCDUTL "$(etcd_home)/etcdutl"
}
