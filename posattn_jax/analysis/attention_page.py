"""An HTML page, in one file, of attention weights: for each query, layer and head, on an image or on tokens."""

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
    """The page as HTML, which loads nothing else.

    Args:
      title: the title of the page.
      data: what the script reads: "kind" ["image" or "text"], "about" [a description], "grid" [S, of the tokens],
        "shown" [the rows and columns in which the tokens of a picture are shown; for a text (1, t)], "classTokens" [the
        number of tokens before the grid], "heads" [their numbers, from 1], "examples" [see `example`] and "layers",
        each with its "number", "halfSpans" [[h p] the half-spans of its heads; None: no limit] and "kernels" [see
        `kernel`].
    """
    folder = pathlib.Path(__file__).parent
    names = ("attention_page.html", "attention_page_drawing.js", "attention_page.js")
    template, *scripts = ((folder / name).read_text(encoding="utf-8") for name in names)
    text = json.dumps(data, allow_nan=False)
    before, after = template.split("DATA")
    text = text.replace("<", "\\u003c")  # so that the name of an input cannot be a tag
    return before.replace("TITLE", html.escape(title)) + text + after.replace("SCRIPT", "".join(scripts))


def num_bytes(num_tokens: int, num_heads: int, num_layers: int) -> int:
    """The bytes that the weights of an input take on the page."""
    return num_layers * num_heads * num_tokens * (num_tokens + 4) * 4 // 3


def quantise(weights: Float[np.ndarray, "h t s"]) -> dict[str, str]:
    """Base64 of the largest weight of each query (float32), and of all weights in 255ths of it (bytes).

    The error is at most half a 255th of the query's largest weight.
    """
    largest = weights.max(-1).astype(np.float32)
    shares = np.rint(STEPS * weights / np.where(largest > 0, largest, 1)[..., None])
    return {"largest": _base64(largest.astype("<f4")), "shares": _base64(shares.astype(np.uint8))}


def mean_by_offset(weights: Sequence[Float[np.ndarray, "h _ _"]], grid: tuple[int, ...]) -> Float[np.ndarray, "h *r"]:
    """The mean weight of all pairs with the same offset, over all inputs: [h, *R]; 0 without such pairs."""
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
    prediction: str,
    weights: Sequence[Float[np.ndarray, "h t s"]],
    picture: np.ndarray | None = None,
    tokens: Sequence[str] = (),
) -> dict[str, Any]:
    """The page's data of an input.

    Args:
      title: its name.
      prediction: the prediction of the model, in words.
      weights: the weights of each layer [h t s]; class tokens come first.
      picture: [height width c] uint8 with 1 or 3 channels; None: the input is a text.
      tokens: the t tokens of a text.
    """
    made: dict[str, Any] = {"title": title, "prediction": prediction, "size": weights[0].shape[-1]}
    made["layers"] = [quantise(each) for each in weights]
    if picture is None:
        return made | {"tokens": list(tokens)}
    file = io.BytesIO()
    Image.fromarray(picture[..., 0] if picture.shape[-1] == 1 else picture).save(file, "PNG")
    return made | {"picture": f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"}


def kernel(name: str, what: str, values: Float[np.ndarray, "h *r"]) -> dict[str, Any]:
    """The page's data of a function of the offset: its name, a short explanation, and its values [h, *R]."""
    heads = values.reshape(len(values), -1)
    low, high = heads.min(1), heads.max(1)
    shares = np.rint(STEPS * (heads - low[:, None]) / np.where(high > low, high - low, 1)[:, None])
    ranges = np.stack([low, high], -1).astype(float).tolist()
    return {"name": name, "is": what, "ranges": ranges, "values": _base64(shares.astype(np.uint8))}


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
