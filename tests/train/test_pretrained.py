"""What a run takes over from another."""

import numpy as np
import pytest

from posattn_jax.system.errors import InputError
from posattn_jax.train.pretrained import taken_over


def arrays(value, **shapes):
    return {tuple(name.split("_")): np.full(shape, value) for name, shape in shapes.items()}


@pytest.mark.parametrize("keeps_head", [False, True])
def test_what_both_have_is_taken_and_a_head_of_the_same_labels(keeps_head):
    fresh = arrays(0.0, encoder_a=(2, 3), pooler_kernel=3, head_kernel=2)
    taken = taken_over(fresh, arrays(1.0, encoder_a=(2, 3), head_kernel=2, norm_scale=1), keeps_head, "start")
    assert taken.keys() == {("encoder", "a")} | ({("head", "kernel")} if keeps_head else set())
    assert all((array == 1).all() for array in taken.values())


@pytest.mark.parametrize(
    "trained, message",
    [
        (arrays(1.0, encoder_a=(3, 3)), r"encoder/a is \(3, 3\) there and \(2, 3\) here"),
        (arrays(1.0, encoder_b=(2, 3)), r"encoder/a is missing there and \(2, 3\) here"),
        (arrays(1.0, encoder_a=(2, 3), encoder_b=1), r"encoder/b is \(1,\) there and missing here"),
        (arrays(1.0, head_kernel=2), "it has none of these parameters"),
    ],
    ids=["shape", "missing", "more", "nothing"],
)
def test_another_encoder_is_refused(trained, message):
    with pytest.raises(InputError, match=f"task.pretrained=runs/x: .*{message}$"):
        taken_over(arrays(0.0, encoder_a=(2, 3), head_kernel=2), trained, False, "task.pretrained=runs/x")
