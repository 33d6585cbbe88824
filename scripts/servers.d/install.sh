# shellcheck shell=bash
# How programs come onto the machine: packages by apt, the rest into the cache folder.
# Sourced by scripts/servers.

# cached NAME TEXT BUILD…: makes $CACHE/NAME unless it is there already; TEXT says what happens.
cached() {
  [[ -d $CACHE/$1 ]] || step "$2" into_cache "$1" "${@:3}"
}

# into_cache NAME BUILD…: runs BUILD with an empty folder as last argument, and keeps that folder if
# it succeeds. Whoever comes second waits for the first; half a result is never seen.
into_cache() {
  local name=$1 work=$CACHE/.work-$1
  (
    flock 7
    [[ ! -d $CACHE/$name ]] || exit 0
    trap 'rm -rf "$work"' EXIT
    rm -rf "$work"
    mkdir -p "$work/result"
    "${@:2}" "$work/result" 7>&- && mv "$work/result" "$CACHE/$name"
  ) 7>"$CACHE/.locks/$name"
}

# pinned NAME VERSION: the folder of what servers.d/NAME pins; another one when a pin changes.
pinned() { echo "$CACHE/$1-$2-$(cat "$HERE/$1"/* | sha256sum | cut -c 1-12)"; }

# need COMMAND…: ends with what is missing, before anything has been built.
need() {
  local command
  for command in "$@"; do
    type -P "$command" >/dev/null || die "$command is needed and not installed"
  done
}

# --- apt ------------------------------------------------------------------------------------------

# apt_packages COMMAND PACKAGE …: installs the packages whose command is missing. Debian starts a
# server that it installs, except where a policy forbids it, as container images do.
apt_packages() {
  local missing=()
  while (($#)); do
    has_server "$1" || missing+=("$2")
    shift 2
  done
  ((${#missing[@]})) || return 0
  ((EUID == 0)) || die "not installed: ${missing[*]}; as root: apt-get install ${missing[*]}"
  need apt-get
  step "apt: package lists" flock "$CACHE/.locks/apt" apt-get update
  step "apt: ${missing[*]}" flock "$CACHE/.locks/apt" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y --no-install-recommends "${missing[@]}"
}

has_server() { server_path "$1" >/dev/null; }

# Debian keeps these where an ordinary user's PATH does not lead.
server_path() {
  local found
  found=$(type -P "$1" "/usr/sbin/$1" || true)
  [[ -n $found ]] || found=$(printf '%s\n' /usr/lib/postgresql/*/bin/"$1" | sort -V | tail -n 1)
  found=${found%%$'\n'*}
  [[ -x $found ]] && echo "$found"
}

# apt_extract SUITE PACKAGE DIR: unpacks a package of another Debian release, without installing
# it, from the archive that this machine uses and checked against the keys that it trusts.
apt_extract() {
  local suite=$1 package=$2 dir=$3 keys=/usr/share/keyrings/debian-archive-keyring.gpg archive apt
  archive=$(debian_archive)
  [[ -n $archive ]] || return 1
  mkdir -p "$dir"/apt/{lists,cache/archives}/partial
  echo "deb [signed-by=$keys] $archive $suite main" >"$dir/apt/sources.list"
  apt=(apt-get -o Dir::Etc::sourcelist="$dir/apt/sources.list" -o Dir::Etc::sourceparts=-
    -o Dir::State::lists="$dir/apt/lists" -o Dir::Cache="$dir/apt/cache"
    -o APT::Sandbox::User="$(id -un)" -o Acquire::Languages=none)
  "${apt[@]}" update &&
    (cd "$dir/apt" && "${apt[@]}" download "$package") &&
    dpkg-deb -x "$dir/apt/${package}"_*.deb "$dir" &&
    rm -rf "$dir/apt"
}

debian_archive() {
  cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |
    sed -nE 's#^[^\#]*(https?://[^ ]+/debian)/?( .*)?$#\1#p' | head -n 1
}

# --- Go -------------------------------------------------------------------------------------------

# The version that servers.d/NAME/go.mod requires of MODULE.
go_version() { sed -n "s#^\(require \|\t\)$2 v\([^ ]*\)\$#\2#p" "$HERE/$1/go.mod" | head -n 1; }

# go_build NAME LDFLAGS PROGRAM=PACKAGE… DIR: builds from the pinned module servers.d/NAME, each
# dependency checked against its go.sum. The Go caches, several GB, go when it is done.
go_build() {
  local name=$1 flags=$2 dir=${!#} caches program
  caches=$dir/../go
  mkdir -p "$caches/tmp"
  export GOMODCACHE=$caches/mod GOCACHE=$caches/build GOTMPDIR=$caches/tmp GOFLAGS=-modcacherw
  export CGO_ENABLED=0
  cp "$HERE/$name"/* "$dir"
  cd "$dir" || return
  for program in "${@:3:$#-3}"; do
    nice -n 10 go build -buildvcs=false -mod=readonly -trimpath -ldflags "-s -w $flags" \
      -o "$dir/${program%%=*}" "${program#*=}" || return
  done
}

# --- npm ------------------------------------------------------------------------------------------

# npm_install NAME DIR: what servers.d/NAME/package-lock.json pins, from whichever registry this
# machine is set up for.
npm_install() {
  cp "$HERE/$1"/package{,-lock}.json "$2"
  cd "$2" || return
  npm ci --no-audit --no-fund --ignore-scripts --omit=optional --cache "$2/../npm"
}

npm_version() { sed -n "s/^ *\"$1\": \"\([0-9.]*\)\",*\$/\1/p" "$HERE/$1/package.json"; }
