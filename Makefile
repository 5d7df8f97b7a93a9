# `make demo` and `make test` start from a bare checkout: python3, make and a C++ compiler are all they need.
PYTHON ?= python3
BIN := .venv/bin
KERNELS := $(wildcard src/resharpen/engines/native/kernels/*.* src/resharpen/engines/native/kernels/*/*.h tests/*.cpp)
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt
PYTEST := $(BIN)/pytest -n 2 --dist loadgroup

.PHONY: demo test test-all test-lowest lint style types kernels page bench docs pictures chromium clean

demo: .venv/installed
	$(BIN)/resharpen run fig1 --scale laptop --out runs/demo
	$(BIN)/resharpen claims runs/demo

test:
	$(MAKE) -j2 lint chromium
	$(PYTEST)

test-all:
	$(MAKE) -j2 lint chromium
	$(PYTEST) -m ""

# The tests with the lowest versions of dependencies that are allowed; TORCH is a version of torch to use instead. Old
# versions may use what newer ones of their own dependencies deprecate, so a warning is no error.
test-lowest: .venv-lowest/installed
	.venv-lowest/bin/pytest -n 2 --dist loadgroup -W default

lint: style types kernels page

style: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run -Werror $(KERNELS)

types: .venv/installed-dev
	$(BIN)/basedpyright

kernels: .venv/installed-dev
	$(BIN)/python tools/lint_kernels.py

# The scripts of the report: each is formatted; they are linted as the one script that they are on the page.
BIOME := .venv/biome/node_modules/.bin/biome
page: .venv/installed-dev
	@[ -x $(BIOME) ] || npm install --silent --no-audit --no-fund --prefix .venv/biome @biomejs/biome@2.6.7 2>/dev/null || \
		echo "NO NPM OR NO REGISTRY HERE: the JavaScript of the report is not linted"
	@[ ! -x $(BIOME) ] || { \
		$(BIN)/python -c "from resharpen.views.report import write; print(write.page_script())" >.venv/biome/report.js && \
		$(BIOME) format src && $(BIOME) lint --error-on-warnings .venv/biome/report.js; }

bench: .venv/installed-bench
	$(BIN)/python benchmarks/set_complement.py
	$(BIN)/python benchmarks/max_retrieval.py
	$(BIN)/python benchmarks/languages.py
	$(BIN)/python benchmarks/modules.py

# The site, with the reports of all references: docs/_build/html/index.html
REPORTS := $(patsubst reference/%/reference.json,docs/_extra/reports/%.html,$(wildcard reference/*/reference.json))
docs: .venv/installed-dev $(REPORTS)
	NOTEBOOK=force $(BIN)/sphinx-build -q -W --keep-going docs docs/_build/html

docs/_extra/reports/%.html: reference/%/reference.json
	mkdir -p $(@D)
	$(BIN)/resharpen report $* --out $@

# Pictures and numbers of README and docs, from reference/ and from small runs that are trained here
pictures: .venv/installed-dev
	rm -rf runs/pictures
	$(BIN)/python tools/pictures.py
	$(BIN)/python tools/pages.py

# The report is tested in a real browser: Debian's, where we may install it.
chromium:
	@command -v chromium >/dev/null || { [ "$$(id -u 2>/dev/null)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium >/dev/null; } || \
		echo "NO CHROMIUM HERE: the tests of the report in a browser are skipped"

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) -e .
	touch $@

.venv/installed-dev: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) -e '.[dev]'
	touch .venv/installed $@

.venv/installed-bench: .venv/installed
	$(PIP) -e '.[bench]'
	touch $@

.venv-lowest/installed: pyproject.toml tools/lowest.py
	$(PYTHON) -m venv .venv-lowest
	$(PYTHON) tools/lowest.py $(TORCH) >.venv-lowest/constraints.txt
	.venv-lowest/bin/python -m pip install -q --disable-pip-version-check -c .venv-lowest/constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv .venv-lowest .pytest_cache .ruff_cache .hypothesis
