#!/usr/bin/env bash
# Whether the bounds of setup.py hold: launch/versions.sh
# The oldest Python of 3.11 to 3.13 that the machine has gets the least versions that setup.py allows, each other the
# newest, in an environment of its own that is made anew in build/versions; TESTS of the suite run there, about a minute.
# Exit codes: 0 passed, 1 failed, 2 fewer than two Pythons.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/python.sh

TESTS=(
    tests/ops/attention/test_{reference.py::TestReference,dense.py::TestDense,tiled.py::TestTiled}::test_values_and_gradients
    tests/ops/attention/test_{patch.py::TestPatch,window.py::TestWindow,factorised.py}::test_values_and_gradients
    tests/ops/attention/test_native.py::{TestNative::test_values_and_gradients,test_no_other_platform_and_no_exported_program_has_it}
    tests/ops/attention/test_halo.py::test_values_and_gradients_are_the_oracles # cut over devices
    tests/ops/attention/fused/test_gpu.py::test_{lowers_for_a_gpu,values_and_gradients_of_many_blocks}
    tests/ops/attention/fused/test_tpu.py::test_{lowers_for_tpus,many_chunks}
    tests/nn/test_{attention,mixing}.py
    tests/train/test_checkpoint.py
    tests/test_main.py::test_train # configs/digits.py:tiny
    tests/use/test_predict.py::test_the_command
    tests/use/test_export.py::test_batches_of_two_sizes
)

LEAST='
import ast, re
tree = ast.parse(open("setup.py").read())
(bounds,) = (word.value for word in ast.walk(tree) if isinstance(word, ast.keyword) and word.arg == "install_requires")
for bound in ast.literal_eval(bounds):
    print(re.sub(r"^([\w-]+)[>=]=([\d.]+).*", r"\1==\2", bound))
'

passes() { # VERSION least|newest
    local folder=build/versions/$1-$2
    echo "Python $1, the $2 versions that setup.py allows: installing into $folder ..."
    "$(find_python "$1")" -m venv --clear "$folder" &&
        if [ "$2" = least ]; then "$folder/bin/python" -c "$LEAST"; fi >"$folder/constraints.txt" &&
        "$folder/bin/python" -m pip install --quiet --disable-pip-version-check \
            --constraint "$folder/constraints.txt" --editable ".[versions]" &&
        "$folder/bin/python" -m pip freeze | grep -E "^(jax|jaxlib|flax|numpy|optax|orbax-checkpoint)==" | paste -sd " " &&
        "$folder/bin/python" -m pytest --quiet --numprocesses="${TEST_PROCESSES:-2}" --dist=loadfile -m "not slow" "${TESTS[@]}"
}

found=()
skipped=()
for version in "${PYTHONS[@]}"; do
    if find_python "$version" >/dev/null; then
        found=("$version" "${found[@]}") # the oldest first
    else
        echo "Python $version: not on this machine, skipped"
    fi
done
if [ ${#found[@]} -lt 2 ]; then
    echo "versions.sh: needs two of Python ${PYTHONS[*]}; found: ${found[*]:-none}" >&2
    exit 2
fi

bounds=least
code=0
summary=versions.sh:
for version in "${found[@]}"; do
    result=passed
    passes "$version" $bounds || { result=FAILED && code=1; }
    summary+=" Python $version, $bounds versions: $result."
    bounds=newest
done
echo "$summary"
exit $code
