# The one door. Run `make` for the list.
PYTHON ?= python3.11
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help setup test slow lint format demo bench

help:
	@echo "make setup   make .venv with all that is needed"
	@echo "make demo    run the main job on made-up data"
	@echo "make test    run the test suite"
	@echo "make slow    run the tests that take minutes"
	@echo "make lint    check style and types"
	@echo "make format  format the code"
	@echo "make bench   measure speed"

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[cluster,dev]'
	@touch $(READY)

demo: $(READY)
	$(BIN)/prodm demo --overwrite

test: $(READY)
	$(BIN)/pytest --numprocesses 2 -m "not slow"

slow: $(READY)
	$(BIN)/pytest -m slow --timeout 7200

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/prodm bench simulate
