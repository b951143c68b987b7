#!/usr/bin/env bash
# Whether the bounds of setup.py hold: launch/versions.sh [--all]
# Each in an environment of its own, made anew in build/versions:
#   least     the least versions that setup.py allows, on the oldest Python of 3.11 to 3.13 that the machine has
#   newest    the newest, on the newest Python
# With --all also:
#   newest    on each other Python
#   colab     those that Colab has (launch/colab.txt), on the newest Python; to install ours must replace none of them,
#             and the notebooks run
#   JAX/FLAX  BETWEEN, on the newest Python
# First the core alone is tried (launch/core_check.py), where there is nothing else; then tests of the suite. Without
# --all these are fewer: the core is tried with the least versions alone, without gradients or pages, and then what versions
# break: an implementation, the compiled kernel, kernels that are lowered, a grid cut over devices, a layer, checkpoints, a run,
# and its export. Two environments are tried at a time, of which one installs: half of the time there is work for one
# core alone. What ran where is told as a table; that of docs/importing.md is of --all.
# Exit codes: 0 passed, 1 failed, 2 fewer than two Pythons, or a wrong option.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/python.sh

BETWEEN=(0.8.3/0.12.2 0.9.2/0.12.6 0.10.2/0.12.8)
OF_ALL=(
    tests/ops/attention/xla/test_{reference.py::TestReference,dense.py::TestDense}::test_values_and_gradients
    tests/ops/attention/xla/test_{patch.py::TestPatch,window.py::TestWindow,factorised.py}::test_values_and_gradients
    tests/ops/attention/tpu/test_kernels.py::test_heads_that_share_registers
    tests/ops/attention/cuda/test_availability.py
    tests/nn/test_{attention,mixing}.py
    tests/use/test_predict.py::test_the_command
)
TESTS=(
    tests/ops/attention/xla/test_tiled.py::TestTiled::test_values_and_gradients
    tests/ops/attention/cpu/test_native.py::{TestNative::test_values_and_gradients,test_no_other_platform_and_no_exported_program_has_it}
    tests/ops/attention/test_halo.py::test_values_and_gradients_are_the_oracles # cut over devices
    tests/ops/attention/cuda/test_{kernels.py::TestKernels::test_values_and_gradients,availability.py::test_a_program_for_gpus_calls_the_kernels}
    tests/ops/attention/tpu/test_kernels.py::test_lowers_for_tpus
    tests/nn/test_attention.py::test_values_and_gradients_of_every_parameter
    tests/train/test_checkpoint.py
    tests/test_main.py::test_train # configs/digits.py:tiny
    tests/use/test_export.py::test_batches_of_two_sizes
)

LEAST='
import ast, re
lists = {}
for node in ast.parse(open("setup.py").read()).body:
    if isinstance(node, ast.Assign):
        exec(compile(ast.Module([node], []), "setup.py", "exec"), lists)
for bound in sum((lists[name] for name in ("CORE", "TRAIN", "TFDS", "NLP", "EXPORT")), []):
    print(re.sub(r"^([\w-]+)>=([\d.]+)$", r"\1==\2", bound))
'

constraints() { # PYTHON VERSIONS -> for pip
    case $2 in
        least) "$1" -c "$LEAST" ;;
        newest) ;;
        colab) cat launch/colab.txt ;;
        *) printf '%s\n' "jax==${2%/*}" "jaxlib==${2%/*}" "flax==${2#*/}" ;;
    esac
}

alone() { # COMMAND ... -> its exit code. One at a time: to build our package writes into this folder.
    local code=0
    until mkdir build/versions/lock 2>/dev/null; do sleep 0.2; done
    "$@" || code=$?
    rmdir build/versions/lock
    return $code
}

install() { # FOLDER REQUIREMENT ...
    alone "$1/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile \
        --constraint "$1/constraints.txt" "${@:2}"
}

passes() { # PYTHON_VERSION VERSIONS
    local folder=build/versions/$1-${2//\//-} code=0 started=$SECONDS tests=("${TESTS[@]}")
    if [ -n "$all" ]; then tests=("${OF_ALL[@]}" "${tests[@]}"); fi
    echo "installing into $folder ..."
    "$(find_python "$1")" -m venv --clear "$folder" || return
    constraints "$folder/bin/python" "$2" >"$folder/constraints.txt" || return
    if [ "$2" = colab ]; then
        install "$folder" --requirement launch/colab.txt || return
        alone "$folder/bin/python" -m pip wheel --quiet --no-deps --wheel-dir "$folder" . || return
        "$folder/bin/python" launch/keep_check.py "$folder" || code=1
    fi
    install "$folder" --editable . || return
    if [ "$2" = least ] || [ -n "$all" -a "$2" != colab ]; then
        echo "$((SECONDS - started)) s; the core:"
        "$folder/bin/python" launch/core_check.py ${all:+--gradients} | tee "$folder/core.txt" || code=1
    fi
    install "$folder" --editable ".[versions]" || return
    "$folder/bin/python" -m pip freeze >"$folder/freeze.txt"
    grep -E "^(jax|jaxlib|flax|numpy|optax|orbax-checkpoint)==" "$folder/freeze.txt" | paste -sd " "
    echo "$((SECONDS - started)) s; tests:"
    "$folder/bin/python" -m pytest --quiet --numprocesses="${TEST_PROCESSES:-2}" --dist=loadfile -m "not slow" \
        --junitxml="$folder/results.xml" "${tests[@]}" || code=1
    if [ "$2" = colab ]; then # all notebooks, each copied to an empty folder
        install "$folder" --editable ".[colab]" || return
        "$folder/bin/python" -m pytest --quiet -m slow tests/project/test_notebooks.py || code=1
    fi
    echo "$((SECONDS - started)) s"
    return $code
}

all=
case $* in
    "") ;;
    --all) all=yes ;;
    *) echo "versions.sh $*: the only option is --all" >&2 && exit 2 ;;
esac
found=()
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

newest=${found[-1]}
tried=("${found[0]} least" "$newest newest")
if [ -n "$all" ]; then
    tried+=("$newest colab")
    for version in "${found[@]:1:${#found[@]}-2}"; do tried+=("$version newest"); done
    for versions in "${BETWEEN[@]}"; do tried+=("$newest $versions"); done
fi

mkdir -p build/versions
rmdir build/versions/lock 2>/dev/null || true # of a call that was killed
trap 'trap - INT TERM; kill 0' INT TERM
folders=()
for each in "${tried[@]}"; do
    read -r version versions <<<"$each"
    folder=build/versions/$version-${versions//\//-}
    folders+=("$folder")
    echo FAILED >"$folder.result"
    running=(x $(jobs -rp))
    if [ ${#running[@]} -gt 2 ]; then wait -n || true; fi
    { if passes "$version" "$versions"; then echo passed >"$folder.result"; fi; } 2>&1 |
        while IFS= read -r line; do echo "$version $versions: $line"; done &
done
wait

code=0
summary=versions.sh:
for i in "${!tried[@]}"; do
    read -r version versions <<<"${tried[i]}"
    result=$(cat "${folders[i]}.result")
    if [ "$result" != passed ]; then code=1; fi
    summary+=" Python $version, $versions versions: $result."
done
"$(find_python "$newest")" launch/versions_table.py "${folders[@]}" # the environments may not have been made
echo "$summary"
exit $code
