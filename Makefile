# Longshore. `make help` lists the targets.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PY := .venv/bin/python
# Without cached bytecode every process compiles torch and vLLM again.
unexport PYTHONDONTWRITEBYTECODE
SEED ?= 1
HOME_DIR ?= runs/demo
ARGS ?=

##@ Use
help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Make .venv with all pinned packages (checks the system first)
	@tools/setup.sh

demo: setup ## Run the main job on this machine: tasks, warm start, GRPO, paired evaluation, report (SEED=1, ARGS=...)
	@.venv/bin/longshore demo --home $(HOME_DIR) --seed $(SEED) $(ARGS)

##@ Develop
test: setup ## All tests but the long ones
	@$(PY) -m pytest -m "not long" $(ARGS)

test-unit: setup ## Tests without engine or trainer (seconds)
	@$(PY) -m pytest -m "not long and not slow" $(ARGS)

test-long: setup ## Tests longer than a minute
	@$(PY) -m pytest -m long $(ARGS)

check: setup ## Format, lint, types, import contracts, protos up to date
	@.venv/bin/ruff format --check .
	@.venv/bin/ruff check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports
	@.venv/bin/buf lint proto
	@PATH=$(CURDIR)/.venv/bin:$$PATH tools/check_generated.sh
	@$(PY) tools/check_tree.py

format: setup ## Format and fix what can be fixed
	@.venv/bin/ruff format .
	@.venv/bin/ruff check --fix .

proto: setup ## Regenerate gen/python from proto/
	@PATH=$(CURDIR)/.venv/bin:$$PATH tools/generate_protos.sh

pins: ## Recompile requirements/*.txt
	@requirements/compile.sh

clean: ## Remove caches and local runs; keeps .venv
	rm -rf runs bench/out .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .state
	find . -name __pycache__ -type d -not -path './.venv/*' -exec rm -rf {} +

.PHONY: help setup demo test test-unit test-long check format proto pins clean
