# Two commands do everything on a fresh machine with Python >= 3.11, a C compiler and make
# (and Java 17 for the Spark tests): `make up` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Processes that run tests side by side. A file is run by one of them, in order; the longest files
# come first (tests/conftest.py says which).
WORKERS ?= 2

.PHONY: up down test lint bench-peers clean codecs

up: $(STAMP) codecs ## start three nodes on this machine and print where they are
	$(BIN)/jetraft up --detach

down: ## stop the nodes that `make up` started
	$(BIN)/jetraft down

test: $(STAMP) codecs ## every test; fails if the compiled codecs were not the ones tested
	$(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench-peers: $(STAMP) codecs ## ours beside nats-server, same client, interleaved
	$(BIN)/jetraft bench peers

codecs: $(STAMP)
	$(BIN)/python setup.py --quiet build_ext --inplace

$(STAMP): pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --requirement requirements.lock
	# compat: a plain path entry, because Spark finds data sources by walking sys.path
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --config-settings editable_mode=compat --editable .
	touch $(STAMP)

clean:
	rm -rf $(VENV) build *.egg-info
