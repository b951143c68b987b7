"""What a run takes over from another."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posattn_jax.system.errors import InputError
from posattn_jax.train import pretrained

RUN = pathlib.Path("runs/x")


def tree(value, **parts):
    made = {"encoder": {"a": jnp.full((2, 3), value)}, "head": {"kernel": jnp.full(2, value)}}
    return made | {name: {"kernel": jnp.full(3, value)} for name in parts}


def test_encoder_and_pooler_are_taken_and_heads_are_not():
    fresh = tree(0.0, pooler=True)
    from_lm = pretrained.start_from(fresh, tree(1.0), RUN)
    values = jax.tree.map(lambda array: float(array.mean()), from_lm)
    assert values == {"encoder": {"a": 1.0}, "pooler": {"kernel": 0.0}, "head": {"kernel": 0.0}}
    from_classifier = pretrained.start_from(fresh, tree(1.0, pooler=True), RUN)
    values = jax.tree.map(lambda array: float(array.mean()), from_classifier)
    assert values == {"encoder": {"a": 1.0}, "pooler": {"kernel": 1.0}, "head": {"kernel": 0.0}}


@pytest.mark.parametrize(
    "encoder, message",
    [
        ({"a": np.zeros((3, 3))}, r"encoder/a is \(3, 3\), and has the shape \(2, 3\) in this model"),
        ({"b": np.zeros((2, 3))}, "encoder/a is not there"),
        ({"a": np.zeros((2, 3)), "b": np.zeros(1)}, "has encoder/b, and this model has not"),
    ],
    ids=["shape", "missing", "more"],
)
def test_another_encoder_is_refused(encoder, message):
    with pytest.raises(InputError, match=f"task.pretrained=runs/x: {message}"):
        pretrained.start_from(tree(0.0), {"encoder": encoder}, RUN)
