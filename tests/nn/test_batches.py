"""Layers and models with a batch of symbolic size, and with an empty one: what they are traced to."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from posattn_jax import PositionalCrossAttention, PositionalSelfAttention, TokenMixing
from tests.nn.test_promotion import LAYERS, C
from tests.project.test_docstrings import example_of
from tests.support.made_params import made_params
from tests.support.slow import slow

RNGS = dict.fromkeys(("params", "dropout"), jax.random.key(0))
BATCH = 2
FAST = ("a span", "convolved", "translution", "content")
FAST_MODELS = ("EncoderDecoder", "VisionTransformer")
MODELS = (
    *FAST_MODELS,
    "LanguageModel",
    "SequenceClassifier",
    "Bert",
    "MaskedLanguageModel",
    "TokenClassifier",
    "Classifier",
    "EncoderBlock",
    "PositionalCrossAttention",
)


def check(module, inputs, options, own, batch):
    """Traces a module, and its gradients, where all arrays with `own` rows have those of another batch."""
    leaves, structure = jax.tree.flatten((inputs, options))
    arrays = [x for x in leaves if hasattr(x, "shape")]
    shapes = [
        jax.ShapeDtypeStruct((batch, *x.shape[1:]) if x.ndim > 1 and x.shape[0] == own else x.shape, x.dtype)
        for x in arrays
    ]

    def loss(params, arrays):
        given = iter(arrays)
        inputs, options = jax.tree.unflatten(structure, [next(given) if hasattr(x, "shape") else x for x in leaves])
        results = jax.tree.leaves(module.apply({"params": params}, *inputs, **options, rngs=RNGS))
        return results[0].sum(), results[0]

    params = jax.eval_shape(lambda: module.init(RNGS, *inputs, **options))["params"]
    program = jax.jit(jax.grad(loss, has_aux=True))
    if batch == 0:
        assert jax.eval_shape(program, params, shapes)[1].shape[0] == 0
    else:
        assert export.export(program)(params, shapes).out_avals[-1].shape[0] == batch


BATCHES = pytest.mark.parametrize("batch", [*export.symbolic_shape("b"), slow(0)], ids=["symbolic", "empty"])


@BATCHES
@pytest.mark.parametrize("name", [name if name in FAST else slow(name) for name in LAYERS])
def test_a_layer(unchecked, name, batch):
    layer, grid_shape, options = LAYERS[name]
    inputs = jnp.ones((BATCH, 12 + options.get("num_class_tokens", 0), C))
    options = {name: jnp.asarray(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    check(layer, (inputs, grid_shape), options | {"deterministic": False}, BATCH, batch)


@BATCHES
@pytest.mark.parametrize("name", [name if name in FAST_MODELS else slow(name) for name in MODELS])
def test_a_model(unchecked, monkeypatch, name, batch):
    """As its docstring's example calls it."""
    calls, original = [], nn.Module.init_with_output

    def init_with_output(module, key, *inputs, **options):
        calls.append((module, inputs, options))
        found = jax.eval_shape(lambda: original(module, key, *inputs, **options))
        return jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), found)

    with monkeypatch.context() as patched:
        patched.setattr(nn.Module, "init_with_output", init_with_output)
        patched.setattr(nn.Module, "init", lambda *given, **options: init_with_output(*given, **options)[1])
        namespace = {}
        for example in example_of(name).examples:
            exec(example.source, namespace)
    module, inputs, options = calls[0]
    own = next(x.shape[0] for x in jax.tree.leaves(inputs) if hasattr(x, "shape"))
    check(module, inputs, options, own, batch)


def test_lists(unchecked):
    """What is like an array, for a layer."""
    inputs, layer = jax.random.normal(jax.random.key(1), (1, 3, C)), PositionalSelfAttention(num_heads=2)
    variables = made_params(lambda: layer.init(jax.random.key(0), inputs))
    given = {"key_mask": [[True, True, False]], "segment_ids": [[0, 0, 1]], "mask": np.tri(3, dtype=bool)[None, None]}
    given |= {"bias": np.eye(3, dtype=np.float32)[None, None]}
    listed = {name: np.asarray(x).tolist() for name, x in given.items()}

    def apply(inputs, given):
        return jax.jit(lambda variables: layer.apply(variables, inputs, **given))(variables)

    expected = apply(inputs, {name: jnp.asarray(x) for name, x in given.items()})
    np.testing.assert_allclose(apply(np.asarray(inputs).tolist(), listed), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "layer, memory, options",
    [
        (TokenMixing(num_heads=2), (), {"key_mask": [[True, True, False]], "segment_ids": [[0, 0, 1]]}),
        (PositionalCrossAttention(num_heads=2), ([[[0.5] * C] * 2],), {"key_mask": [[True, False]]}),
    ],
    ids=["mixing", "cross-attention"],
)
def test_lists_of_other_layers(unchecked, layer, memory, options):
    shapes = jax.eval_shape(lambda: layer.init_with_output(RNGS, [[[0.5] * C] * 3], *memory, **options)[0])
    assert shapes.shape == (1, 3, C)
