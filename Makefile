# One set of commands for developers and CI. `make` alone lists them.

PYTHON ?= python3
BIN := .venv/bin
CODE := src tests benchmarks recipes
# mkdocs-material's announcement of its successor: not about these pages.
export NO_MKDOCS_2_WARNING := 1

.DEFAULT_GOAL := help
.PHONY: help venv llama browser demo test check format docs bench clean

help: ## this list
	@echo "biglittle: two models, a little one drafts and a big one decides."
	@echo
	@echo "  make demo    set up .venv, fetch the default pair once, and see it work"
	@echo "  make test    set up .venv and run all tests"
	@echo
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sort | sed -E 's/^([a-z]+):.*## /  \1\t/' | expand -t 12
	@echo
	@echo "PYTHON=python3.12 chooses the interpreter of .venv; ARGS='-k name' goes to pytest or the benchmark."

venv: .venv/stamp ## make .venv with the tested versions of constraints.txt

.venv/stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,docs]'
	@touch $@

# Without AMX, which cannot be used beside torch (docs/llama_cpp.md), llama.cpp has its next best.
NO_AMX := $(if $(filter x86_64,$(shell uname -m)),-mno-amx-tile -mno-amx-int8 -mno-amx-bf16)

llama: venv ## the llama.cpp engine into .venv: built from source, minutes, needs a C++ compiler
	@$(BIN)/python -c 'import llama_cpp' 2>/dev/null || CMAKE_BUILD_PARALLEL_LEVEL=$$(nproc) \
		CMAKE_ARGS='-DLLAVA_BUILD=OFF' CFLAGS='$(NO_AMX)' CXXFLAGS='$(NO_AMX)' \
		$(BIN)/python -m pip install --quiet --no-cache-dir --disable-pip-version-check -c constraints.txt -e '.[llama]'

browser: ## Chromium for the playground's tests, where apt-get may install it
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null \
		|| { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && export DEBIAN_FRONTEND=noninteractive \
			&& timeout 120 apt-get update -qq >/dev/null \
			&& timeout 300 apt-get install -qq --no-install-recommends chromium >/dev/null; } \
		|| echo "No Chromium here: the playground's tests in a browser will be skipped."

demo: venv ## the default pair: the target alone, lossless, and BiLD; then an aligned draft
	$(BIN)/biglittle demo
	@echo; echo "Translation, where the two agree less: the little model, and the same one aligned to the big one"
	$(BIN)/biglittle demo -p cost-aware --second-draft recipes/qwen_coder/aligned \
		--prompt "Translate German to English: Zwei Kinder in gelben Regenmänteln füttern Enten am Ufer eines Sees." \
		--prompt "Translate German to English: Ein alter Mann mit Hut repariert vor seinem Haus ein rotes Fahrrad." \
		--prompt "Translate German to English: Eine Köchin schneidet in einer vollen Küche Zwiebeln auf einem Holzbrett."

test: venv ## all tests (ARGS="-m 'not slow'" for the quick ones)
	$(BIN)/pytest -n auto --dist loadfile --max-worker-restart 0 $(ARGS)

check: venv ## format, lint, types and docs, as CI runs them
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy $(CODE)
	$(BIN)/mkdocs build --quiet --strict

format: venv ## put the code into shape
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

docs: venv ## the documentation with live reload, on http://127.0.0.1:8000
	$(BIN)/mkdocs serve

bench: venv ## the core benchmark: ours against plain and transformers' assisted generation
	$(BIN)/python -m benchmarks.core $(ARGS)

clean: ## remove .venv and everything built (models stay in the user's cache)
	rm -rf .venv build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
