# Two commands set everything up: `make demo` prints text, `make test` runs the tests.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Bytecode is kept whatever the shell says: a run of the tests starts some hundred processes that import tirage.
export PYTHONDONTWRITEBYTECODE :=

OLDEST := .engines/oldest
UV     := .engines/uv/bin/uv
EXTRAS := torch,jax,serve,xgrammar
comma  := ,

.PHONY: browser javascript demo test test-oldest oldest resolve exhaustive chaos check fix lint fast kernels bench engines peers vectors docs site clean

demo: $(VENV)/.core
	@$(BIN)/tirage generate "Once upon a time" --temperature 0.8 --top-p 0.95 --seed 7 --max-tokens 300

# For the tests of the playground, which are skipped without it.
browser:
	@command -v chromium > /dev/null || command -v google-chrome > /dev/null || \
	  (apt-get update -qq && apt-get install --yes -qq --no-install-recommends chromium)

# For the sessions of JavaScript clients, which are skipped without their packages.
javascript: $(VENV)/javascript/.ready

# Four processes on two cores, as some tests wait for servers most of their time.
test: kernels
	$(BIN)/python -m pytest -n 4 --dist worksteal -m "not exhaustive"

# The same tests with the oldest releases that the dependencies allow; see docs/installing.md. The variable keeps xgrammar's
# tvm-ffi from compiling an extension for an older PyTorch at its first import.
test-oldest: $(OLDEST)/.ready
	$(OLDEST)/bin/python -c "import tirage; tirage.warmup()"
	TVM_FFI_DISABLE_TORCH_C_DLPACK=1 TIRAGE_OLDEST=1 $(OLDEST)/bin/python -m pytest -n 3 --dist worksteal -m "not exhaustive"

# Chosen anew after a change of the ranges in pyproject.toml.
oldest: $(UV)
	$(UV) pip compile pyproject.toml --extra $(subst $(comma), --extra ,$(EXTRAS)) --group test \
	  --resolution lowest-direct --universal --python-version 3.11 --no-annotate --quiet --upgrade \
	  --custom-compile-command "make oldest" --output-file requirements/oldest.txt

# Which versions of the engines install beside tirage: a table in docs/installing.md.
resolve: $(UV)
	$(PYTHON) scripts/resolve.py --uv $(UV)

# The million draws, the hostile rows of jit and Triton, thousands of schedules, every property with all its examples: about an
# hour, run by `.ci/scheduled`.
exhaustive: kernels
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "exhaustive or hypothesis" --hypothesis-profile thorough

# Hours, on a machine that does nothing else; CHAOS="--scale 0.1 storm soak" runs a tenth, or some. See CONTRIBUTING.md.
chaos: kernels
	PYTHONPATH="tests:.:$$PYTHONPATH" $(BIN)/python -m chaos $(CHAOS)

# The types take one processor for a while, which two test processes leave now and then.
check: $(VENV)/.dev
	@$(MAKE) --no-print-directory --jobs=2 lint fast

fast: kernels
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not exhaustive"

# Compiled once, or every process of the tests would begin with it.
kernels: $(VENV)/.dev
	@$(BIN)/python -c "import tirage; tirage.warmup()"

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

fix: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks

# Each engine in an environment of its own, in .engines: minutes and gigabytes of downloads the first time.
engines: $(VENV)/.core
	$(BIN)/python scripts/engines.py

# Every preset against the code of its engine, in environments in .engines; writes docs/divergence.md. PEERS="mlx vllm" asks some.
peers: $(VENV)/.core
	$(BIN)/python -m scripts.peers $(PEERS)

vectors: $(VENV)/.dev
	$(BIN)/python scripts/make_vectors.py

docs: $(VENV)/.dev
	$(BIN)/python -m tirage.params.reference docs/parameters.md
	$(BIN)/python -m tirage.dialects.reference docs/dialects.md
	$(BIN)/python -m tirage.guided.supported_docs docs/guided.md
	$(BIN)/python -m tirage.server.reference docs/serving.md
	$(BIN)/python -m tirage.remote.reference docs/remote.md
	$(BIN)/python -m tirage.cli.reference docs/cli.md
	$(BIN)/python scripts/peer_fields.py --standing
	$(BIN)/python scripts/coming_from.py
	$(BIN)/python -m scripts.peers --page
	$(BIN)/python scripts/gallery.py
	$(BIN)/python scripts/notebook.py
	$(BIN)/python -m scripts.parameter_plots

# The documentation as a site, in site/.
site: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) .engines build dist site .pytest_cache .ruff_cache .hypothesis

$(UV):
	$(PYTHON) -m venv .engines/uv
	.engines/uv/bin/python -m pip install --quiet uv==0.13.9

$(OLDEST)/.ready: pyproject.toml requirements/oldest.txt
	$(PYTHON) -m venv --clear $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(OLDEST)/bin/python -m pip install --quiet --editable ".[$(EXTRAS)]" --group test \
	  --constraint requirements/oldest.txt
	@touch $@

$(VENV)/javascript/.ready: tests/javascript/package.json | $(VENV)/bin/python
	@mkdir -p $(@D)
	@cp $< $(@D)
	npm install --prefix $(@D) --silent --no-audit --no-fund
	@touch $@

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tirage needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"

$(VENV)/.core: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable . --group dev
	@touch $@ $(VENV)/.core
