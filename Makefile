# make demo and make test need only Python 3.11 or newer. Every target sets up .venv first.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
WILD := .venv-wild/bin
TRACKERS := .venv-trackers/bin
OLDEST := .venv-oldest/bin
NEWEST := .venv-newest/bin
COUNT ?= 100000
SECONDS ?= 600
SEED ?= 0
CUDA := $(BIN)/python -c 'import torch; raise SystemExit(not torch.cuda.is_available())'
COMMIT = $$(git rev-parse HEAD 2>/dev/null)

.PHONY: demo demo-train lab test test-full test-wild test-trackers test-oldest test-newest fuzz mutate lint bench bench-gpu test-gpu sanitize-gpu \
	dist clean

demo: $(READY)  ## check the default model and write its page
	@mkdir -p out
	@$(BIN)/isotherm check --html out/minilm.html

demo-train: $(READY)  ## train English→Chinese translators with 1/√d and without
	@test -d .corpus/wagtail || { echo "== fetching packages for their message catalogues"; \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: --target .corpus --requirement configs/demo-corpus.txt; }
	@$(BIN)/isotherm data gettext --where .corpus --out .corpus/corpus.tsv --package django --package wagtail \
		--package django-oscar --package sphinx --package jupyterlab-language-pack-zh-CN
	@rm -rf out/demo-train
	@$(BIN)/isotherm train configs/demo-translation.toml --rules "1/sqrt(d),none" --out out/demo-train

lab: $(READY)  ## every claim, at full size (minutes to an hour)
	@$(BIN)/isotherm explain --size full --out out/explain

test: $(READY) lint  ## style, types and tests
	@echo "== tests"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist worksteal -m "not slow"

test-full: test  ## and the tests that take minutes each
	@echo "== slow tests"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist worksteal -m slow

test-wild: .venv-wild/.ready  ## stock models of other libraries, and trained weights from PyPI
	@OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(WILD)/python -m pytest --numprocesses auto --dist worksteal -m wild tests/wild

test-trackers: .venv-trackers/.ready  ## W&B, MLflow, SwanLab and TensorBoard, writing to this disk; Parquet
	@OMP_NUM_THREADS=1 $(TRACKERS)/python -m pytest tests/monitor/test_sinks.py tests/cli/test_watch.py

test-oldest: .venv-oldest/.ready  ## the verbs with the oldest versions that pyproject.toml allows
	@OMP_NUM_THREADS=1 $(OLDEST)/python -m pytest tests/versions

test-newest: .venv-newest/.ready  ## the verbs with the newest versions on PyPI
	@OMP_NUM_THREADS=1 $(NEWEST)/python -m pytest tests/versions

fuzz: $(READY)  ## random inputs for every reader; make fuzz COUNT=1000 SECONDS=60 SEED=7
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --count $(COUNT) --seconds $(SECONDS) --seed $(SEED)

mutate: COUNT = 340
mutate: $(READY)  ## small changes to the source that tests must notice; make mutate COUNT=50 SEED=1 PART=scale
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.mutate --count $(COUNT) --seed $(SEED) --part "$(PART)"

lint: $(READY)  ## style and types
	@echo "== style"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@echo "== types"
	@$(BIN)/mypy

bench: $(READY)  ## time and memory against PyTorch's own kernel, as tidy rows
	@$(BIN)/python benchmarks/attention_cpu.py
	@$(BIN)/python benchmarks/check_cpu.py
	@$(BIN)/python benchmarks/models.py cpu
	@$(BIN)/python benchmarks/table.py

bench-gpu: $(READY)  ## time and memory on a CUDA device: checks, training steps, watched runs, kernels
	@$(CUDA) || { echo "make bench-gpu needs a CUDA device and PyTorch finds none; make bench times the CPU." >&2; exit 2; }
	@$(BIN)/python benchmarks/check_gpu.py --commit "$(COMMIT)"
	@$(BIN)/python benchmarks/training_gpu.py --commit "$(COMMIT)" --out benchmarks/results/training_gpu
	@$(BIN)/python benchmarks/watch.py cuda --commit "$(COMMIT)" --out benchmarks/results/watch_gpu
	@$(BIN)/python benchmarks/attention_gpu.py --commit "$(COMMIT)"

test-gpu: $(READY)  ## the same kernels on a CUDA device
	@$(CUDA) || \
		{ echo "make test-gpu needs a CUDA device and PyTorch finds none; make test runs the kernels without one." >&2; exit 2; }
	@$(BIN)/python -m pytest -m gpu

sanitize-gpu: $(READY)  ## every kernel under compute-sanitizer's memcheck and racecheck
	@$(BIN)/python -m tests.ops.triton.sanitize

dist: $(READY)  ## source distribution and wheel in dist/ (docs/releasing.md)
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation

clean:
	rm -rf .venv .venv-wild .venv-trackers .venv-oldest .venv-newest .corpus .mypy_cache .ruff_cache .pytest_cache .hypothesis out dist

# The stamp is written last, so an interrupted set-up starts again.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "isotherm needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12 demo" >&2; exit 2; }
	@echo "== setting up .venv (once; a few minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[demo,dev]'
	@touch $(READY)

# An environment of its own: these libraries are many, and none of them may change what make test runs with.
.venv-wild/.ready: pyproject.toml constraints.txt tests/wild/requirements.txt
	@echo "== setting up .venv-wild (once; a few minutes)"
	@test -x $(WILD)/python || $(PYTHON) -m venv .venv-wild
	@$(WILD)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@$(WILD)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[demo]' \
		pytest pytest-xdist hypothesis
	@$(WILD)/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement tests/wild/requirements.txt
	@touch $@

.venv-trackers/.ready: pyproject.toml constraints.txt tests/monitor/requirements.txt
	@echo "== setting up .venv-trackers (once; a few minutes)"
	@test -x $(TRACKERS)/python || $(PYTHON) -m venv .venv-trackers
	@$(TRACKERS)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@grep -v '^protobuf==' constraints.txt > .venv-trackers/constraints.txt
	@$(TRACKERS)/python -m pip install --quiet --disable-pip-version-check --constraint .venv-trackers/constraints.txt \
		--editable . pytest hypothesis --requirement tests/monitor/requirements.txt
	@touch $@

# PyTorch's packages on PyPI bring gigabytes of CUDA on Linux; PIP_EXTRA_INDEX_URL may name an index of builds for CPUs.
.venv-oldest/.ready: pyproject.toml tests/versions/oldest.txt
	@echo "== setting up .venv-oldest (once; a few minutes)"
	@test -x $(OLDEST)/python || $(PYTHON) -m venv .venv-oldest
	@$(OLDEST)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@$(OLDEST)/python -m pip install --quiet --disable-pip-version-check --constraint tests/versions/oldest.txt \
		--editable '.[demo]' pytest hypothesis accelerate
	@touch $@

.venv-newest/.ready: pyproject.toml
	@echo "== setting up .venv-newest (once; a few minutes)"
	@test -x $(NEWEST)/python || $(PYTHON) -m venv .venv-newest
	@$(NEWEST)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@$(NEWEST)/python -m pip install --quiet --disable-pip-version-check --upgrade --editable '.[demo]' pytest hypothesis accelerate
	@touch $@
