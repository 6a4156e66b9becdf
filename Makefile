# `make book` and `make test` each start from nothing but Python 3.11 or newer. `make help` lists the rest.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help book serve lab quick test nightly mutants values lint assignments address copies browser dist lock clean

VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
HTML := book/_build/html
PORT ?= 8000
PYTEST ?=

# The first Python that is new enough; PYTHON=/path/to/python overrides it.
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do $$p -c '$(NEW_ENOUGH)' 2>/dev/null && { echo $$p; break; }; done)

# How many notebooks, tests or mutants at a time: one per core, but eight at most, for each holds about half a gigabyte.
JOBS ?= $(shell cores=$$(env -u OMP_NUM_THREADS nproc 2>/dev/null || getconf _NPROCESSORS_ONLN); echo $$((cores < 8 ? cores : 8)))
export HETFL_JOBS := $(JOBS)

# The tensors are small: threads that wait for each other on a busy machine cost more than they bring.
export OMP_NUM_THREADS ?= 1

# Compiled modules are kept, in folders that git ignores: tests and notebooks start Python a few hundred times.
unexport PYTHONDONTWRITEBYTECODE

# The same instructions on every x86 CPU, so that numbers repeat; HETFL_FASTEST=1 takes the fastest instead.
HOLD := eval "$$($(PY) -m hetfl_core.numerics)"

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

book: $(READY)  ## execute the notebooks, one per core (finished ones come from a cache), and build the HTML (JOBS=2)
	rm -rf $(HTML)
	$(HOLD) && $(VENV)/bin/jupyter-book build book --all -n -W --keep-going
	@echo
	@echo "The book is ready: open $(HTML)/index.html, or run 'make serve'."

serve:  ## serve the built book on http://localhost:8000 (PORT=... for another)
	@test -f $(HTML)/index.html || { echo "there is no book yet: run 'make book' first"; exit 1; }
	$(PY) -m http.server $(PORT) --bind 127.0.0.1 --directory $(HTML)

lab: $(READY)  ## open the chapters in JupyterLab
	@$(PY) -c 'import jupyterlab' 2>/dev/null || $(PY) -m pip install --quiet -c constraints.txt jupyterlab
	$(HOLD) && $(PY) -m jupyter lab --notebook-dir=book

# Three tiers. Tests marked `nightly` are in the last one, all others in the one before; `quick` runs some of those.
# A process that has nothing left takes tests off the end of another's list, so that tests of one file, which share what
# is costly to make, stay together as long as both are busy.
TESTS := $(PY) -m pytest --dist worksteal --durations=20
BASE ?=

quick: $(READY)  ## run the tests of what you changed since you left main (BASE=commit for another beginning)
	$(PY) tests/quick.py --base '$(BASE)' -n $(JOBS) --dist worksteal $(PYTEST)

test: $(READY)  ## run every test that a change of code can break (PYTEST='-k flic -x' passes options on)
	$(TESTS) -n $(JOBS) -m "not nightly" $(PYTEST)

# One process more than cores: much of these tests' time is waiting, for a browser, for processes, for limits of time.
nightly: $(READY) browser  ## run the long tests: browser, real files, processes, building, grading, wheels, recipes
	$(TESTS) -n $$(($(JOBS) + 1)) -m nightly $(PYTEST)

N ?= 200
SEED ?= 0
mutants: $(READY)  ## change the core at N=200 random places (SEED=0 ONLY=partition JOBS=2), see whether the tests notice
	$(HOLD) && $(PY) tests/mutants.py --n $(N) --seed $(SEED) --jobs $(JOBS) --only '$(ONLY)'

values: $(READY)  ## write down anew what the core computes and promises (tests/golden.json), where a change of it is meant
	$(HOLD) && $(PY) tests/test_golden.py

lint: $(READY)  ## ruff and mypy alone; 'make nightly' runs them too
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

assignments: $(READY)  ## make the students' versions and the autograders
	$(PY) book/assignments/generate.py

address: $(READY)  ## after setting project.urls.Repository in pyproject.toml: write it where it must be repeated
	$(PY) book/_ext/hetfl_site.py

copies:  ## after 'make book', for who publishes it: put the notebooks that Colab opens onto a branch of the repository
	$(PYTHON) book/_ext/hetfl_copies.py

VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' hetfl_core/_version.py)
TAG ?= v$(VERSION)
dist:  ## both distributions, each as sdist and wheel, in dist/, by the hatchling of PYTHON=.venv/bin/python
	@test "$(TAG)" = "v$(VERSION)" || { echo "the tag $(TAG) is not of version $(VERSION)"; exit 1; }
	rm -rf dist
	$(PYTHON) -m hatchling build -d $(CURDIR)/dist
	here=$$(command -v $(PYTHON)) && here=$$(realpath -s "$$here") && cd book && "$$here" -m hatchling build -d $(CURDIR)/dist

# --- the environment: made once, made anew when what it depends on has changed ---------------------------------

# On Linux the usual index has PyTorch with CUDA, gigabytes that nothing here needs: it comes from PyTorch's own index for
# processors. `make TORCH_INDEX= ...` leaves that out, for a GPU; so does an address that gives no answer within seconds.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
torch_for_processors = test "$$(uname -s)" != Linux || test -z "$(TORCH_INDEX)" \
  || $(PY) -m pip install --quiet --no-deps --retries 1 --timeout 10 -c constraints.txt --index-url "$(TORCH_INDEX)" torch 2>/dev/null \
  || echo "$(TORCH_INDEX) gave no PyTorch: the usual index will, with CUDA on Linux"

$(READY): pyproject.toml book/pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer was found; name one with 'make PYTHON=/path/to/python ...'"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || $(call system,python3-venv) \
	  || { echo "this Python cannot make environments: on Debian and Ubuntu install 'python3-venv' and try again"; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(PY) -m pip install --quiet --upgrade pip
	@$(torch_for_processors)
	$(PY) -m pip install --quiet -c constraints.txt -e '.[dev]' -e './book[pages]'
	$(PY) -m ipykernel install --sys-prefix --name python3 >/dev/null
	@touch $@

# The page tests drive a browser. Root on Debian or Ubuntu gets it installed; anyone else is told, and those tests skip.
BROWSERS := chromium chromium-browser google-chrome google-chrome-stable
browser:
	@command -v $(BROWSERS) >/dev/null || test -n "$$HETFL_BROWSER" || $(call system,chromium fonts-dejavu-core) \
	  || echo "no Chromium was found, so the tests of the built pages will be skipped: install the package 'chromium'," \
	          "or set HETFL_BROWSER to a Chromium or Chrome"

# Installs Debian packages where that is possible without asking, and fails where it is not.
system = { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
  && echo "installing the system package(s) $(1) with apt-get" && apt-get -qq update </dev/null \
  && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $(1) </dev/null >/dev/null; }

lock:  ## pin constraints.txt anew to the newest versions that both pyproject.toml allow
	rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet -e '.[dev]' -e './book[pages]'
	{ grep '^#' constraints.txt; .venv-lock/bin/python -m pip freeze --exclude-editable | sed 's/+cpu$$//'; } > constraints.tmp
	mv constraints.tmp constraints.txt && rm -rf .venv-lock

clean:  ## remove what was built: environment, pages, cache
	rm -rf $(VENV) .venv-lock book/_build book/api/generated dist build .mypy_cache .ruff_cache .pytest_cache
