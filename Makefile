# Every target sets itself up on a fresh machine: a virtual environment in .venv, installed with the tested versions.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
DEMO   ?= demo-output

.PHONY: demo test lint bench bench-check docs typecheck clean

demo: $(VENV)/.core
	$(BIN)/protlat demo -o $(DEMO)

test: $(VENV)/.test
	$(BIN)/python -m pytest

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) typecheck

# Type checkers do not follow the folder mapping of setup.py, so that they read an installed copy.
typecheck: $(VENV)/.test
	rm -rf build/typecheck
	$(PIP) --no-deps --target build/typecheck .
	cd build/typecheck && ../../$(BIN)/mypy --config-file ../../pyproject.toml protlat

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks.run --short

# Fails when protlat fell back against its peers by more than a fifth; --store keeps this machine's ratios.
bench-check: $(VENV)/.bench
	$(BIN)/python -m benchmarks.check

docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict --quiet
	@echo "documentation: site/index.html"

# torch first and by itself: what needs torch to build must not fetch another one.
$(VENV)/.core: setup.py constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) pip setuptools wheel
	$(PIP) torch
	$(PIP) -e '.[plot]'
	touch $@

$(VENV)/.test: $(VENV)/.core
	$(PIP) -e '.[test,plot,anndata,tokenizers,onnx]'
	touch $@

$(VENV)/.bench: $(VENV)/.core
	$(PIP) -e '.[plot,bench]'
	touch $@

$(VENV)/.docs: $(VENV)/.core
	$(PIP) -e '.[plot,docs]'
	touch $@

clean:
	rm -rf $(VENV) build site *.egg-info $(DEMO)
