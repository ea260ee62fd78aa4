# The project's commands; `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST_WORKERS ?= 2

.PHONY: help install demo test torture torture-jobs lint bench format clean

help: ## list the commands
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## make .venv with everything in it

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[spark,dev]'
	$(MAKE) --no-print-directory delta-jars
	@echo "compiling the kernels, half a minute: the first broker and the first job start as fast as the others" >&2
	$(BIN)/python -m compileall -q rmq_formats rmq_core spark_udfs jobs
	$(BIN)/python -m tools.compile_kernels
	touch $@

# Delta's two jars beside Spark's own: a session starts at once, and without resolving packages.
.PHONY: delta-jars
delta-jars:
	@jars=$$($(BIN)/python -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent / "jars")'); \
	for artifact in delta-spark_4.2_2.13:4.4.0 delta-storage:4.4.0; do \
	  test -e "$$jars/$${artifact/:/-}.jar" || mvn -q -B dependency:copy -Dartifact="io.delta:$$artifact" \
	    -DoutputDirectory="$$jars" || echo "no Maven: Spark itself will fetch Delta when it is first used" >&2; \
	done

demo: install ## a broker, then the main job on its store, or on yours: make demo STORE=DIR
	@$(BIN)/python -m tools.demo $(if $(STORE),--store "$(STORE)")

test: install ## all tests, against the real Apache RocketMQ too
	$(BIN)/pytest -n $(PYTEST_WORKERS) --dist loadgroup

# What CI runs short (RMQ_TORTURE=1). A JDK is not needed.
torture-jobs: install ## kills, damage and flips at random, RMQ_TORTURE=20 times as many as in the tests
	RMQ_TORTURE=$(or $(RMQ_TORTURE),20) $(BIN)/pytest -n $(PYTEST_WORKERS) --timeout 0 \
	  tests/offline/test_resume.py tests/offline/test_random_damage.py tests/repair tests/verify/test_hostile_stores.py \
	  tests/verify/test_every_byte_of_derived_files.py tests/verify/test_header_coverage.py

torture: install ## a thousand kills of a broker and of a store under load, and of slaves, timers, transactions, RMQ_TORTURE=50 times as many as in the tests
	RMQ_TORTURE=$(or $(RMQ_TORTURE),50) $(BIN)/pytest -n $(PYTEST_WORKERS) --timeout 0 tests/broker/test_kill.py tests/store/test_kill.py \
	  tests/timers/test_kill.py tests/ha/test_slave_kill.py tests/transactions/test_kill.py

lint: install ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install ## let ruff format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install ## the benchmark table, beside the real Apache RocketMQ in one run
	$(BIN)/python -m benchmarks

clean: ## throw away .venv and what the demo and the benchmark left
	rm -rf $(VENV) .demo .bench
