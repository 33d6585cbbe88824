# shellcheck shell=bash
# Redis, each write on disk before it is answered, so that nothing is lost in a restart.

redis_install() { :; } # from apt

redis_prepare() { :; }

redis_launch() {
  mkdir -p "$STATE/redis/data"
  spawn redis "$(server_path redis-server)" --bind 127.0.0.1 --port "$(port_of redis)" \
    --dir "$STATE/redis/data" --save '' --appendonly yes --appendfsync always
}

redis_ready() { [[ $(timeout 2 redis-cli -h 127.0.0.1 -p "$(port_of redis)" PING 2>&1) == PONG ]]; }

redis_settle() { :; }

redis_env() { env_line REDIS "127.0.0.1:$(port_of redis)"; }
