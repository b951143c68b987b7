#!/usr/bin/env bash
# What a new user does in the first hour, each step timed: launch/first_hour.sh [FOLDER]
# Installs this clone into an environment of its own, runs README's ten lines, trains on made images, sentences and pairs
# of sentences, predicts, translates, evaluates at another size, runs a sweep of two treatments, and opens a notebook
# where no clone is. FOLDER, a new one, keeps what came of it, and the times in times.tsv; without it build/first_hour is
# made anew. PYTHON: which Python.
# Exit codes: 0 all steps ended so, 1 not, 2 wrong input, or FOLDER is there already, 130 Ctrl-C.
set -euo pipefail
if [ $# -gt 1 ] || [[ ${1:-} = -* ]]; then
    echo "$*: expected nothing, or a new folder: launch/first_hour.sh [FOLDER]" >&2
    exit 2
fi
clone=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=$(realpath -m "${1:-$clone/build/first_hour}")
cd "$clone"
source launch/python.sh
python=${PYTHON:-$(find_python "${PYTHONS[@]}" || echo python3)}
if [ $# -eq 0 ]; then rm -rf "$folder"; fi
if [ -e "$folder" ]; then
    echo "first_hour.sh $1: is there already: expected a new folder" >&2
    exit 2
fi
mkdir -p "$folder"
cd "$folder" # where nothing of the clone is found by chance
unset PYTHONPATH
export PATH="$folder/venv/bin:$PATH" PIP_DISABLE_PIP_VERSION_CHECK=1

trap 'exit 130' INT # also where a step has ended on Ctrl-C by itself

step() { # NAME COMMAND ... -> its output in NAME.txt, its time and exit code as a line
    local began=$SECONDS code=0
    "${@:2}" >"$1.txt" 2>&1 || code=$?
    printf '%s\t%s s\texit code %s\n' "$1" $((SECONDS - began)) $code | tee -a times.tsv
    if [ $code -ne 0 ]; then tail -n 5 "$1.txt"; fi
}

data() { # makes the data
    python - <<'PYTHON'
import pathlib
from PIL import Image
from sklearn.datasets import load_digits

digits = load_digits()
for i, (pixels, digit) in enumerate(zip(digits.images[:300], digits.target[:300])):
    if digit < 3:
        file = pathlib.Path(f"images/{digit}/{i}.png")
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * 15).astype("uint8")).resize((16, 16)).save(file)
words = {"good": ("fine", "lovely", "great"), "bad": ("dull", "awful", "poor")}
rows = [f"a {word} film number {i}\t{label}" for i in range(20) for label in words for word in words[label]]
pathlib.Path("sentences.tsv").write_text("sentence\tlabel\n" + "\n".join(rows) + "\n")
pathlib.Path("pairs").mkdir()
ones = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf"}
pairs = [(f"{a} {b} {c}", f"{ones[c]} {ones[b]} {ones[a]}") for a in ones for b in ones for c in ones]
for side, language in enumerate(("en", "de")):
    pathlib.Path(f"pairs/train.{language}").write_text("".join(pair[side] + "\n" for pair in pairs))
PYTHON
}

notebook() { # runs a notebook whose form is filled in, in a folder of its own
    mkdir alone
    python - "$clone" <<'PYTHON'
import pathlib, sys

import nbformat
from nbclient import NotebookClient

clone = pathlib.Path(sys.argv[1])
notebook = nbformat.read(clone / "colabs" / "own_model.ipynb", as_version=4)
form = next(cell for cell in notebook.cells if "ADDRESS = " in cell.source)
form.source = form.source.replace('ADDRESS = ""', f'ADDRESS = "{clone.as_uri()}"')
NotebookClient(notebook, timeout=None, resources={"metadata": {"path": "alone"}}).execute()
PYTHON
}

ten_lines() { sed -n '/^```python/,/^```/{/^```/!p}' "$clone/README.md" | python -; }

images=(--config=configs/image_folder.py --config.data.dir=images --config.data.height=16 --config.data.width=16
    --config.model.patch_shape='(4,4)' --config.train.batch_size=8)
pairs=(--config=configs/translation.py --config.data.dir=pairs --config.data.source=en --config.data.target=de)

step environment "$python" -m venv venv
[ -x venv/bin/pip ] || exit 1 # the next steps would install into the caller's own
step install pip install --quiet "$clone"
step ten_lines ten_lines
step install_train pip install --quiet "$clone[train]"
data
step images posattn "${images[@]}" --workdir=runs/images --config.train.total_epochs=4
step predict posattn --mode=predict --workdir=runs/images images/1 --top=2
step another_size posattn --mode=evaluate --workdir=runs/images --config.data.height=24 --config.data.width=24
step explain posattn --mode=explain --workdir=runs/images
step sentences posattn --config=configs/sentences.py --workdir=runs/sentences --config.data.dir=sentences.tsv \
    --config.train.total_epochs=2
step pairs posattn "${pairs[@]}" --workdir=runs/pairs --config.train.total_epochs=4
step install_nlp pip install --quiet "$clone[nlp]"
step translate bash -c 'echo "one two three" | posattn --mode=translate --workdir=runs/pairs'
step sweep posattn --mode=sweep --config=configs/digits.py --workdir=runs/sweep --treatments=siren_2d,span_2d \
    --seeds=1,2 --config.train.total_epochs=1
step report posattn --mode=report --workdir=runs/sweep
step install_notebook pip install --quiet nbclient ipykernel
pip uninstall --quiet --yes posattn_jax
step notebook notebook
! grep --invert-match "exit code 0$" times.tsv
