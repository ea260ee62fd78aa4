# The project's commands; `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/.runs# what commands and jobs need is there
STAMP := $(VENV)/.installed# and what tests need
PYTEST_WORKERS ?= 3 # of two processors: two begin with a Spark session, and others wait for Java half of their time

# Commands that tests start load what was compiled before them.
export PYTHONDONTWRITEBYTECODE =

# Tests keep their stores in memory where 18 GiB of it are free (5 for stores, 8 for processes, and some to spare): what
# they force to a disk takes most of their time. A kill is the same there, and losses of power are simulated. What others
# left in /dev/shm counts: memory that runs out ends Spark's JVM, and a hundred tests with it. On the disk:
# make test-all TEST_DIR=/tmp
FREE_MEMORY_GIB = $(shell awk '/^MemAvailable/ {print int($$2 / 1048576)}' /proc/meminfo 2>/dev/null || echo 0)
TEST_DIR ?= $(shell test -d /dev/shm && test "0$(FREE_MEMORY_GIB)" -ge 18 && echo /dev/shm)
PYTEST = $(if $(TEST_DIR),PYTEST_DEBUG_TEMPROOT="$(TEST_DIR)" )$(BIN)/pytest

# With it each of a run's many JVMs with Spark starts in half the processor time.
CLASSES := $(VENV)/spark-classes.jsa

.PHONY: help install spark-classes demo test test-all test-long check test-one test-matrix test-peers torture lab lint docs notebooks bench format clean

help: ## list the commands
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## make .venv with everything in it

$(STAMP): $(RUNS)
	@echo "installing the tools for tests into $(VENV)" >&2
	@$(call pip_install,.[dev])
	@touch $@

# Kernels need no Spark: they are compiled while it is fetched, so that the first broker and job start as the others do.
$(RUNS): pyproject.toml constraints.txt
	@test -x $(BIN)/python || { echo "making $(VENV)" >&2; $(PYTHON) -m venv $(VENV); }
	@echo "installing numba, then Spark into $(VENV), and compiling the kernels: a minute or two" >&2
	@$(call pip_install,.)
	@$(BIN)/python -m tools.compile_kernels & kernels=$$!; $(call pip_install,.[spark]) && wait $$kernels
	@$(BIN)/python -m compileall -q rmq_formats rmq_core rmq_offline rmq_lakehouse rmq_cli spark_udfs jobs
	@$(MAKE) --no-print-directory delta-jars
	@touch $@

pip_install = set -o pipefail; \
	$(BIN)/pip install --disable-pip-version-check --progress-bar off -c constraints.txt -e '$(1)' \
	  | sed -un -E 's/^ +//; /^(Downloading|Using cached|Building wheel|Installing coll)/s/^(.{0,100}).*/  \1/p' >&2

# Delta's two jars beside Spark's own: a session starts at once, and without resolving packages.
.PHONY: delta-jars
delta-jars:
	@jars=$$($(BIN)/python -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent / "jars")'); \
	delta=$$($(BIN)/python -c 'from rmq_formats.spark.session import delta_package; print(delta_package())'); \
	for artifact in $${delta#io.delta:} delta-storage:$${delta##*:}; do \
	  test -e "$$jars/$${artifact/:/-}.jar" || mvn -q -B dependency:copy -Dartifact="io.delta:$$artifact" \
	    -DoutputDirectory="$$jars" || echo "no Maven: Spark itself will fetch Delta when it is first used" >&2; \
	done

spark-classes: $(CLASSES) ## keep Spark's classes as Java maps them: a small job then takes two thirds of its time

$(CLASSES): $(STAMP)
	@echo "keeping the classes of Spark, a minute: later sessions start in less time" >&2
	@$(BIN)/python -m tools.spark_classes

demo: $(RUNS) ## a broker, then the main job on its store, or on yours: make demo STORE=DIR
	@$(BIN)/python -m tools.demo $(if $(STORE),--store "$(STORE)")

test: install $(CLASSES) ## what holds at each change: all tests but the long ones and those of chance, beside Apache RocketMQ too
	$(PYTEST) -n $(PYTEST_WORKERS) --dist loadgroup -m "not long and not torture"

test-all: install $(CLASSES) ## everything; then the minutes of each folder, and the seconds of each test in build/tests.json
	@mkdir -p build
	$(PYTEST) -n $(PYTEST_WORKERS) --dist loadgroup --junit-xml build/tests.xml
	@$(BIN)/python -m tools.test_minutes build/tests.xml --json build/tests.json

test-long: install $(CLASSES) ## what make test leaves out
	$(PYTEST) -n $(PYTEST_WORKERS) --dist loadgroup -m "long or torture"

check: install ## in three minutes or little more: lint, types, and the tests that need no JVM, but for the long ones
	@$(MAKE) --no-print-directory -j2 types imports compiled-tests
	$(PYTEST) -n 4 --dist loadgroup -m "not spark and not peer and not long and not torture"

# pytest compiles each module of tests anew, in every worker, where nobody has before: 14 s of processor time.
.PHONY: compiled-tests
compiled-tests: install
	@$(BIN)/pytest --collect-only -q >/dev/null

test-one: install ## the tests of one folder, file or name: make test-one K=tests/store, K=test_power
	$(PYTEST) $(if $(wildcard $(K)),"$(K)",-k "$(or $(K),$(error K names a folder, a file or a part of a test's name))")

test-matrix: install ## the tests of sources and jobs on each Spark, one after the other: make test-matrix SPARK="4.0 4.3" PYTHON=python3.13
	$(BIN)/python -m tools.matrix $(SPARK) $(if $(filter-out file,$(origin PYTHON)),--python $(PYTHON))

test-peers: install ## the tests beside the original with each of its releases, one after the other: make test-peers PEERS=5.5.1
	@for version in $(or $(PEERS),5.3.3 5.5.1); do \
	  echo "Apache RocketMQ $$version" >&2; \
	  PEER_VERSION=$$version $(PYTEST) -n $(PYTEST_WORKERS) --dist loadgroup -m peer || exit 1; \
	done

torture: install ## kills, losses of power, damage and flips at random, RMQ_TORTURE=50 times as many as in the tests (new ones: make lab)
	RMQ_TORTURE=$(or $(RMQ_TORTURE),50) $(PYTEST) -n $(PYTEST_WORKERS) --dist loadgroup --timeout 0 -m torture

lab: install ## break things at new seeds: make lab ROUNDS=100, at one: SEED=7 PARTS=power ROUNDS=1, sums of all runs: TOTAL=1
	@$(BIN)/python -m tests.lab $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SEED),--seed $(SEED)) \
	  $(if $(PARTS),--parts $(PARTS)) $(if $(TOTAL),--total)

lint: types imports ## ruff, mypy --strict, import-linter, vague words

.PHONY: types imports
types: install
	$(BIN)/mypy

imports: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python -m tools.vague_words

format: install ## let ruff format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: install ## the documentation as a site, in site/; a warning is an error
	@test -x $(BIN)/mkdocs || $(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet && echo "site/index.html"

notebooks: install ## run the notebooks, and keep their outputs in them: make notebooks NAME=06_lakehouse
	$(BIN)/python -m tools.run_notebooks $(NAME)

bench: install ## the benchmark table, beside the real Apache RocketMQ in one run
	$(BIN)/python -m benchmarks

clean: ## throw away .venv, the site, and what the demo and the benchmark left
	rm -rf $(VENV) site .demo .bench pyspark_rmq*.py
