# `make` prints what there is to make.

VENV := .venv
PYTHON := $(VENV)/bin/python
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
SEED ?= 0
MINUTES ?= 10
# Three at a time, for tests wait for processes a third of their time on two cores; tests that share what
# they have set up stay together (conftest.py).
export PYTEST_FLAGS ?= --numprocesses=3 --dist=loadgroup --durations=10
# A part of four of the tests that take long: make test-long SLICE=2
SLICED = $(if $(SLICE),--slice=$(SLICE)/4)
# Each process of a job would compile elasticdl anew: a quarter of a second.
unexport PYTHONDONTWRITEBYTECODE

# Rust's build products outlive the tree, and clones share those of third-party crates. Another
# compiler gets another folder.
export CACHE := $(or $(XDG_CACHE_HOME),$(if $(HOME),$(HOME)/.cache,/tmp))/elasticdl
ifndef CARGO_TARGET_DIR
CARGO_TARGET_DIR := $(CACHE)/target-$(shell (rustc -vV || echo none) 2>/dev/null | cksum | cut -d' ' -f1)
endif
export CARGO_TARGET_DIR
# Cargo tells by times alone whether a crate is fresh, and takes the crates of one clone for those of
# another. So the clone that did not build last has its sources newer than what is built.
LAST_TREE := $(CARGO_TARGET_DIR)/last-tree
$(shell mkdir -p $(CARGO_TARGET_DIR); [ "$$(cat $(LAST_TREE) 2>/dev/null)" = "$(CURDIR)" ] || \
    { find crates -name '*.rs' -exec touch {} +; echo "$(CURDIR)" >$(LAST_TREE); })
TORCH := $(CACHE)/torch-$(shell cksum <requirements/torch.lock | cut -d' ' -f1)
ifdef CI
export CARGO_INCREMENTAL := 0
endif

RUST_SOURCES := Cargo.toml Cargo.lock $(shell find crates -name '*.rs' -o -name Cargo.toml)
# What `make bench` runs; what needs PyTorch, data or half an hour runs only if ONLY names it.
BENCHMARKS := flights store_job threads store connections recordio ledger members simulate freshness
WITH_TORCH := allreduce allreduce_recovery torch_models

.PHONY: help build doctor fmt check budget test test-quick test-changed test-long test-torch test-only \
    bench demo online chaos soak nightly wheel docs lock clean kafka kubernetes-tools

help: ## Print this list.
	@echo 'make TARGET, where TARGET is one of'
	@sed -nE 's/^([a-z0-9-]+):[^#]*## (.*)/  \1|\2/p' Makefile | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

build: $(VENV)/.extension $(VENV)/.messages ## Make .venv and build and install elasticdl into it.

doctor: ## Say what this machine lacks to build elasticdl.
	@scripts/doctor.sh check && echo 'Nothing is missing.'

# Stamps in .venv say what was done; they go with it.
$(VENV)/.packages: requirements/dev.lock
	@scripts/doctor.sh
	@test -x $(PYTHON) || { echo 'Creating $(VENV) ...' && $$(scripts/doctor.sh --python) -m venv $(VENV); }
	@echo "Installing the $$(grep -c '^[a-z].*==' $<) packages of $< ..."
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	@touch $@

$(VENV)/.messages: proto/elasticdl.proto proto/generate.py $(VENV)/.packages
	$(PYTHON) proto/generate.py
	@touch $@

$(VENV)/.extension: $(RUST_SOURCES) pyproject.toml $(VENV)/.packages
	@scripts/doctor.sh
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(VENV)/bin/maturin develop --release --locked --skip-install
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
	    --editable .
	@touch $@

# Zig links for a glibc that is older than this machine's, and for other processors. It takes 400 MB,
# once, beside the tree.
ZIG := $(CACHE)/zig-$(shell cksum <requirements/wheel.lock | cut -d' ' -f1)
$(ZIG): | $(VENV)/.packages
	@rm -rf $@ $@.partial
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-deps \
	    --require-hashes --target $@.partial -r requirements/wheel.lock
	@mv $@.partial $@

ARCHS ?= x86_64 aarch64
wheel: $(VENV)/.packages | $(ZIG) ## Build wheels into dist/, which install without Rust: make wheel ARCHS=x86_64
	@scripts/doctor.sh
	@rm -f dist/elasticdl_train-*.whl
	@set -e; for arch in $(ARCHS); do \
	    target=$$arch-unknown-linux-gnu; \
	    [ -d "$$(rustc --print target-libdir --target $$target)" ] || rustup target add $$target; \
	    PYTHONPATH=$(ZIG) $(VENV)/bin/maturin build --release --locked --zig --target $$target \
	        --compatibility manylinux_2_28 --out dist; done

# The packages of the site that .venv has not, once beside the tree.
DOCS := $(CACHE)/docs-$(shell cat requirements/dev.lock requirements/docs.lock | cksum | cut -d' ' -f1)
$(DOCS): | $(VENV)/.packages
	@rm -rf $@.partial
	@mkdir -p $@.partial
	@awk 'NR == FNR { if ($$1 ~ /==/) known[$$1]; next } $$1 ~ /==/ { skip = ($$1 in known) } !skip' \
	    requirements/dev.lock requirements/docs.lock >$@.partial/docs.lock
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-deps \
	    --require-hashes --target $@.partial -r $@.partial/docs.lock
	@mv $@.partial $@

docs: build | $(DOCS) ## Make the site of these pages in site/; warnings are errors, and links are checked.
	@PYTHONPATH=$(DOCS) $(PYTHON) -m sphinx --quiet --fail-on-warning --keep-going \
	    --conf-dir docs/site . site
	@$(PYTHON) docs/site/check.py site
	@echo 'Open site/index.html'

fmt: build ## Format Python and Rust.
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	cargo fmt --all

check: build budget ## Check style, types, import layers, the stub, the messages and the budgets.
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(PYTHON) -m mypy.stubtest elasticdl._core
	$(VENV)/bin/lint-imports
	$(PYTHON) proto/generate.py --check
	@scripts/doctor.sh check
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets --features edl-store/stages -- -D warnings

budget: $(VENV)/.packages ## Print how large each room is beside its budget (budget.toml), and fail where it is larger.
	@$(PYTHON) -m scripts.budget

test: build ## Run all tests, of Rust and of Python, that need nothing else and take no hour.
	scripts/suite.sh all

# What needs a framework has it in its name; all else in tests/unit needs one process, but for tests of
# benchmarks and scripts.
test-quick: build ## Test what needs one process and no framework, in a minute.
	$(VENV)/bin/pytest $(PYTEST_FLAGS) --ignore-glob='*/test_keras_*' --ignore-glob='*/test_torch_*' \
	    -m 'not (keras or torch or long or s3 or postgresql or kubernetes or kubelet or images)' --ignore-glob='*_job.py' \
	    --ignore=tests/packages/test_removed.py --ignore=tests/unit/benchmarks --ignore=tests/unit/scripts \
	    tests/unit tests/packages

test-changed: build ## Test the core, and what a change since main reaches, and say what that is.
	@$(PYTHON) -m scripts.changed --run $(PYTEST_FLAGS)

# PyTorch takes 5 GB: it has a lock of its own and is installed once beside the tree. What .venv has
# in the same version is left out.
$(TORCH):
	@echo 'Installing PyTorch into $@ (5 GB) ...'
	@rm -rf $@.partial
	@mkdir -p $@.partial
	@awk 'NR == FNR { if ($$1 ~ /==/) known[$$1]; next } $$1 ~ /==/ { skip = ($$1 in known) } !skip' \
	    requirements/dev.lock requirements/torch.lock >$@.partial/torch.lock
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-deps \
	    --require-hashes --target $@.partial -r $@.partial/torch.lock
	@mv $@.partial $@

# These files alone: TensorFlow and the triton of PyTorch abort a process that imports both.
TORCH_TESTS = $(shell grep -rl --include='test_*.py' 'mark\.torch' tests model_zoo)
test-torch: build $(TORCH) ## Test models in PyTorch, and the optimizers against its own (installs it, 5 GB).
	PYTHONPATH=$(TORCH) OMP_NUM_THREADS=1 $(VENV)/bin/pytest $(PYTEST_FLAGS) $(SLICED) -m torch $(TORCH_TESTS)

test-long: build ## Test jobs of the model zoo, jobs that lose more, the tutorials (an hour; SLICE=0 to 3: a quarter).
	@$(PYTHON) -m tests.clusters.kafka.jars --if-possible
	$(VENV)/bin/pytest $(PYTEST_FLAGS) $(SLICED) -m long model_zoo tests

# What some suites of scripts/suite.sh need. The base image has no other source than Debian's
# packages: no image is pulled.
NEEDS_images := wheel $(CACHE)/images/bookworm-python.tar
NEEDS_kubernetes := kubernetes-tools
NEEDS_kubelet := kubernetes-tools
test-only: build $(NEEDS_$(WHAT)) ## Test one thing; some need more programs: make test-only WHAT=kubernetes (WHAT=help lists all)
	@scripts/suite.sh $(WHAT)

$(CACHE)/images/bookworm-python.tar:
	@command -v mmdebstrap >/dev/null || \
	    { echo 'mmdebstrap is missing: apt-get install mmdebstrap' >&2; exit 1; }
	@mkdir -p $(@D)
	mmdebstrap --quiet --variant=minbase --include=python3,python3-venv,ca-certificates bookworm \
	    $@.partial.tar http://deb.debian.org/debian
	@mv $@.partial.tar $@

kafka: build ## Fetch Kafka from Maven (43 MB, once; needs Java 17 and Maven).
	@$(PYTHON) -m tests.clusters.kafka.jars

# Go builds them from their modules, once for each version, below $(CACHE).
TOOLS ?= etcd kubernetes
kubernetes-tools: build ## Build etcd and Kubernetes' control plane, or TOOLS="etcd kueue kubelet" (Go 1.26; minutes, once).
	@$(PYTHON) -m tests.clusters.kubernetes.binaries $(TOOLS)

bench: build $(if $(filter $(WITH_TORCH),$(ONLY)),$(TORCH)) ## Measure elasticdl against its peers: make bench ONLY="flights zoo" FLAGS=--short
	@set -e; for name in $(or $(ONLY),$(BENCHMARKS)); do echo "== $$name"; \
	    case " $(WITH_TORCH) zoo " in *" $$name "*) path=$(TORCH);; *) path=;; esac; \
	    PYTHONPATH=$$path $(PYTHON) benchmarks/$$name.py $(FLAGS); done
	@$(PYTHON) -m benchmarks.readme

demo: build ## Train a real model on real data, with a master, workers and ps replicas.
	@scripts/demo.sh

online: build ## Online learning: Kafka, a job, a server that follows: make online FLAGS="--minutes=5" (needs Java 17, Maven).
	@$(PYTHON) -m tests.clusters.kafka.jars
	@PYTHONPATH=$(CURDIR) $(PYTHON) examples/online/run.py $(FLAGS)

SEEDS ?= 100000
FIRST ?= 10000
nightly: build ## Run simulated jobs in which things go wrong, prove every count, and train random models: make nightly SEEDS=1000000 FIRST=0
	@PYTHONPATH=$(CURDIR) $(PYTHON) -m tests.simulation.many --seeds=$(SEEDS) --first=$(FIRST) \
	    --record benchmarks/results/simulation.json
	ELASTICDL_RANDOM_MODELS=100 $(VENV)/bin/pytest $(PYTEST_FLAGS) -m 'keras and long' tests/differential

chaos: build ## Kill processes of a job and prove that every count is exact: make chaos SEED=7
	@$(PYTHON) -m scripts.chaos --seed $(SEED)

soak: build ## Chaos with random faults for MINUTES (10); benchmarks/results/soak.json has what.
	@$(PYTHON) -m scripts.chaos --seed $(SEED) --minutes $(MINUTES) \
	    --record benchmarks/results/soak.json

LOCKED_EXTRAS = $(shell sed -n '/^\[project.optional-dep/,/^$$/s/^\([a-z0-9]*\) = .*/--extra=\1/p' \
    pyproject.toml | grep -v -e torch -e mlflow -e jax -e ray -e wandb)
LOCK_FLAGS := --generate-hashes --no-emit-index-url --no-header --universal --python-version 3.11 --quiet
GROUP_LOCKS := wheel docs
lock: $(VENV)/.packages ## Resolve the dependencies of pyproject.toml into requirements/*.lock.
	@$(PYTHON) -m pip install --quiet --upgrade --target $(CACHE)/uv uv
	PYTHONPATH=$(CACHE)/uv $(PYTHON) -m uv pip compile pyproject.toml $(LOCKED_EXTRAS) \
	    --group dev $(LOCK_FLAGS) --output-file requirements/dev.lock
	PYTHONPATH=$(CACHE)/uv $(PYTHON) -m uv pip compile pyproject.toml --extra torch \
	    --constraint requirements/dev.lock $(LOCK_FLAGS) --output-file requirements/torch.lock
	@set -e; for group in $(GROUP_LOCKS); do \
	    PYTHONPATH=$(CACHE)/uv $(PYTHON) -m uv pip compile --group $$group \
	        --constraint requirements/dev.lock $(LOCK_FLAGS) --output-file requirements/$$group.lock; done

clean: ## Remove everything that was made in this folder.
	rm -rf $(VENV) target dist demo jobs site docs/site/generated elasticdl/_core.*.so .mypy_cache .ruff_cache \
	    .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
