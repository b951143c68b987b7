"""The rules by which models are cut: what they leave whole, what they save, and that they change no number."""

import re

import flax.linen as nn
import jax
import numpy as np
import pytest

from benchmarks.compilers.halo import collective_bytes
from benchmarks.compilers.hlo import Module
from configs.lib.common import ATTENTION, SPAN
from configs.lib.common_vit import VALUES
from posattn_jax import LowRankTranslution, Siren
from posattn_jax.config import experiment
from posattn_jax.config.parts import change, part
from posattn_jax.tasks.reconstruction import Reconstruction
from posattn_jax.train.optimizer import Adam
from posattn_jax.train.sharding import RULES, MeshAxes, bytes_of, is_box, put_batch, sharded
from posattn_jax.train.step import abstract_state, init_state, make_train_step
from tests.configs.test_configs import ALIKE, NEARLY_ALIKE, TRAINED, made_source
from tests.support import shipped
from tests.support.made_params import made_state
from tests.support.slow import slow
from tests.train.made_run import one_device

# Config, its variant, and changes.
MODELS = {
    "span": ("cifar2d_span", "", {}),
    "translution": ("translution:imagenet", "", {}),
    "translution of low rank": ("translution:mnist", "", {VALUES: part(LowRankTranslution, down_dim=16)}),
    "bert": ("bert:base", "composite", {}),
    "convbert": ("bert:small", "convbert", {}),
    "convolutional projections": ("bert:small", "composite_qkv", {}),
    "shaw": ("nmt:wmt14_en_de", "shaw,big", {}),
    "rposnet": ("nmt:wmt14_en_de", "rposnet,big", {}),
}


# Path of a parameter -> the names of its last axes.
CUT = {
    r"convolution/kernel$": ("width",),
    r"projections/(\w+/)?kernel$": ("width", None, "heads", None),
    r"projections/(\w+/)?bias$": ("heads", None),
    r"(attention|mixing|cross)/output/kernel$": ("heads", None, "width"),
    r"(attention|mixing|cross)/(energies/\w+|value|gate/linear)/kernel$": ("width", "heads", None),
    r"(attention|mixing|cross)/(energies/\w+|value|gate/linear)/bias$": ("heads", None),
    r"energies/relative$": ("heads", None),
    r"(values|terms_\w+)/(\w*matrices|matrix|relative|bases)$": ("width", "heads", None),
    r"values/up$": ("heads", None, None),
    r"values/down$": ("width", None),
    r"feed_forward/hidden/kernel$": ("width", "hidden"),
    r"feed_forward/hidden/bias$": ("hidden",),
    r"feed_forward/output/kernel$": ("hidden", "width"),
    r"position_embedding/embedding$|(vectors|positions)/table$": ("width",),
    r"embedding/embedding$": ("vocabulary", "width"),
    r"(embed|embedding_projection|transform|pooler|linear|head|head_\w+)/kernel$": ("width",),
    r"extra_heads/(kernel|value|pointwise)/kernel$": ("width", None),
    r"(^|siren/|basis/)kernel_\d+$": ("width",),  # a SIREN's
}


def made(name, variant, changes=()):
    config = shipped.get_config(name, variant)
    change(config, dict(changes))
    source = made_source(config)
    return config, source, experiment.make_task(config, source)


def one_block(name):
    stacks = ("encoder_", "decoder_") if name.startswith(("nmt", "iwslt", "wmt")) else ("",)
    return {} if name == "reconstruction" else {f"model.num_{stack}blocks": 1 for stack in stacks}


def named_parameters(name, variant="", changes=()):
    """Of a block of the model, abstract, in boxes with the names of their axes."""
    task = made(name, variant, one_block(name) | dict(changes))[2]
    with nn.logical_axis_rules(RULES):
        return jax.eval_shape(lambda rng: task.init(rng), jax.random.key(0))


@pytest.fixture(scope="module")
def parameters():
    """Of every model."""
    return {key: named_parameters(*of) for key, of in MODELS.items()}


DIFFERENT = [name for name in TRAINED if name not in (*ALIKE, *NEARLY_ALIKE)]


@pytest.mark.slow
@pytest.mark.parametrize("names", [DIFFERENT, slow(NEARLY_ALIKE)], ids=["different", "nearly alike"])
def test_which_parameters_are_cut_how(unchecked, parameters, names):
    """Of every model, and of configs that have another. What no pattern finds is whole on every device."""
    trees = [*parameters.values(), *map(named_parameters, names)]
    found = [jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_box) for tree in trees]
    met = set()
    for path, box in (("/".join(key.key for key in path), box) for leaves in found for path, box in leaves):
        pattern = next((pattern for pattern in CUT if re.search(pattern, path)), None)
        last = CUT.get(pattern, ())
        expected = (None,) * (nn.unbox(box).ndim - len(last)) + last if last else ()
        assert getattr(box, "names", ()) == expected, path
        met.add(pattern)
    assert met == {*CUT, None}


@pytest.mark.parametrize("key", MODELS)
def test_little_is_on_every_device(unchecked, parameters, key):
    """A model's large parameters are cut, by fsdp or by model; copies are at most 5 % of it."""
    params = parameters[key]
    arrays = jax.tree.leaves(sharded(params, MeshAxes(1, 4, 2).make()))
    whole = sum(array.size for array in arrays if array.sharding.is_fully_replicated)
    assert whole < 0.05 * sum(array.size for array in arrays)


# 32 x 32 positions, which the implementation loops over.
LOOPED = {"data.pool": 1, f"{SPAN}.initial_sigma": 0.1, f"{ATTENTION}.implementation": "dense"}


@pytest.mark.parametrize(
    "name, variant, changes",
    [
        slow("translution:mnist", "tiny", {}),
        ("cifar2d_span", "tiny", {"model.num_blocks": 1}),
        slow("cifar2d_span", "tiny", LOOPED),
        slow("nmt:wmt14_en_de", "rposnet,tiny", {}),
        slow("bert:base", "tiny", {}),
        slow("nmt:wmt14_en_de", "tiny", {}),
    ],
)
def test_an_update_on_eight_devices_is_that_of_one(unchecked, name, variant, changes):
    """Data, FSDP and tensor parallel at once."""
    config, source, task = made(name, variant, changes)
    config.train.accumulation_steps = 1
    rows = source.batch(np.arange(8))
    optimizer = Adam(1e-2, eps=1.0).make(100, 10)  # of which an update is about proportional to the gradient
    begun, states = made_state(task, optimizer), []
    for mesh in (MeshAxes(2, 2, 2).make(), one_device()):
        shardings = jax.tree.map(lambda array: array.sharding, abstract_state(task, optimizer, mesh))
        state = jax.device_put(begun, shardings)
        batch = put_batch({key: array[None] for key, array in rows.items()}, mesh, axis=1)
        step = jax.jit(make_train_step(task, optimizer, 1), out_shardings=(shardings, None))
        with jax.set_mesh(mesh):
            states.append(jax.device_get(step(state, batch)[0].params))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *states)


def test_a_run_begins_on_eight_devices_as_on_one():
    task, optimizer, states = Reconstruction(Siren(8, hidden_features=4), (4,)), Adam(1e-2).make(100, 10), []
    for mesh in (MeshAxes(2, 2, 2).make(), one_device()):
        shardings = jax.tree.map(lambda array: array.sharding, abstract_state(task, optimizer, mesh))
        init = jax.jit(lambda: init_state(task, optimizer, jax.random.key(0)), out_shardings=shardings)
        states.append(jax.device_get(init()))
    jax.tree.map(np.testing.assert_array_equal, *states)


def compiled(task, rows, mesh):
    """An update of this batch, compiled for a mesh; and the state that it takes, abstract."""
    optimizer = Adam(1e-3).make(100, 10)
    abstract = abstract_state(task, optimizer, mesh)
    placed = put_batch(rows, mesh, axis=1)
    batch = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), placed)
    shardings = jax.tree.map(lambda array: array.sharding, abstract)
    step = jax.jit(make_train_step(task, optimizer, 1), out_shardings=(shardings, None), donate_argnums=0)
    with jax.set_mesh(mesh):
        return step.lower(abstract, batch).compile(), abstract


@pytest.mark.slow
@pytest.mark.parametrize("per_head", [slow(False), True])
def test_devices_with_examples_of_their_own_send_nothing_but_sums(unchecked, per_head):
    """Nothing that an example needs is gathered: its parameters are on every device."""
    _, source, task = made("cifar2d_span", "tiny", {f"{SPAN}.per_head": per_head})
    rows = {key: array[None] for key, array in source.batch(np.arange(8)).items()}
    program, _ = compiled(task, rows, MeshAxes(8, 1, 1).make())
    sent = collective_bytes(program.as_text(), 8)
    assert sent["exchanged"] == 0 < sent["summed"]


@pytest.mark.slow
def test_what_examples_share_is_summed_once(unchecked):
    """Gradients of encodings and spans: not in every step of an implementation's loop."""
    _, source, task = made("cifar2d_span", "tiny", LOOPED)
    rows = {key: array[None] for key, array in source.batch(np.arange(8)).items()}
    instructions = Module(compiled(task, rows, MeshAxes(8, 1, 1).make())[0].as_text()).runs(lambda _: 1.0)
    assert any(times > 1 for _, times in instructions)  # there is a loop
    assert 0 < sum(times for each, times in instructions if each.operation.startswith("all-reduce")) <= 3


SIZES = [("bert:base", "composite"), ("nmt:wmt14_en_de", "rposnet,big")]
MESHES = [(8, 1, 1), (2, 4, 1), (1, 8, 1), (1, 4, 2), (1, 2, 4)]


@pytest.mark.slow
@pytest.mark.parametrize("name, variant", SIZES)
def test_memory_of_a_device_falls(unchecked, name, variant, capsys):
    """At full size, compiled for eight devices and not run: arguments are the state and the batch."""
    _, source, task = made(name, variant)
    rows = {key: np.repeat(array, 8, 0)[None, :64] for key, array in source.batch(np.arange(8)).items()}
    table = []
    for sizes in MESHES:
        program, abstract = compiled(task, rows, MeshAxes(*sizes).make())
        memory = program.memory_analysis()
        whole, on_each = bytes_of(abstract)
        table.append((on_each, memory.argument_size_in_bytes, memory.temp_size_in_bytes))
        with capsys.disabled():
            figures = "  ".join(f"{size / 2**20:,.0f}" for size in (whole, *table[-1]))
            print(f"\n{name}:{variant} data, fsdp, model {sizes}: state, on each; arguments, temporary MiB: {figures}")
    states, arguments, temporary = np.array(table).T
    assert (np.diff(states[:3]) < 0).all()
    assert states[2] < states[0] / 7.5 and arguments[2] < arguments[0] / 7
    assert max(states[3:]) < states[0] / 5
    needed = arguments + temporary
    assert max(needed[1:3]) < needed[0]  # examples are cut as finely
    examples = [64 / (data * fsdp) for data, fsdp, _ in MESHES]
    assert max(temporary[3:] / examples[3:]) < min(temporary[:3] / examples[:3])
