# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
JOBS   ?= 2

.PHONY: help demo test lint types check soak reference bench clean

help: ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[s3]'
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

$(VENV)/installed-reference: $(VENV)/installed-dev ## write docs/reference from --help
	$(BIN)/python docs/reference/command_line.py

bench: $(VENV)/installed-dev
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	@touch $@

demo: $(VENV)/installed ## train, save in the background, crash, restore, verify
	$(BIN)/python examples/crash_and_resume.py

test: $(VENV)/installed-dev ## the whole suite
	$(BIN)/python -m pytest -n $(JOBS)

lint: $(VENV)/installed-dev ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed-dev ## mypy, strict
	$(BIN)/mypy

check: lint types test ## all that CI asks for

soak: $(VENV)/installed-dev ## the long sweeps
	$(BIN)/python -m pytest -m soak --override-ini timeout=0

reference: $(VENV)/installed-dev ## write docs/reference from --help
	$(BIN)/python docs/reference/command_line.py

bench: $(VENV)/installed-bench ## the figures, ours and the peers'; about half an hour
	$(BIN)/python benchmarks/checkpoints/run.py

clean: ## remove what was made here
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
