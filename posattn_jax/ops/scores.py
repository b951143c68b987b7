"""From the summed score terms to attention weights: the steps that are the same in every layout.

logits = G * scale * terms            span_mode = "multiply"
logits = scale * terms + ln G         span_mode = "log_add"
weights = dropout(softmax(logits where attended))
"""

import functools
import operator
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from posattn_jax.axes import Array, Bool, Float, Int
from posattn_jax.ops import dropout as bits
from posattn_jax.ops.precision import float32_or_better, plus, same_dtype, same_ndim, times

# Not -inf: the maximum of a row that attends to nothing must stay finite.
MASKED = -1e30
# Above every masked logit and below every other. A maximum of at least this makes exp(masked logit - maximum) 0.
LOWEST = MASKED / 10


def product_sum(subscripts: str, x: Array, y: Array) -> Array:
    """The products of x and y, summed in float32 or better."""
    return jnp.einsum(subscripts, *same_dtype(x, y), preferred_element_type=float32_or_better(x, y))


def modulate(scores: Float[Array, "..."], log_gaussian: Float[Array, "..."], span_mode: str) -> Float[Array, "..."]:
    """Applies the span's Gaussian to scaled scores: multiplies by G, or adds ln G (Alfons 2022, Algorithm 8)."""
    return times(scores, jnp.exp(log_gaussian)) if span_mode == "multiply" else plus(scores, log_gaussian)


def masked_out(attended: Bool[Array, "..."], dtype: DTypeLike) -> Float[Array, "..."]:
    """The number to add to each logit: 0 where attended, and a very negative number elsewhere."""
    return jnp.where(attended, 0, MASKED).astype(dtype)


def exponentials(
    logits: Float[Array, "... s"],
) -> tuple[Float[Array, "... s"], Float[Array, "... 1"], Float[Array, "... 1"]]:
    """exp(logits - largest), largest, and the sum of the exponentials over keys.

    A row that attends to nothing has exponentials 0, and 1 as their sum.
    """
    largest = jnp.maximum(logits.max(-1, keepdims=True), LOWEST)
    numerators = jnp.exp(logits - largest)
    total = numerators.sum(-1, keepdims=True)
    return numerators, largest, jnp.where(total == 0, 1, total)


def check_bool(name: str, mask: Array | None) -> None:
    """ValueError unless the mask is bool: an additive mask, with 0 for "keep", would be read the wrong way round."""
    if mask is not None and mask.dtype != bool:
        raise ValueError(f"{name} has dtype {mask.dtype}: expected bool, True = keep")


def masked_softmax(logits: Float[Array, "... s"], masks: Sequence[Bool[Array, "..."]]) -> Float[Array, "... s"]:
    """Softmax over the keys that every mask keeps; a row that attends to nothing has weights 0, and gradient 0."""
    if not masks:
        return jax.nn.softmax(logits, axis=-1)
    attended = functools.reduce(operator.and_, same_ndim(logits, *masks)[1:])
    logits = jnp.where(attended, logits, MASKED)
    unnormalised = jnp.where(attended, jnp.exp(logits - jax.lax.stop_gradient(logits.max(-1, keepdims=True))), 0)
    total = unnormalised.sum(-1, keepdims=True)
    return unnormalised / jnp.where(total == 0, 1, total)


def dropout(
    weights: Float[Array, "b h t s"], queries: Int[Array, "t"], rate: float, rng: Array
) -> Float[Array, "b h t s"]:
    """Inverted dropout of attention weights, as `ops.dropout.dropout`.

    The bits of a query depend on `rng` and its index alone, so every layout drops the same pairs.
    """
    of_queries = jax.vmap(
        lambda weights, query: bits.dropout(weights, jax.random.fold_in(rng, query), rate), in_axes=(2, 0), out_axes=2
    )
    return of_queries(weights, queries)
