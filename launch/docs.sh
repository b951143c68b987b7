#!/usr/bin/env bash
# The API reference, in build/docs/index.html; any warning is an error: launch/docs.sh [sphinx-build arguments]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" docs
.venv/bin/sphinx-build --fail-on-warning --keep-going --fresh-env --jobs auto docs build/docs "$@"
echo "build/docs/index.html"
