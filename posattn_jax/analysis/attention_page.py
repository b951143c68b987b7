"""A page of one file on what attention attends to: weights of layers and heads on an image, or on tokens, by query."""

import base64
import dataclasses
import html
import io
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from posattn_jax.axes import Float

STEPS = 255


@dataclasses.dataclass(frozen=True)
class Kernel:
    """What depends on the distance of key and query alone.

    Attributes:
      name: of it.
      what: it is, in a few words.
      values: [h, *R] by key - query offset.
    """

    name: str
    what: str
    values: Float[np.ndarray, "h *r"]


@dataclasses.dataclass(frozen=True)
class Layer:
    """What a layer knows, whatever the input.

    Attributes:
      number: of the layer, from 1.
      half_spans: [h p] how far its heads see on each side, in positions; None: everywhere.
      kernels: see there.
    """

    number: int
    half_spans: Float[np.ndarray, "h p"] | None
    kernels: Sequence[Kernel]


@dataclasses.dataclass(frozen=True)
class Example:
    """An input.

    Attributes:
      title: its name.
      told: what the model tells of it.
      weights: of each layer [h t s]; class tokens first.
      picture: [height width c] uint8 of 1 or 3 channels; None: the input is a text.
      tokens: t of them, of a text.
    """

    title: str
    told: str
    weights: Sequence[Float[np.ndarray, "h t s"]]
    picture: np.ndarray | None = None
    tokens: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Page:
    """What the page shows.

    Attributes:
      title, about: above it.
      grid: S, the grid of the tokens.
      shown: the rows and columns that a picture's tokens are shown in; of a text (1, t).
      num_class_tokens: how many tokens stand before the grid.
      heads: the numbers of the heads, from 1.
      layers, examples: see there.
    """

    title: str
    about: str
    grid: tuple[int, ...]
    shown: tuple[int, int]
    num_class_tokens: int
    heads: Sequence[int]
    layers: Sequence[Layer]
    examples: Sequence[Example]


def compose(page: Page) -> str:
    """The page as HTML, which asks for nothing from anywhere."""
    folder = pathlib.Path(__file__).parent
    template, script = ((folder / f"attention_page.{kind}").read_text(encoding="utf-8") for kind in ("html", "js"))
    data = json.dumps(_data(page), allow_nan=False).replace("<", "\\u003c")  # no tag, whatever an input is called
    before, after = template.split("DATA")
    return before.replace("TITLE", html.escape(page.title)) + data + after.replace("SCRIPT", script)


def num_bytes(num_tokens: int, num_heads: int, num_layers: int) -> int:
    """What the weights of an input take on the page."""
    return num_layers * num_heads * num_tokens * (num_tokens + 4) * 4 // 3


def quantise(weights: Float[np.ndarray, "h t s"]) -> dict[str, str]:
    """Base64 of the largest weight of each query, float32, and of all weights in 255ths of it, bytes.

    What is read is off by half a 255th of the query's largest weight at most.
    """
    largest = weights.max(-1).astype(np.float32)
    shares = np.rint(STEPS * weights / np.where(largest > 0, largest, 1)[..., None])
    return {"largest": _base64(largest.astype("<f4")), "shares": _base64(shares.astype(np.uint8))}


def mean_by_offset(weights: Sequence[Float[np.ndarray, "h n n"]], grid: tuple[int, ...]) -> Float[np.ndarray, "h *r"]:
    """The mean weight of all pairs of a grid that are as far apart, over the inputs: [h, *R]; 0 where there is none."""
    sizes = tuple(2 * size - 1 for size in grid)
    num_heads = len(weights[0])
    sums, counts = np.zeros((num_heads, int(np.prod(sizes)))), np.zeros(int(np.prod(sizes)))
    for each in weights:
        places = np.stack(np.unravel_index(np.arange(each.shape[-1]), grid), -1)
        offsets = places[None] - places[:, None] + np.array(grid) - 1
        which = np.ravel_multi_index(tuple(np.moveaxis(offsets, -1, 0)), sizes).ravel()
        counts += np.bincount(which, minlength=len(counts))
        sums += [np.bincount(which, head.ravel(), len(counts)) for head in each]
    return (sums / np.maximum(counts, 1)).reshape(num_heads, *sizes)


def _data(page: Page) -> dict[str, Any]:
    is_text = page.examples[0].picture is None
    return {
        "kind": "text" if is_text else "image",
        "about": page.about,
        "grid": page.grid,
        "shown": page.shown,
        "classTokens": page.num_class_tokens,
        "heads": list(page.heads),
        "layers": [
            {
                "number": layer.number,
                "halfSpans": None if layer.half_spans is None else layer.half_spans.tolist(),
                "kernels": [_kernel(kernel) for kernel in layer.kernels],
            }
            for layer in page.layers
        ],
        "examples": [_example(example) for example in page.examples],
        "precision": f"Weights are in {STEPS}ths of each query's largest, kernels in {STEPS}ths of each head's range.",
    }


def _example(example: Example) -> dict[str, Any]:
    made: dict[str, Any] = {"title": example.title, "told": example.told, "size": example.weights[0].shape[-1]}
    made["layers"] = [quantise(weights) for weights in example.weights]
    if example.picture is None:
        return made | {"tokens": list(example.tokens)}
    file, is_grey = io.BytesIO(), example.picture.shape[-1] == 1
    Image.fromarray(example.picture[..., 0] if is_grey else example.picture).save(file, "PNG")
    return made | {"picture": f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"}


def _kernel(kernel: Kernel) -> dict[str, Any]:
    heads = kernel.values.reshape(len(kernel.values), -1)
    low, high = heads.min(1), heads.max(1)
    shares = np.rint(STEPS * (heads - low[:, None]) / np.where(high > low, high - low, 1)[:, None])
    ranges = np.stack([low, high], -1).astype(float).tolist()
    return {"name": kernel.name, "is": kernel.what, "ranges": ranges, "values": _base64(shares.astype(np.uint8))}


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
