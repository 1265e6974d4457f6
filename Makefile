# What a person runs here. `make` alone lists it.
.DEFAULT_GOAL := help
SHELL := /bin/sh
PYTHON_IN := .venv/bin/python
# how many processes run the tests side by side: three more than there are cores, or a number (0: this one alone)
WORKERS ?= auto
export PYSPARK_PYTHON := $(CURDIR)/$(PYTHON_IN)
# an import that is compiled anew takes twice as long, and the tests start hundreds of processes
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup kafka services demo test test-fast test-matrix test-long test-variety test-disks screenshots sim sim-night sim-mutations jepsen soak week fuzz licenses sbom audit-packages check docs bench bench-peers clean lock \
	fetch-jars fetch-stores.hdfs fetch-stores.versitygw fetch-stores.emulators fetch-spark.jvm_spark fetch-servers.apicurio fetch-packages fetch-servers.deployment_tools fetch-spark.java_classes

help:  ## list what can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

setup:  ## .venv with everything in it, and Java if it is missing and may be installed
	@sh scripts/setup.sh

kafka: setup  ## fetch Apache Kafka's jars, for the tests and for `forebay demo --broker kafka`
	@$(PYTHON_IN) -m forebay.kafka.embedded.jars

services: setup  ## fetch or build what tests run: Kafka, HDFS, Spark 4.0 with its own Kafka source, a schema registry, an S3 server and emulators of Google's and Azure's stores (built with Go, some minutes; Azurite from npm), helm, hadolint, iproute2, systemd, nginx, Prometheus, Chromium, a Kerberos KDC
	@$(FETCH)

# side by side, as they wait for others' servers; one goes on where another fails
FETCH := $(MAKE) --no-print-directory -k -j8 fetch-jars fetch-stores.hdfs fetch-stores.versitygw fetch-stores.emulators fetch-spark.jvm_spark fetch-servers.apicurio fetch-servers.deployment_tools fetch-packages fetch-spark.java_classes

fetch-jars:
	@$(PYTHON_IN) -m forebay.kafka.embedded.jars

fetch-spark.java_classes: | fetch-jars fetch-stores.hdfs
	@$(PYTHON_IN) -m tests.support.spark.java_classes

fetch-stores.hdfs fetch-stores.versitygw fetch-stores.emulators fetch-spark.jvm_spark fetch-servers.apicurio fetch-servers.deployment_tools: fetch-%:
	@$(PYTHON_IN) -m tests.support.$*

# one after another: apt-get has one lock
fetch-packages:
	@$(PYTHON_IN) -m tests.support.processes.namespaces
	@$(PYTHON_IN) -m tests.support.processes.booted
	@$(PYTHON_IN) -m tests.support.servers.nginx
	@$(PYTHON_IN) -m tests.support.servers.prometheus
	@$(PYTHON_IN) -m tests.support.servers.pushgateway
	@$(PYTHON_IN) -m tests.support.servers.chromium
	@$(PYTHON_IN) -m tests.support.servers.kerberos

demo: setup  ## flights from Kafka to a Spark job on this machine, with crashes, and the audit (DEMO= for options)
	@.venv/bin/forebay demo $(DEMO)

test: setup  ## the required tests, with a real Kafka, HDFS and S3 server (ARGS= for pytest)
	@$(FETCH) >/dev/null || { echo "make test: some services could not be fetched (see above); the end of the run lists the tests that need them" >&2; [ -z "$$CI" ]; }
	@$(PYTHON_IN) -m pytest -m "not long" -n $(WORKERS) $(ARGS)

# decisions, formats and settings; the folders beside these start servers or processes
FAST := tests/driver/decisions tests/driver/tracker tests/driver/journal tests/driver/decision_loop tests/driver/http tests/receiver/machine \
	tests/receiver/blocks tests/receiver/channels tests/receiver/sources tests/receiver/stores tests/wal/segments tests/wal/blocks \
	tests/wal/decisions tests/recovery/test_audit.py tests/recovery/test_plan.py tests/recovery/rebuild tests/forebay/settings tests/golden \
	tests/forebay/model

test-fast: setup  ## tests of decisions, formats and settings, without servers: under two minutes on two cores (ARGS= for pytest)
	@$(PYTHON_IN) -m pytest -m "not kafka and not spark and not hdfs and not long" -n $(WORKERS) $(FAST) $(ARGS)

test-matrix: kafka fetch-stores.versitygw fetch-stores.hdfs  ## the releases of Python, pyspark and confluent-kafka that pyproject.toml claims, each in a fresh environment (ARGS= for cells)
	@$(PYTHON_IN) -m tests.support.run.matrix $(ARGS)

test-long: services  ## the long random crash runs (ARGS= for pytest)
	@$(PYTHON_IN) -m pytest -m "long and not variety" $(ARGS)

test-variety: services  ## other S3 servers and proxies before one, the oldest and the newest Kafka, three controllers, quotas, tiered topics, an earlier schema registry, and earlier releases of Forebay; it builds or fetches them once (ARGS= for pytest)
	@for module in stores.s3_variety kafka.releases kafka.tiered_broker run.releases; do $(PYTHON_IN) -m tests.support.$$module || [ -z "$$CI" ]; done
	@FOREBAY_TEST_REGISTRY=2.6.13.Final $(PYTHON_IN) -m tests.support.servers.apicurio || [ -z "$$CI" ]
	@$(PYTHON_IN) -m pytest -m variety $(ARGS)

test-disks: kafka  ## faulty machines: each boundary of the writes of real processes replayed as a power loss, memory limits (ARGS= for pytest)
	@$(PYTHON_IN) -m pytest -m "long or not long" tests/disks $(ARGS)

screenshots: services  ## take the pictures of the web page in docs/images again, from a running stream
	@FOREBAY_SCREENSHOTS=1 $(PYTHON_IN) -m pytest tests/driver/web/test_running_stream.py

sim: setup  ## the simulation, with new seeds until it is stopped (ARGS= for its options)
	@$(PYTHON_IN) -m tests.simulation $(ARGS)

fuzz: setup  ## every parser of foreign bytes over mutated bytes, for MINUTES=10 (ARGS= for names of readers)
	@$(PYTHON_IN) -m tests.fuzz.campaign --minutes $(or $(MINUTES),10) $(ARGS)

licenses: setup  ## check the licences of all dependencies, and write docs/licenses.md
	@$(PYTHON_IN) scripts/licenses.py

sbom: setup  ## the list of all components, as CycloneDX, into dist/
	@$(PYTHON_IN) scripts/sbom.py

audit-packages: setup  ## known vulnerabilities of the locked packages, by pip-audit, which asks PyPI
	@$(PYTHON_IN) -m uv tool run --quiet pip-audit --strict --require-hashes --disable-pip --requirement requirements.lock

sim-night: setup  ## the simulation on all cores for HOURS (8), guided by coverage; the report is run/simulation.md
	@$(PYTHON_IN) -m tests.simulation --hours $(or $(HOURS),8) $(ARGS)

# as root: hosts are network namespaces; the run's folder, with its story, is below run/
jepsen: services  ## as root: a cluster in network namespaces, with faults drawn from a seed, and a checker (MINUTES= SEED= ARGS= for its options)
	@$(PYTHON_IN) -m tests.jepsen $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(ARGS)

soak: services  ## as root: the same cluster at half of its capacity with a fault each minute, and a test that nothing grows (HOURS= SEED= ARGS= for its options)
	@$(PYTHON_IN) -m tests.jepsen.soak $(if $(HOURS),--hours $(HOURS)) $(if $(SEED),--seed $(SEED)) $(ARGS)

week: setup  ## a week of one-second batches in less than an hour, by a clock that is moved by hand, and a test that nothing grows (ARGS= for its options)
	@$(PYTHON_IN) -m tests.jepsen.week $(ARGS)

sim-mutations: setup  ## how many removed guards the simulation or a test notices; the table is run/mutations.md (ARGS=--share=1/8)
	@$(PYTHON_IN) -m tests.simulation.mutations $(ARGS)

check: setup  ## format, lint, types, direction of imports, wording, links and names in the docs
	@sh scripts/check.sh

docs: setup  ## the documentation site, into site/
	@$(PYTHON_IN) scripts/site_pages.py

bench: kafka  ## the benchmarks (ARGS= for their options; with ARGS=--record they also write their tables and plots into docs/)
	@$(PYTHON_IN) -m benchmarks $(ARGS)

bench-peers: kafka  ## the race against Spark's receiver, Flink and Kafka Connect, whose jars it fetches (ARGS= as above)
	@$(PYTHON_IN) -m benchmarks.peers.libraries >/dev/null
	@$(PYTHON_IN) -m benchmarks --only peers $(ARGS)

lock: setup  ## write requirements.lock again, with the newest versions that fit, and the lists of jars
	@sh scripts/lock.sh
	@$(PYTHON_IN) scripts/lock_jars.py

clean:  ## remove generated files, except .venv and fetched jars
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis spark-warehouse metastore_db derby.log dist run site
	@find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
