#!/usr/bin/env bash
# Lint, types, import rule and the whole suite: launch/test.sh [pytest arguments]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" test
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/pyright --pythonpath .venv/bin/python
.venv/bin/lint-imports
.venv/bin/python -m pytest --numprocesses="${TEST_PROCESSES:-2}" --dist=loadfile -m "not slow" "$@"
