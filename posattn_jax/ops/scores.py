"""From the summed score terms to attention weights: the steps that are the same in every implementation.

logits = G * scale * terms            span_mode = "multiply"
logits = scale * terms + ln G         span_mode = "log_add"
logits = scale * terms                span_mode = "box"
weights = dropout(softmax(logits where attended))
"""

import functools
import operator
from collections.abc import Callable, Sequence

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
# Scores of at most this hide their pair. Half of -1e9, so that -1e9 in bfloat16 does.
HIDING = -5e8


def product_sum(subscripts: str, x: Array, y: Array) -> Array:
    """The products of x and y, summed in float32 or better."""
    return jnp.einsum(subscripts, *same_dtype(x, y), preferred_element_type=float32_or_better(x, y))


def hides(scores: Float[Array, "..."]) -> Bool[Array, "..."]:
    """Whether a score hides its pair, as a mask would: it is at most -5e8, or a quarter of its dtype's lowest number.

    So does every number by which additive masks are written: -inf, `jnp.finfo(dtype).min`, -1e9, in float16 -3e4. Next
    to a larger score, exp of such a number is 0 anyway. A query whose scores all hide attends to nothing.
    """
    floating = jnp.issubdtype(scores.dtype, jnp.floating)
    return scores <= (max(HIDING, float(jnp.finfo(scores.dtype).min) / 4) if floating else HIDING)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def finite(
    scores: Float[Array, "..."], hidden: float = MASKED, which: Callable[[Array], Array] = hides
) -> Float[Array, "..."]:
    """Scores with the number `hidden` for those `which` hide their pair, so that no gradient meets -inf * 0.

    Scores in float16, which has no room for that number, become float32. The derivative is that of the identity: the
    weights of hidden pairs are 0, and so are the cotangents of their scores. The backward pass need not keep scores.
    """
    return jnp.where(which(scores), hidden, of_wide_range(scores))


@finite.defjvp
def _(hidden, which, primals, tangents):
    return finite(*primals, hidden, which), of_wide_range(*tangents)


def shown(scores: Float[Array, "..."]) -> Bool[Array, "..."]:
    """Whether `finite` scores do not hide their pair. NaN does not, so that it reaches the outputs."""
    return ~(scores <= LOWEST)


def hidden_as_infinity(scores: Float[Array, "..."]) -> Float[Array, "..."]:
    """Scores with -inf for those that hide their pair, which no sum with other scores and no other dtype changes."""
    return jnp.where(hides(scores), -jnp.inf, scores)


def of_wide_range(x: Array) -> Array:
    """The same numbers, with float16 as float32: no other dtype overflows where a score is divided by a scale."""
    return x.astype(jnp.float32) if x.dtype == jnp.float16 else x


def modulate(scores: Float[Array, "..."], log_gaussian: Float[Array, "..."], span_mode: str) -> Float[Array, "..."]:
    """Applies the span's Gaussian to scaled scores: multiplies by G, or adds ln G (Alfons 2022, Algorithm 8).

    In "box" mode ln G is 0, or NaN, which is added all the same.
    """
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
    largest = jax.lax.stop_gradient(jnp.maximum(logits.max(-1, keepdims=True), LOWEST))
    numerators = jnp.exp(logits - largest)
    total = numerators.sum(-1, keepdims=True)
    return numerators, largest, jnp.where(total == 0, 1, total)


def check_bool(name: str, mask: Array | None) -> None:
    """ValueError unless the mask is bool: an additive mask, with 0 for "keep", would be read the wrong way round."""
    if mask is not None and mask.dtype != bool:
        raise ValueError(f"{name} has dtype {mask.dtype}: expected bool, True = keep")


def masked_softmax(logits: Float[Array, "... s"], masks: Sequence[Bool[Array, "..."]]) -> Float[Array, "... s"]:
    """Softmax over the keys that every mask keeps, and whose logit is not masked already.

    A row that attends to nothing has weights 0, and gradient 0.
    """
    if masks:
        attended = functools.reduce(operator.and_, same_ndim(logits, *masks)[1:])
        logits = jnp.where(attended, logits, MASKED)
    numerators, _, total = exponentials(logits)
    return numerators / total


def dropout(
    weights: Float[Array, "b h t s"], queries: Int[Array, "t"], rate: float, rng: Array
) -> Float[Array, "b h t s"]:
    """Inverted dropout of attention weights, as `ops.dropout.dropout`.

    The bits of a query depend on `rng` and its index alone, so every implementation drops the same pairs.
    """
    of_queries = jax.vmap(
        lambda weights, query: bits.dropout(weights, jax.random.fold_in(rng, query), rate), in_axes=(2, 0), out_axes=2
    )
    return of_queries(weights, queries)
