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
test: setup ## All tests but the long ones and those of the cluster
	@$(PY) -m pytest -m "not long and not cluster" $(ARGS)

test-unit: setup ## Tests without engine or trainer (seconds)
	@$(PY) -m pytest -m "not long and not slow and not cluster" $(ARGS)

test-long: setup ## Tests longer than a minute
	@$(PY) -m pytest -m "long and not cluster" $(ARGS)

test-agent: setup ## Tests of the Go programs, and their generated code is up to date (needs Go)
	@fresh=$$(mktemp -d) && PATH=$(CURDIR)/.venv/bin:$$PATH tools/generate_go.sh $$fresh && \
	  diff -r $$fresh services/sandbox-scheduler/agent/gen && rm -rf $$fresh
	@cd services/sandbox-scheduler/agent && go vet ./... && go test ./...
	@cd services/sandbox-scheduler/egress-proxy && go vet ./... && go test ./...

check: setup ## Format, lint, types, import contracts, protos up to date
	@.venv/bin/ruff format --check .
	@.venv/bin/ruff check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports
	@.venv/bin/buf lint proto
	@PATH=$(CURDIR)/.venv/bin:$$PATH tools/check_generated.sh
	@$(PY) tools/check_tree.py

##@ Images
images: ## Build all images with docker, podman or buildah (ARGS="NAMES... --registry R --push": docs/images.md)
	@tools/images build $(ARGS)

##@ Cluster (root, Go; a real one-node Kubernetes on this machine)
CLUSTER := tests/cluster/cluster
cluster-up: ## Bring the cluster up with the tests' images (the first time builds it: about 15 minutes)
	@$(CLUSTER) up && $(CLUSTER) images

cluster-images: ## Images of a release into the running cluster (the first time builds them: about 10 minutes)
	@$(CLUSTER) release-images

cluster-down: ## Stop it; leaves nothing behind
	@$(CLUSTER) down && $(CLUSTER) check-clean

test-cluster: setup cluster-up ## The tests that need the cluster
	@eval "$$($(CLUSTER) env)" && $(PY) -m pytest -m "cluster and not release" $(ARGS)

test-cluster-smoke: setup cluster-up ## A few of them: what CI runs
	@eval "$$($(CLUSTER) env)" && $(PY) -m pytest -m "cluster and smoke" $(ARGS)

test-cluster-e2e: setup cluster-up cluster-images ## The chart installed, the main job run on it, upgraded and removed (images first: several minutes)
	@eval "$$($(CLUSTER) env)" && $(PY) -m pytest -m release -x $(ARGS) tests/release

test-dashboards: setup ## The quick demo scraped by a real Prometheus; every question of every dashboard and alert asked
	@$(CLUSTER) prometheus && eval "$$($(CLUSTER) env)" && $(PY) tests/dashboards/home.py $(ARGS)

bench-sandbox: setup cluster-up ## Sandboxes against what they replace, on the cluster
	@eval "$$($(CLUSTER) env)" && $(PY) bench/sandbox.py

bench-sandbox-scale: setup cluster-up ## 5,000 simulated pods through the real API server
	@$(CLUSTER) kwok 10
	@eval "$$($(CLUSTER) env)" && $(PY) bench/sandbox_scale.py

##@ Tidy
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

.PHONY: help setup demo test test-unit test-long test-agent images cluster-up cluster-images cluster-down test-cluster test-cluster-smoke test-cluster-e2e test-dashboards bench-sandbox bench-sandbox-scale check format proto pins clean
