"""Packs answers of a GLUE sweep into a zip for GLUE's site: for every task those of the run with the best dev score.

  python -m posattn_jax.sweeps.glue_bundle runs/glue composite [--out=runs/glue/composite.zip]

runs/glue is the folder of a sweep of configs/glue.py, and composite one of its convolutions, whose runs are in
runs/glue/TASK_composite/SEED. Each test set is answered by the run whose best epoch has the highest score on the
development set. For MNLI-mm, that is the score on the mismatched development set. The run for MNLI-m also answers AX.
The site takes only a zip with all eleven files. If a run or a test set is missing, every answer is the task's first
label, or 0, and a line says so. Exit codes: 0 done, 1 failed while running, 2 wrong input.
"""

import argparse
import io
import pathlib
import sys
import zipfile

from ml_collections import ConfigDict

from posattn_jax.system import command_line, extras
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import read_json, write_atomically

SCORES = ("score", "score_mismatched", "score")  # the score that chooses the run, for each test set of a task


def bundle(workdir: pathlib.Path, name: str, out: pathlib.Path) -> None:
    """Evaluates the best runs, writes the zip, and prints which runs gave the answers.

    Args:
      workdir: the folder of a sweep of configs/glue.py.
      name: the name of a convolution.
      out: the path of the zip.

    Raises:
      InputError: there is no finished run, or a test set differs in size from that of the site.
    """
    extras.need(*extras.LIBRARIES["train"])
    from posattn_jax.data.text import glue  # here, as it takes seconds
    from posattn_jax.run.evaluate import evaluate

    finished = {task: sorted((workdir / f"{task}_{name}").glob("*/summary.json")) for task in glue.TASKS}
    if not any(finished.values()):
        raise InputError(f"{workdir}: no finished run of {name} (none is TASK_{name}/SEED, such as cola_{name}/9188)")
    answered: set[pathlib.Path] = set()
    texts: dict[str, str] = {}
    filled = []
    for task_name, task in glue.TASKS.items():
        for stem, number, metric in zip(task.answers, task.num_asked, SCORES, strict=False):
            scores = {path.parent: read_json(path)["best"][metric] for path in finished[task_name]}
            best = max(scores, key=lambda run: scores[run], default=None)
            if best is not None and best not in answered:
                evaluate(ConfigDict(read_json(best / "config.json")), best)
                answered.add(best)
            if best is not None and (path := best / "answers" / f"{stem}.tsv").exists():
                texts[stem] = path.read_text()
                print(f"{stem}.tsv: {best}, {scores[best]:.4f} in development, the best of {len(scores)}")
            else:
                answer = task.labels[0] if task.labels else "0.000"
                texts[stem] = "index\tprediction\n" + "".join(f"{i}\t{answer}\n" for i in range(number))
                filled.append(f"{stem}.tsv ({number:,} times {answer})")
            if (found := texts[stem].count("\n") - 1) != number:
                raise InputError(f"{best}: {found:,} answers in {stem}.tsv, and the site's test set has {number:,}")
    if filled:
        print(f"not answered, and filled up: {', '.join(filled)}")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for stem, text in texts.items():
            archive.writestr(f"{stem}.tsv", text)
    write_atomically(out, lambda file: file.write(buffer.getvalue()))
    print(f"bundle {out}: {len(texts)} files")


def main(argv: list[str]) -> int:
    """Parses the command line and writes the zip; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workdir", type=pathlib.Path, help="the folder of a sweep of configs/glue.py")
    parser.add_argument("name", help="name of a convolution, such as composite")
    parser.add_argument("--out", type=pathlib.Path, help="the zip; by default WORKDIR/NAME.zip")
    options = parser.parse_args(argv[1:])
    bundle(options.workdir, options.name, options.out or options.workdir / f"{options.name}.zip")
    return 0


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv))
