"""Parameters that say what their axes are, to those who ask."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, PartitionSpec

from posattn_jax import Classifier, EncoderBlock, PositionalSelfAttention
from posattn_jax.nn.sharding import named

INPUTS = jnp.ones((1, 3 * 4, 8))
RULES = (("width", "fsdp"), ("heads", "model"))


def init(module, **fields):
    return jax.eval_shape(lambda: module.init(jax.random.key(0), INPUTS, (3, 4), **fields))["params"]


def test_parameters_are_plain_arrays_where_no_rules_are_set():
    plain = init(PositionalSelfAttention(2))
    assert plain["output"]["kernel"].shape == (2, 4, 8)
    with nn.logical_axis_rules(RULES):
        boxed = init(PositionalSelfAttention(2))
    assert jax.tree.map(jnp.shape, nn.unbox(boxed)) == jax.tree.map(jnp.shape, plain)
    specs = nn.get_partition_spec(boxed)
    assert specs["output"] == {"bias": PartitionSpec(), "kernel": PartitionSpec("heads", None, "width")}
    assert nn.logical_to_mesh(specs, RULES)["output"]["kernel"] == PartitionSpec("model", None, "fsdp")


def test_the_axis_of_scanned_blocks_has_no_name():
    blocks = (EncoderBlock(PositionalSelfAttention(2), mlp_dim=8),) * 2
    with nn.logical_axis_rules(RULES):
        params = init(Classifier(num_classes=3, width=8, blocks=blocks, scan_layers=True))
    kernel = params["blocks_0"]["feed_forward"]["hidden"]["kernel"]
    assert kernel.value.shape == (2, 8, 8) and kernel.names == (None, "width", "hidden")


def test_axes_before_those_with_names_have_none():
    with nn.logical_axis_rules(RULES):
        assert named(zeros, "heads", None)(None, (5, 4, 3)).names == (None, "heads", None)


def test_names_that_an_initialiser_gives_are_kept():
    own = nn.with_partitioning(zeros, ("mine", None))
    with nn.logical_axis_rules(RULES):
        assert named(own, "width", "heads")(None, (4, 3)).names == ("mine", None)


@pytest.mark.parametrize("width", [8, 6])
def test_names_constrain_nothing(width):
    """Not even kernels that no device of the mesh can have a part of."""
    mesh = jax.make_mesh((1, 2, 4), ("data", "fsdp", "model"), axis_types=(AxisType.Auto,) * 3)
    layer, inputs = PositionalSelfAttention(2), jnp.ones((1, 3 * 4, width))
    with jax.set_mesh(mesh), nn.logical_axis_rules(RULES):
        boxed = jax.jit(lambda: layer.init(jax.random.key(0), inputs, (3, 4)))()
        jax.jit(lambda boxed: layer.apply(boxed, inputs, (3, 4)))(boxed)
    assert nn.unbox(boxed)["params"]["output"]["kernel"].shape == (2, width // 2, width)


def zeros(key, shape, dtype=jnp.float32):
    return jnp.zeros(shape, dtype)
