# Every target sets up what it needs: a machine with Python 3.11, git and make is enough.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(abspath $(VENV))/bin
# One stamp per content of the files that fix the environment: changed content, new set-up.
READY := $(VENV)/.ready-$(shell cat pyproject.toml packages/*/pyproject.toml constraints.txt | cksum | cut -d ' ' -f 1)
PIP := "$(BIN)/python" -m pip install --quiet --disable-pip-version-check --no-compile
# Its cache, of links to the same files, lies beside them and goes when all are there.
CACHE := $(VENV)/.cache
UV := "$(BIN)/uv" pip install --quiet --python "$(BIN)/python" --cache-dir "$(CACHE)"
# Scripts of an environment name its own Python: in a folder that moved, one that is gone.
MOVED := $(shell test ! -e "$(BIN)/merganser" || test -x "$$(grep -om1 '/.*/python[0-9.]*' "$(BIN)/merganser")" || echo moved)
SOURCES := packages merganser tasks flows examples tests benchmarks tools
PRESENT = $(wildcard $(SOURCES))

# The stages' commands say `python`: they mean this one.
export PATH := $(BIN):$(PATH)
# Images of containers set it, and each process would compile anew what it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help venv moved outlook run test drills check format bench docs site dist ui clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

venv: $(READY)  ## make the environment (the other targets do it by themselves)

moved:
	@echo "the Python that $(VENV) names is gone, as in a folder that moved: it is made anew"
	@rm -rf "$(VENV)"

$(READY): $(MOVED)
	@$(if $(PYTHON),,echo "no python3.11 found: install it, or say make PYTHON=/path/to/python3.11" >&2; exit 1;) \
	test -x $(BIN)/python || "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' \
	|| { echo "$(PYTHON) is not Python 3.11: install it, or say make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@"$(BIN)/python" -m pip --version >/dev/null 2>&1 || "$(PYTHON)" -m venv "$(VENV)"
	@echo "setting up $(VENV): a minute or two and 7 GB, once"
	@# uv is five times as fast. Packages that it was killed amid are installed again; pip does it where uv cannot, as with
	@# settings that are pip's alone.
	@$(PIP) -c constraints.txt uv
	@again=$$(test -e "$(CACHE)" && echo --reinstall); $(UV) $$again -c constraints.txt -e packages/dvcfleet -e ".[dev]" 2>/dev/null \
	|| $(PIP) -c constraints.txt -e packages/dvcfleet -e ".[dev]"
	@rm -rf "$(CACHE)"
	@# Which compiles them, as nothing has yet: all that a run imports, and the loops, for which no stage waits.
	@"$(BIN)/python" -c "import merganser.flows.commands.cli, dvcfleet.run, dvcfleet.prefect_adapter.flow, prefect.server.api.server" & \
	"$(BIN)/python" -c "import merganser.linalg.loops, open_clip, datasets, matplotlib.pyplot, mlflow.store.tracking.sqlalchemy_store" \
	2>/dev/null; wait
	@rm -f "$(VENV)"/.ready-* && touch "$@"

# Before anything is installed, hence in the shell.
outlook:
	@test -e "$(READY)" || echo "first the environment, $(VENV): a minute or two and 7 GB, once"
	@test -e data || printf '%s\n' "the comparison of params.yaml: as this clone brings it 10 to 15 minutes and 1 GB on two cores" \
	"while it runs: .dvcfleet/so-far/index.html, from the first score on; in the end: the best entries here, and report/index.html"

run: outlook $(READY)  ## compare the methods of params.yaml and write the report
	@"$(BIN)/merganser" run
	@echo "The report is in report/index.html; 'make ui' opens it beside the pages of Prefect and MLflow."

# One file a process, in the order of tests/conftest.py, which begins with the slow ones. The home is an empty one: a
# machine that has seen other runs proves as much as a new one, and what tests write there is a failure. They write up to
# 2 GB at once: into memory, if that has room.
test: export TMPDIR ?= $(shell df -kP /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 8000000 {print $$6}')
test: $(READY)  ## run the tests; the last lines name the ten slowest and the time of all
	@place=$$(mktemp -d) && trap 'rm -rf "$$place"' EXIT && trap 'exit 130' INT && trap 'exit 143' TERM && \
	home="$$place/home" && mkdir "$$home" "$$place/tmp" && \
	HOME="$$home" TMPDIR="$$place/tmp" OMP_NUM_THREADS=1 \
	"$(BIN)/python" -m pytest -n 4 --dist loadfile --no-loadscope-reorder --durations 10 && \
	{ test -z "$$(ls -A "$$home")" || { echo "the tests wrote into the user's home:" >&2; find "$$home" >&2; exit 1; }; }

drills: $(READY)  ## try hundreds of kills, thousands of broken inputs, all of `dvc repro`, clusters: hours
	@OMP_NUM_THREADS=1 "$(BIN)/python" -m tests.drills $(DRILLS)

check: site  ## formatting, lint, spelling, types, import rules, links and language of the docs, classes of code, size
	"$(BIN)/ruff" format --check .
	"$(BIN)/ruff" check .
	"$(BIN)/codespell"
	"$(BIN)/mypy"
	"$(BIN)/lint-imports"
	"$(BIN)/python" -m tools.prose
	"$(BIN)/python" -m tools.equivalence --check
	"$(BIN)/python" -m tools.ratchet

format: $(READY)  ## put the code into the one format
	"$(BIN)/ruff" format .
	"$(BIN)/ruff" check --fix .

bench: $(READY)  ## measure the engine and the merges against what they replace: 30 to 45 minutes
	@"$(BIN)/python" -m benchmarks

docs: $(READY)  ## write the pages about the methods from the registry, and quoted figures from docs/results.md
	@"$(BIN)/python" -m tools.catalogue
	@"$(BIN)/python" -m tools.figures

# Not --quiet, which lets dead links pass. MkDocs would announce its successor at each start.
site: $(READY)  ## write the docs as a site to build/site; a dead link is an error
	@NO_MKDOCS_2_WARNING=1 "$(BIN)/python" -m mkdocs build --strict

# Checked by the newest tools, of which nothing here needs a version.
dist: $(READY)  ## build the wheels and source distributions of the last commit into build/dist, the same bytes each time
	@rm -rf build/dist && .ci/dist build/dist
	@"$(BIN)/uv" tool run --quiet --with 'readme_renderer[md]' twine check --strict build/dist/*
	@"$(BIN)/uv" tool run --quiet check-wheel-contents build/dist/*.whl
	@cd build/dist && sha256sum *

ui: $(READY)  ## open the start page, the report and the pages of Prefect and MLflow on this machine
	@"$(BIN)/merganser" ui

clean:  ## remove what the stages wrote and the tools' caches (DVC's cache and the environment stay)
	rm -rf data report metrics.json build *.egg-info packages/*/build packages/*/*.egg-info
	rm -rf .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
