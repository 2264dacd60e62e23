#!/usr/bin/env bash
# Installs or upgrades Cellbox with Docker on this machine, as root: images, /opt/cellbox, its .env with a made key, and the
# service. Running it again upgrades; .env and data stay. In a clone the images are made from it; elsewhere they are pulled.
#
#   VERSION=…               tag of the images to pull (latest)
#   CELLBOX_IMAGE_PREFIX=…  where they are pulled from: registry and owner, with a slash at the end
#   CELLBOX_SKIP_PULL=1     neither pulled nor made: they were loaded before (offline)
#   CELLBOX_DIR=…           instead of /opt/cellbox
#   MIRROR=…                of the distribution's packages, where Docker has to be installed
set -euo pipefail

DIR=${CELLBOX_DIR:-/opt/cellbox}
VERSION=${VERSION:-latest}
PREFIX=${CELLBOX_IMAGE_PREFIX:-}
HEALTHY_S=180
IMAGES=(cellbox-server cellbox-runtime)

here=
if [ -n "${BASH_SOURCE[0]:-}" ]; then here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd); fi
in_clone() { [ -n "$here" ] && [ -f "$here/runtime/Dockerfile" ] && [ -f "$here/Dockerfile" ]; }

say() { printf '\033[1mcellbox\033[0m %s\n' "$*"; }
fail() {
  printf '\033[1mcellbox\033[0m %s\n' "$*" >&2
  exit 1
}

check_host() {
  [ "$(uname -s)" = Linux ] || fail "this installs on Linux; the README has a section on macOS"
  [ "$(id -u)" = 0 ] || fail "this has to be root: sudo bash install.sh"
}

# Packages of the distribution, from MIRROR if one is given.
install_packages() {
  if command -v apt-get >/dev/null; then
    local options=(-qq -o APT::Install-Recommends=false) sources
    if [ -n "${MIRROR:-}" ]; then
      sources=$(mktemp)
      # shellcheck source=/dev/null
      (. /etc/os-release && printf 'deb %s %s main universe\n' "$MIRROR" "$VERSION_CODENAME") >"$sources"
      grep -qi ubuntu /etc/os-release || sed -i 's/ universe$//' "$sources"
      options+=(-o "Dir::Etc::SourceList=$sources" -o Dir::Etc::SourceParts=/dev/null)
    fi
    DEBIAN_FRONTEND=noninteractive apt-get "${options[@]}" update
    DEBIAN_FRONTEND=noninteractive apt-get "${options[@]}" install -y "$@" >/dev/null
    if [ -n "${sources:-}" ]; then rm -f "$sources"; fi
  elif command -v dnf >/dev/null; then
    dnf install -y -q "$@"
  else
    return 1
  fi
}

ensure_engine() {
  if ! command -v docker >/dev/null; then
    say "engine: installing Docker"
    if command -v apt-get >/dev/null; then install_packages docker.io; else install_packages moby-engine; fi ||
      fail "Docker is not here and could not be installed: install it and run this again"
  fi
  if ! docker version >/dev/null 2>&1 && command -v systemctl >/dev/null; then
    say "engine: starting it"
    systemctl enable --now docker >/dev/null 2>&1 || true
  fi
  docker version >/dev/null 2>&1 || fail "the container engine does not answer: start it and run this again"
  say "engine: $(docker version --format '{{.Server.Version}}')"
}

# Sets COMPOSE.
ensure_compose() {
  local try
  for try in look docker-compose-v2 docker-compose docker-compose-plugin; do
    if [ "$try" != look ]; then
      say "compose: installing $try"
      install_packages "$try" >/dev/null 2>&1 || continue
    fi
    if docker compose version >/dev/null 2>&1; then COMPOSE=(docker compose) && return; fi
    if command -v docker-compose >/dev/null; then COMPOSE=(docker-compose) && return; fi
  done
  fail "Docker Compose is not here and could not be installed: install it and run this again"
}

ensure_images() {
  local name
  if [ "${CELLBOX_SKIP_PULL:-}" = 1 ]; then
    for name in "${IMAGES[@]}"; do
      if [ -n "$PREFIX" ] || [ "$VERSION" != latest ]; then
        docker image inspect "$PREFIX$name:$VERSION" >/dev/null 2>&1 && docker tag "$PREFIX$name:$VERSION" "$name:latest"
      fi
      docker image inspect "$name:latest" >/dev/null 2>&1 ||
        fail "the image $name is not here, and CELLBOX_SKIP_PULL=1: runtime/images.sh load FILE, and run this again"
    done
    say "images: those that are here"
  elif [ -n "$PREFIX" ]; then
    for name in "${IMAGES[@]}"; do
      say "images: pulling $PREFIX$name:$VERSION"
      docker pull --quiet "$PREFIX$name:$VERSION" >/dev/null
      docker tag "$PREFIX$name:$VERSION" "$name:latest"
    done
  elif in_clone; then
    make_images
  else
    fail "where are the images? Name their registry with CELLBOX_IMAGE_PREFIX=…/, or run this in a clone to make them"
  fi
}

make_images() {
  local base=debian:trixie-slim name arguments=() variables=()
  if ! docker image inspect "$base" >/dev/null 2>&1; then
    say "images: getting $base"
    docker pull --quiet "$base" >/dev/null 2>&1 || "$here/runtime/make-base.sh" "$base"
  fi
  for name in PIP_INDEX_URL PIP_EXTRA_INDEX_URL NPM_CONFIG_REGISTRY http_proxy https_proxy no_proxy; do
    if [ -n "${!name:-}" ]; then
      case $name in NPM_*) ;; *) arguments+=(--build-arg "$name=${!name}") ;; esac
      variables+=(--env "$name=${!name}")
    fi
  done
  say "images: making cellbox-server"
  docker build --quiet --network host "${arguments[@]}" --tag cellbox-server:latest "$here" >/dev/null
  say "images: making cellbox-runtime (minutes the first time)"
  docker run --rm --network host --volume "${CELLBOX_SOCKET:-/var/run/docker.sock}:/var/run/docker.sock" "${variables[@]}" \
    cellbox-server:latest image build
}

# Reads a variable of the .env that is there.
setting() { sed -n "s/^$1=//p" "$DIR/.env" | tail -n 1; }

ensure_files() {
  install -d -m 0755 "$DIR"
  if [ -f "$DIR/.env" ]; then
    say "settings: $DIR/.env is kept"
  else
    say "settings: making $DIR/.env with a key"
    # Complete or not at all: a key that is made is never overwritten.
    (
      umask 077
      printf '# The README lists all variables. After a change: run install.sh again, or docker compose up -d here.\n'
      printf 'SANDBOX_API_KEY=%s\n' "$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')"
      printf 'SANDBOX_DATA_ROOT=%s\n' "$DIR/data"
      if [ -n "${CELLBOX_SOCKET:-}" ]; then printf 'CELLBOX_SOCKET=%s\n' "$CELLBOX_SOCKET"; fi
      if [ -n "${CELLBOX_PORT:-}" ]; then printf 'CELLBOX_PORT=%s\n' "$CELLBOX_PORT"; fi
    ) >"$DIR/.env.part"
    mv "$DIR/.env.part" "$DIR/.env"
  fi
  chmod 0600 "$DIR/.env"
  local data
  data=$(setting SANDBOX_DATA_ROOT)
  install -d -m 0700 "${data:-/opt/cellbox/data}"
  compose_file >"$DIR/docker-compose.yml.part"
  mv "$DIR/docker-compose.yml.part" "$DIR/docker-compose.yml"
}

# The repository's docker-compose.yml, without what makes the image from a directory: there is none beside this file.
compose_file() {
  cat <<'CELLBOX_END'
# The service in a container, its sandboxes as containers beside it. Needs the file .env beside this one: .env.example says
# what stands in it, install.sh makes it.
#
# Whoever can use the engine's socket is root on this host: nothing but this service gets it, and no sandbox does.
services:
  sandbox-server:
    image: cellbox-server:latest
    restart: unless-stopped
    # Running calls end first (SANDBOX_DRAIN_TIMEOUT); sandboxes stay and are adopted by the next start.
    stop_grace_period: 75s
    env_file: .env
    environment:
      DOCKER_HOST: unix:///var/run/docker.sock
      SANDBOX_LISTEN: ":8090"
      SANDBOX_RUNTIME_BACKEND: docker
      SANDBOX_NETWORK: ${SANDBOX_NETWORK:-proxy}
      SANDBOX_EGRESS_CONTROL: ${SANDBOX_LINK_DIR:-/run/cellbox}/.egress.sock
      SANDBOX_DATA_ROOT: ${SANDBOX_DATA_ROOT:-/opt/cellbox/data}
      SANDBOX_LINK_DIR: ${SANDBOX_LINK_DIR:-/run/cellbox}
    ports:
      - "${SANDBOX_BIND:-127.0.0.1}:${CELLBOX_PORT:-8090}:8090"
    volumes:
      - type: bind
        source: ${CELLBOX_SOCKET:-/var/run/docker.sock}
        target: /var/run/docker.sock
      # At the same path as on the host: the engine looks up there what a sandbox is shown.
      - type: bind
        source: ${SANDBOX_DATA_ROOT:-/opt/cellbox/data}
        target: ${SANDBOX_DATA_ROOT:-/opt/cellbox/data}
      # Sockets, on the engine's own machine whatever kind of disk the data is on. Written so, the engine makes it where it is
      # missing, as after a restart of the host.
      - ${SANDBOX_LINK_DIR:-/run/cellbox}:${SANDBOX_LINK_DIR:-/run/cellbox}
    read_only: true
    tmpfs:
      - /tmp:size=64m,mode=1777
    # Scopes' files belong to their own user ids; nothing else of root is needed.
    cap_drop: [ALL]
    cap_add: [CHOWN, DAC_OVERRIDE, FOWNER]
    security_opt:
      - no-new-privileges:true
    logging: &logging
      driver: json-file
      options:
        max-size: 10m
        max-file: "5"

  # The only way out of sandboxes, which have no network: it reaches what SANDBOX_EGRESS_ALLOWLIST names, and the service tells it
  # what that is. It has neither the engine's socket nor the data nor the keys.
  egress:
    image: cellbox-server:latest
    restart: unless-stopped
    entrypoint: [python, -I, -m, egress, --control, "${SANDBOX_LINK_DIR:-/run/cellbox}/.egress.sock"]
    command: []
    volumes:
      - ${SANDBOX_LINK_DIR:-/run/cellbox}:${SANDBOX_LINK_DIR:-/run/cellbox}
    healthcheck:
      disable: true
    read_only: true
    cap_drop: [ALL]
    security_opt:
      - no-new-privileges:true
    logging: *logging
CELLBOX_END
}

start() {
  say "service: starting"
  cd "$DIR"
  "${COMPOSE[@]}" up --detach >"$DIR/.up.log" 2>&1 || { cat "$DIR/.up.log" >&2; fail "the service could not be started"; }
  rm -f "$DIR/.up.log"
  local container state deadline=$((SECONDS + HEALTHY_S))
  container=$("${COMPOSE[@]}" ps --quiet sandbox-server)
  until state=$(docker inspect --format '{{.State.Health.Status}}' "$container") && [ "$state" = healthy ]; do
    if [ $SECONDS -gt $deadline ]; then
      docker logs --tail 20 "$container" >&2
      fail "the service is not well after $HEALTHY_S s ($state); the end of its log stands above"
    fi
    sleep 1
  done
  local bind port
  bind=$(setting SANDBOX_BIND) port=$(setting CELLBOX_PORT)
  say "service: http://${bind:-127.0.0.1}:${port:-8090}, its key is in $DIR/.env"
  say "try it: cd $DIR && ${COMPOSE[*]} exec sandbox-server cellbox smoke"
}

check_host
ensure_engine
ensure_compose
ensure_images
ensure_files
start
