"""Pictures of learned convolution kernels of one run (Chang 2021, Figures 2 and 3)."""

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

COLUMNS = 4


def fixed_kernels(positions: dict[str, np.ndarray], kernel_shape: Sequence[int]) -> Figure | None:
    """Figure 2: beta of every layer and head, by key - query offset; of images a picture a head."""
    biases = {name.split("/")[0]: array for name, array in positions.items() if name.endswith("/relative_bias")}
    if not biases:
        return None
    kernels = [_within(array, kernel_shape) for array in biases.values()]
    limit = max(float(np.abs(kernel).max()) for kernel in kernels) or 1.0
    style: dict[str, Any] = {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit}
    if len(kernel_shape) == 1:
        return _panels(kernels, style, "head", "beta")
    num_heads = kernels[0].shape[-1]
    figure, panels = plt.subplots(
        len(kernels), num_heads, figsize=(1.5 * num_heads + 1, 1.6 * len(kernels)), layout="compressed", squeeze=False
    )
    image = None
    for layer, (row, kernel) in enumerate(zip(panels, kernels, strict=True), start=1):
        plane = kernel[kernel.shape[0] // 2] if len(kernel_shape) == 3 else kernel
        for head, axis in enumerate(row):
            reach = np.array(plane.shape[:2]) / 2
            image = axis.imshow(plane[..., head], extent=(-reach[1], reach[1], reach[0], -reach[0]), **style)
            axis.tick_params(labelsize="x-small")
            axis.set_title(f"head {head + 1}" if layer == 1 else "", fontsize="small")
        row[0].set_ylabel(f"layer {layer}\nrows", fontsize="small")
    for axis in panels[-1]:
        axis.set_xlabel("columns", fontsize="small")
    if image is not None:
        figure.colorbar(image, ax=panels, label="beta")
    return figure


def depthwise_kernels(positions: dict[str, np.ndarray]) -> Figure | None:
    """Figure 3: the kernels of every layer's channels, sorted by what they give the next token more than the previous.

    Of sequences alone.
    """
    kernels = [array for name, array in positions.items() if name.endswith("/depthwise_kernel")]
    if not kernels or kernels[0].ndim != 2 or len(kernels[0]) < 3:
        return None
    middle = len(kernels[0]) // 2
    ordered = [kernel[:, np.argsort(kernel[middle + 1] - kernel[middle - 1])] for kernel in kernels]
    limit = max(float(np.quantile(np.abs(kernel), 0.995)) for kernel in kernels) or 1.0
    return _panels(ordered, {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit}, "channel, sorted", "weight")


def _within(array: np.ndarray, kernel_shape: Sequence[int]) -> np.ndarray:
    """Of an array [*R, h] over all offsets, those of the kernel."""
    kept = tuple(
        slice(size // 2 - min(k // 2, size // 2), size // 2 + min(k // 2, size // 2) + 1)
        for size, k in zip(array.shape[:-1], kernel_shape, strict=True)
    )
    return array[kept]


def _panels(kernels: list[np.ndarray], style: dict[str, Any], what: str, label: str) -> Figure:
    """A panel a layer: [K, n] as n rows over the offsets."""
    columns = min(COLUMNS, len(kernels))
    rows = -(-len(kernels) // columns)
    size = (2.8 * columns + 1, 2.4 * rows)
    figure, panels = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    image = None
    for layer, (axis, kernel) in enumerate(zip(panels.flat, kernels, strict=False), start=1):
        reach, num = len(kernel) / 2, kernel.shape[1]
        image = axis.imshow(kernel.T, aspect="auto", extent=(-reach, reach, num + 0.5, 0.5), **style)
        axis.set_title(f"layer {layer}", fontsize="medium")
        if num <= 16:
            axis.set_yticks(range(1, num + 1))
    for axis in panels.flat[len(kernels) :]:
        axis.set_visible(False)
    for axis in panels[:, 0]:
        axis.set_ylabel(what)
    figure.supxlabel("key - query (positions)", fontsize="medium")
    if image is not None:
        figure.colorbar(image, ax=panels, label=label)
    return figure
