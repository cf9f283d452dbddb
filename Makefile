# `make demo` and `make test` need Python 3.10-3.12 and nothing else: they build .venv first.
VENV   := .venv
BIN    := $(VENV)/bin
# NVRx has no wheels for Python 3.13: take the newest Python that both torch and NVRx have.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.10 python3; do \
            $$p -c 'import sys; raise SystemExit(not (3,10) <= sys.version_info[:2] <= (3,12))' 2>/dev/null && echo $$p && break; done)
STAMP  := $(VENV)/.installed
# Most tests wait two thirds of their time for processes, so a small machine is given twice as many as it has cores.
TESTERS ?= $(shell cores=$$(nproc); echo $$(( cores < 8 ? 2 * cores : cores )))

.PHONY: help venv demo stack test lane lint types bench peers scale soak docs format clean
.DEFAULT_GOAL := help

help:  ## what can be made
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

venv: $(STAMP)  ## .venv with everything in it

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "Headway needs Python 3.10, 3.11 or 3.12 on the PATH (NVRx has no wheels for 3.13); or say make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@# a half-made .venv, or one of another Python, is made anew: adding to it would keep what is wrong with it
	@$(BIN)/python -c 'import pip, sys; raise SystemExit(not (3,10) <= sys.version_info[:2] <= (3,12))' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	@# torch first and pinned: a package that merely asks for "torch" would bring a CUDA build of several gigabytes
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

demo: $(STAMP)  ## train on real text, break it four times, watch it recover (3 minutes)
	$(BIN)/headway demo

stack: $(STAMP)  ## the demo with Prometheus and Alertmanager, which must be installed: which alerts come, go, and tell whom
	$(BIN)/headway demo --stack

test: $(STAMP)  ## every test that this machine can run: first those that bear company, then those that bear little, then the others
	$(BIN)/python -m pytest -n $(TESTERS) --dist loadfile -m "not e2e and not alone"
	$(BIN)/python -m pytest -n 2 -m "e2e and not alone"
	$(BIN)/python -m pytest -m "alone"

lane: $(STAMP)  ## the end-to-end tests on another version of NVRx: make lane NVRX=0.6.0
	VENV=$(VENV) .ci/lane $(NVRX)

lint: $(STAMP)  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)  ## mypy --strict
	$(BIN)/mypy

bench: $(STAMP)  ## what recording and following cost, and how soon a death is known
	@status=0; for name in recorder sidecar death state postmortem; do \
	  echo "-- $$name"; $(BIN)/python tests/benchmarks/bench_$$name.py || status=1; done; exit $$status

peers: $(STAMP)  ## other tools beside ours: a step, a scrape, and goodput on the golden cases
	$(BIN)/python tests/benchmarks/peers.py

scale: $(STAMP)  ## what rules and the Fleet dashboard cost a Prometheus that watches 2,048 pods (5 minutes)
	$(BIN)/python tests/scale/scale.py

soak: $(STAMP)  ## 500 kills of trainers, launchers and sidecars; the books must add up after each (20 minutes)
	$(BIN)/python tests/soak/soak.py --kills 500

docs: $(STAMP)  ## write the generated tables of the README anew
	$(BIN)/python tests/contract/readme.py

format: $(STAMP)  ## let ruff put the code in order
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

clean:  ## remove what the targets above made
	rm -rf $(VENV) demo-output .pytest_cache .mypy_cache .ruff_cache .hypothesis
