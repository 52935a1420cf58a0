PYTHON := .venv/bin/python
TESTS ?= -n 2 --dist loadfile

.PHONY: install demo dev test lint bench

install:
	@sh infra/laptop/packages.sh
	@python3 infra/laptop/install.py

demo: install
	@$(PYTHON) -m infra.laptop.demo

dev: install
	@$(PYTHON) -m infra.laptop.services

test:
	@sh infra/laptop/packages.sh test
	@python3 infra/laptop/install.py
	@$(PYTHON) -m infra.laptop.peers
	@$(PYTHON) -m pytest $(TESTS)

lint: install
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy --strict megahour
	.venv/bin/mypy definitions.py assets resources jobs sensors trainer infra benchmarks tests
	.venv/bin/lint-imports

bench: install
	@$(PYTHON) -m benchmarks
