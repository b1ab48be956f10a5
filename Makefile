# Every target sets itself up: all it needs is make and Python 3.11 or newer.
#
#   make demo [ARGS=…]       a small mesh on this machine
#   make test                the tests a change must pass (without those marked slow)
#   make test-all            all tests; JOBS=1 here and there: one after another, not two at a time
#   make check               linters, types, layers, contract markers
#   make mutants [AREA=LV]   break the code on purpose and see the tests notice
#   make bench [ARGS=…]      measure against the baselines
#   make bench-sessions      kill nodes of session routers and count, then measure; ARGS go to the first
#   make clean               remove what was built; .venv stays
#
# PYTHON names the interpreter that creates .venv, e.g. make PYTHON=python3.12 test

PYTHON ?= python3
ARGS ?=
JOBS ?= 2
AREA ?=

VENV := .venv
STAMP := $(VENV)/.installed
RUN := $(VENV)/bin/python -m
# Most tests wait for processes and sockets: two at a time take little more than half the time. A process that is done
# takes over the latest tests that the other has not begun.
SIDE_BY_SIDE := -n $(JOBS) --dist worksteal

.DEFAULT_GOAL := test
.PHONY: demo test test-all check mutants bench bench-sessions clean

# The set-up script looks at the stamp again under a lock: two makes may get here at once.
$(STAMP): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "set-up: no $(PYTHON) here; name one: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) .ci/setup.py $(STAMP)

demo: $(STAMP)
	@$(VENV)/bin/zlink demo $(ARGS)

test: $(STAMP)
	$(RUN) pytest $(SIDE_BY_SIDE) -m "not slow" $(ARGS)

test-all: $(STAMP)
	$(RUN) pytest $(SIDE_BY_SIDE) $(ARGS)

check: $(STAMP)
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy
	$(VENV)/bin/lint-imports
	$(RUN) tests.contract_index

mutants: $(STAMP)
	$(RUN) tests.mutants.run $(if $(AREA),--area $(AREA)) $(ARGS)

bench: $(STAMP)
	$(RUN) benchmarks.run $(ARGS)

bench-sessions: $(STAMP)
	$(RUN) benchmarks.sessions.storm $(ARGS)
	$(RUN) benchmarks.sessions.figures

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
