# kvbaton: every target sets up what it needs; see `make help`.  Nothing asks for input.

HERE := $(dir $(abspath $(lastword $(MAKEFILE_LIST))))

ifeq ($(wildcard constraints.txt),)
# Called from another folder with `make -f`: do the same from the project's own.
.DEFAULT_GOAL := help
%:
	@$(MAKE) --no-print-directory -C "$(HERE)" $@
else

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help relay test test-low test-long test-browser attacks lint format bench docs wheel changelog model clean

FIND_PYTHON := for p in python3.11 python3.12 python3.13 python3; do \
  if $$p -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
  then echo $$p; break; fi; done
PYTHON ?= $(or $(shell $(FIND_PYTHON)),$(error Python 3.11 or newer with venv is needed: make PYTHON=...))
MODEL ?= smollm2-135m
BIN := .venv/bin
SAY = @printf '\n==> %s\n' "$(1)"

export HF_HUB_OFFLINE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile | expand -t 12

relay: model ## agents hand each other their KV caches on a real model, against text
	$(call SAY,relay: by baton and by text)
	@$(BIN)/kvbaton relay --compare --model $(MODEL)

test: model test-low ## all quick tests, the engine also on the oldest supported transformers
	$(call SAY,tests)
	@$(BIN)/python -m pytest

test-low: .venv-low/.stamp ## the engine on the oldest supported transformers
	$(call SAY,tests of the engine with the oldest supported transformers)
	@.venv-low/bin/python -m pytest -p no:cacheprovider tests/engines tests/alignment \
	  tests/probes tests/test_rope.py tests/relay/test_slices.py

test-long: model ## the tests that take minutes, too
	$(call SAY,long tests)
	@$(BIN)/python -m pytest -m long

test-browser: .venv/.stamp ## the report of an audit in a real browser
	$(call SAY,the report of an audit in a browser)
	@bash .ci/browser

attacks: .venv/.stamp ## attacks on batons as programs: what was tried, what came of it
	$(call SAY,attacks)
	@$(BIN)/python -m attacks

lint: .venv/.stamp ## style, types, import direction
	$(call SAY,lint)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: .venv/.stamp ## rewrite the sources in the project's style
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

bench: model ## time to first token and stores, as ratios
	$(call SAY,benchmarks: minutes; close other programs)
	@$(BIN)/kvbaton bench ttft --model $(MODEL)
	@$(BIN)/kvbaton bench stores

docs: .venv/.stamp ## build the documentation into site/
	$(call SAY,docs)
	@$(BIN)/mkdocs build --strict --quiet || { $(BIN)/mkdocs build --strict; exit 1; }
	@echo "site/index.html"

wheel: .venv/.stamp ## build the wheel into dist/
	$(call SAY,wheel)
	@rm -rf dist
	@$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	@ls dist

changelog: .venv/.stamp ## gather changes/*.md into CHANGELOG.md (for a release)
	@$(BIN)/towncrier build --yes

model: .venv/.stamp ## fetch the built-in model MODEL (smollm2-135m: 93 MB) unless it is here
	$(call SAY,model $(MODEL))
	@$(BIN)/kvbaton models pull $(MODEL)

clean: ## remove environments, builds and caches (pulled models stay)
	@rm -rf .venv .venv-low build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@rm -rf .import_linter_cache
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.stamp: pyproject.toml constraints.txt
	$(call SAY,environment .venv with $(PYTHON): some minutes the first time)
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,docs,plot]'
	@touch $@

.venv-low/.stamp: pyproject.toml constraints-low.txt
	$(call SAY,environment .venv-low with the oldest supported transformers)
	@test -x .venv-low/bin/python || $(PYTHON) -m venv .venv-low
	@.venv-low/bin/python -m pip install --quiet -c constraints-low.txt -e '.[test]'
	@touch $@

endif
