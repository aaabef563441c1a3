# Two commands set up everything on a fresh machine: `make fixtures` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
SITE := site
RECIPES := deepseek-v3-mtp deepseek-v3-mtp-fp8 deepseek-v3-eagle

.PHONY: fixtures test lint suite upload docs clean

fixtures: .venv/core  ## build the default recipes into fixtures/
	$(BIN)/fixturegen build $(RECIPES) --out fixtures
	$(BIN)/fixturegen list

test: .venv/test  ## run everything, the real vLLM runs included
	$(BIN)/python -m pytest -m "not vllm" -n auto
	$(BIN)/python -m pytest -m vllm -n auto

lint: .venv/test  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

suite: .venv/test fixtures  ## vLLM's spec-decode suite and the exact suite against fixtures/
	$(BIN)/fixturegen suite --fixtures fixtures

upload: .venv/core fixtures  ## push fixtures/ to the hub: make upload ORG=my-org
	$(BIN)/fixturegen push $(addprefix fixtures/,$(RECIPES)) --repo $(ORG)/ $(PUSH)

docs: .venv/docs  ## the documentation site, into site/
	$(BIN)/mkdocs build --strict --site-dir $(SITE)

clean:
	rm -rf .venv fixtures site dist

.venv/pip:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv .venv
	touch $@

.venv/core: .venv/pip pyproject.toml
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

.venv/test: .venv/core
	$(BIN)/python .ci/install_engine.py
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@

.venv/docs: .venv/core
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@
