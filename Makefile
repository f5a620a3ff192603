# Every target does its own set-up, in .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install demo replay test test-all test-fast test-adapters lint docs

install: .venv/report

# One stamp for each extra, so that a target installs no more than it needs.
.venv/%: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "ideatree needs Python 3.11 or newer; this is $$($(PYTHON) --version). Try make PYTHON=python3.12"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$*]'
	@touch $@

# A search of an image network's first block with the embedded playbook: no GPU, no key, no network.
demo: install
	$(BIN)/python -m search.run problem=level2/conv2d_relu_maxpool problem.sizes.batch=2 \
		rounds=5 ideas=3 branch=1 wandb=off library.use=false

# A search of conv2d + ReLU + max-pool by a language model on an H200, with the verdicts of then: seconds, no GPU, no key.
replay: install
	$(BIN)/python -m search.run proposer=replay replay.run=language_model/conv2d_relu_maxpool replay.evaluations=true wandb=off

# At most 10 minutes on two cores. Three processes even there, because each waits for deadlines and processes
# most of its time. Covers a quarter of the slow tests, another one for each commit, and those marked core.
PYTEST := $(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

test: .venv/test
	$(PYTEST) --quarter -m "not exhaustive"

# Everything: all slow tests, the whole catalogue of cheats, and the tests that plant failures.
test-all: .venv/test
	$(PYTEST)

# At most 60 s, for the daily loop.
test-fast: .venv/test
	$(BIN)/python -m pytest -m "not slow and not gpu" --numprocesses 2

# Each adapter with its framework, in an environment of its own, against a reward server of this one.
NEMO_PYTHON ?= python3.13
NEMO := $(shell $(NEMO_PYTHON) -c 'import sys; print(*["nemo_gym"] * (sys.version_info >= (3, 13, 14)))' 2>/dev/null)
ADAPTERS := $(filter-out client nemo_gym,$(notdir $(wildcard adapters/*))) $(NEMO)
test-adapters: $(ADAPTERS:%=.venv/adapters/%) .venv/train
	@$(if $(NEMO),,echo "nemo_gym is skipped: it needs Python 3.13.14 or newer, which adapters/nemo_gym/README.md says how to get")
	for each in $(ADAPTERS); do (cd adapters/$$each && IDEATREE_PYTHON=$(CURDIR)/$(BIN)/python \
		$(CURDIR)/.venv/adapters/$$each/bin/python -m pytest) || exit 1; done

.venv/adapters/nemo_gym: PYTHON = $(NEMO_PYTHON)
.venv/adapters/%: adapters/%/pyproject.toml .venv/train
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --editable adapters/client --editable 'adapters/$*[test]'
	@touch $@

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The pages of docs/ as a site in site/, which needs no network; a broken link is an error.
docs: .venv/dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
