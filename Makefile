# Two commands do everything on a machine with Python and a C compiler: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test lint audit rules checked zoo bench site clean

$(STAMP): pyproject.toml $(wildcard rewriter/runtime/*.[ch])
	$(PYTHON) -c 'import sys; sys.exit("onnx-superopt needs Python 3.11 or newer: make PYTHON=python3.11 ..." if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/python -m tools.zoo block --out demo/block.onnx
	$(BIN)/onnx-superopt demo/block.onnx -o demo/block.superopt.onnx

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest -n 2 --durations=40 --durations-min=10

# Every operator property examined, and every shipped rule: twenty minutes on two cores, less where the cache has some of it.
audit: $(STAMP)
	$(BIN)/rulegen audit --axioms --record rules_db/axioms/audited.json
	$(BIN)/rulegen audit

# Everything that ships, anew: what the providers here run, the groups, the spellings from definitions and from models, the kernels of the Mirage paper.
rules: $(STAMP)
	$(BIN)/python -m tools.ship.probe
	$(BIN)/rulegen ship
	$(BIN)/python -m tools.ship.spelled rules_db/shipped/spelled.rules
	$(BIN)/python -m tools.ship.spellings --out build/spellings
	$(BIN)/rulegen mine build/spellings/*.onnx --after rules_db/shipped/spelled.rules --out rules_db/shipped/spelling.rules
	$(BIN)/python -m tools.ship.kernel_rules rules_db/shipped/kernels.rules
	$(MAKE) checked

# The shipped rules checked by the trusted code as it is now: after any change of either.
checked: $(STAMP)
	$(BIN)/python -m tools.ship.checked rules_db/shipped/checked.json

zoo: $(STAMP)
	$(BIN)/python -m pip install --quiet 'torch==2.13.0'
	$(BIN)/python -m pip install --quiet --editable '.[dev,zoo]'
	$(BIN)/python -m tools.zoo export --dir zoo_models

bench: $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[dev,bench]'
	$(BIN)/python -m tools.bench.models

# The pages of docs/ as a site in build/site, which needs no network to be read.
site: $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[dev,docs]'
	$(BIN)/mkdocs build --quiet

clean:
	rm -rf $(VENV) demo build *.egg-info
