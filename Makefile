# Two commands are enough on a fresh machine: `make run` and `make test`. `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := .demo/smollm2
STAMP := $(VENV)/.installed
UV := $(BIN)/uv
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: help setup run test parity check format bench lock clean

help: ## list the commands
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 20

setup: $(STAMP) $(DEMO)/config.json ## environment and demo model; does nothing when they are there

$(STAMP): requirements/dev.lock requirements/bootstrap.lock requirements/demo.lock node/pyproject.toml operator/pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/bootstrap.lock
	$(UV) pip install --quiet --require-hashes -r requirements/dev.lock
	$(UV) pip install --quiet --no-deps --require-hashes -r requirements/demo.lock
	$(UV) pip install --quiet --no-deps --no-build-isolation -e node -e operator
	touch $@

$(DEMO)/config.json: | $(STAMP)
	$(BIN)/python -m meshnet_node.model.demo $(DEMO)

run: setup ## serve the demo model from two shards on this machine
	$(BIN)/meshnet up --shards 2

test: setup control-plane ## the tests: the node's, then the operator's and the chart's against a real API server
	$(BIN)/python -m pytest -m "not parity" --ignore tests/operator --ignore tests/chart --ignore tests/cluster
	$(BIN)/python -m pytest -m "not parity" tests/operator tests/chart

parity: setup ## all of the equality runs, also the long ones
	$(BIN)/python -m pytest --timeout 3600 tests/parity tests/recovery

check: setup ## formatter, linter, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy node/meshnet_node operator/meshnet_operator hack
	$(BIN)/lint-imports

format: setup ## let the formatter and the linter mend what they can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup ## all benches of `meshnet bench`, as text
	for what in decode concurrency prefill recovery memory; do $(BIN)/meshnet bench $$what || exit 1; done

COMPILE := $(UV) pip compile --quiet --generate-hashes --universal --python-version 3.11 --no-header --no-annotate
# torch comes with the node image's base or from an index of its own (Dockerfile.node): its wheels here are CUDA's, 4.7 GB.
CUDA = $(shell grep -oE '^(torch|triton|nvidia-[a-z0-9-]+|cuda-[a-z-]+)=' requirements/dev.lock | sed 's/=//; s/^/--no-emit-package /')
lock: $(STAMP) ## write the lock files anew from requirements/*.in
	$(COMPILE) --upgrade requirements/dev.in -o requirements/dev.lock
	$(COMPILE) --upgrade requirements/bootstrap.in -o requirements/bootstrap.lock
	$(COMPILE) --upgrade --no-deps requirements/demo.in -o requirements/demo.lock
	$(COMPILE) operator/pyproject.toml -c requirements/dev.lock -o requirements/operator.lock
	$(COMPILE) node/pyproject.toml --extra shard -c requirements/dev.lock $(CUDA) -o requirements/node.lock

clean: ## remove environment, demo model and caches of this checkout
	rm -rf $(VENV) .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis

-include hack/*.mk
