# `make help` lists what there is. Only Python 3.11+ and make are needed to begin with.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.made
BROWSER := $(VENV)/.browser
TESTS ?= tests
RUNS ?= 500
DURATION ?= 150

.DEFAULT_GOAL := help
.PHONY: help demo screenshots test chaos check lint types imports format bench docs constraints clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sort | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(STAMP) ## run the demo shop: PostgreSQL, workers, a dispatcher, orders
	$(BIN)/python -m demo

screenshots: $(STAMP) $(BROWSER) ## renew the guide's pictures, taken of the demo (three minutes)
	PYTHONPATH=tests $(BIN)/python -m demo.screenshots docs/images

# The browser's tests run by themselves: whoever drives one keeps an event loop running in its thread.
test: $(STAMP) $(BROWSER) ## run all tests, on the embedded PostgreSQL and on the installed one
ifeq ($(TESTS),tests)
	$(BIN)/python -m pytest -n 2 --dist worksteal tests --ignore tests/e2e
	$(BIN)/python -m pytest -n 2 --dist worksteal tests/e2e
	$(BIN)/python -m pytest demo/tests
else
	$(BIN)/python -m pytest -n 2 --dist worksteal $(TESTS)
endif
ifeq ($(TESTS)$(PGBUS_TEST_POSTGRES)$(PGBUS_TEST_DATABASE_URL),tests)
	$(BIN)/python -m pytest -n 2 --dist worksteal --postgres=path tests/engine tests/race
endif

chaos: $(STAMP) ## a long storm of kills, freezes and restarts (RUNS=500 DURATION=150 SEED=...), and the model
	PGBUS_TEST_CHAOS_RUNS=$(RUNS) PGBUS_TEST_CHAOS_SECONDS=$(DURATION) PGBUS_TEST_CHAOS_SEED=$(SEED) \
	    $(BIN)/python -m pytest -s tests/chaos
	PGBUS_TEST_MODEL_ROUNDS=250 $(BIN)/python -m pytest -n 2 tests/model

check: lint types imports test ## everything CI runs

lint: $(STAMP) ## ruff: style, and the format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## mypy, strict
	$(BIN)/mypy

imports: $(STAMP) ## the import contract: which layer may use which
	$(BIN)/lint-imports

format: $(STAMP) ## format the code and mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## measure speed and memory, each figure beside its reference (minutes)
	$(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[bench]'
	$(BIN)/python -m bench

docs: $(STAMP) ## build the documents as a site, into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

constraints: $(STAMP) ## renew constraints.txt, the versions that CI installs
	$(BIN)/uv pip compile --quiet --upgrade --universal --all-extras --no-emit-index-url \
	    --no-emit-package pgbus --no-header --no-annotate pyproject.toml -o constraints.txt

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# Without a browser its tests are skipped; the next `make test` looks for one again.
$(BROWSER): $(STAMP)
	PYTHONPATH=tests $(BIN)/python -m support.browser && touch $@ || true

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[dev]'
	touch $(STAMP)
