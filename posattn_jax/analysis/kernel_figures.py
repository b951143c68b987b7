"""Pictures of what one run has learned of the offset of key and query alone: encodings, and convolution kernels."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from posattn_jax.analysis.pictures import panels

Positions = Mapping[str, np.ndarray]


def positional_encodings(positions: Positions, num_dims: int) -> Figure | None:
    """The features of every layer's relative encoding over all offsets; of grids some of them."""
    encodings = [array.reshape(*array.shape[:num_dims], -1) for array in _of_layers(positions, "relative_encoding")]
    return _draw(encodings, "feature", "encoding", quantile=0.995, most=6)


def fixed_kernels(positions: Positions, kernel_shape: Sequence[int]) -> Figure | None:
    """Chang 2021, Figure 2: beta of every layer and head."""
    return _draw([_within(array, kernel_shape) for array in _of_layers(positions, "relative_bias")], "head", "beta")


def depthwise_kernels(positions: Positions) -> Figure | None:
    """Chang 2021, Figure 3: the kernels of every layer's channels, sorted by what they give the next token more than
    the previous one. Of sequences alone."""
    kernels = _of_layers(positions, "depthwise_kernel")
    if not kernels or kernels[0].ndim != 2 or len(kernels[0]) < 3:
        return None
    middle = len(kernels[0]) // 2
    ordered = [kernel[:, np.argsort(kernel[middle + 1] - kernel[middle - 1])] for kernel in kernels]
    return _draw(ordered, "channel, sorted", "weight", quantile=0.995)


def _of_layers(positions: Positions, name: str) -> list[np.ndarray]:
    return [array for key, array in positions.items() if key.endswith(f"/{name}")]


def _within(array: np.ndarray, kernel_shape: Sequence[int]) -> np.ndarray:
    """Of an array [*R, h] over all offsets, those of the kernel."""
    reaches = [min(k // 2, size // 2) for size, k in zip(array.shape[:-1], kernel_shape, strict=True)]
    return array[tuple(slice(size // 2 - r, size // 2 + r + 1) for size, r in zip(array.shape, reaches, strict=False))]


def _draw(
    kernels: Sequence[np.ndarray], what: str, label: str, quantile: float = 1.0, most: int | None = None
) -> Figure | None:
    """Arrays [*K, n] of layers over their offsets, in one scale of colours, which has this quantile of what they have.

    Of sequences a panel a layer, with n rows; of grids a picture for each of n, or for `most` of them, and of volumes
    their central plane.
    """
    if not kernels:
        return None
    limit = max(float(np.quantile(np.abs(kernel), quantile)) for kernel in kernels) or 1.0
    style = {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit}
    image, num = None, kernels[0].shape[-1]
    if kernels[0].ndim == 2:
        figure, axes = panels(len(kernels), 4, 2.8, 2.4)
        for layer, (axis, kernel) in enumerate(zip(axes, kernels, strict=True), start=1):
            reach = len(kernel) / 2
            image = axis.imshow(kernel.T, aspect="auto", extent=(-reach, reach, num + 0.5, 0.5), **style)
            axis.set_title(f"layer {layer}", fontsize="medium")
            axis.set_ylabel(what if (layer - 1) % 4 == 0 else "")
            if num <= 16:
                axis.set_yticks(range(1, num + 1))
    else:
        shown = np.linspace(0, num - 1, min(num, most or num)).astype(int)
        figure, axes = panels(len(kernels) * len(shown), len(shown), 1.5, 1.6, layout="compressed")
        for i, axis in enumerate(axes):
            kernel, which = kernels[i // len(shown)], shown[i % len(shown)]
            plane = kernel[kernel.shape[0] // 2] if kernel.ndim == 4 else kernel
            height, width = np.array(plane.shape[:2]) / 2
            image = axis.imshow(plane[..., which], extent=(-width, width, height, -height), **style)
            axis.tick_params(labelsize="x-small")
            axis.set_title(f"{what} {which + 1}" if i < len(shown) else "", fontsize="small")
            axis.set_ylabel(f"layer {i // len(shown) + 1}" if which == 0 else "", fontsize="small")
    figure.supxlabel("key - query (positions)", fontsize="medium")
    figure.colorbar(image, ax=axes, label=label)
    return figure
