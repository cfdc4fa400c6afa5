# Two commands do everything for a newcomer: `make demo` and `make test`.
# Both set up what they need in .venv; nothing is installed elsewhere, except the real components that
# tests run against (tools/install-components), and those only as root on Debian or Ubuntu.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
ARGS   ?=
TOPOLOGY ?= mini

# In processes of their own: gRPC's asyncio side, when it is collected late, can hang whoever runs then.
NO_GRPC := tests/cluster tests/lab_api tests/lab_scheduler

.PHONY: demo test lint pytest test-cluster test-vm vm-shell bench proto components constraints constraints-check clean

demo: $(VENV)/.ready
	@$(BIN)/colocate demo $(ARGS)

test: lint components pytest test-vm

lint: $(VENV)/.ready
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

pytest: $(VENV)/.ready
	@$(BIN)/pytest -n auto --dist worksteal $(or $(ARGS),tests $(addprefix --ignore=,$(NO_GRPC)))
	@$(if $(ARGS),,$(BIN)/pytest -n auto --dist worksteal $(NO_GRPC))

# The tests that make sense on any cluster; without COLOCATE_KUBECONFIG on an embedded one.
test-cluster: $(VENV)/.ready
	@$(BIN)/pytest tests/on_cluster $(ARGS)

# The tests that need a kernel or hardware that this machine lacks, in throw-away VMs: docs/vm-tests.md.
test-vm: $(VENV)/.ready components
	@$(BIN)/pytest --vm $(or $(ARGS),tests)

# A shell in such a VM; TOPOLOGY is mini, small, epyc or epyc-smt.
vm-shell: $(VENV)/.ready components
	@$(BIN)/python -m tests.vm.shell $(TOPOLOGY)

bench: $(VENV)/.ready
	@$(BIN)/python -m bench $(ARGS)

proto: $(VENV)/.ready
	@$(BIN)/python tools/generate_wire.py

components:
	@tools/install-components

# Upper bounds of all that is installed: written anew by the one, held against the package index by the other.
constraints: $(VENV)/.ready
	@$(BIN)/python tools/constraints.py write

constraints-check: $(VENV)/.ready
	@$(BIN)/python tools/constraints.py check

$(VENV)/.ready: pyproject.toml constraints.txt
	@echo "setting up $(VENV) (once)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Colocate needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Say which one to use: make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
