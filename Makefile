# `make help` lists what there is. Every target sets up what it needs in .venv; nothing else is touched.
.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= auto
PYTEST_ARGS ?=
TOPO ?= dgx1.json
CUDA ?= cuda
# pytest ends in 5 where no test bears the mark.
NONE_IS_FINE := [ $$? -eq 5 ]
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: help
help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: allreduce
allreduce: $(VENV)/.main ## Make allreduce files for a DGX-1 in out/ (TOPO=... for another machine)
	$(BIN)/synth allreduce --topo $(TOPO) -o out/

.PHONY: test
test: $(VENV)/.test lint ## Lint, check types, and run the tests that take seconds
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS)

.PHONY: lint
lint: $(VENV)/.test ## ruff check, ruff format --check, mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.PHONY: test-slow
test-slow: $(VENV)/.test ## Run the tests that take minutes
	$(BIN)/python -m pytest -n $(JOBS) -m "slow and not gpu" $(PYTEST_ARGS) || $(NONE_IS_FINE)

.PHONY: gpu
gpu: $(VENV)/.gpu ## Run the tests that need an NVIDIA GPU (installs torch and NVIDIA's bindings; CUDA=cuda12 for older drivers)
	$(BIN)/python -m pytest -n 0 -m gpu $(PYTEST_ARGS) || $(NONE_IS_FINE)

# Where the nightly job keeps its history and its reports; `make clean` leaves it alone if it is elsewhere.
NIGHTLY ?= out/nightly
SUITE ?= nightly

.PHONY: nightly
nightly: $(VENV)/.main ## Run the nightly suite, compare it with the night before, and write the report (SUITE=quick for a look)
	@mkdir -p $(NIGHTLY)
	$(BIN)/synth bench run --suite $(SUITE) --store $(NIGHTLY)/history.sqlite --report $(NIGHTLY)/report.html \
		--markdown $(NIGHTLY)/report.md --junit $(NIGHTLY)/junit.xml

.PHONY: clean
clean: ## Remove .venv, out/ and all caches
	rm -rf $(VENV) out build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: what is installed follows pyproject.toml and constraints.txt.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "synth needs Python 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.main: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable .
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[test]'
	@touch $@ $(VENV)/.main

$(VENV)/.run: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[run,test]'
	@touch $@ $(VENV)/.test $(VENV)/.main

$(VENV)/.gpu: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[run,$(CUDA),test]'
	@touch $@ $(VENV)/.run $(VENV)/.test $(VENV)/.main
