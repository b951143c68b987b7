"""What a learned span saves on text: python -m docs.figures.text_picture RUNS_FILE RUN_FOLDER --out=FILE.png

Left, the validation bits a character of each treatment against the seconds of its training, of a sweep's `runs.jsonl`:
means over seeds. Right, how many characters each head of a finished run with a learned span reaches, by block.
"""

import argparse
import pathlib

import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes

from posattn_jax.analysis.curve_pictures import marks
from posattn_jax.analysis.runs import Runs, runs_file
from posattn_jax.ops.span import half_span
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import read_json
from posattn_jax.system.plot_style import BLUE, VERMILLION, panels, save, whole_ticks


def reaches(workdir: pathlib.Path) -> list[np.ndarray]:
    """The half-span of every head [h] of each block of a run on a sequence, in positions.

    Raises:
      InputError: no finished run there, or one without a learned span on a sequence.
    """
    summary, path = read_json(workdir / "summary.json"), workdir / "positions.npz"
    if summary is None or not path.exists():
        raise InputError(f"{workdir}: no finished run there (it has no summary.json or positions.npz)")
    with np.load(path, allow_pickle=False) as file:
        sigmas = {
            int(name.split("/")[0].split("_")[1]): jnp.asarray(file[name]) for name in file if name.endswith("/sigma")
        }
    if not sigmas or len(summary["grid_shape"]) != 1:
        raise InputError(f"{workdir}: expected a run with a learned span, on a sequence")
    grid = tuple(summary["grid_shape"])
    return [np.ravel(half_span(sigmas[block], summary["threshold"], grid)) for block in sorted(sigmas)]


def draw(runs: Runs, heads: list[np.ndarray], out: pathlib.Path) -> None:
    """Draws both into `out`."""
    figure, (left, right) = panels(2, 2, 4.4, 3.4)
    _draw_curves(left, runs)
    _draw_heads(right, heads)
    save(figure, out)


def _draw_curves(axis: Axes, runs: Runs) -> None:
    drawn = [name for name in runs.runs if "seconds" in runs.curves[name]]
    for i, name in enumerate(drawn):
        curve = runs.curves[name]["seconds"]
        axis.plot(curve.at, curve.mean, label=runs.figure_label(name, curve.num_runs), **marks(curve, i))
    axis.set(xlabel="seconds of training, evaluation included", ylabel="validation bits a character")
    axis.set_xlim(left=0)
    axis.grid()
    axis.legend()


def _draw_heads(axis: Axes, heads: list[np.ndarray]) -> None:
    """A dot a head, those of a block next to each other from the shortest to the longest, and a line at their mean."""
    for block, reach in enumerate(heads, start=1):
        aside = np.linspace(-0.3, 0.3, len(reach)) if len(reach) > 1 else np.zeros(1)
        axis.plot(block + aside, np.sort(reach), "o", color=BLUE, label="a head" if block == 1 else None)
        mean = "mean of the block" if block == 1 else ""
        axis.hlines(reach.mean(), block - 0.38, block + 0.38, color=VERMILLION, linestyle="--", label=mean)
    axis.set(xlabel="block", ylabel="learned reach [characters]")
    axis.set_ylim(bottom=0)
    whole_ticks(axis.xaxis)
    axis.grid(axis="y")
    axis.legend()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs_file", type=pathlib.Path, help="a sweep's runs.jsonl")
    parser.add_argument("run", type=pathlib.Path, help="the folder of a run with a learned span")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="the picture to write")
    arguments = parser.parse_args()
    if not arguments.runs_file.exists():
        parser.error(f"{arguments.runs_file}: no such file")
    try:
        draw(runs_file.read(arguments.runs_file), reaches(arguments.run), arguments.out)
    except InputError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
