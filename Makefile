# Every target sets up what it needs; `make help` lists them. Nothing but Python 3.11+ is needed on the host.
#
# .venv holds the service, .venv-sandbox what programs in an embedded sandbox see; they are made side by side. .venv-foreign
# holds kernels of others, for tests. Each step has a stamp file named by a checksum of what it was made from, so a second
# call costs nothing and a changed input is noticed.

PYTHON ?= python3
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# Where nothing compiled may be kept, each of some hundred processes of a test run compiles everything anew.
unexport PYTHONDONTWRITEBYTECODE

checksum = $(shell { cat $(1); $(PYTHON) -VV || true; } 2>&1 | cksum | tr -c '0-9\n' -)
SERVICE := .venv/.service-$(call checksum,pyproject.toml)
TESTING := .venv/.testing-$(call checksum,pyproject.toml)
SANDBOX := .venv-sandbox/.packages-$(call checksum,runtime/requirements.txt)
INSIDE := .venv-sandbox/.inside-$(call checksum,runtime/requirements.txt interpreter/backends/environment.py)
NODE := kernels/node/node_modules/.packages-$(call checksum,kernels/node/package.json kernels/node/package-lock.json)
FOREIGN := .venv-foreign/.packages-$(call checksum,tests/kernels/foreign-requirements.txt)
PIP := -m pip --disable-pip-version-check --no-input install --no-compile --progress-bar off
# With a container engine that answers, or one that is started for it; its image is made first if an input has changed.
ENGINE = .ci/engine.sh run bash -ec '[ -z "$${DOCKER_HOST:-}" ] || .venv/bin/cellbox image build; exec "$$@"' -
# Tests wait more than they compute, so there are more processes of them than cores. A part of them runs in one.
PYTEST = .venv/bin/pytest -m "not soak" $(if $(ARGS),,-n 4)
SAY = @printf '\033[1mcellbox\033[0m %s\n'

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

.PHONY: install
install: python ## set up .venv (service) and .venv-sandbox (programs in the embedded sandbox)
	@$(MAKE) -s -j2 $(SERVICE) $(SANDBOX) $(NODE) $(INSIDE)

.PHONY: run
run: install bubblewrap ## install what is missing and serve on http://127.0.0.1:8090
	@exec .venv/bin/cellbox serve

.PHONY: test
test: python bubblewrap ## lint, types and all tests but the long ones; ARGS=... for pytest, in one process
	@$(MAKE) -s -j2 $(TESTING) $(SANDBOX) $(NODE) $(INSIDE) $(FOREIGN)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	$(PYTEST) $(ARGS)

.PHONY: test-docker
test-docker: python bubblewrap ## the tests that need a container engine: starts one and makes the image where they are missing
	@$(MAKE) -s -j2 $(TESTING) $(SANDBOX) $(NODE) $(INSIDE)
	@$(ENGINE) .venv/bin/pytest -m "not soak" tests/image tests/backends/docker tests/contracts tests/delivery tests/e2e $(ARGS)

.PHONY: soak
soak: python bubblewrap ## the long forms of the tests
	@$(MAKE) -s -j2 $(TESTING) $(SANDBOX) $(NODE) $(INSIDE) $(FOREIGN)
	@$(ENGINE) .venv/bin/pytest -m soak --timeout 1800

.PHONY: bench
bench: python bubblewrap ## the figures of docs/performance.md; ONLY=name for one of them
	@$(MAKE) -s -j2 $(TESTING) $(SANDBOX) $(NODE) $(INSIDE)
	.venv/bin/python -m tests.bench $(ONLY)

.PHONY: image
image: python ## make the image of the docker backend, if an input of it has changed
	@$(MAKE) -s $(SERVICE)
	@.venv/bin/cellbox image build

.PHONY: python
python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "cellbox needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1 || true)." \
	    "Name another one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments: apt-get install python3-venv (Debian, Ubuntu)" >&2; exit 1; }

# Only the embedded sandbox needs it; another backend that was asked for by name does without.
.PHONY: bubblewrap
bubblewrap:
	@case "$${SANDBOX_RUNTIME_BACKEND:-auto}" in auto|bubblewrap) ;; *) exit 0 ;; esac; \
	if command -v bwrap >/dev/null; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  printf '\033[1mcellbox\033[0m %s\n' "installing bubblewrap with apt-get"; \
	  apt-get install -y -qq bubblewrap >/dev/null 2>&1 || \
	    { apt-get update -qq && apt-get install -y -qq bubblewrap >/dev/null; }; \
	  exit 0; \
	fi; \
	echo "cellbox runs code in bubblewrap, which is not installed here. Install it and call make again:" >&2; \
	echo "  Debian, Ubuntu:  sudo apt-get install bubblewrap" >&2; \
	echo "  Fedora, RHEL:    sudo dnf install bubblewrap" >&2; \
	echo "  Arch:            sudo pacman -S bubblewrap" >&2; \
	echo "  Alpine:          sudo apk add bubblewrap" >&2; \
	echo "Elsewhere (macOS), for development and without any isolation: SANDBOX_RUNTIME_BACKEND=process make run" >&2; \
	exit 1

$(SERVICE):
	$(SAY) "service: making .venv"
	@[ "$$(.venv/bin/python -VV 2>&1)" = "$$($(PYTHON) -VV 2>&1)" ] || { rm -rf .venv; $(PYTHON) -m venv .venv; }
	$(SAY) "service: installing its packages"
	@.venv/bin/python $(PIP) -qq -e '.[server]'
	@.venv/bin/python -m compileall -q -j 0 .venv/lib >/dev/null || true
	@rm -f .venv/.service-* && touch $@
	$(SAY) "service: ready"

$(TESTING): | $(SERVICE)
	$(SAY) "tests: installing their packages"
	@.venv/bin/python $(PIP) -qq -e '.[test]'
	@rm -f .venv/.testing-* && touch $@

# Made anew when its input changes: packages that left the list must not stay.
$(SANDBOX):
	$(SAY) "sandbox: making .venv-sandbox"
	@rm -rf .venv-sandbox && $(PYTHON) -m venv .venv-sandbox
	$(SAY) "sandbox: installing packages (300 MB, about a minute)"
	@.venv-sandbox/bin/python $(PIP) -r runtime/requirements.txt 2> >(grep -v '^WARNING' >&2) | \
	  sed -nu 's/^ *\(Downloading\|Using cached\) \([^ -]*\).*(\(.*\)).*/        sandbox: \2 (\3)/p; s/^Installing collected.*/        sandbox: unpacking/p'
	@touch $@

# What the Node kernel needs lies beside it, in a checkout too, so that any Jupyter client finds it.
$(NODE): | $(SERVICE) $(SANDBOX)
	$(SAY) "sandbox: installing packages of the Node kernel"
	@.venv/bin/python -c 'from interpreter.backends import environment as made; \
	  made.install_node_packages(made.default_venv())'
	@touch $@

# No program inside can write it, so it is compiled now, and with the paths it has inside.
$(INSIDE): $(SERVICE) $(SANDBOX) | $(NODE)
	$(SAY) "sandbox: compiling"
	@.venv/bin/python -c 'from interpreter.backends import environment as made; \
	  made.compile_for_inside(made.default_venv()); made.find()'
	@rm -f .venv-sandbox/.inside-* && touch $@
	$(SAY) "sandbox: ready"

# Only tests need them, and those that do say so where they are missing.
$(FOREIGN): | $(SANDBOX)
	$(SAY) "tests: installing kernels of others (100 MB)"
	@rm -rf .venv-foreign && $(PYTHON) -m venv .venv-foreign
	@.venv-foreign/bin/python $(PIP) -qq -r tests/kernels/foreign-requirements.txt && touch $@ || \
	  printf '        tests: not installed; pip said why above\n'
