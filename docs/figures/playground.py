"""Makes docs/playground.html of the parts in docs/playground/, and its table of displacements of a trained run.

  python -m posattn_jax.main --config=configs/compare.py --treatment=translution --workdir=runs/displacements \\
      --config.model.num_blocks=2 --config.model.width=32 --config.model.block.attention.num_heads=4 \\
      --config.model.pooling=mean
  python -m docs.figures.playground [--workdir=runs/displacements]

Without --workdir the page keeps its table. Exit codes: 0 done, 2 wrong input.
"""

import base64
import functools
import json
import pathlib
import re
import sys
from typing import Any

import numpy as np
from absl import flags

from posattn_jax.axes import Float
from posattn_jax.system import command_line
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import read_json, write_text
from posattn_jax.use import trained

DOCS = pathlib.Path(__file__).parents[1]
PARTS = DOCS / "playground"


def describe(workdir: pathlib.Path) -> dict[str, Any]:
    """What the page shows of a run: of every matrix the singular values, and the cosine to the centre's.

    Raises:
      InputError: no such run, or one of something else than images with `Translution`.
    """
    run, summary = trained.of_run(workdir), read_json(workdir / "summary.json")
    if summary is None:
        raise InputError(f"--workdir={workdir}: not finished (it has no summary.json)")
    layers = [run.params.get(f"blocks_{i}", {}).get("attention", {}) for i in range(len(run.task.blocks))]
    values = [layer.get("values", {}) for layer in layers]
    if len(run.task.grid_shape) != 2 or not all("matrices" in each for each in values):
        raise InputError(f"--workdir={workdir}: expected one of images with Translution in every layer")
    tables = [np.moveaxis(np.asarray(each["matrices"]), -2, 0) for each in values]
    num_heads, *_, width, features = tables[0].shape
    best = summary["best"]
    about = (
        f"Data: {run.data.name}. Layers: {len(tables)}, heads: {num_heads}, matrices of {width} x {features}. "
        f"Best epoch {best['epoch']:g}, validation accuracy {best['accuracy']:.3f}, seed {run.config.seed}. Before "
        f"training, drawn at random, a matrix has a norm of about {1 / np.sqrt(3 * num_heads):.2f}, and a cosine of "
        "about 0 to another."
    )
    fields = {"grid": list(run.task.grid_shape), "heads": num_heads, "features": features}
    return {"about": about, **fields, "layers": [quantise(table) for table in tables]}


def quantise(matrices: Float[np.ndarray, "h *r c d"]) -> dict[str, Any]:
    """Of matrices [h *R c d]: base64 of singular values, bytes in 255ths of the largest, and of cosines in 127ths."""
    singular = np.linalg.svd(matrices, compute_uv=False)
    centre = matrices[(slice(None), *(size // 2 for size in matrices.shape[1:-2]))]
    products = np.einsum("h...cd,hcd->h...", matrices, centre)
    norms, largest = np.linalg.norm(singular, axis=-1), singular.max()
    of_centre = np.linalg.norm(centre, axis=(-2, -1)).reshape(-1, *(1,) * (norms.ndim - 1))
    cosine = products / (norms * of_centre)
    return {
        "largest": float(largest),
        "singular": _base64(np.rint(255 * singular / largest).astype(np.uint8)),
        "cosine": _base64(np.rint(127 * cosine).astype(np.int8)),
    }


def compose() -> str:
    """The page, with the files that it names inside it."""

    def inside(match: re.Match) -> str:
        tag, attributes, name = match.groups()
        return f"<{tag}{attributes}>\n{(PARTS / name).read_text(encoding='utf-8')}</{tag}>"

    return re.sub(r'<(script|style)(.*) src="(.*)"></\1>', inside, (PARTS / "page.html").read_text(encoding="utf-8"))


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def parse_flags(argv: list[str]) -> flags.FlagValues:
    """The flags; InputError for anything wrong with them."""
    values = flags.FlagValues()
    flags.DEFINE_string("workdir", None, "The folder of a run with Translution.", flag_values=values)
    return command_line.parse(values, argv, str(__doc__))


def main(argv: list[str]) -> int:
    """Writes the page; returns the exit code."""
    options = parse_flags(argv)
    if options.workdir is not None:
        write_text(PARTS / "displacements.json", json.dumps(describe(pathlib.Path(options.workdir))) + "\n")
    write_text(DOCS / "playground.html", compose())
    return 0


run = functools.partial(command_line.run, main)  # wrong input is told in one line


if __name__ == "__main__":
    sys.exit(run(sys.argv))
