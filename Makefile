# Everything runs from .venv, which `make install` builds from requirements.lock. Needs Python >= 3.11 and make.
PYTHON ?= python3
CORES ?= all
# Test processes: a third one on two cores works while others wait for a server or for Snakemake.
WORKERS ?= 3
# RENEW=1: test-faults and test-cluster write what they saw into docs/reliability.csv.
RENEW ?=
# Without the GPU libraries (4 of 6 GB): by default where there is no NVIDIA device, if torch's own CPU wheels can be had; CPU=1 insists, CPU= never.
CPU ?= $(if $(wildcard /dev/nvidiactl /dev/dxg),,auto)

# Snakemake asks for a home, which a container's user may not have.
export HOME ?= /tmp

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PEERS := .venv-peers
PEERS_STAMP := $(PEERS)/.installed
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
# The files with a mark: to import the others takes half a minute.
MARKED = $(shell grep --recursive --files-with-matches --include='test_*.py' 'mark\.$(1)' tests)
ORDINARY := not docs and not faults and not cluster and not night
SOURCES := src docs/outside.py tests tools workflow/scripts
SNAKEFILES := Snakefile workflow/Snakefile workflow/rules
STUDIES := $(filter-out paper_results,$(basename $(notdir $(wildcard studies/*.yaml studies/papers/*.yaml))))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install quickstart readme results readings test test-fast docs-check test-faults test-cluster nightly coverage mutants lint studies-check format docs bench bench-peers audits report lock clean

help: ## list these targets
	@echo "usage: make TARGET   (variables: PYTHON=python3, CORES=all, WORKERS=3 test processes, CPU=1 no GPU libraries, CPU= with them)"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

install: $(STAMP) ## make .venv from requirements.lock (once; again only when the lock or pyproject.toml change)

# uv downloads, unpacks and compiles side by side, in a third of pip's time, and knows torch's index of CPU wheels. What pip's own configuration
# says (mirrors) it does not know: where it finds nothing, pip does all of it. The cache lies where its files are linked to.
UV = { $(BIN)/python -m pip install --quiet uv && UV_CACHE_DIR=$(VENV)/cache $(BIN)/uv pip install --quiet --compile-bytecode \
  --python $(BIN)/python $(1); }
CPU_LOCK := $(VENV)/requirements.lock

# The stamp is written last, so an installation that was interrupted is taken up again by the next make.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("pflpipe needs Python >= 3.11; $(PYTHON) is " + sys.version.split()[0] + "; try: make install PYTHON=python3.12")'
	@$(PYTHON) -c 'import ensurepip, venv' || { echo "$(PYTHON) cannot make virtual environments; on Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@rm -f $@
	@echo "Installing into $(VENV): about $(if $(CPU),2,6) GB on disk$(if $(filter auto,$(CPU)), (6 where torch's CPU wheels cannot be had)), a few minutes."
	$(PYTHON) -m venv $(VENV)
	$(if $(CPU),grep -vE '^(nvidia-|cuda-|triton)' requirements.lock > $(CPU_LOCK))
	$(if $(CPU),$(call UV,--torch-backend cpu -r $(CPU_LOCK)) 2>/dev/null ||) $(if $(filter-out auto,$(CPU)), \
	  $(BIN)/python -m pip install --quiet -r $(CPU_LOCK), \
	  $(call UV,-r requirements.lock) || $(BIN)/python -m pip install --quiet -r requirements.lock)
	@rm -rf $(VENV)/cache
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	$(BIN)/python -m pip check
	@touch $@

quickstart: install ## install, then build the default study: results/tables/all.csv
	$(BIN)/snakemake --cores $(CORES) results/tables/all.csv

readme: install ## put the numbers and the figure of the last quickstart into README.md and docs/; trains nothing
	PYTHONPATH=tools $(BIN)/python -m pages readme

results: install ## docs/results.md from docs/results/; STUDY="a b" first puts these finished studies there; trains nothing
	PYTHONPATH=tools $(BIN)/python -m pages results $(STUDY)

readings: install ## studies/papers/ from the readings of studies/readings/, as far as these make studies
	PYTHONPATH=tools $(BIN)/python -m pages readings

test: install ## install, then run the tests (without those of the next four targets)
	$(PYTEST) -m "$(ORDINARY)"

docs-check: install ## build the site, run what README.md and docs/ say; needs chromium
	$(PYTEST) -m docs $(call MARKED,docs)

test-faults: install ## kills, full disks, dead servers, files that were tampered with
	$(PYTEST) $(if $(RENEW),--renew) -m "faults and not night" $(call MARKED,faults)

test-cluster: install ## a study through a real one-node SLURM, which this starts and stops; needs slurm-wlm and munge
	$(PYTEST) $(if $(RENEW),--renew) -m "cluster and not night" $(call MARKED,cluster)

nightly: install ## the tests that take longest, and the long versions of test-faults and test-cluster; also needs slurmdbd and mariadb-server
	$(PYTEST) --long -m "faults or cluster or night"

test-fast: install ## the tests without those of the workflow and without long computations: a minute and a half
	$(PYTEST) -m "$(ORDINARY) and not pipeline and not slow"

coverage: install ## all tests, and which lines of the package none of them runs
	$(PYTEST) --cov --cov-report=term

mutants: install ## a hundred small faults, one at a time: do the tests notice? (an hour)
	$(BIN)/python tests/mutants.py

lint: install ## ruff, mypy, import contracts, snakefmt, snakemake --lint; changes nothing
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/snakefmt --check $(SNAKEFILES)
	$(BIN)/snakemake --lint

studies-check: install ## plan the jobs of every study in studies/ in one go; starts none
	$(BIN)/snakemake --dry-run --quiet all -- $(STUDIES:%=results/tables/%.csv)

format: install ## let ruff and snakefmt rewrite the sources
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/snakefmt $(SNAKEFILES)

docs: install ## the site, in build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir build/site

bench: install ## run every program in tools/benchmarks/ but the comparison with other frameworks
	@mkdir -p build
	@set -e; for program in $(filter-out tools/benchmarks/bench_peers.py,$(wildcard tools/benchmarks/bench_*.py)); do \
	  echo "== $$program"; $(BIN)/python "$$program" --out "build/$$(basename $$program .py).json"; done

bench-peers: install $(PEERS_STAMP) ## rounds beside pfl and Flower, in an environment of their own (OPTIONS="--repeats 5")
	$(BIN)/python tools/benchmarks/bench_peers.py --peers-python $(PEERS)/bin/python --out build/bench_peers.json $(OPTIONS)

$(PEERS_STAMP): tools/benchmarks/peers/requirements.lock
	@$(PYTHON) -c 'import sys; (3, 11) <= sys.version_info < (3, 13) or sys.exit("pfl needs Python 3.11 or 3.12; $(PYTHON) is " + sys.version.split()[0] + "; try: make bench-peers PYTHON=python3.12")'
	@rm -f $@
	@echo "Installing into $(PEERS): about 6 GB on disk, a few minutes."
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet -r $<
	$(PEERS)/bin/python -m pip check
	@touch $@

audits: install ## attack other programs' mechanisms, in environments of their own, and write docs/audit_others.md (AUDITS="flower pfl")
	PYTHONPATH=src:tools OMP_NUM_THREADS=1 $(BIN)/python -m audits $(AUDITS)

report: install ## results/report.html: the quickstart and its published versions, tables, figures and how they were made
	$(BIN)/snakemake --cores $(CORES) --config 'studies=["quickstart", "quickstart_published"]' -- results/report.html

lock: ## resolve both requirements.lock again, keeping the present pins (UPGRADE=--upgrade: newest)
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet uv
	build/lock/bin/uv pip compile --quiet $(UPGRADE) --extra all --extra lab --extra dev --extra secure --universal --python-version 3.11 --no-emit-index-url \
	  --no-annotate --custom-compile-command "make lock" --output-file requirements.lock pyproject.toml
	build/lock/bin/uv pip compile --quiet $(UPGRADE) --universal --python-version 3.11 --no-emit-index-url \
	  --no-annotate --custom-compile-command "make lock" --output-file tools/benchmarks/peers/requirements.lock tools/benchmarks/peers/requirements.in

clean: ## remove caches and built documentation; results/, data/ and the environments stay
	rm -rf build .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
	find src tests tools workflow -name __pycache__ -type d -prune -exec rm -rf {} +
