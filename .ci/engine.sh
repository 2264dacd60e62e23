#!/usr/bin/env bash
# A container engine for tests. Uses the one that answers (DOCKER_HOST, else the default socket); where there is none and
# this is root, starts one of its own beside it: own socket, own images, its images kept for the next time.
#
#   start         prints DOCKER_HOST=… of an engine that stays; installs one with apt where it may
#   stop          ends the engine that was started here, and no other
#   running       succeeds while that one runs
#   stacks        prints the file into which it writes what each of its threads waits for: why it hangs
#   clean         stop, and forget its images as well
#   run COMMAND…  the command with DOCKER_HOST set; ends the engine afterwards if it was started for this and nobody
#                 else runs a command with it. Without an engine the command runs all the same, but not with
#                 CELLBOX_ENGINE=required: tests that need one would be skipped and nobody would see.
set -euo pipefail

STATE=/run/cellbox-engine
DATA=/var/lib/cellbox-engine
SOCKET=unix://$STATE/docker.sock
START_S=60
CALL_S=60
STOP_S=60

say() { printf '\033[1mcellbox\033[0m %s\n' "$*" >&2; }

# Whether an engine answers at this address; at that of the context where none is given.
answers() { env -u DOCKER_HOST timeout 10 docker ${1:+-H "$1"} version --format '{{.Server.Version}}' >/dev/null 2>&1; }

# The pid of our engine; nothing when it does not run. A pid that somebody else has by now does not count.
own_pid() {
  local pid
  pid=$(cat "$STATE/docker.pid" 2>/dev/null) || return 1
  tr '\0' '\n' 2>/dev/null <"/proc/$pid/cmdline" | grep -qx -- "--host=$SOCKET" || return 1
  printf '%s' "$pid"
}

install_engine() {
  command -v dockerd >/dev/null && return
  command -v apt-get >/dev/null || return 1
  say "installing docker.io with apt-get"
  local install=(apt-get install -y -qq --no-install-recommends docker.io iptables)
  export DEBIAN_FRONTEND=noninteractive
  "${install[@]}" >/dev/null 2>&1 || { apt-get update -qq >/dev/null 2>&1 || true; "${install[@]}" >/dev/null; }
}

# gVisor, where there is a package of it; without it its tests are skipped by name.
install_gvisor() {
  if ! command -v runsc >/dev/null && command -v apt-get >/dev/null; then
    say "installing runsc with apt-get"
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends runsc >/dev/null 2>&1 ||
      say "there is no package of it: the tests of gVisor are skipped"
  fi
}

# Writes the engine's configuration, which knows gVisor where that is installed; prints the file's name.
configuration() {
  local path runtimes=""
  if path=$(command -v runsc); then
    runtimes="\"runsc\": {\"path\": \"$path\", \"runtimeArgs\": [\"--host-uds=open\", \"--network=none\"]}"
  fi
  printf '{"runtimes": {%s}}\n' "$runtimes" >"$STATE/daemon.json"
  printf '%s' "$STATE/daemon.json"
}

start_own() {
  [ "$(id -u)" = 0 ] || { say "no container engine answers, and only root can start one"; return 1; }
  install_engine || { say "no container engine answers, and none can be installed here"; return 1; }
  if answers ""; then return; fi # its package has started one
  install_gvisor
  mkdir -p -m 0711 "$STATE" "$DATA"
  (
    flock 9 # two that start at once start one
    own_pid >/dev/null && exit
    rm -f "$STATE/docker.pid"
    if [ -e "$STATE/log" ]; then mv "$STATE/log" "$STATE/log.before"; fi
    setsid dockerd --config-file="$(configuration)" --host="$SOCKET" --data-root="$DATA" --exec-root="$STATE/exec" \
      --pidfile="$STATE/docker.pid" --shutdown-timeout=5 </dev/null >"$STATE/log" 2>&1 9>&- 8>&- &
    await_own && remove_old
  ) 9>"$STATE/starting" && await_own
}

await_own() {
  local deadline=$((SECONDS + START_S))
  until answers "$SOCKET"; do
    if [ $SECONDS -gt $deadline ]; then
      say "the engine does not answer; the end of its log:"
      tail -n 20 "$STATE/log" >&2
      return 1
    fi
    sleep 0.2
  done
}

# What a run that was cut off left in the engine's data is not the fault of the run that begins now. In an engine that has
# just started none of it runs.
remove_old() {
  local old
  old=$(DOCKER_HOST=$SOCKET timeout $CALL_S docker ps --all --quiet) || return 1
  [ -n "$old" ] || return 0
  say "removing $(wc -l <<<"$old") containers that an earlier run left"
  # shellcheck disable=SC2086  # one word per id is meant
  DOCKER_HOST=$SOCKET timeout $CALL_S docker rm --force $old >/dev/null
}

# Sets DOCKER_HOST, where no library need know of contexts.
find_or_start() {
  if ! answers "${DOCKER_HOST:-}"; then
    start_own || return 1
    if answers ""; then unset DOCKER_HOST; else DOCKER_HOST=$SOCKET; fi
  fi
  DOCKER_HOST=${DOCKER_HOST:-$(docker context inspect --format '{{.Endpoints.docker.Host}}')}
  export DOCKER_HOST
}

stop_own() {
  local pid
  pid=$(own_pid) || return 0
  kill -TERM "$pid"
  local deadline=$((SECONDS + STOP_S))
  while own_pid >/dev/null; do
    if [ $SECONDS -gt $deadline ]; then
      say "the engine did not end in $STOP_S s: killed"
      kill -KILL "$pid"
      return 1
    fi
    sleep 0.1
  done
}

stacks() {
  local pid file deadline=$((SECONDS + CALL_S))
  pid=$(own_pid) || { say "no engine of ours runs"; return 1; }
  rm -f "$STATE"/exec/goroutine-stacks-*.log
  kill -USR1 "$pid"
  until file=$(compgen -G "$STATE/exec/goroutine-stacks-*.log"); do
    [ $SECONDS -le $deadline ] || { say "the engine writes nothing"; return 1; }
    sleep 0.1
  done
  mv "$file" "$STATE/stacks" && printf '%s\n' "$STATE/stacks"
}

# Ends our engine; that a container is left in it, or that it does not answer any more, is a failure of what ran.
end_empty() {
  local left status=0
  if ! left=$(timeout $CALL_S docker ps --all --format '{{.Names}} ({{.Image}}, {{.Status}})'); then
    say "the engine hangs; its log is $STATE/log, what it waits for: $(stacks || true)"
    status=1
  elif [ -n "$left" ]; then
    say "containers left:" && printf '%s\n' "$left" >&2
    # shellcheck disable=SC2046  # one word per id is meant
    timeout $CALL_S docker rm --force $(docker ps --all --quiet) >/dev/null ||
      say "the engine does not remove them; its log is $STATE/log, what it waits for: $(stacks || true)"
    status=1
  fi
  stop_own && return $status
}

run() {
  local status=0
  # Whoever uses our engine holds the lock, from before it is started; the last one ends it.
  if [ "$(id -u)" = 0 ]; then
    mkdir -p -m 0711 "$STATE"
    exec 8>"$STATE/users"
    flock --shared 8
  fi
  if ! find_or_start; then
    [ "${CELLBOX_ENGINE:-}" != required ] || return 1
    say "tests that need an engine are skipped"
    unset DOCKER_HOST
  fi
  "$@" 8>&- || status=$?
  if [ "${DOCKER_HOST:-}" = "$SOCKET" ] && [ ! -e "$STATE/kept" ]; then
    flock --unlock 8
    if flock --exclusive --nonblock 8; then end_empty || status=1; fi
  fi
  return $status
}

case "${1:-}" in
  start)
    find_or_start
    if [ "$DOCKER_HOST" = "$SOCKET" ]; then touch "$STATE/kept"; fi
    printf 'DOCKER_HOST=%s\n' "$DOCKER_HOST"
    ;;
  running) own_pid >/dev/null ;;
  stacks) stacks ;;
  stop) rm -f "$STATE/kept" && stop_own ;;
  clean) rm -f "$STATE/kept" && stop_own && rm -rf --one-file-system "$DATA" ;;
  run) shift && run "$@" ;;
  *) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2 && exit 2 ;;
esac
