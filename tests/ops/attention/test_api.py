import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.ops.attention import relative_attention
from tests.ops.attention.attention_suite import B, D, H, make_inputs


@pytest.mark.parametrize(
    "change, message",
    [
        ({"grid_shape": (5,)}, "query has shape"),
        ({"grid_shape": (1, 1, 1, 4)}, "one to 3"),
        ({"grid_shape": (0,)}, "at least 1"),
        ({"relative_encoding": np.ones((4, H, D))}, "relative_encoding has shape"),
        ({"relative_encoding": None}, "position_bias is given without relative_encoding"),
        ({"sigma": np.ones(2)}, "sigma has shape"),
        ({"threshold": 1.0}, "threshold=1.0"),
        ({"span_mode": "divide"}, 'span_mode="divide"'),
        ({"key_mask": np.ones((B, 3), bool)}, "key_mask has shape"),
        ({"key_mask": np.zeros((B, 4), np.float32)}, "key_mask has dtype float32: expected bool, True = keep"),
        ({"key_mask": np.ones((B, 4), np.int32)}, "key_mask has dtype int32: expected bool, True = keep"),
        ({"dropout_rate": 1.0}, "dropout_rate=1.0"),
        ({"dropout_rate": 0.5}, "needs dropout_rng"),
        ({"reference_shape": (4, 4)}, "reference_shape="),
        ({"reference_shape": (1,)}, "no unit of distance"),
        ({"span_bound": (0,)}, r"span_bound=\(0,\): smaller than the half-span"),
        ({"span_bound": (4, 4)}, "expected 1 half-spans"),
        ({"span_bound": (4,), "sigma": None}, "without sigma"),
        (
            {"implementation": "fast"},
            'implementation="fast": expected one of auto, dense, factorised, fused, native, patch, reference',
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_arguments_are_named(unchecked, change, message):
    arguments = {name: jnp.asarray(array) for name, array in make_inputs((4,), dtype=np.float32).items()}
    arguments |= {name: jnp.asarray(v) if isinstance(v, np.ndarray) else v for name, v in change.items()}
    grid_shape = arguments.pop("grid_shape", (4,))
    with pytest.raises(ValueError, match=message):
        relative_attention(**arguments, grid_shape=grid_shape)
