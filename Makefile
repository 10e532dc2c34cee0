.PHONY: demo test unit lint format bench
demo: ; script/demo
test: ; script/test
unit: ; script/test unit
lint: ; .venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy
format: ; .venv/bin/ruff check --fix . && .venv/bin/ruff format .
bench: ; script/bench
