# Thin targets: each is what CI and a person run alike. `make` alone lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 8000

# Outside the clone, so that a fresh clone finds the compiled dependencies of the last one.
CARGO_TARGET_DIR ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/inflight/target
export CARGO_TARGET_DIR

RUST_SOURCES := Cargo.toml Cargo.lock $(shell find crates proto -name '*.rs' -o -name '*.toml' -o -name '*.proto')

# What `make check` runs of Python: the command line, its processes and the reference executor, in seconds.
# The other folders start servers for real clients, build models or need a Triton server.
FAST_TESTS := tests/python tests/reference

# Each file's tests in one process, because they share servers. Not more processes than this: each starts
# servers and models of its own.
SIDE_BY_SIDE := --numprocesses auto --maxprocesses 4 --dist loadfile

# Static binaries link musl.
MUSL := $(shell uname -m)-unknown-linux-musl

.PHONY: help install serve check test test-rust test-python soak simulate planted sanitize mutants lint deny format bench templates frameworks fuzz wheel check-wheel check-containers gateway gateway-static clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

install: $(VENV)/.installed $(VENV)/.tools ## Create .venv with the package and what the tests need

$(VENV)/.created: pyproject.toml
	tools/require-rust
	PYTHON=$(PYTHON) tools/install-system-packages
	@echo "==> creating $(VENV)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --group build
	touch $@

# `make serve` does not need these.
$(VENV)/.tools: $(VENV)/.created
	@echo "==> installing what tests and linters need"
	$(BIN)/pip install --quiet --group test
	touch $@

# Daily work has the profile of the tests (`dev`), so that the two share every compiled dependency and a
# change is running within a minute. What is measured or given away has the profile `release`. The two
# build the same file, so each forgets the other.
$(VENV)/.installed: $(VENV)/.created $(RUST_SOURCES)
	@echo "==> compiling the Rust core: minutes the first time, then seconds"
	$(BIN)/maturin develop --locked
	rm -f $(VENV)/.installed-release
	touch $@

$(VENV)/.installed-release: $(VENV)/.created $(RUST_SOURCES)
	@echo "==> compiling the Rust core for speed: some minutes, the last one silent"
	$(BIN)/maturin develop --locked --release
	rm -f $(VENV)/.installed
	touch $@

# Only the tests of model repositories need a real Triton; who serves is spared the download.
$(VENV)/.triton: tools/install-triton $(VENV)/.created | $(VENV)/.installed
	PYTHON=$(PYTHON) tools/install-system-packages triton
	tools/install-triton $(VENV)
	touch $@

serve: $(VENV)/.installed ## Serve the embedded model on http://localhost:8000 (another port: PORT=9000)
	$(BIN)/inflight serve --port $(PORT)

check: install ## What to run before a commit: the linters and the fast tests (a minute or two)
	cargo fmt --all --check
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
	cargo test --workspace --exclude inflight-python --locked --quiet --lib
	$(BIN)/pytest --quiet $(SIDE_BY_SIDE) $(FAST_TESTS)

test: test-rust test-python ## Run every test

test-rust:
	PYTHON=$(PYTHON) tools/install-system-packages etcd
	cargo test --workspace --exclude inflight-python --locked --quiet
	cargo test --manifest-path interleavings/Cargo.toml --target-dir $(CARGO_TARGET_DIR)/interleavings --locked --quiet

test-python: install $(VENV)/.triton
	PYTHON=$(PYTHON) tools/install-system-packages mpi
	PYTHON=$(PYTHON) tools/install-system-packages browser
	PYTHON=$(PYTHON) tools/install-system-packages prometheus
	PYTHON=$(PYTHON) tools/install-system-packages database
	PYTHON=$(PYTHON) tools/install-system-packages etcd
	$(BIN)/pytest $(SIDE_BY_SIDE)
	$(BIN)/python tools/with_stores.py $(STORE_TESTS)

# Those that need servers; without them they pass and test nothing.
STORE_TESTS := cargo test --workspace --exclude inflight-python --locked --quiet --lib --test real -- store::tests objects

# SOAK holds names of scenarios and options: `make soak SOAK="kills --seed 7"`.
soak: install ## Kill, cut, flood and overload real servers, and say what was lost (minutes; SOAK="kills --seed 7")
	PYTHONPATH=tests $(BIN)/python -m reliability $(SOAK)

# A failure prints the line that repeats it. SIMULATE holds options: `make simulate SIMULATE="--seeds 100"`.
simulate: ## Simulate a gateway, workers and faults, seed after seed, until interrupted (SEED=7 repeats one)
	cargo run --quiet --locked --package inflight-simulated-fleet -- $(if $(SEED),--seed $(SEED)) $(SIMULATE)

# PLANTED holds numbers and options: `make planted PLANTED="3 17 --seconds 600"`.
planted: ## Plant the bugs of tests/planted one after another, and see which the simulated fleets find
	tools/planted_bugs.py $(PLANTED)

# SANITIZE holds crates and options: `make sanitize SANITIZE="upstream --with thread"`.
sanitize: ## Run the pieces where threads meet under Miri or ThreadSanitizer, on nightly Rust
	tools/sanitize.py $(SANITIZE)

# MUTANTS holds areas and options: `make mutants MUTANTS="scheduler"`, `make mutants MUTANTS="--changed main"`.
mutants: install ## Change the code one expression at a time, and list what no test notices (hours; MUTANTS="parsers")
	$(BIN)/pip install --quiet --group mutants
	$(BIN)/python tools/mutants.py $(MUTANTS)

lint: install deny ## Formatting, clippy, rustdoc, dependencies, ruff, mypy, import layers
	cargo fmt --all --check
	cargo fmt --manifest-path interleavings/Cargo.toml --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items --locked --quiet
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# No registry has a current cargo-deny ready to run, and compiling it takes longer than everything else
# that CI does: with it (`cargo install --locked cargo-deny`) the check runs, without it a message says so.
deny: ## Check licences, sources and duplicates of the Rust dependencies, if cargo-deny is installed
	@if cargo deny --version >/dev/null 2>&1; \
	then cargo deny --locked --offline check bans licenses sources; \
	else echo "cargo-deny is not installed: the dependencies are not checked"; fi

format: install ## Rewrite the sources as the linters want them
	cargo fmt --all
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.installed-release ## Measure the gateway, the worker and the floor (about ten minutes)
	$(BIN)/inflight bench suite

# Needs the network, once, and some minutes: what it compares with is downloaded, never built.
templates: install ## Compare prompts, calls, encodings and streams with transformers and vLLM, on some 120 models' files
	$(BIN)/pip install --quiet --group texts
	PYTHONPATH=tools $(BIN)/python -m compare_text

# Needs the network, once, and some minutes; the packages are kept in the cache. FRAMEWORKS holds names and options.
frameworks: install ## Run agent frameworks against a real server, and print what works (FRAMEWORKS="langchain")
	PYTHONPATH=tests $(BIN)/python -m frameworks $(FRAMEWORKS)

# Finds new entries for the corpora, which the tests replay. FUZZ holds libFuzzer's options.
fuzz: ## Fuzz one parser until interrupted: TARGET=chat_body (needs nightly Rust and cargo-fuzz; pbtxt, weight_files: atheris)
ifneq ($(wildcard fuzz/$(TARGET).py),)
	PYTHONPATH=tests $(BIN)/python fuzz/$(TARGET).py $(FUZZ) fuzz/corpus/$(TARGET)
else
	cargo +nightly fuzz run $(TARGET) -- $(FUZZ)
endif

# zig's linker asks for older symbols of glibc than this machine's would: 2.28 is RHEL 8's, and Ubuntu 20.04 has 2.31.
wheel: $(VENV)/.release ## Build the wheel for this platform in dist/, for glibc 2.28 and later
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/maturin build --release --locked --zig --compatibility manylinux_2_28 --out dist
	@ls -l dist

$(VENV)/.release: $(VENV)/.created
	@echo "==> installing what links for older systems"
	$(BIN)/pip install --quiet --group release
	touch $@

# What a wheel contains does not depend on its profile, so this builds one in seconds.
check-wheel: install ## Build a wheel with the daily profile, install it in a clean environment, serve a completion
	$(BIN)/maturin build --quiet --locked --out $(CARGO_TARGET_DIR)/wheel
	$(BIN)/python tools/check_wheel.py $(CARGO_TARGET_DIR)/wheel

# The wheel has the daily profile, as in check-wheel.
check-containers: install ## Build the images with buildah, run them with podman (root; minutes; the gateway's if gateway-static was built)
	rm -rf $(CARGO_TARGET_DIR)/container-wheels
	$(BIN)/maturin build --quiet --locked --out $(CARGO_TARGET_DIR)/container-wheels
	$(BIN)/pip download --quiet --only-binary :all: --dest $(CARGO_TARGET_DIR)/container-wheels "$$(echo $(CARGO_TARGET_DIR)/container-wheels/inflight_llm-*.whl)[guided]"
	INFLIGHT_TEST_CONTAINERS=1 INFLIGHT_TEST_WHEELS=$(CARGO_TARGET_DIR)/container-wheels \
	INFLIGHT_TEST_GATEWAY=$(wildcard $(CURDIR)/dist/inflight-gateway) $(BIN)/pytest tests/deploy/test_containers.py

gateway: ## Build the standalone gateway binary
	cargo build --release --locked -p inflight-gateway
	@echo $(CARGO_TARGET_DIR)/release/inflight-gateway

gateway-static: $(VENV)/.release ## Build the gateway as one static binary, dist/inflight-gateway, which runs in an empty container
	rustup target add $(MUSL)
	PATH="$(CURDIR)/$(BIN):$$PATH" cargo zigbuild --release --locked -p inflight-gateway --target $(MUSL)
	mkdir -p dist
	cp $(CARGO_TARGET_DIR)/$(MUSL)/release/inflight-gateway dist/
	@ls -l dist/inflight-gateway

clean: ## Remove the virtual environment, wheels and caches of this clone
	rm -rf $(VENV) dist .pytest_cache .mypy_cache .ruff_cache
