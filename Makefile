# One target per habit. Set-up happens by itself, once: .venv is rebuilt only when its dependencies change.

PYTHON ?= python3
WORKERS ?= 2
TORCH ?= 2.13.0
AREA ?=

VENV := .venv
BIN := $(VENV)/bin
PEERS := build/peers
AUDIT := build/audit
S3 := build/s3
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(VENV)/constraints.txt

# A room is its tests and the doctests of its code: AREA=engine, AREA=studies/where_to_drop. All rooms together have a
# floor of coverage (pyproject.toml, tool.coverage), one room alone has none.
ROOM := $(if $(AREA),tests/$(AREA) $(wildcard src/dropscope/$(AREA)))
COVERAGE := $(if $(AREA),,--cov --cov-report=term:skip-covered)

.DEFAULT_GOAL := help
.PHONY: help demo test check docs bench soak audit clean

help:  ## Show the targets
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 14

demo: $(VENV)/.core  ## Set up what is needed and run the demonstration
	@$(BIN)/dropscope demo

test: $(VENV)/.everything $(S3)/.installed  ## Set up everything and run the tests; AREA=engine runs one room
	@$(BIN)/python -m pytest -n $(WORKERS) $(ROOM) $(COVERAGE)

check: $(VENV)/.everything  ## Lint, format, types, direction of imports, spelling, links between documents
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/codespell
	@$(BIN)/python -m pytest -n 0 --durations 0 tests/docs/test_links.py

docs: $(VENV)/.everything  ## Build the documentation into build/site; any warning is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/.everything $(PEERS)/.installed  ## Run the benchmarks that need no GPU (long)
	@$(BIN)/python benchmarks/noise_quality.py
	@$(BIN)/python benchmarks/cpu_peers.py --peers $(PEERS)

soak: $(VENV)/.everything  ## Hardships, ten minutes of the same work, 100,000 fuzzed inputs (long)
	@$(BIN)/python benchmarks/soak.py
	@$(BIN)/python benchmarks/fuzz.py

audit: $(AUDIT)/.installed  ## Ask a database of known vulnerabilities about every pinned version (needs pypi.org)
	@$(AUDIT)/bin/pip-audit --no-deps --disable-pip --requirement constraints.txt

clean:  ## Remove everything that make made, .venv too
	@rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@rm -f .coverage .coverage.*
	@find src tests benchmarks examples docs -name __pycache__ -type d -prune -exec rm -rf {} +

# torch goes first and alone: whatever is installed after it takes it as it is. TORCH=2.11.0 tries another version.
$(VENV)/.core: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("Dropscope needs Python 3.10 or newer; this is " + sys.version.split()[0] + ". Write: make PYTHON=/path/to/python3")'
	@test -x $(BIN)/pip || { echo "Making the virtual environment $(VENV) (the first set-up takes some minutes)"; $(PYTHON) -m venv --clear $(VENV); }
	@sed 's/^torch==.*/torch==$(TORCH)/' constraints.txt > $(VENV)/constraints.txt
	@echo "Installing torch $(TORCH)"
	@$(INSTALL) torch==$(TORCH)
	@echo "Installing Dropscope and its core dependencies"
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/.everything: $(VENV)/.core
	@echo "Installing the extras: text, medical, export, cluster, test, check, docs"
	@$(INSTALL) --editable '.[text,medical,export,cluster,test,check,docs]'
	@touch $@

# Other libraries, for the benchmarks alone: in a folder of their own, so that the environment stays as it is.
$(PEERS)/.installed: benchmarks/peers.txt $(VENV)/.core
	@echo "Installing the libraries to measure against"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(PEERS) -r benchmarks/peers.txt
	@touch $@

# Audited from an environment of its own: what it needs is no dependency of Dropscope.
$(AUDIT)/.installed:
	@$(PYTHON) -m venv $(AUDIT)
	@$(AUDIT)/bin/pip install --quiet --disable-pip-version-check pip-audit
	@touch $@

# A local S3 server and its client, for tests that run them in processes of their own: they need an older
# python-dateutil than everything else.
$(S3)/.installed: tests/s3.txt $(VENV)/.core
	@echo "Installing a local S3 server for the tests"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --target $(S3) -r tests/s3.txt
	@touch $@
