# shellcheck shell=bash
# dynalite, which answers as DynamoDB does: items and conditions, but no transactions.

dynamodb_home() { pinned dynalite "$(npm_version dynalite)"; }

dynamodb_install() {
  local home
  home=$(dynamodb_home)
  need node npm
  cached "${home##*/}" "${home##*/}: installing from npm" npm_install dynalite
}

dynamodb_prepare() { :; }

dynamodb_launch() {
  mkdir -p "$STATE/dynamodb/data"
  spawn dynamodb node "$(dynamodb_home)/node_modules/dynalite/cli.js" --host 127.0.0.1 \
    --port "$(port_of dynamodb)" --path "$STATE/dynamodb/data" \
    --createTableMs 5 --updateTableMs 5 --deleteTableMs 5
}

dynamodb_ready() { answers ^healthy "http://127.0.0.1:$(port_of dynamodb)/"; }

dynamodb_settle() { :; }

dynamodb_env() { env_line DYNAMODB "http://127.0.0.1:$(port_of dynamodb)"; }
