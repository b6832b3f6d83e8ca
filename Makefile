# Two commands on a fresh machine, in either order: `make run-all` and `make test`.
# Every target first builds .venv, if it is missing or older than requirements.txt.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
PROFILE ?= tiny
# Share of the protocol's counts: 0.1 for a first look on a slow machine; every table then says so.
BUDGET ?= 1
VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.installed
SCALE_READY := $(VENV)/.installed-scale
# LABS selects labs by name or number (LABS="02 03"); ARGS goes to the tool as it is.
LABS ?=
ARGS ?=
# The notebook to grade.
NB ?=
# Workers of the tests: auto (the cores, at most 4), a number, or 0 for none.
WORKERS ?= auto
# What JupyterLab opens.
NOTEBOOKS ?= notebooks
export PYTHONHASHSEED := 0

.PHONY: help setup run-all test lab book refresh check report audit studies rates record scale scale-test bench gpu data tiny-base model student grade clean

help:  ## this list
	@awk -F ':.*## +' '/^[a-z-]+:.*##/ {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo '  with PROFILE=tiny|smollm2-135m|qwen2.5-0.5b, BUDGET=0.1, LABS="02 03", ARGS="--fresh", "-j 1", "-p SEED 3", WORKERS=1'

$(READY): requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'Python 3.11 or newer is needed and $(PYTHON) is not: run make PYTHON=<a newer one>.' >&2; exit 1; }
	@echo 'Setting up $(VENV): once, some minutes.'
	@$(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install --disable-pip-version-check --quiet --requirement requirements.txt
	@# Notebooks import labs_lib from here, whichever folder they run in and whoever starts the kernel.
	@$(PY) -c 'import pathlib, sysconfig; pathlib.Path(sysconfig.get_path("purelib"), "post_training_labs.pth").write_text("$(CURDIR)\n")'
	@touch $@

setup: $(READY)  ## create .venv with the pinned requirements

run-all: $(READY)  ## execute every lab headless into outputs/PROFILE; what is up to date is not run again
	$(PY) -m labs_lib.tools.run_all --profile $(PROFILE) --budget $(BUDGET) $(ARGS) $(LABS)

test: $(READY)  ## unit tests, then every notebook executed again and compared with its committed outputs
	$(PY) -m pytest -n $(WORKERS) --dist loadfile --max-worker-restart 0 tests
	books=$$($(PY) -m labs_lib.tools.labs) && $(PY) -m pytest -n $(WORKERS) --max-worker-restart 0 --nbval $$books

lab: $(READY)  ## JupyterLab on notebooks/ (NOTEBOOKS=folder: on another one)
	$(PY) -m jupyterlab $(if $(filter 0,$(shell id -u)),--allow-root) $(ARGS) $(NOTEBOOKS)

book: $(READY)  ## the committed notebooks as static HTML in outputs/book, for reading without Jupyter or network
	$(PY) -m labs_lib.tools.book

refresh: $(READY)  ## execute from a clean state and write the outputs back into notebooks/ and figures/
	$(PY) -m labs_lib.tools.run_all --refresh $(ARGS) $(LABS)

check: $(READY)  ## ruff: lint and format, notebooks too
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

report: $(READY)  ## print outputs/PROFILE/report.json as tables
	$(PY) -m labs_lib.tools.report --profile $(PROFILE) --budget $(BUDGET)

audit: $(READY)  ## recompute everything from the raw evidence, in plain Python
	$(PY) -m labs_lib.tools.audit --profile $(PROFILE) --budget $(BUDGET) $(ARGS)

studies: $(READY)  ## run the long studies again and record them in data/recorded
	$(PY) -m labs_lib.tools.studies --profile $(PROFILE) $(ARGS)

record: $(READY)  ## keep what a run of a real model measured in data/recorded, for the labs to show
	$(PY) -m labs_lib.tools.record --profile $(PROFILE) --budget $(BUDGET)

rates: $(READY)  ## choose a profile's learning rates on validation data (ARGS="grpo": that one only)
	$(PY) -m labs_lib.tools.rates --profile $(PROFILE) --budget $(BUDGET) $(ARGS)

$(SCALE_READY): requirements-scale.txt $(READY)
	@$(PY) -m pip install --disable-pip-version-check --quiet --requirement requirements.txt --requirement $<
	@touch $@

scale: $(SCALE_READY)  ## GRPO by TRL in two processes, then lab 07; installs what they need
	$(PY) -m labs_lib.tools.scale --profile $(PROFILE) --budget $(BUDGET) $(ARGS)

scale-test: $(SCALE_READY)  ## after make scale: the tests that need TRL, then lab 07 compared with its outputs
	$(PY) -m pytest -n $(WORKERS) --dist loadfile --max-worker-restart 0 tests/scale
	books=$$($(PY) -m labs_lib.tools.labs 07) && $(PY) -m pytest --nbval --keep-outputs $$books

bench: $(SCALE_READY)  ## time and memory against the usual tools, side by side (ARGS="grpo --profile tiny": only these)
	$(PY) -m labs_lib.tools.bench $(ARGS)

gpu: $(READY)  ## on a machine with a CUDA GPU: the tests that need it, then the speed of kernels and sampling
	$(PY) -m labs_lib.tools.gpu $(ARGS)

data: $(READY)  ## generate the corpora again (the bytes must not change)
	$(PY) -m labs_lib.tools.data $(ARGS)

tiny-base: $(READY)  ## train the tiny base model again (about an hour)
	$(PY) -m labs_lib.tools.tiny_base $(ARGS)

model: $(READY)  ## fetch and check the base model of PROFILE
	$(PY) -m labs_lib.tools.model --profile $(PROFILE) $(ARGS)

student: $(READY)  ## write the edition that is handed out: outputs/student, without outputs and solutions
	$(PY) -m labs_lib.tools.student $(ARGS)

grade: $(READY)  ## check a submitted notebook and print a score sheet (NB=path/to/submitted.ipynb, ARGS=--json)
	@$(PY) -m labs_lib.tools.grading $(ARGS) "$(NB)"

clean:  ## delete everything that runs have made (outputs/ and caches)
	rm -rf outputs .pytest_cache .ruff_cache .hypothesis
