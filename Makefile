# One target per habit. Set-up happens by itself, once: .venv is rebuilt only when its dependencies change.

PYTHON ?= python3
WORKERS ?= 2

VENV := .venv
BIN := $(VENV)/bin
PEERS := build/peers
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test check bench clean

help:  ## Show the targets
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 14

demo: $(VENV)/.core  ## Set up what is needed and run the demonstration
	@$(BIN)/dropscope demo

test: $(VENV)/.everything  ## Set up everything and run the tests
	@$(BIN)/python -m pytest -n $(WORKERS)

check: $(VENV)/.everything  ## Lint, format, types, direction of imports
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: $(VENV)/.everything $(PEERS)/.installed  ## Run the benchmarks that need no GPU (long)
	@$(BIN)/python benchmarks/noise_quality.py
	@$(BIN)/python benchmarks/cpu_peers.py --peers $(PEERS)

clean:  ## Remove everything that make made, .venv too
	@rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

# torch goes first and alone: whatever is installed after it takes it as it is.
$(VENV)/.core: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("Dropscope needs Python 3.10 or newer; this is " + sys.version.split()[0] + ". Write: make PYTHON=/path/to/python3")'
	@test -x $(BIN)/pip || { echo "Making the virtual environment $(VENV) (the first set-up takes some minutes)"; $(PYTHON) -m venv --clear $(VENV); }
	@echo "Installing torch"
	@$(INSTALL) torch==2.13.0
	@echo "Installing Dropscope and its core dependencies"
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/.everything: $(VENV)/.core
	@echo "Installing the extras: text, medical, training, test, check"
	@$(INSTALL) --editable '.[text,medical,training,test,check]'
	@touch $@

# Other libraries, for the benchmarks alone: in a folder of their own, so that the environment stays as it is.
$(PEERS)/.installed: benchmarks/peers.txt $(VENV)/.core
	@echo "Installing the libraries to measure against"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(PEERS) -r benchmarks/peers.txt
	@touch $@
