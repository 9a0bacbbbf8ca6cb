# All commands of the project. `make help` lists them.

VENV := .venv
READY := $(VENV)/.ready
LOG_STORE := sluice/sluice-log-store.jar
# Class archives, which shorten the start of JVMs: see lock_manager/testing/class_archives.py.
ARCHIVES := $(VENV)/share/sluice/zookeeper.jsa $(VENV)/share/sluice/spark.jsa $(VENV)/share/sluice/store.jsa
UV := $(VENV)/bin/uv
PY := $(VENV)/bin/python
# uv installs the pinned set in a third of pip's time. PySpark, one of the packages, is a source archive of 450 MB.
UV_VERSION := 0.13.9
# For the tests of Kerberos. It has no wheel for Linux, so it is not in requirements.txt.
GSSAPI_VERSION := 1.12.0
ARGS ?=
# Tests mostly wait for other processes, so more workers than processors are useful. A driver needs 1 GB of memory.
WORKERS ?= 5

export VIRTUAL_ENV := $(CURDIR)/$(VENV)
# These variables would select another Spark or another Python of the user's machine.
unexport SPARK_HOME SPARK_CONF_DIR HADOOP_CONF_DIR SPARK_REMOTE
unexport PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON PYSPARK_SUBMIT_ARGS PYTHONPATH
# With PYTHONDONTWRITEBYTECODE every process compiles its imports again: one second of processor time for each driver.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all quick lint types format check test-s3 matrix soak zookeeper-image bench bench-one bench-peers bench-operations bench-requests bench-kafka bench-changes bench-late-rows bench-snapshots bench-maintenance bench-coordinators bench-lock bench-scale bench-platforms bench-ui bench-tracing dist lock clean

help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "; print "make TARGET [ARGS=\"…\"]\n"} /^[a-z0-9-]+:.*## / {printf "  %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(LOG_STORE) $(ARCHIVES) ## Create .venv, install the pinned set, fetch the jars (once; needs Python 3.11 and a JDK 17)

$(READY): requirements.txt pyproject.toml $(wildcard sluice/jars/*.lock)
	@python=$$(./scripts/find_python.sh) || exit 1; \
	echo "setting up $(VENV) with $$python (one to three minutes, 2 GB)"; \
	test -x $(PY) || $$python -m venv $(VENV)
	@$(PY) -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@$(UV) pip install --quiet -r requirements.txt
	@$(UV) pip install --quiet --no-deps -e .
	@command -v krb5-config > /dev/null || exit 0; \
	GSSAPI_COMPILER_ARGS=-O0 $(UV) pip install --quiet gssapi==$(GSSAPI_VERSION) || \
	echo "gssapi could not be compiled, so the tests of Kerberos are skipped" >&2
	@$(VENV)/bin/sluice jars
	@touch $@

# The log store is compiled against the jars with which it runs.
$(LOG_STORE): $(shell find log_store -name '*.java') scripts/build_log_store.sh $(READY)
	@jars=$$($(PY) -c "from sluice.local.jars import compile_class_path as path; print(path())") && scripts/build_log_store.sh $@ "$$jars"

# If Java cannot create an archive, an empty file takes its place, and JVMs start without it.
$(ARCHIVES): $(VENV)/share/sluice/%.jsa: scripts/archive_classes.py $(READY) | $(LOG_STORE)
	@$(PY) $< $* > $(VENV)/archive-$*.log 2>&1 || { touch $@; \
	echo "the classes of $* could not be archived, so JVMs start slower: see $(VENV)/archive-$*.log" >&2; }

# An archive must match the class path of its JVM, and the soak's class path contains the log store.
$(VENV)/share/sluice/store.jsa: $(LOG_STORE)

demo: $(LOG_STORE) $(ARCHIVES) ## Five locked Spark writers load real flights into one table on an embedded S3 (ARGS="--compare")
	@$(VENV)/bin/sluice demo $(ARGS)

test: $(LOG_STORE) $(ARCHIVES) ## Every promise and its control, unit tests, each job and command (ARGS="-k name", WORKERS=2)
	@$(PY) -m pytest -m "not full and not soak" -n $(WORKERS) --no-loadscope-reorder $(ARGS)

test-all: $(LOG_STORE) $(ARCHIVES) ## The other tests: more parameters, faults and kinds of tables (ARGS="-k name", WORKERS=2)
	@$(PY) -m pytest -m "full and not soak" -n $(WORKERS) --no-loadscope-reorder $(ARGS)

lint: $(LOG_STORE) ## ruff: rules and format
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .

types: $(LOG_STORE) ## mypy --strict
	@$(VENV)/bin/mypy

format: $(LOG_STORE) ## Let ruff format the code and apply its fixes
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .

quick: $(LOG_STORE) $(ARCHIVES) ## The inner loop, under two minutes: lint, types, unit tests, the contract of coordinators and the model of commits
	@$(MAKE) --no-print-directory -j 3 lint types test ARGS="tests/unit tests/contract tests/model"

check: $(LOG_STORE) $(ARCHIVES) ## Lint, types and test in parallel; CI runs this, and parts of test-all and matrix
	@$(MAKE) --no-print-directory -j 3 lint types test

test-s3: $(LOG_STORE) ## The tests on S3 against your own S3 (SLUICE_TEST_S3_ENDPOINT=URL; docs/compatibility.md)
	@test -n "$$SLUICE_TEST_S3_ENDPOINT$$SLUICE_TEST_S3_BUCKET" || { echo "test-s3 needs your own S3:" \
	"set SLUICE_TEST_S3_ENDPOINT=URL or SLUICE_TEST_S3_BUCKET=NAME (docs/compatibility.md)" >&2; exit 1; }
	@$(PY) -m pytest -m s3 -rs --no-fold-skipped $(ARGS)

matrix: $(LOG_STORE) ## Test each pair of Spark and Delta in an environment of its own; 7 minutes each (ARGS="4.1/4.2.0")
	@$(PY) scripts/matrix.py $(ARGS)

soak: $(LOG_STORE) ## The long soaks, on ZooKeeper containers if Docker answers (hours; ARGS="-k violation")
	@$(PY) -m pytest -m soak -s tests $(ARGS)

zookeeper-image: $(LOG_STORE) ## Build the ZooKeeper image of the tests on this machine, for Docker without a registry
	@$(PY) scripts/zookeeper_image.py

bench: $(LOG_STORE) $(ARCHIVES) ## Commits per second by mode, work and writers; 25 minutes (ARGS="--quick": 5)
	@$(PY) benchmarks/contention.py $(ARGS)

bench-one: $(LOG_STORE) $(ARCHIVES) ## A single writer: appends through the gate, automatic ones and plain ones, and their phases
	@$(PY) benchmarks/one_writer.py $(ARGS)

bench-peers: $(LOG_STORE) $(ARCHIVES) ## Small appends compared with Delta, delta-rs and Iceberg; hours (ARGS="--writers 4 --s3-delay-ms 100 --systems sluice iceberg-rest")
	@$(PY) benchmarks/peers/peers.py $(ARGS)

bench-operations: $(LOG_STORE) $(ARCHIVES) ## MERGE, UPDATE, overwrite and OPTIMIZE: the lock for the commit or for the write
	@$(PY) benchmarks/operations.py $(ARGS)

bench-requests: $(LOG_STORE) $(ARCHIVES) ## S3 requests of an append, in total and while the lock is held, compared with stock Delta
	@$(PY) benchmarks/s3_requests.py $(ARGS)

bench-changes: $(LOG_STORE) $(ARCHIVES) ## A million changes applied to a million rows, compared with a plain Delta MERGE (ARGS="--rounds 1")
	@$(PY) benchmarks/changes.py $(ARGS)

bench-late-rows: $(LOG_STORE) $(ARCHIVES) ## Late rows, a hundredth of the table, compared with a plain Delta MERGE (ARGS="--rounds 1")
	@$(PY) benchmarks/late_rows.py $(ARGS)

bench-snapshots: $(LOG_STORE) $(ARCHIVES) ## A stream's state at one moment, compared with a filter over all data (ARGS="--rounds 1")
	@$(PY) benchmarks/snapshots.py $(ARGS)

bench-maintenance: $(LOG_STORE) $(ARCHIVES) ## A table of many small files: health check, compaction, and waits of an appender (ARGS="--files 2000")
	@$(PY) benchmarks/maintenance.py $(ARGS)

bench-coordinators: $(LOG_STORE) ## Locks in ZooKeeper, locks on S3 and no lock: 1 to 32 writers, and takeovers; 40 minutes (ARGS="--rounds 1")
	@$(PY) benchmarks/coordinators.py $(ARGS)

bench-lock: $(LOG_STORE) $(ARCHIVES) ## The lock compared with kazoo's and Curator's, and the guard's cost in a commit (ARGS="--servers 3")
	@$(PY) benchmarks/lock.py $(ARGS)
	@$(PY) benchmarks/guard.py $(ARGS)

bench-kafka: $(LOG_STORE) $(ARCHIVES) ## The lag of cdc.py behind a Kafka topic, compared with a plain Delta MERGE; ten minutes (ARGS="--rate 500")
	@$(PY) benchmarks/kafka_lag.py $(ARGS)

bench-scale: $(LOG_STORE) $(ARCHIVES) ## Many contenders, tables, versions, files: seconds and memory (ARGS="--part files --files 10000 200000")
	@$(PY) benchmarks/scale.py $(ARGS)

bench-platforms: $(LOG_STORE) $(ARCHIVES) ## Five writers on HDFS, with Kerberos and on YARN, compared with local drivers (ARGS="--rounds 1")
	@$(PY) benchmarks/platforms.py $(ARGS)

bench-ui: $(LOG_STORE) $(ARCHIVES) ## sluice ui with 1,000 tables: the first page, and its requests to ZooKeeper (ARGS="--tables 100")
	@$(PY) benchmarks/ui.py $(ARGS)

bench-tracing: $(LOG_STORE) $(ARCHIVES) ## The cost of OpenTelemetry traces in an append, and a picture of one trace (ARGS="--rounds 20")
	@$(PY) benchmarks/tracing.py $(ARGS)

dist: $(LOG_STORE) ## The zip for spark-submit --py-files, in build/
	@$(VENV)/bin/sluice dist

lock: $(LOG_STORE) ## Pin requirements.txt again from the ranges in pyproject.toml
	@{ sed -n 1p requirements.txt; $(UV) pip compile --quiet --upgrade --all-extras --python-version 3.11 \
	    --no-emit-package gssapi --no-header --no-annotate pyproject.toml; } > requirements.txt.new && mv requirements.txt.new requirements.txt

clean: ## Remove .venv and everything that was built
	@rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis spark-warehouse $(LOG_STORE)
