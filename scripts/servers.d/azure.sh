# shellcheck shell=bash
# Azurite's blob service, with its well-known development account. Two things to know in tests: it
# saves its state every 5 s and when it is stopped, so what was written just before a kill is gone;
# and after any restart it takes all leases for expired, which the real service does not.

azure_home() { pinned azurite "$(npm_version azurite)"; }

azure_install() {
  local home
  home=$(azure_home)
  need node npm
  cached "${home##*/}" "${home##*/}: installing from npm" npm_install azurite
}

azure_prepare() { :; }

# Without --skipApiVersionCheck it refuses the versions that newer clients ask for.
azure_launch() {
  mkdir -p "$STATE/azure/data"
  spawn azure node "$(azure_home)/node_modules/azurite/dist/src/blob/main.js" \
    --blobHost 127.0.0.1 --blobPort "$(port_of azure)" --location "$STATE/azure/data" \
    --silent --disableTelemetry --skipApiVersionCheck
}

# Nothing is allowed without a signature, so any answer of its own will do.
azure_ready() { answers 'Server: Azurite' "$(azure_url)?comp=list" -D - -o /dev/null; }

azure_url() { echo "http://127.0.0.1:$(port_of azure)/devstoreaccount1"; }

azure_settle() { :; }

azure_env() { env_line AZURE "$(azure_url)"; }
