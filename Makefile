# Two commands do everything for a newcomer: `make demo` and `make test`.
# Both set up what they need in .venv; nothing is installed elsewhere, except the real components that
# tests run against (tools/install-components), and those only as root on Debian or Ubuntu.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
ARGS   ?=
TOPOLOGY ?= mini
QUIET_PIP := --disable-pip-version-check --progress-bar off

# These run in pytest processes of their own: late garbage collection of grpc.aio objects can hang their event loops.
NO_GRPC := tests/cluster tests/lab_api tests/lab_scheduler

# Tests of decisions: no I/O, nothing but Python.
PURE := $(addprefix tests/,model devices memory load cpus gpus)

.PHONY: help demo test clean-room check lint format pytest coverage test-cluster test-vm vm-shell bench docs proto components constraints constraints-check clean

demo: $(VENV)/.ready ## Try it on this machine; ARGS=--once runs it, checks it and exits
	@$(BIN)/colocate demo $(ARGS)

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# A suite that fails does not stop the others; the last lines say how each went.
test: $(VENV)/.ready components ## Everything: lint, types, import contracts, all tests, tests in VMs
	@MAKE="$(MAKE)" $(BIN)/python -m tests.suites lint pytest test-vm

# CONTRIBUTING.md describes the room. ARGS is the command to run; make's own variables do not reach it.
clean-room: $(VENV)/.ready components ## `make test`, or ARGS="make check", as on a fresh machine; fails if it leaves files
	@env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL -u ARGS PYTHON="$(PYTHON)" VENV="$(VENV)" $(BIN)/python -m tests.room $(or $(ARGS),$(MAKE) test)

check: lint ## Quick check of a change: lint, types, import contracts and tests of decisions
	@$(BIN)/pytest -q -n auto --dist worksteal $(PURE)

lint: $(VENV)/.ready ## Lint, formatting, types and import contracts
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: $(VENV)/.ready ## Format the code, and fix what the linter can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

pytest: $(VENV)/.ready ## Tests on this machine; ARGS="tests/kubelet -k restart" runs some
	@failed=0; \
	  $(BIN)/pytest -n auto --dist worksteal $(or $(ARGS),tests $(addprefix --ignore=,$(NO_GRPC))) || failed=$$?; \
	  $(if $(ARGS),,$(BIN)/pytest -n auto --dist worksteal $(NO_GRPC) || failed=$$?;) \
	  exit $$failed

coverage: $(VENV)/.ready ## Coverage of the decisions by their tests, lines and branches; no minimum
	@$(BIN)/coverage run -m pytest -q $(PURE)
	@$(BIN)/coverage report

test-cluster: $(VENV)/.ready ## Tests for any cluster: the one of COLOCATE_KUBECONFIG, or an embedded one
	@$(BIN)/pytest tests/on_cluster $(ARGS)

test-vm: $(VENV)/.ready components ## Tests in throw-away VMs (docs/vm-tests.md)
	@$(BIN)/pytest --vm $(or $(ARGS),tests)

vm-shell: $(VENV)/.ready components ## A shell in a VM; TOPOLOGY is mini, small, epyc, epyc-smt or partners
	@$(BIN)/python -m tests.vm.shell $(TOPOLOGY)

bench: $(VENV)/.ready ## Measure ratios; fail if one is beyond its threshold
	@$(BIN)/python -m bench $(ARGS)

docs: $(VENV)/.ready ## Write the references in docs/sdk.md and docs/testing.md from docstrings
	@$(BIN)/python tools/sdk_reference.py

proto: $(VENV)/.ready ## Generate code from the .proto files
	@$(BIN)/python tools/generate_wire.py

components: ## Install the real components that tests run against (root, Debian or Ubuntu)
	@tools/install-components

constraints: $(VENV)/.ready ## Write the newest version of every dependency, with hashes, to constraints*.txt
	@$(BIN)/python tools/constraints.py write

constraints-check: $(VENV)/.ready ## Compare constraints*.txt with the package index, for each Python and for arm64
	@$(BIN)/python tools/constraints.py check

$(VENV)/.ready: pyproject.toml constraints.txt
	@echo "Setting up $(VENV), once: some 60 packages with their hashes, half a minute or so"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Colocate needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Say which one to use: make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv $(VENV)
	@{ $(BIN)/python -m pip install $(QUIET_PIP) --require-hashes --requirement constraints.txt && \
	  $(BIN)/python -m pip install $(QUIET_PIP) --no-deps --no-index --no-build-isolation --editable .; } \
	  > $(VENV)/setup.log 2>&1 & pid=$$!; \
	  while kill -0 $$pid 2>/dev/null; do sleep 2; printf '.'; done; printf '\n'; \
	  wait $$pid || { tail -n 20 $(VENV)/setup.log; echo "pip could not install Colocate; see above, and $(VENV)/setup.log"; exit 1; }
	@touch $@

clean: ## Remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage
