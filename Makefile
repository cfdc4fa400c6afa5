# Two commands do everything for a newcomer: `make demo` and `make test`.
# Both set up what they need in .venv; nothing is installed elsewhere, except the real components that
# tests run against (tools/install-components), and those only as root on Debian or Ubuntu.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
ARGS   ?=
TOPOLOGY ?= mini
QUIET_PIP := --disable-pip-version-check --progress-bar off

# In processes of their own: gRPC's asyncio side, when it is collected late, can hang whoever runs then.
NO_GRPC := tests/cluster tests/lab_api tests/lab_scheduler

# Decisions without I/O, whose tests need nothing but Python; cpus and gpus once they are there.
PURE := $(wildcard $(addprefix tests/,model devices memory load cpus gpus))

.PHONY: help demo test clean-room check lint format pytest coverage test-cluster test-vm vm-shell bench docs proto components constraints constraints-check clean

demo: $(VENV)/.ready ## See it work on this machine; ARGS=--once tells the story, checks it and exits
	@$(BIN)/colocate demo $(ARGS)

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Each of them runs, whatever becomes of the others; the last lines say how they went.
test: $(VENV)/.ready components ## Everything: lint, types, contracts, every test, tests in VMs
	@MAKE="$(MAKE)" $(BIN)/python -m tests.suites lint pytest test-vm

# As on a machine that never ran Colocate (CONTRIBUTING.md). ARGS is a command of its own, not a setting of that one.
clean-room: $(VENV)/.ready components ## `make test`, or ARGS="make check", as on a fresh machine; fails if it leaves anything
	@env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL -u ARGS PYTHON="$(PYTHON)" VENV="$(VENV)" $(BIN)/python -m tests.room $(or $(ARGS),$(MAKE) test)

check: lint ## The loop for a change: lint, types, contracts and the tests of the pure rooms
	@$(BIN)/pytest -q -n auto --dist worksteal $(PURE)

lint: $(VENV)/.ready ## Lint, formatting, types and import contracts
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: $(VENV)/.ready ## Format the code, and mend what the linter can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

pytest: $(VENV)/.ready ## Tests on this machine; ARGS="tests/kubelet -k restart" runs some
	@failed=0; \
	  $(BIN)/pytest -n auto --dist worksteal $(or $(ARGS),tests $(addprefix --ignore=,$(NO_GRPC))) || failed=$$?; \
	  $(if $(ARGS),,$(BIN)/pytest -n auto --dist worksteal $(NO_GRPC) || failed=$$?;) \
	  exit $$failed

coverage: $(VENV)/.ready ## Lines and branches of the pure rooms that their tests run; there is no bar
	@$(BIN)/coverage run -m pytest -q $(PURE)
	@$(BIN)/coverage report

# The tests that make sense on any cluster; without COLOCATE_KUBECONFIG on an embedded one.
test-cluster: $(VENV)/.ready ## Tests that make sense on any cluster: on COLOCATE_KUBECONFIG, or an embedded one
	@$(BIN)/pytest tests/on_cluster $(ARGS)

# The tests that need a kernel or hardware that this machine lacks, in throw-away VMs: docs/vm-tests.md.
test-vm: $(VENV)/.ready components ## Tests in throw-away VMs (docs/vm-tests.md)
	@$(BIN)/pytest --vm $(or $(ARGS),tests)

# A shell in such a VM; TOPOLOGY is mini, small, epyc or epyc-smt.
vm-shell: $(VENV)/.ready components ## A shell in such a VM; TOPOLOGY is mini, small, epyc or epyc-smt
	@$(BIN)/python -m tests.vm.shell $(TOPOLOGY)

bench: $(VENV)/.ready ## Measure ratios, and fail where one is beyond its threshold
	@$(BIN)/python -m bench $(ARGS)

docs: $(VENV)/.ready ## Write the references in docs/sdk.md and docs/testing.md from docstrings
	@$(BIN)/python tools/sdk_reference.py

proto: $(VENV)/.ready ## Generate code from the .proto files
	@$(BIN)/python tools/generate_wire.py

components: ## Install the real components that tests run against (root, Debian or Ubuntu)
	@tools/install-components

# The version and the hashes of all that is installed: written by the one, held against the package index by the other.
constraints: $(VENV)/.ready ## Write the newest version of all that is installed, with hashes, into constraints*.txt
	@$(BIN)/python tools/constraints.py write

constraints-check: $(VENV)/.ready ## Compare them with the package index, for each Python and for arm64
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
