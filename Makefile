# Everything happens in .venv, which the first command makes; nothing is installed outside the checkout.
PYTHON ?= python3
CONFIG ?= small
EXAMPLE ?= digits
COUNT  ?= 1000
MINUTES ?= 0
SEED   ?= 1
MUTANTS ?= 0
SECONDS_EACH ?= 240
VENV   := .venv
BIN    := $(VENV)/bin
# All packages with their hashes are in requirements/; weft itself needs only the setuptools that is among them.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps
HASHED  := $(INSTALL) --require-hashes --only-binary :all: --requirement
# Writes files of requirements for all platforms from pyproject.toml; what is pinned stays, without UPGRADE=--upgrade.
UPGRADE ?=
UV      := build/uv/bin/uv
LOCK    := $(UV) pip compile pyproject.toml - --universal --python-version 3.11 --generate-hashes --only-binary :all: \
	--no-emit-index-url --no-annotate --custom-compile-command 'make requirements' --quiet
# The table of docs/assurance.md, also of what failed.
WRITE_TABLE = code=$$?; $(BIN)/python benchmarks/assurance.py write; exit $$code

.PHONY: help demo test lint regression prove fuzz coverage mutants mutants-software bench boards estimates requirements clean
help:
	@echo "make demo         compile a network, run it on the simulated RTL, compare every byte (CONFIG=default EXAMPLE=attention or llm)"
	@echo "make test         linters, type checker, tests"
	@echo "make lint         linters and type checker only"
	@echo "make regression   the long randomised tests; goes on where it was ended (MINUTES=60)"
	@echo "make prove        properties of the hardware, proven for all inputs (MUTANTS=30: and whether they see faults)"
	@echo "make fuzz         hostile files, random programs, graphs and configurations (COUNT=20000 or MINUTES=60, SEED=1)"
	@echo "make coverage     what of the Verilog and of the instruction set programs reach, and why not the rest (MINUTES=60)"
	@echo "make mutants      whether programs see faults in the hardware (COUNT=1000, SEED=1)"
	@echo "make mutants-software  whether tests see faults in the golden interpreter and the compiler (COUNT=200, SEED=1)"
	@echo "make bench        the benchmarks"
	@echo "make boards       configurations on all boards: resources and clocks (hours the first time)"
	@echo "make clean        remove .venv and everything that was built"

demo: $(VENV)/.demo $(if $(filter llm,$(EXAMPLE)),$(VENV)/.lm)
	@$(BIN)/weft demo $(EXAMPLE) --config $(CONFIG)

test: lint
	$(BIN)/python -m pytest -n auto -m "not long"

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

regression: $(VENV)/.test
	$(BIN)/python -m pytest -n auto -m long --budget-minutes $(MINUTES)

prove: $(VENV)/.demo
	@$(BIN)/weft prove --seconds $(SECONDS_EACH) --mutants $(MUTANTS)

fuzz: $(VENV)/.test
	$(BIN)/python tests/fuzz/run.py --count $(COUNT) --minutes $(MINUTES) --seed $(SEED)

coverage: $(VENV)/.test
	$(BIN)/python extras/proof/tests/closure/cover.py --minutes $(if $(filter 0,$(MINUTES)),30,$(MINUTES)) --write docs/assurance.json; $(WRITE_TABLE)

mutants: $(VENV)/.test
	$(BIN)/python extras/proof/tests/closure/mutate.py --count $(COUNT) --seed $(SEED) --write docs/assurance.json; $(WRITE_TABLE)

mutants-software: COUNT = 200
mutants-software: $(VENV)/.test
	$(BIN)/python tests/closure/software.py --count $(COUNT) --seed $(SEED) --write docs/assurance.json; $(WRITE_TABLE)

bench: $(VENV)/.test
	$(BIN)/python benchmarks/run.py

boards: $(VENV)/.test
	$(BIN)/python benchmarks/boards.py

# After a change of the hardware: what `weft boards` and `weft build` know before synthesis. Clocks depend on it.
estimates: $(VENV)/.test
	$(BIN)/python benchmarks/boards.py fit
	$(BIN)/python benchmarks/clocks.py

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: weft needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try make PYTHON=python3.12" >&2; exit 2; }
	@command -v "$${CXX:-c++}" >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || \
	  { echo "error: weft needs a C++ compiler to build its simulator: install g++ or clang++, or set CXX" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "error: could not make $(VENV): on Debian and Ubuntu install python3-venv" >&2; rm -rf $(VENV); exit 2; }

$(VENV)/.demo: $(BIN)/python pyproject.toml requirements/demo.txt
	@echo "installing weft and its tools into $(VENV) (once, about a minute)..."
	@$(HASHED) requirements/demo.txt
	@$(INSTALL) --no-build-isolation --editable .
	@touch $@

$(VENV)/.lm: $(VENV)/.demo requirements/lm.txt
	@echo "installing what language models need into $(VENV) (once)..."
	@$(HASHED) requirements/lm.txt
	@touch $@

$(VENV)/.test: $(VENV)/.demo requirements/test.txt
	@echo "installing the test tools into $(VENV) (once)..."
	@$(HASHED) requirements/test.txt
	@touch $@

# The other files have the versions of test.txt.
requirements:
	@$(PYTHON) -m venv build/uv && build/uv/bin/python -m pip install --quiet --disable-pip-version-check uv
	@echo setuptools | $(LOCK) $(UPGRADE) --extra test --output-file requirements/test.txt
	@echo setuptools | $(LOCK) --constraint requirements/test.txt --extra lm --output-file requirements/lm.txt
	@echo setuptools | $(LOCK) --constraint requirements/test.txt --output-file requirements/demo.txt
