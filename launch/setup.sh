# Sourced by the launchers: makes .venv where it is missing, and installs the package with the extras given.
# One of: source launch/setup.sh train        what trains and reports, within the bounds of setup.py
#         source launch/setup.sh train,tpu    other extras likewise
#         source launch/setup.sh test         the extra "test", in the versions of launch/constraints.txt; with
#                                             OPEN_BOUNDS=1 within the bounds of setup.py too
# The Python of .venv is PYTHON, or else the newest of PYTHONS (launch/python.sh) that the machine has.
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/python.sh

if [ ! -x .venv/bin/python ]; then
    python=${PYTHON:-$(find_python "${PYTHONS[@]}" || echo python3)}
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        version=$("$python" --version 2>/dev/null || echo "none that runs")
        echo "posattn_jax needs Python 3.11 or newer; $python is $version. Set PYTHON=/path/to/python3.13" >&2
        return 2 2>/dev/null || exit 2
    fi
    if ! "$python" -m venv .venv; then
        rm -rf .venv  # half of one, which the next call would take
        return 1 2>/dev/null || exit 1
    fi
fi
extras=$1
stamp=.venv/.installed-$extras
constraints=()
if [ "$extras" = test ] && [ -z "${OPEN_BOUNDS:-}" ]; then
    constraints=(--constraint launch/constraints.txt)
fi
if [ ! -e "$stamp" ] || [ setup.py -nt "$stamp" ] || [ launch/constraints.txt -nt "$stamp" ]; then
    echo "Installing into .venv ..."
    # A caller that goes on with "|| exit" has switched off set -e in here.
    if ! .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile "${constraints[@]}" --editable ".[$extras]"; then
        return 1 2>/dev/null || exit 1
    fi
    touch "$stamp"
fi
