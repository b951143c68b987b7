"""What others define, from their definitions in loops over NumPy scalars: T5's bias, NATTEN's neighbourhoods."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.ops.attention import relative_attention
from posattn_jax.ops.span import BOX_THRESHOLD, window_sigma
from tests.support.slow import slow

H, D = 2, 3


def attend(query, key, value, scale, keys_of, score_of):
    """softmax over `keys_of(t)` of scale q.k + score_of(h, t, s), by loops; 0 where there are none."""
    outputs = np.zeros(query.shape)
    for t, h in np.ndindex(query.shape[1], query.shape[2]):
        keys = keys_of(t)
        logits = [scale * sum(query[0, t, h] * key[0, s, h]) + score_of(h, t, s) for s in keys]
        weights = [math.exp(logit - max(logits)) for logit in logits]
        for weight, s in zip(weights, keys, strict=True):
            outputs[0, t, h] += weight / sum(weights) * value[0, s, h]
    return outputs


def made(num_positions):
    return np.random.default_rng(0).normal(size=(3, 1, num_positions, H, D))


def bucket(offset, bidirectional, num_buckets=8, max_distance=20):
    """Of an offset s - t (Raffel 2020, section 2.1, as its code has it): each near one its own, far ones by the log."""
    first = 0
    if bidirectional:
        num_buckets //= 2
        first = num_buckets if offset > 0 else 0
        distance = abs(offset)
    else:
        distance = max(-offset, 0)
    exact = num_buckets // 2
    if distance < exact:
        return first + distance
    far = math.log(distance / exact) / math.log(max_distance / exact) * (num_buckets - exact)
    return first + min(exact + int(far), num_buckets - 1)


@pytest.mark.parametrize("is_causal", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize("scaled", [False, True], ids=["t5", "x-transformers"])
def test_a_bias_of_buckets(float64, scaled, is_causal):
    """T5 scales neither scores nor bias; x-transformers scales scores by 1 / sqrt(d) and biases by sqrt(d)."""
    n, rng = 23, np.random.default_rng(1)
    query, key, value = made(n)
    table = rng.normal(size=(8, H))
    scale, factor = (1 / math.sqrt(D), math.sqrt(D)) if scaled else (1.0, 1.0)
    expected = attend(
        query,
        key,
        value,
        scale,
        keys_of=lambda t: range(t + 1) if is_causal else range(n),
        score_of=lambda h, t, s: factor * table[bucket(s - t, not is_causal), h],
    )
    beta = factor * table[[bucket(offset, not is_causal) for offset in range(1 - n, n)]]
    arrays = map(jnp.asarray, (query, key, value))
    options = {"grid_shape": (n,), "relative_bias": jnp.asarray(beta), "is_causal": is_causal}
    attend_by_table = functools.partial(relative_attention, **options, scale=None if scaled else 1.0)
    outputs = jax.jit(attend_by_table)(*arrays)
    np.testing.assert_allclose(outputs, expected, rtol=1e-10, atol=1e-12)


def neighbours(place, size, kernel_size, dilation, is_causal):
    """NATTEN's along one dimension: kernel_size places, `dilation` apart, around the place, or up to it where causal.

    None where a window would leave the line: there NATTEN moves it, and ours ends.
    """
    before = kernel_size - 1 if is_causal else kernel_size // 2
    window = [place + dilation * (i - before) for i in range(kernel_size)]
    return window if window[0] >= 0 and window[-1] < size else None


@pytest.mark.parametrize(
    "grid_shape, kernel_size, dilation, is_causal",
    [
        ((9, 13), (3, 5), (2, 1), (False, True)),
        slow((25,), (5,), (3,), (True,)),
        slow((5, 6, 7), (3, 3, 3), (1, 2, 1), (True, False, False)),
        slow((12, 12), (5, 3), (1, 1), (False, False)),
    ],
    ids=str,
)
def test_interior_windows_are_nattens(float64, grid_shape, kernel_size, dilation, is_causal):
    """A causal dimension has half of our window: kernel_size steps up to the query."""
    places = list(itertools.product(*map(range, grid_shape)))
    query, key, value = made(len(places))
    windows = [
        [neighbours(*sizes) for sizes in zip(place, grid_shape, kernel_size, dilation, is_causal, strict=True)]
        for place in places
    ]
    inside = [t for t, window in enumerate(windows) if None not in window]
    numbers = {place: s for s, place in enumerate(places)}
    expected = attend(
        query,
        key,
        value,
        1 / math.sqrt(D),
        keys_of=lambda t: [numbers[place] for place in itertools.product(*windows[t])] if t in inside else [],
        score_of=lambda *_: 0.0,
    )
    steps = [k - 1 if causal else k // 2 for k, causal in zip(kernel_size, is_causal, strict=True)]
    half = [step * apart for step, apart in zip(steps, dilation, strict=True)]
    arrays = map(jnp.asarray, (query, key, value))
    options = {
        "sigma": window_sigma(half, grid_shape),
        "threshold": BOX_THRESHOLD,
        "span_mode": "box",
        "dilation": dilation,
    }
    outputs = jax.jit(functools.partial(relative_attention, grid_shape=grid_shape, is_causal=is_causal, **options))(
        *arrays
    )
    assert 0 < len(inside) < len(places)
    np.testing.assert_allclose(outputs[0, inside], expected[0, inside], rtol=1e-8, atol=1e-10)
