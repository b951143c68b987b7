"""Outputs of some queries, and the gradients of all arrays that follow from them, in float64.

With a cotangent of the outputs that is zero but at some queries every gradient is made of these queries alone. So what
an implementation computes is compared with exact values at once, at sizes of which all pairs would take minutes in
float64.

For a query t, with the keys s inside its span, and all terms of Alfons 2022, formula 1 and Algorithm 8:

  a_s = scale [(q_t + u) . k_s + (q_t + v) . E_{s-t}]      w = softmax(G_{s-t} a_s)      o_t = sum_s w_s value_s
"""

import dataclasses
import math
from typing import Any

import numpy as np

from posattn_jax.axes import Array
from posattn_jax.benchmarks.shapes import Point
from posattn_jax.ops import grid

Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Exact:
    """The outputs [n h d] of the queries (batches [n], positions [n]), and what the cotangent makes of all arrays."""

    batches: np.ndarray
    positions: np.ndarray
    cotangent: np.ndarray
    outputs: np.ndarray
    gradients: Arrays

    def errors(self, outputs: Any, gradients: dict[str, Any]) -> dict[str, float]:
        """|x - exact| / |exact| by array, in Frobenius norms, where |exact| is not 0; NaN and infinity stay.

        Gradients that either side does not have are left out.
        """
        given: np.ndarray = np.asarray(outputs, np.float64)
        pairs = {"outputs": (given[self.batches, self.positions], self.outputs)}
        for name in self.gradients.keys() & gradients.keys():
            pairs[f"d {name}"] = (np.asarray(gradients[name], np.float64), self.gradients[name])
        return {name: relative_error(*pair) for name, pair in sorted(pairs.items())}


def relative_error(given: np.ndarray, exact: np.ndarray) -> float:
    """|given - exact| / |exact|, in Frobenius norms; of an exact 0, |given|."""
    return float(np.linalg.norm(given - exact) / (np.linalg.norm(exact) or 1))


def judged(errors: dict[str, float], tolerance: float) -> dict[str, Any]:
    """The errors, the largest, and whether it is within the tolerance; None for what is no number."""
    finite = {name: error if math.isfinite(error) else None for name, error in errors.items()}
    worst = None if None in finite.values() else max(errors.values())
    return {"errors": finite, "error": worst, "agrees": worst is not None and worst <= tolerance}


def attend_exactly(arrays: dict[str, Array], point: Point, *, positional: bool, queries: int = 16) -> Exact:
    """The outputs of some queries, drawn anew for every point, the first and the last of the grid among them.

    Args:
      arrays: as `make_inputs` gives them, of any dtype.
      point: the grid and the span that sigma has.
      positional: False leaves out E, u, v and sigma: attention of all pairs by content alone.
      queries: how many.
    """
    names = arrays if positional else ("query", "key", "value")
    x = {name: np.asarray(arrays[name], np.float64) for name in names}
    b, n, h, d = x["query"].shape
    rng = np.random.default_rng(point.pairs)
    batches = np.append([0, b - 1], rng.integers(b, size=queries - 2))
    positions = np.append([0, n - 1], rng.integers(n, size=queries - 2))
    cotangent = np.zeros_like(x["query"])
    outputs = np.zeros((queries, h, d))
    gradients = {name: np.zeros_like(array) for name, array in x.items()}
    for i, (batch, position) in enumerate(zip(batches.tolist(), positions.tolist(), strict=True)):
        # Rounded as far as bfloat16 goes; a query that is drawn twice counts twice.
        once = rng.integers(-8, 9, size=(h, d)) / 4
        cotangent[batch, position] += once
        outputs[i] = _attend_one(x, point, batch, position, once, gradients)
    return Exact(batches, positions, cotangent, outputs, gradients)


def _attend_one(
    x: Arrays, point: Point, batch: int, position: int, cotangent: np.ndarray, gradients: Arrays
) -> np.ndarray:
    """The output [h d] of one query; adds its share to the gradients."""
    keys, offsets = _keys_of(point, position, "sigma" in x)
    query, key, value = x["query"][batch, position], x["key"][batch, keys], x["value"][batch, keys]
    scale = 1 / math.sqrt(query.shape[-1])
    by_content = query + x.get("content_bias", 0)
    scores = np.einsum("hd,shd->hs", by_content, key)
    gaussian = np.ones(len(keys))
    if "sigma" in x:
        at = tuple((offsets + np.asarray(point.grid_shape) - 1).T)
        encoding = x["relative_encoding"][at]
        by_position = query + x["position_bias"]
        scores += np.einsum("hd,shd->hs", by_position, encoding)
        squares = (offsets / np.maximum(np.asarray(point.grid_shape) - 1, 1)) ** 2
        gaussian = np.exp(-0.5 * (squares / x["sigma"] ** 2).sum(-1))
    scores *= scale
    logits = gaussian * scores
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    outputs = np.einsum("hs,shd->hd", weights, value)

    d_weights = np.einsum("hd,shd->hs", cotangent, value)
    d_logits = weights * (d_weights - (weights * d_weights).sum(-1, keepdims=True))
    d_scores = scale * gaussian * d_logits
    gradients["value"][batch, keys] += np.einsum("hs,hd->shd", weights, cotangent)
    gradients["key"][batch, keys] += np.einsum("hs,hd->shd", d_scores, by_content)
    d_content = np.einsum("hs,shd->hd", d_scores, key)
    gradients["query"][batch, position] += d_content
    if "sigma" in x:
        d_position = np.einsum("hs,shd->hd", d_scores, encoding)
        gradients["query"][batch, position] += d_position
        gradients["content_bias"] += d_content
        gradients["position_bias"] += d_position
        gradients["relative_encoding"][at] += np.einsum("hs,hd->shd", d_scores, by_position)
        d_log_gaussian = (d_logits * logits).sum(0)
        gradients["sigma"] += d_log_gaussian @ squares / x["sigma"] ** 3
    return outputs


def _keys_of(point: Point, position: int, within_span: bool) -> tuple[np.ndarray, np.ndarray]:
    """The keys that a query attends to, and their offsets [s p]."""
    where = np.asarray(np.unravel_index(position, point.grid_shape))
    ranges = [
        np.arange(max(0, at - half), min(size, at + half + 1)) if within_span else np.arange(size)
        for at, half, size in zip(where, point.half, point.grid_shape, strict=True)
    ]
    at = np.stack(np.meshgrid(*ranges, indexing="ij"), -1).reshape(-1, len(where))
    return at @ grid.strides(point.grid_shape), at - where
