# Every target creates .venv on first use and reuses it until pyproject.toml or constraints.txt change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ROOT := $(CURDIR)

.DEFAULT_GOAL := help
.PHONY: help demo check test full lint lab tours bench bench-quick conformance matrix models upstream hips gpu versions docs dist

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# One thread: on two busy cores a second one mostly waits, and the times would say little.
demo: export OMP_NUM_THREADS = 1
demo: $(VENV)/dev.stamp ## step the backward of ResNet-50 and of linear50 under BFS, DFS and HEAP; pictures and pages in out/
	$(BIN)/tapescope demo resnet50
	$(BIN)/tapescope demo linear50

# One thread per test process: pytest already runs one process per core. `loadfile` keeps the tests of a file in one
# process, see tests/distribution.py. Bytecode is written, since tests start hundreds of processes that import tapescope.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile -q

check: lint ## lint, then run the quick tests, without a browser: for while you work
	$(PYTEST) -m "not slow and not e2e and not heavy"

# Side by side: lint keeps one core busy for half a minute. Its output is shown in one piece: at once where it fails.
test: $(VENV)/dev.stamp ## lint and run the tests that are not marked slow, side by side
	@$(MAKE) --no-print-directory lint > $(VENV)/lint.log 2>&1 || { cat $(VENV)/lint.log; exit 1; } & \
	lint=$$!; $(PYTEST) -m "not slow"; tests=$$?; \
	wait $$lint && tail -n 1 $(VENV)/lint.log || { echo "lint failed: its output is above, and in $(VENV)/lint.log"; exit 1; }; \
	exit $$tests

full: lint docs $(VENV)/models.stamp $(VENV)/hips.stamp ## lint, build the docs, then run all tests, with random examples
	$(PYTEST) --hypothesis-profile=random

# mypy wants a folder named like the package; a clone may be called anything.
lint: $(VENV)/dev.stamp ## ruff, mypy --strict on the packages, and which packages may import each other
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@mkdir -p $(VENV)/typecheck
	@ln -sfn "$(ROOT)" $(VENV)/typecheck/tapescope
	cd $(VENV)/typecheck && "$(ROOT)/$(BIN)/mypy" --config-file "$(ROOT)/pyproject.toml" \
		--cache-dir "$(ROOT)/.mypy_cache" -p tapescope.inspector -p tapescope.engine -p tapescope.widgets -p tapescope.commands -p tapescope.integrations \
		-m tapescope.__main__
	cd $(VENV)/typecheck && "$(ROOT)/$(BIN)/lint-imports" --config "$(ROOT)/pyproject.toml" --cache-dir "$(ROOT)/.import_linter_cache"
	$(BIN)/python tests/structure

lab: $(VENV)/notebook.stamp ## open JupyterLab on notebooks/
	$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) notebooks

tours: export OMP_NUM_THREADS = 1
tours: $(VENV)/notebook.stamp ## run the notebooks, and store what they show
	$(BIN)/python notebooks/store.py

docs: export OMP_NUM_THREADS = 1
docs: $(VENV)/docs.stamp ## build the documentation: docs/_build/html/index.html
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html

dist: $(VENV)/dev.stamp ## build the sdist and the wheel in dist/, check both, and use the wheel in an empty environment
	rm -rf dist build
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*
	$(BIN)/python tests/try_wheel.py dist/*.whl

bench: $(VENV)/dev.stamp ## measure, and print a table; ONLY=planning: one part of it
	$(BIN)/python tests/benchmarks $(if $(ONLY),--only $(ONLY))

bench-quick: export OMP_NUM_THREADS = 1
bench-quick: $(VENV)/dev.stamp ## measure what whole calls cost against loss.backward(), in less than a minute
	$(BIN)/python tests/benchmarks --quick

conformance: $(VENV)/dev.stamp ## run PyTorch's databases of operators and modules backward in every way, and compare
	$(BIN)/python tests/conformance

matrix: $(VENV)/dev.stamp ## cross kinds of programs with every verb, and compare with plain PyTorch
	$(BIN)/python tests/matrix

upstream: $(VENV)/dev.stamp ## run PyTorch's own autograd tests on tapescope: TEST_AUTOGRAD=pytorch/test/test_autograd.py
	$(BIN)/python tests/upstream $(TEST_AUTOGRAD)

# AUTOGRAD_TESTS=FOLDER takes the tests of a checkout; otherwise they are those of the installed version's source distribution.
hips: $(VENV)/hips.stamp ## run HIPS autograd's own tests on tapes, under dfs, bfs and heap, and compare the gradients
	OMP_NUM_THREADS=1 $(BIN)/python tests/hips $(or $(AUTOGRAD_TESTS),$(VENV)/hips/tests)

# ONLY=2.15 runs one version. Each environment takes 6 GB: from 2.14 on pip's builds bring CUDA's libraries.
versions: ## run the tests on each supported version of PyTorch, and print one table
	$(PYTHON) tests/versions $(addprefix --only=,$(ONLY))

# Where a GPU is, torch usually is, too, and nothing can be installed: the environment here if there is one, else PYTHON.
gpu: ## run the tests and benchmarks that want CUDA, where there is a GPU, and print one table
	$(or $(wildcard $(BIN)/python),$(PYTHON)) tests/gpu

models: $(VENV)/models.stamp ## run models and training loops of well-known libraries through every verb
	$(BIN)/python tests/models

# Wheels of autograd have no tests.
$(VENV)/hips.stamp: $(VENV)/dev.stamp
	$(BIN)/pip install -q -c constraints.txt scipy
	$(BIN)/pip download -q -c constraints.txt --no-deps --no-binary autograd -d $(VENV)/hips autograd
	tar -xzf $(VENV)/hips/autograd-*.tar.gz -C $(VENV)/hips --strip-components=1
	@touch $@

# torch first: resolved alone, its pinned version is found before anything else asks for a newer one. timm alone: it asks
# for torchvision, and that for a CUDA build of torch; tests/models has a stub of it.
$(VENV)/dev.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt torch
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	$(BIN)/pip install -q -c constraints.txt --no-deps timm
	@touch $@

$(VENV)/notebook.stamp: $(VENV)/dev.stamp
	$(BIN)/pip install -q -c constraints.txt -e '.[dev,notebook]'
	@touch $@

$(VENV)/docs.stamp: $(VENV)/dev.stamp
	$(BIN)/pip install -q -c constraints.txt -e '.[dev,docs]'
	@touch $@

$(VENV)/models.stamp: $(VENV)/dev.stamp
	$(BIN)/pip install -q -c constraints.txt -e '.[dev,models]'
	@touch $@
