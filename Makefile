# Thin targets: each is what CI and a person run alike. `make` alone lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Outside the clone, so that a fresh clone finds the compiled dependencies of the last one.
CARGO_TARGET_DIR ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/inflight/target
export CARGO_TARGET_DIR

RUST_SOURCES := Cargo.toml Cargo.lock $(shell find crates proto -name '*.rs' -o -name '*.toml' -o -name '*.proto')

.PHONY: help install serve test test-rust test-python lint format bench gateway clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

install: $(VENV)/.installed ## Create .venv with the package (release build) and what the tests need

$(VENV)/.created: pyproject.toml
	PYTHON=$(PYTHON) tools/install-system-packages
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet $$($(BIN)/python tools/list_requirements.py)
	touch $@

$(VENV)/.installed: $(VENV)/.created $(RUST_SOURCES)
	$(BIN)/maturin develop --release --locked
	touch $@

# Only the tests of model repositories need a real Triton; who serves is spared the download.
$(VENV)/.triton: tools/install-triton $(VENV)/.created | $(VENV)/.installed
	PYTHON=$(PYTHON) tools/install-system-packages triton
	tools/install-triton $(VENV)
	touch $@

serve: install ## Serve the embedded model on http://localhost:8000
	$(BIN)/inflight serve

test: test-rust test-python ## Run every test

test-rust:
	cargo test --workspace --exclude inflight-python --locked --quiet

test-python: install $(VENV)/.triton
	$(BIN)/pytest

lint: install ## Formatting, clippy, ruff, mypy
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: install ## Rewrite the sources as the linters want them
	cargo fmt --all
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: install ## Measure the gateway, the worker and the floor (about ten minutes)
	$(BIN)/inflight bench suite

gateway: ## Build the standalone gateway binary
	cargo build --release --locked -p inflight-gateway
	@echo $(CARGO_TARGET_DIR)/release/inflight-gateway

clean: ## Remove the virtual environment and caches of this clone
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
