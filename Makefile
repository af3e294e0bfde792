# Needs git, make and Python 3.11 or later, and for the native CPU kernels a C++ compiler; everything else is installed into .venv.

PYTHON ?= python3
comma := ,
VENV := .venv
BIN := $(VENV)/bin
MODEL ?= smollm2
HOST ?= 127.0.0.1
PORT ?= 8000
SECONDS ?= 300
# Files of tests are spread over the cores; more processes would compile the same tiny models again.
WORKERS := -n auto --maxprocesses 4 --dist loadfile
# What the native kernels are built from.
NATIVE := CMakeLists.txt tools/editable/CMakeLists.txt $(shell find native -path native/tests -prune -o \( -name '*.h' -o -name '*.cpp' \) -print)
CMAKE = $(shell command -v cmake || echo $(abspath $(BIN)/cmake))
PROMPT ?= What is the capital of France?

# Through the environment as they are, so that neither make nor the shell reads anything into a prompt.
override PROMPT := $(value PROMPT)
override MODEL := $(value MODEL)
export PROMPT MODEL

.DEFAULT_GOAL := help
.PHONY: help serve run test page-test soak soak-server fuzz structured compare scaling check format install dev native native-test native-test-arm native-test-old clean

help:
	@echo "make serve [MODEL=…] [PORT=…] [OPTIONS=\"…\"]  serve a model over HTTP (makes .venv, fetches the model)"
	@echo "make run [PROMPT=\"…\"] [MODEL=…]  stream a model's answer (makes .venv, fetches the model)"
	@echo "make test                        run all tests"
	@echo "make page-test                   the tests of the page in Chromium (fetches one)"
	@echo "make soak                        120,000 random steps, some minutes"
	@echo "make soak-server                 200 streams at a real server, some left, some not read; minutes"
	@echo "make fuzz [SECONDS=…]            schemathesis against the server's own description of its API"
	@echo "make structured                  500 JSON schemas on a real model, some minutes"
	@echo "make compare [OPTIONS=\"…\"]       Headrace beside llama.cpp, vLLM and transformers (makes .venv-compare; an hour)"
	@echo "make scaling [OPTIONS=\"…\"]       decode over contexts, batches and threads against what the machine allows"
	@echo "make check                       format check, lint, types, tests"
	@echo "make format                      format the code"
	@echo "make native                      build the native kernels anew where their sources changed"
	@echo "make native-test                 test them under AddressSanitizer and UBSan, and their threads under ThreadSanitizer"
	@echo "make native-test-old             test them on emulated processors without AVX-512 and AVX2 (needs qemu-user-static)"
	@echo "make native-test-arm             test them on an emulated Arm processor (and g++-aarch64-linux-gnu)"
	@echo "make clean                       remove .venv, .venv-compare and caches of the tools"

serve: install
	@printf 'headrace: starting a server of %s\n' "$$MODEL"
	@exec $(BIN)/headrace serve "$$MODEL" --host "$(HOST)" --port "$(PORT)" $(OPTIONS)

run: install
	@printf 'headrace: asking %s: %s\n' "$$MODEL" "$$PROMPT"
	@$(BIN)/headrace generate "$$MODEL" --prompt "$$PROMPT"

# Without a browser, as on a machine that cannot reach the npm registry, the other tests are worth running all the same.
test: dev
	@$(MAKE) --no-print-directory $(VENV)/chromium || \
		echo "headrace: no Chromium could be had; the page is not tested in a browser (make page-test insists on it)"
	@echo "headrace: running all tests"
	@$(BIN)/python -m pytest $(WORKERS)

page-test: dev $(VENV)/chromium
	@echo "headrace: testing the page in Chromium"
	@$(BIN)/python -m pytest $(WORKERS) tests/server/test_page.py tests/server/browser

soak: dev
	@echo "headrace: running random load"
	@$(BIN)/python -m pytest -m soak -s

fuzz: dev
	@printf 'headrace: %s s of requests made from the API description\n' "$(SECONDS)"
	@PYTHONPATH=tests $(BIN)/python bench/fuzz_server.py --seconds "$(SECONDS)"

soak-server: dev
	@printf 'headrace: 200 streams at a server of %s\n' "$$MODEL"
	@PYTHONPATH=tests $(BIN)/python bench/soak_server.py --model "$$MODEL" --rounds 3

structured: dev
	@printf 'headrace: answering 500 JSON schemas with %s\n' "$$MODEL"
	@PYTHONPATH=tests $(BIN)/python bench/json_schemas.py "$$MODEL"

compare: install
	@echo "headrace: comparing with other engines; bench/compare.py --help tells the options"
	@$(BIN)/python bench/compare.py $(OPTIONS)

scaling: install
	@echo "headrace: measuring the machine and the engine; bench/scaling.py --help tells the options"
	@$(BIN)/python bench/scaling.py $(OPTIONS)

check: dev $(VENV)/chromium
	@echo "headrace: format, lint, types, tests"
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest $(WORKERS)

format: dev
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

install: $(VENV)/.installed
dev: $(VENV)/.installed-dev build/native/.built

# Into the package's own folder, where an editable installation and PYTHONPATH=src find it. Only what changed is compiled.
native: build/native/.built
build/native/.built: $(NATIVE) $(VENV)/.installed-dev
	@echo "headrace: building the native kernels"
	@mkdir -p build
	@$(CMAKE) -S . -B build/native -DPython_EXECUTABLE="$(abspath $(BIN)/python)" > build/native.log 2>&1 && \
		$(CMAKE) --build build/native --parallel >> build/native.log 2>&1 && \
		$(CMAKE) --install build/native --prefix src >> build/native.log 2>&1 || { cat build/native.log; exit 1; }
	@touch $@

# Programs that test the kernels without Python: native/tests. SHAPES random shapes for each kernel.
SHAPES ?= 1000
define native-tests
	@echo "headrace: building build/$(1)"
	@mkdir -p build
	@$(CMAKE) -S . -B build/$(1) -DHEADRACE_TESTS=ON $(2) > build/$(1).log 2>&1 && \
		$(CMAKE) --build build/$(1) --parallel >> build/$(1).log 2>&1 || { cat build/$(1).log; exit 1; }
endef

native-test:
	$(call native-tests,test-sanitized,-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DHEADRACE_SANITIZE=address$(comma)undefined)
	@build/test-sanitized/native_test $(SHAPES)
	$(call native-tests,test-threads,-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DHEADRACE_SANITIZE=thread)
	@build/test-threads/native_test $$(($(SHAPES) / 20))

# An instruction that such a processor has not got ends the program. Emulation is slow, and fma without an instruction
# for it more so; hence fewer shapes.
native-test-old:
	$(call native-tests,test-static)
	@set -e; \
		echo "headrace: as on Nehalem"; \
		qemu-x86_64-static -cpu Nehalem build/test-static/native_test $$(($(SHAPES) / 200)) scalar; \
		echo "headrace: as on Haswell"; \
		qemu-x86_64-static -cpu Haswell build/test-static/native_test $$(($(SHAPES) / 20)) avx2

native-test-arm:
	$(call native-tests,test-arm,-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++)
	@for model in max:neon cortex-a53:scalar; do \
		echo "headrace: as on $$model"; \
		qemu-aarch64-static -cpu $${model%:*} build/test-arm/native_test $$(($(SHAPES) / 20)) $${model#*:} || exit 1; \
	done

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "headrace: $(PYTHON) is older than 3.11; give a newer one: make PYTHON=python3.11 …"; exit 1; }
	@echo "headrace: making $(VENV)"
	@$(PYTHON) -m venv $(VENV) || \
		{ rm -rf $(VENV); echo "headrace: no venv module; on Debian: apt install python3-venv"; exit 1; }

$(VENV)/.installed: pyproject.toml $(NATIVE) | $(BIN)/python
	@echo "headrace: installing the package and what it needs (once, some minutes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml CMakeLists.txt | $(BIN)/python
	@echo "headrace: installing the package, what it needs and the test tools (once, some minutes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $@ $(VENV)/.installed

$(VENV)/chromium: | $(VENV)/.installed-dev
	@$(BIN)/python tools/get_chromium.py $@

clean:
	rm -rf $(VENV) .venv-compare build src/headrace/native/_native.so .pytest_cache .mypy_cache .ruff_cache .hypothesis
