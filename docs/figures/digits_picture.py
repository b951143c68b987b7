"""Where digits lie in the data sets of Translution: python -m docs.figures.digits_picture MNIST --out=FILE.png

MNIST is the folder with MNIST's official files. Rows: MNIST; Moving MNIST (Fan 2025, Figure 5a), whose digits lie
anywhere on a larger canvas; and its halves, where training digits lie in the left half, and test digits in the right.
The lines are the borders of patches.
"""

import argparse
import pathlib
from typing import Any

import numpy as np

from configs.lib import common_vit
from posattn_jax.data.images import Split
from posattn_jax.data.images.image_sets import Images
from posattn_jax.data.images.moving_mnist import Stills
from posattn_jax.system.errors import InputError
from posattn_jax.system.plot_style import panels, save

NUMBER = 6
HALVES = Stills(shift="halves")
ROWS: tuple[tuple[str, Any, Split, int], ...] = (
    ("MNIST", None, "train", common_vit.PATCH["mnist"]),
    ("Moving MNIST", Stills(), "train", 8),
    ("halves, training", HALVES, "train", 8),
    ("halves, test", HALVES, "test", 8),
)


def draw(folder: pathlib.Path, out: pathlib.Path) -> None:
    """Draws the first digits of each row. Raises InputError if the folder lacks MNIST's files."""
    rows = [Images(name="mnist", dir=str(folder), scene=scene).read(split) for _, scene, split, _ in ROWS]
    figure, axes = panels(len(ROWS) * NUMBER, NUMBER, 1.2, 1.2)
    for i, ((title, _, _, patch), images) in enumerate(zip(ROWS, rows, strict=True)):
        assert images is not None, "MNIST has both parts"
        for axis, image in zip(axes[i * NUMBER :], np.asarray(images.images[:NUMBER]), strict=False):
            axis.imshow(image[..., 0], cmap="gray", vmin=0, vmax=255)
            borders = np.arange(patch, len(image), patch) - 0.5
            axis.set_xticks(borders, [""] * len(borders))
            axis.set_yticks(borders, [""] * len(borders))
            axis.tick_params(length=0)
            axis.grid(color="0.3")
        axes[i * NUMBER].set_ylabel(title)
    save(figure, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mnist", type=pathlib.Path, help="the folder with MNIST's files")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="the picture to write")
    arguments = parser.parse_args()
    try:
        draw(arguments.mnist, arguments.out)
    except InputError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
