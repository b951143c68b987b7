#!/usr/bin/env bash
# Builds dist/*.tar.gz and from it dist/*.whl, the same bytes from the same commit; checks what an index would show of
# them, installs the second into a fresh environment, and trains digits in an empty folder: launch/package.sh
set -euo pipefail
if [ $# -gt 0 ]; then echo "package.sh $*: expected no options" >&2 && exit 2; fi
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" test
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || date +%s)
export SOURCE_DATE_EPOCH # the time of all files in the wheel
.venv/bin/python -m build --outdir dist
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# setuptools keeps the times and owners of the files here, and their order.
archive=$(ls -t dist/*.tar.gz | head -n 1)
tar --extract --file="$archive" --directory="$scratch"
tar --create --directory="$scratch" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
    --mode=go=rX,u+rw "$(basename "$archive" .tar.gz)" | gzip --no-name >"$scratch/again"
mv "$scratch/again" "$archive"
.venv/bin/python -m venv "$scratch/venv"
"$scratch/venv/bin/python" -m pip install --quiet --disable-pip-version-check twine
"$scratch/venv/bin/python" -m twine check --strict "$archive" "$(ls -t dist/*.whl | head -n 1)"
"$scratch/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    --constraint launch/constraints.txt "$(ls -t dist/*.whl | head -n 1)[train]"
unset PYTHONPATH
cd "$scratch"
venv/bin/posattn --config=configs/digits.py:tiny --workdir=run
