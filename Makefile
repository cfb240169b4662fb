# `make demo` and `make test` are all a fresh machine needs: python3.11 with venv, and pip.

VENV := .venv
BIN := $(VENV)/bin
# Modules are compiled when they are first imported, not all at once.
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet --no-compile --constraint constraints.txt
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev

.PHONY: help demo test nightly setup lint format clean

help:
	@echo "make demo    set up .venv if needed and run 'spotkit demo'"
	@echo "make test    set up .venv if needed and run the tests"
	@echo "make nightly the tests with many more examples, for hours"
	@echo "make lint    ruff and mypy"
	@echo "make format  let ruff rewrite the sources"
	@echo "make clean   remove .venv and everything that was built"

demo: setup
	$(BIN)/spotkit demo

test: setup
	$(BIN)/pytest

nightly: setup
	SPOTKIT_TEST_PROFILE=nightly $(BIN)/pytest

setup: $(INSTALLED)

lint: $(INSTALLED_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED_DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	@for python in python3.11 python3; do \
	    if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        echo "Creating $(VENV) with $$($$python --version)"; \
	        exec $$python -m venv $(VENV); \
	    fi; \
	done; \
	echo "spotkit needs Python 3.11 or newer: neither python3.11 nor python3 is one." >&2; \
	echo "Install it (on Debian or Ubuntu: python3.11 and python3.11-venv) and run make again." >&2; \
	exit 1

$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing spotkit and what it needs into $(VENV); the first time takes minutes"
	@rm -rf spotkit.egg-info
	$(PIP) --editable '.[cli,test,train]'
	@touch $@

$(INSTALLED_DEV): $(INSTALLED)
	$(PIP) --editable '.[dev]'
	@touch $@
