#!/usr/bin/env bash
# Lint, types, import rule and the whole suite: launch/test.sh [pytest arguments]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" test
.venv/bin/ruff check .
.venv/bin/ruff format --check .
# Pyright takes a core; on another one all tests are imported, and so their bytecode is written once.
.venv/bin/python -m pytest --collect-only --quiet >/dev/null 2>&1 &
.venv/bin/pyright --pythonpath .venv/bin/python
.venv/bin/lint-imports
wait
.venv/bin/python -m pytest --numprocesses="${TEST_PROCESSES:-2}" --dist=loadfile -m "not slow" "$@"
