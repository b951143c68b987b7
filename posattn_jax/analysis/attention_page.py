"""A page of one file on what attention attends to: weights of layers and heads on an image, or on tokens, by query."""

import base64
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


def compose(title: str, data: dict[str, Any]) -> str:
    """The page as HTML, which asks for nothing from anywhere.

    Args:
      title: of the page.
      data: what the script reads: "kind" ["image" or "text"], "about" [words], "grid" [S, of the tokens],
        "shown" [the rows and columns that a picture's tokens are shown in; of a text (1, t)], "classTokens" [how many
        tokens stand before the grid], "heads" [their numbers, from 1], "examples" [see `example`] and "layers", each
        with its "number", "halfSpans" [[h p] how far its heads see on each side; None: everywhere] and "kernels" [see
        `kernel`].
    """
    folder = pathlib.Path(__file__).parent
    names = ("attention_page.html", "attention_page_drawing.js", "attention_page.js")
    template, *scripts = ((folder / name).read_text(encoding="utf-8") for name in names)
    precision = f"Weights are in {STEPS}ths of each query's largest, kernels in {STEPS}ths of each head's range."
    text = json.dumps(data | {"precision": precision}, allow_nan=False)
    before, after = template.split("DATA")
    text = text.replace("<", "\\u003c")  # no tag, whatever an input is called
    return before.replace("TITLE", html.escape(title)) + text + after.replace("SCRIPT", "".join(scripts))


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


def mean_by_offset(weights: Sequence[Float[np.ndarray, "h _ _"]], grid: tuple[int, ...]) -> Float[np.ndarray, "h *r"]:
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


def example(
    title: str,
    told: str,
    weights: Sequence[Float[np.ndarray, "h t s"]],
    picture: np.ndarray | None = None,
    tokens: Sequence[str] = (),
) -> dict[str, Any]:
    """An input.

    Args:
      title: its name.
      told: what the model tells of it.
      weights: of each layer [h t s]; class tokens first.
      picture: [height width c] uint8 of 1 or 3 channels; None: the input is a text.
      tokens: t of them, of a text.
    """
    made: dict[str, Any] = {"title": title, "told": told, "size": weights[0].shape[-1]}
    made["layers"] = [quantise(each) for each in weights]
    if picture is None:
        return made | {"tokens": list(tokens)}
    file = io.BytesIO()
    Image.fromarray(picture[..., 0] if picture.shape[-1] == 1 else picture).save(file, "PNG")
    return made | {"picture": f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"}


def kernel(name: str, what: str, values: Float[np.ndarray, "h *r"]) -> dict[str, Any]:
    """What depends on the distance of key and query alone: its name, what it is in a few words, and [h, *R]."""
    heads = values.reshape(len(values), -1)
    low, high = heads.min(1), heads.max(1)
    shares = np.rint(STEPS * (heads - low[:, None]) / np.where(high > low, high - low, 1)[:, None])
    ranges = np.stack([low, high], -1).astype(float).tolist()
    return {"name": name, "is": what, "ranges": ranges, "values": _base64(shares.astype(np.uint8))}


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
