# shellcheck shell=bash
# kube-apiserver and kubectl, built from their Go modules, on an etcd of their own (kube-etcd).

KUBE_NAMESPACE=tenure-test

kube_version() { go_version kube k8s.io/kubernetes; }

kube_home() { pinned kube "$(kube_version)"; }

kube_install() {
  local home package=k8s.io/component-base/version version minor
  etcd_install
  home=$(kube_home)
  version=$(kube_version)
  minor=${version#1.}
  [[ -d $home ]] || need go
  need openssl
  cached "${home##*/}" "${home##*/}: building from Go modules" \
    go_build kube "-X $package.gitVersion=v$version -X $package.gitTreeState=clean
      -X $package.gitMajor=1 -X $package.gitMinor=${minor%%.*}" \
    kube-apiserver=k8s.io/kubernetes/cmd/kube-apiserver \
    kubectl=k8s.io/kubernetes/cmd/kubectl
}

kube_prepare() {
  local dir=$STATE/kube-apiserver/data admin user
  [[ ! -s $dir/user.kubeconfig ]] || return 0
  mkdir -p "$dir"
  admin=$(openssl rand -hex 16)
  user=$(openssl rand -hex 16)
  printf '%s\n' "$admin,admin,1,\"system:masters\"" "$user,tenure,2" >"$dir/tokens.csv"
  kube_certificates "$dir" >"$dir/openssl.log" 2>&1 ||
    die "kube: making certificates failed; see $dir/openssl.log"
  kube_config "$dir" admin "$admin"
  kube_config "$dir" user "$user"
}

kube_certificates() {
  local dir=$1 name
  cat >"$dir/openssl.cnf" <<'END'
[req]
distinguished_name = name
prompt = no
[name]
CN = tenure-test
[ca]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectAltName = IP:127.0.0.1, DNS:localhost
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
END
  for name in ca tls sa; do
    openssl ecparam -name prime256v1 -genkey -noout -out "$dir/$name.key" || return
  done
  openssl req -x509 -new -key "$dir/ca.key" -days 3650 -config "$dir/openssl.cnf" -extensions ca \
    -out "$dir/ca.crt" &&
    openssl req -new -key "$dir/tls.key" -config "$dir/openssl.cnf" -out "$dir/tls.csr" &&
    openssl x509 -req -in "$dir/tls.csr" -CA "$dir/ca.crt" -CAkey "$dir/ca.key" -CAcreateserial \
      -days 3650 -extfile "$dir/openssl.cnf" -extensions server -out "$dir/tls.crt"
}

kube_config() { # DIR NAME TOKEN
  cat >"$1/$2.kubeconfig" <<END
apiVersion: v1
kind: Config
clusters:
- name: test
  cluster:
    server: https://127.0.0.1:$(port_of kube-apiserver)
    certificate-authority-data: $(base64 -w 0 "$1/ca.crt")
users:
- name: $2
  user:
    token: $3
contexts:
- name: test
  context:
    cluster: test
    user: $2
    namespace: $KUBE_NAMESPACE
current-context: test
END
}

kube_launch() {
  local dir=$STATE/kube-apiserver/data
  if [[ $1 == kube-etcd ]]; then
    etcd_spawn kube-etcd "$(etcd_home)" kube-etcd
    return
  fi
  spawn kube-apiserver "$(kube_home)/kube-apiserver" \
    --etcd-servers="http://127.0.0.1:$(port_of kube-etcd)" \
    --bind-address=127.0.0.1 --advertise-address=127.0.0.1 \
    --secure-port="$(port_of kube-apiserver)" \
    --tls-cert-file="$dir/tls.crt" --tls-private-key-file="$dir/tls.key" \
    --client-ca-file="$dir/ca.crt" --cert-dir="$dir/certs" \
    --service-account-issuer=https://kubernetes.default.svc \
    --service-account-key-file="$dir/sa.key" --service-account-signing-key-file="$dir/sa.key" \
    --token-auth-file="$dir/tokens.csv" --authorization-mode=RBAC \
    --service-cluster-ip-range=10.0.0.0/24 --disable-admission-plugins=ServiceAccount \
    --endpoint-reconciler-type=none
}

kube_ready() {
  case $1 in
    kube-etcd) etcd_serves kube-etcd ;;
    kube-apiserver)
      answers '^ok$' "https://127.0.0.1:$(port_of kube-apiserver)/readyz" \
        --cacert "$STATE/kube-apiserver/data/ca.crt"
      ;;
  esac
}

# The user may do what an elector needs and no more, or a needless request would go unseen.
kube_settle() {
  kube_ctl admin apply --validate=false -f - >/dev/null <<END
apiVersion: v1
kind: Namespace
metadata: {name: $KUBE_NAMESPACE}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: leases, namespace: $KUBE_NAMESPACE}
rules:
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, create, update, watch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: leases, namespace: $KUBE_NAMESPACE}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: leases}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: tenure}
END
  await 10 kube_user_may || die "kube: the user tenure may not create leases"
}

kube_user_may() { # the server hears of its own new rules a moment later
  kube_ctl user auth can-i create leases >/dev/null 2>&1
}

kube_ctl() { # admin|user ARGUMENT…
  local dir=$STATE/kube-apiserver/data
  "$(kube_home)/kubectl" --kubeconfig "$dir/$1.kubeconfig" --cache-dir "$dir/cache" "${@:2}"
}

kube_env() {
  env_line KUBE_ADMIN "$STATE/kube-apiserver/data/admin.kubeconfig"
  env_line KUBE_USER "$STATE/kube-apiserver/data/user.kubeconfig"
  env_line KUBECTL "$(kube_home)/kubectl"
}
