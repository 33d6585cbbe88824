# shellcheck shell=bash
# Azurite's blob service, with its well-known development account. It saves its state every 5 s and
# when it is stopped: what was written within the last 5 s before a kill is gone.

azure_home() { echo "$CACHE/azurite-$(npm_version azurite)-$(hash_of "$HERE"/azurite/package*.json)"; }

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
azure_ready() {
  http "$(azure_url)?comp=list" -D - -o /dev/null | grep -qi '^server: azurite'
}

azure_url() { echo "http://127.0.0.1:$(port_of azure)/devstoreaccount1"; }

azure_settle() { :; }

azure_env() { env_line AZURE "$(azure_url)"; }
