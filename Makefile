# Two commands do everything on a fresh machine with Python >= 3.11, a C compiler and make
# (and Java 17 for the Spark tests): `make up` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What a node and the command need, and everything: Spark, tests, checks.
NODE := $(VENV)/.node
STAMP := $(VENV)/.installed
NEEDED := import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'])
# Processes that run tests side by side. One process runs a whole file, in order; the longest files
# start first (tests/conftest.py lists them). More than two for two cores: tests of clusters
# wait for elections, timeouts and starting processes.
WORKERS ?= 3
# Where this is set, every test process would rewrite the assertions of every file again.
export PYTHONDONTWRITEBYTECODE :=
PYTEST := $(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
# Tests whose servers run on the event loop of the test itself, not in processes of their own.
IN_PROCESS := tests/server tests/cluster tests/monitor tests/raft/host

.PHONY: up down spark test test-debug lint bench-peers clean codecs

up: $(NODE) ## start three nodes on this machine and print their addresses
	$(BIN)/python setup.py --quiet build_ext --inplace
	$(BIN)/jetraft up --detach

down: ## stop the nodes that `make up` started
	$(BIN)/jetraft down

spark: $(NODE) ## what the Spark source needs besides Java
	$(BIN)/pip install --quiet --constraint requirements.lock pyspark pyarrow pandas

test: $(STAMP) codecs ## every test; fails if the compiled codecs are not the ones tested
	$(PYTEST)

test-debug: $(STAMP) codecs ## part of the tests in asyncio's debug mode: names what was never awaited
	PYTHONASYNCIODEBUG=1 $(PYTEST) $(IN_PROCESS)

lint: $(STAMP) ## style, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench-peers: $(STAMP) codecs ## compare with nats-server: same client, runs in turn
	$(BIN)/jetraft bench peers

codecs: $(STAMP)
	$(BIN)/python setup.py --quiet build_ext --inplace

# The codecs are compiled while the packages are downloaded.
$(NODE): pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint requirements.lock cython setuptools
	$(BIN)/python setup.py --quiet build_ext --inplace & compiling=$$!; \
		$(BIN)/pip install --quiet --constraint requirements.lock $$($(BIN)/python -c "$(NEEDED)"); \
		installed=$$?; wait $$compiling && exit $$installed
	# compat: a plain path entry, because Spark finds data sources by walking sys.path
	JETRAFT_COMPILED=yes $(BIN)/pip install --quiet --no-deps --no-build-isolation \
		--config-settings editable_mode=compat --editable .
	touch $(NODE)

$(STAMP): $(NODE)
	$(BIN)/pip install --quiet --requirement requirements.lock
	touch $(STAMP)

clean:
	rm -rf $(VENV) build *.egg-info
