# Sourced by the launchers: makes .venv where it is missing, and installs the package with the extras given.
# One of: source launch/setup.sh ""       the package, within the bounds of setup.py
#         source launch/setup.sh test     with the extra "test", in the versions of launch/constraints.txt;
#                                         with OPEN_BOUNDS=1 within the bounds of setup.py too
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python3}
if [ ! -x .venv/bin/python ]; then
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        echo "posattn_jax needs Python 3.11 or newer; $python is $("$python" --version 2>&1). Set PYTHON=/path/to/python3.11" >&2
        return 2 2>/dev/null || exit 2
    fi
    "$python" -m venv .venv
fi
extras=${1:-}
stamp=.venv/.installed-${extras:-plain}
constraints=()
if [ "$extras" = test ] && [ -z "${OPEN_BOUNDS:-}" ]; then
    constraints=(--constraint launch/constraints.txt)
fi
if [ ! -e "$stamp" ] || [ setup.py -nt "$stamp" ] || [ launch/constraints.txt -nt "$stamp" ]; then
    echo "Installing into .venv ..."
    .venv/bin/python -m pip install --quiet --disable-pip-version-check "${constraints[@]}" --editable ".${extras:+[$extras]}"
    touch "$stamp"
fi

# On CPUs, page faults from large temporaries dominate a training step: let the allocator keep and reuse its pages.
export GLIBC_TUNABLES=${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1}
export MALLOC_MMAP_MAX_=${MALLOC_MMAP_MAX_:-0}
export MALLOC_TRIM_THRESHOLD_=${MALLOC_TRIM_THRESHOLD_:-34359738368}
export MALLOC_MMAP_THRESHOLD_=${MALLOC_MMAP_THRESHOLD_:-34359738368}
