#!/usr/bin/env bash
# Runs the notebooks, and keeps what they print and draw: launch/notebooks.sh [NAME ...]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" colab
.venv/bin/jupytext --quiet --sync colabs/*.py
.venv/bin/python launch/run_notebooks.py "$@"
