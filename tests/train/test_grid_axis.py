"""Runs whose grid is cut over the mesh axis `grid`, and the layers that cannot be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import PartitionSpec

from posattn_jax.data.images import GridImages
from posattn_jax.models.classifier import Classifier
from posattn_jax.nn.attention import PositionalSelfAttention
from posattn_jax.nn.biases import LinearBias
from posattn_jax.nn.blocks import EncoderBlock
from posattn_jax.nn.encodings import KernelEncoding, LearnedEncoding, SinusoidalEncoding
from posattn_jax.nn.siren import SirenEncoding
from posattn_jax.nn.span import GaussianSpan, RampSpan
from posattn_jax.nn.terms import Content, ContentBias, Positional, PositionalBias, RelativeBias, RotaryContent
from posattn_jax.nn.translution import Translution
from posattn_jax.system.files import read_metrics
from posattn_jax.tasks.classification import Classification
from posattn_jax.train.loop import Trainer
from posattn_jax.train.optimizer import Adam
from posattn_jax.train.program import Program
from posattn_jax.train.seed_map import SeedData
from posattn_jax.train.settings import Settings
from posattn_jax.train.sharding import MeshAxes, put_batch
from tests.support.made_params import made_params
from tests.support.slow import slow
from tests.train.made_run import make_images, one_device


def make_layer(encoding=None, **fields):
    terms = (Content(), Positional(encoding or SirenEncoding()), ContentBias(), PositionalBias())
    own = {"terms": terms, "span": GaussianSpan(initial_sigma=0.1), "grid_axis": "grid"}
    return PositionalSelfAttention(2, **(own | fields))


def train(workdir, mesh, num_blocks, **fields):
    """Two updates on sequences of 16 pixels: the parameters, and the losses of training and evaluation."""
    blocks = tuple(EncoderBlock(make_layer(), mlp_dim=16, dropout_rate=0.1) for _ in range(num_blocks))
    task = Classification(Classifier(4, 8, blocks, dropout_rate=0.1, **fields), (16,), num_channels=1)
    train_images, validation = (GridImages(make_images(n).images, "1d") for n in (32, 8))
    settings = Settings(
        total_steps=2,
        batch_size=8,
        accumulation_steps=2,
        eval_batch_size=8,
        log_steps=1,
        bounded_spans="yes",
    ).decided(1)
    program = Program(task, Adam(1e-2).make(100, 10), [SeedData(1, train_images, validation)], mesh, settings)
    trainer = Trainer(program, [workdir])
    try:
        trainer.run()
    finally:
        trainer.close()
    assert trainer._bounds.value[0] == (6,)  # 4 rows of the neighbour, and 2 of the next
    rows = read_metrics(workdir / "metrics.jsonl")
    return jax.device_get(trainer.state.params), [row["value"] for row in rows if row["name"] == "loss"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"num_blocks": 1},
        {"num_blocks": 2},
        {"num_blocks": 2, "remat": True, "scan_layers": True},
    ],
    ids=str,
)
def test_trains_as_on_one_device(tmp_path, caplog, fields):
    """Dropout, evaluation and changing bounds included; other axes of the mesh stay as they are."""
    params, losses = train(tmp_path / "one", one_device(), **fields)
    cut_params, cut_losses = train(tmp_path / "cut", MeshAxes(2, 1, 1, 4).make(), **fields)
    np.testing.assert_allclose(cut_losses, losses, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), cut_params, params)
    assert "all-gather" not in caplog.text


def test_batches_are_cut_along_their_positions():
    mesh = MeshAxes(2, 1, 1, 4).make()
    batch = {"inputs": np.zeros((3, 4, 16, 1)), "labels": np.zeros((3, 4)), "odd": np.zeros((3, 4, 13, 1))}
    found = {name: array.sharding.spec for name, array in put_batch(batch, mesh, axis=1).items()}
    examples = ("data", "fsdp")
    assert found == {
        "inputs": PartitionSpec(None, examples, "grid"),
        "labels": PartitionSpec(None, examples),
        "odd": PartitionSpec(None, examples, None),
    }


@pytest.mark.parametrize(
    "encoding, grid_shape",
    [
        (SirenEncoding(), (5, 3)),
        slow(RelativeBias((3, 5)), (6, 2)),
        *(
            slow(encoding, (5, 3))
            for encoding in (LinearBias(), SinusoidalEncoding(), LearnedEncoding(), KernelEncoding((5, 3)))
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, tuple) else type(value).__name__,
)
def test_layers_cut_are_layers_whole(encoding, grid_shape):
    """Encodings are made for the offsets within the bound alone; rows that the devices do not divide are padded."""
    match encoding:
        case RelativeBias():
            terms = (Content(), encoding)
        case LinearBias():  # and queries and keys that know their places on the whole grid
            terms = (RotaryContent(), encoding)
        case _:
            terms = (Content(), Positional(encoding))
    layer = make_layer(terms=terms)
    inputs = jax.random.normal(jax.random.key(0), (2, int(np.prod(grid_shape)), 8))
    params = made_params(lambda: layer.init(jax.random.key(1), inputs, grid_shape)["params"])
    params["span"]["sigma"] = jnp.array([0.1, 0.2])

    @jax.jit
    def differentiate(params):
        def loss(params):
            outputs, made = layer.apply(
                {"params": params}, inputs, grid_shape, span_bound=(1, 1), return_intermediates=True
            )
            return (outputs**2).sum(), (outputs, made)

        return jax.grad(loss, has_aux=True)(params)

    gradients, (outputs, made) = differentiate(params)
    differentiate.clear_cache()
    with jax.set_mesh(MeshAxes(4, 1, 1, 2).make()):
        cut_gradients, (cut_outputs, cut_made) = differentiate(params)
    np.testing.assert_allclose(cut_outputs, outputs, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), cut_gradients, gradients)
    (name,) = made.keys() - {"sigma"}
    middle = tuple(slice(size - 2, size + 1) for size in grid_shape)
    np.testing.assert_allclose(cut_made[name], made[name][middle], atol=1e-6)


def test_learned_windows_of_a_cut_grid():
    """Whose window is a table next to those of the terms, for the offsets within the bound alone."""
    layer = make_layer(terms=(Content(), LinearBias()), span=RampSpan(initial_width=0.3))
    inputs = jax.random.normal(jax.random.key(0), (2, 10, 8))
    params = made_params(lambda: layer.init(jax.random.key(1), inputs)["params"])
    params["span"]["log_width"] = jnp.log(jnp.array([[0.3], [0.2]]))
    loss = jax.jit(
        jax.value_and_grad(lambda params: (layer.apply({"params": params}, inputs, span_bound=(2,)) ** 2).sum())
    )
    whole = loss(params)
    loss.clear_cache()
    with jax.set_mesh(MeshAxes(4, 1, 1, 2).make()):
        cut = loss(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), cut, whole)


def test_a_batch_of_any_size_is_not_cut(unchecked):
    layer, inputs = make_layer(terms=(Content(),)), jnp.zeros((1, 6, 8))
    params = jax.eval_shape(layer.init, jax.random.key(0), inputs)
    batch = jax.ShapeDtypeStruct((*export.symbolic_shape("b"), 6, 8), inputs.dtype)
    with (
        jax.set_mesh(MeshAxes(4, 1, 1, 2).make()),
        pytest.raises(ValueError, match="symbolic size: expected a plain number where the grid is cut"),
    ):
        export.export(jax.jit(lambda *given: layer.apply(*given, span_bound=(1,))))(params, batch)


@pytest.mark.parametrize(
    "fields, obstacle",
    [
        ({"span": None}, "attention without a span"),
        ({"implementation": "window"}, 'implementation="window"'),
        ({"values": Translution()}, "class tokens, or parts that are by pair"),
        ({"dropout_rate": 0.1}, "dropout"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_layers_that_cannot_be_cut_say_so(fields, obstacle):
    """Whether there are devices or not."""
    layer = make_layer(**fields)
    with pytest.raises(ValueError, match=f'grid_axis="grid" .*{obstacle}'):
        jax.eval_shape(lambda key: layer.init(key, jnp.zeros((1, 6, 8)), (6,)), jax.random.key(0))


def test_weights_of_a_cut_grid_are_not_returned():
    with pytest.raises(ValueError, match='grid_axis="grid" .*return_weights'):
        jax.eval_shape(
            lambda key: make_layer().init(key, jnp.zeros((1, 6, 8)), (6,), return_weights=True), jax.random.key(0)
        )
