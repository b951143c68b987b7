"""A config's bad fields, each told in one line that names the field, what was given and what is allowed."""

import types

import jax
import numpy as np
import pytest

from configs import digits, reconstruction, sentences, translution
from configs.lib.common import ATTENTION, ENCODING, SPAN, TERMS
from configs.lib.common_mixers import mixing
from posattn_jax import FourierPositions, RotaryContent, SinusoidalPositions, WindowSpan
from posattn_jax.config import experiment
from posattn_jax.config.parts import build, change, part
from posattn_jax.data.images import ImageSet
from posattn_jax.data.images.image_sets import PointClouds
from posattn_jax.data.images.moving_mnist import Clips, Stills
from posattn_jax.ops.attention import select
from posattn_jax.system.errors import InputError
from posattn_jax.tasks.reconstruction import Reconstruction
from tests.support import made_data
from tests.support.made_runs import patches


@pytest.mark.parametrize(
    "field, value, message",
    [
        ("task.kind", "Regression", "task.kind: Regression"),
        ("task.kind", "posattn_jax.nothing:Task", "task.kind: .*posattn_jax.nothing"),
        ("seed", -1, "seed=-1: expected 0 to 4294967295"),
        ("task", part(Reconstruction), 'model.kind="Classifier": .*Siren'),
        ("data.lay_out", "2d", 'config.data.lay_out="2d"'),
        ("data.kind", "posattn_jax.data.text.corpus:Text", "data.download=False"),
        ("data.scene", part(Stills, canvas=20), "data.scene.canvas=20: .*28"),
        ("data.pool", 3, r"data.pool=3: .*\(8, 8\)"),
        ("data.layout", "3d", 'data.layout="3d": .*"2d"'),
        ("data.validation", "half", 'data.validation="half": .*"split" or "test"'),
        ("data.validation", "test", 'data.validation="test"'),
        ("model.kind", "Mlp", 'model.kind="Mlp": .*VisionTransformer'),
        ("model.kind", "VisionTransformer", "model.head_dim=None"),
        ("model.block.kind", "Mlp", "model.block.kind: Mlp"),
        ("model.block.activation", "tanh", 'model.block.activation="tanh": .*"gelu"'),
        (f"{ATTENTION}.projections.kernel_init", "ones_", 'projections.kernel_init="ones_": .*"relu"'),
        ("data.name", "digit", 'data.name="digit": .*imagenet64'),
        ("data.dir", "", 'data.dir="": expected a file or a folder'),
        ("data.scene", part(Stills, shift="left"), 'data.scene.shift="left": .*"halves"'),
        ("data.scene", part(Clips, seed=-1), "data.scene.seed=-1: expected 0 or more"),
        ("model.num_blocks", 0, "model.num_blocks=0"),
        ("model.width", 8.5, "model.width=8.5: expected int"),
        (f"{ATTENTION}.num_heads", 3, "model: num_heads=3 .* 8"),
        (f"{ATTENTION}.num_heads", 0, f"{ATTENTION}.num_heads=0"),
        ("model.pooling", "first", 'model.pooling="first": .*"max"'),
        ("model.block.norm", "middle", 'model.block.norm="middle": .*"pre"'),
        (f"{ATTENTION}.implementation", "fast", f'{ATTENTION}.implementation="fast": .*"reference"'),
        (f"{ENCODING}.kind", "Rope", f"{ENCODING}.kind: Rope is no class"),
        (f"{ENCODING}.omega", 0.0, "model: omega=0.0: expected a finite number"),
        (f"{ENCODING}.hidden_features", -1, "model: hidden_features=-1"),
        (f"{SPAN}.threshold", 1.5, "threshold=1.5: expected less than 1"),
        (f"{SPAN}.covariance", "round", f'{SPAN}.covariance="round": .*"full"'),
        (f"{SPAN}.initial_sigma", 0.0, f"{SPAN}.initial_sigma=0.0"),
        (f"{SPAN}.kind", "WindowSpan", f"{SPAN}.*: WindowSpan has half_span"),
        (SPAN, part(WindowSpan, half_span=()), r"model: half_span=\(\)"),
        (SPAN, part(WindowSpan), f"{SPAN}.half_span: WindowSpan needs it"),
        ("model.dropout_rate", 1.0, "dropout_rate=1.0"),
        (f"{ATTENTION}.dropout_rate", 1.5, f"{ATTENTION}.dropout_rate=1.5"),
        ("model.dtype", "int8", 'model.dtype="int8": .*"bfloat16"'),
        ("train.total_steps", -1, "train.total_steps=-1"),
        ("train.accumulation_steps", 0, "train.accumulation_steps=0"),
        ("optimizer.schedule.kind", "Step", "optimizer.schedule.kind: Step"),
        ("mesh.data", 0.5, "mesh.data=0.5: expected int"),
    ],
)
def test_bad_field(unchecked, field, value, message):
    config = digits.get_config("tiny")
    with pytest.raises(InputError, match=message), config.ignore_type():
        change(config, {field: value})
        sources = experiment.load_sources(config)
        experiment.prepare(config, sources["train"])


@pytest.mark.parametrize(
    "field, value, message",
    [
        ("seed", 2**32, "seed=4294967296: expected 0 to 4294967295"),
        ("data.grid_shape", (), r"data.grid_shape is \(\): expected one to 3 sizes, such as"),
        ("data.grid_shape", (4, 0), r"data.grid_shape=\(4, 0\)"),
        ("data.grid_shape", (1, 1), r"data.grid_shape=\(1, 1\)"),
        ("data.features", 7, "data: num_features=7: .*2"),
        ("model.param_dtype", "int8", 'model.param_dtype="int8": .*"bfloat16"'),
        ("data.combine", "mean", 'data.combine="mean": .*"sum"'),
        ("model.hidden_features", -1, "model: hidden_features=-1"),
        ("model.num_layers", 1, "model: num_layers=1: a SIREN has at least 2"),
        ("model.omega_initial", 0.0, "model: omega_initial=0.0: expected a finite number"),
        ("model.bias_init", "ones", 'model.bias_init="ones": .*"ckconv"'),
    ],
)
def test_bad_field_of_a_reconstruction(unchecked, field, value, message):
    config = reconstruction.get_config("tiny")
    change(config, {field: value})
    with pytest.raises(InputError, match=f"^{message}"):
        experiment.make_task(config, experiment.load_sources(config)["train"])


@pytest.mark.parametrize(
    "field, value, message",
    [
        (SPAN, None, 'model: grid_axis="grid" .*without a span'),
        (f"{ATTENTION}.implementation", "patch", 'model: grid_axis="grid" .*implementation="patch"'),
        (ATTENTION, mixing("linear", 2), "mesh.grid=2: .*TokenMixing"),
    ],
)
def test_a_grid_that_cannot_be_cut(field, value, message):
    config = digits.get_config("tiny")
    config.mesh.grid = 2
    change(config, {field: value})
    with pytest.raises(InputError, match=f"^{message}$"):
        experiment.make_task(config, experiment.load_sources(config)["train"])
    config = reconstruction.get_config("tiny")
    config.mesh.grid = 2
    with pytest.raises(InputError, match="^mesh.grid=2: .*Reconstruction"):
        experiment.make_task(config, experiment.load_sources(config)["train"])


def task_of(config, grid_shape):
    return experiment.task_of(config, {"input_shape": grid_shape, "num_channels": 1, "num_classes": 10}, grid_shape)


@pytest.mark.parametrize(
    "platform, implementation, dropout_rate, has_kernels, bounded",
    [
        ("gpu", "auto", 0.0, False, True),
        ("gpu", "auto", 0.0, True, False),
        ("gpu", "auto", 0.1, True, True),  # no kernel has dropout
        ("gpu", "tiled", 0.0, True, True),
        ("gpu", "fused", 0.0, True, False),
        ("cpu", "auto", 0.0, False, False),
    ],
)
def test_where_spans_are_bounded_unasked(monkeypatch, platform, implementation, dropout_rate, has_kernels, bounded):
    config = digits.get_config("tiny")
    change(config, {f"{ATTENTION}.implementation": implementation, f"{ATTENTION}.dropout_rate": dropout_rate})
    monkeypatch.setattr(experiment, "is_cuda", lambda: has_kernels)
    task = task_of(config, (8, 8))
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    assert experiment.make_settings(config, 10, task).bounds_spans == bounded


@pytest.mark.parametrize(
    "platform, memory, changes, merged",
    [
        ("gpu", 2**30, {}, "yes"),
        ("gpu", 2**16, {}, "no"),  # too small
        ("gpu", 2**16, {"train.merged_batches": "yes"}, "yes"),
        ("gpu", 2**30, {"train.merged_batches": "no"}, "no"),
        ("gpu", 2**30, {f"{ATTENTION}.dropout_rate": 0.1}, "no"),  # its keys are not told apart
        ("gpu", 2**30, {"train.accumulation_steps": 1}, "no"),
        ("cpu", None, {}, "no"),
    ],
    ids=str,
)
def test_where_micro_batches_are_merged(monkeypatch, platform, memory, changes, merged):
    config = change(digits.get_config("tiny"), {"train.accumulation_steps": 2} | changes)
    source = experiment.load_sources(config)["train"]
    statistics = None if memory is None else {"bytes_limit": memory}
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    monkeypatch.setattr(jax, "local_devices", lambda: [types.SimpleNamespace(memory_stats=lambda: statistics)])
    train = build(config.train, "train")
    fits = experiment._merging_fits(train, task_of(config, (4, 4)), source, 1)
    assert train.decided(10, merging_fits=fits).merged_batches == merged


def test_what_cannot_be_merged():
    config = change(digits.get_config("tiny"), {f"{ATTENTION}.dropout_rate": 0.1, "train.merged_batches": "yes"})
    with pytest.raises(InputError, match='^train.merged_batches=yes: .*"no"'):
        experiment.prepare(config, experiment.load_sources(config)["train"])


@pytest.mark.parametrize(
    "grid_shape, changes, bounded",
    [
        ((16, 16), {}, True),
        ((8, 8), {}, False),  # "dense" in any case
        ((16, 16), {f"{ATTENTION}.implementation": "tiled"}, False),
        ((16, 16), {"train.bounded_spans": "no"}, False),
        ((16, 16), {SPAN: None, "train.bounded_spans": "yes"}, False),
    ],
    ids=str,
)
def test_where_spans_of_vmapped_seeds_are_bounded(monkeypatch, grid_shape, changes, bounded):
    monkeypatch.setattr(select, "is_native", lambda: False)  # whose kernel reads each span
    config = digits.get_config("tiny")
    change(config, changes)
    task = task_of(config, grid_shape)
    assert experiment.make_settings(config, 10, task, num_seeds=2).bounds_spans == bounded
    assert not experiment.make_settings(config, 10, task).bounds_spans


@pytest.mark.parametrize("span", [None, part(WindowSpan, half_span=(1, 1))], ids=["none", "window"])
def test_a_penalty_needs_a_learned_span(span):
    config = change(digits.get_config("tiny"), {SPAN: span, "task.span_penalty": 0.1})
    sources = experiment.load_sources(config)
    with pytest.raises(InputError, match=r"task.span_penalty=0.1: .*learned span"):
        experiment.make_task(config, sources["train"])


@pytest.mark.parametrize(
    "fields, message",
    [
        (
            {"model": patches("mean"), "model.absolute_positions": True, "model.positions": part(SinusoidalPositions)},
            "model.positions: .*absolute_positions=True",
        ),
        ({"model.positions": part(FourierPositions, gamma=0.0)}, "model: gamma=0.0: expected more than 0"),
        ({TERMS: {"rotary_content": part(RotaryContent, base=-1.0)}}, "base=-1.0"),
    ],
    ids=["positions", "gamma", "base"],
)
def test_fields_that_do_not_fit_together(unchecked, fields, message):
    config = digits.get_config("tiny")
    change(config, fields)
    with pytest.raises(InputError, match=message):
        experiment.make_task(config, experiment.load_sources(config)["train"])


@pytest.mark.parametrize(
    "field, value, message",
    [
        ("model.patch_shape", (3, 7), r"model.patch_shape=\(3, 7\) .*\(8, 8\)"),
        ("model.patch_shape", (), r"model.patch_shape=\(\): .*\(8, 8\)"),
        ("model.pooling", "last", 'model.pooling="last": .*"mean"'),
        (f"{ATTENTION}.values.half_span", (1,), r"model: half_span=\(1,\)"),
        ("data.num_points", 0, "data.num_points=0: .*64"),
        ("data.num_points", 65, "data.num_points=65: .*64"),
        ("data.num_points", 9, r"model.patch_shape=\(2, 4\): .*\(9,\)"),
    ],
)
def test_bad_field_of_a_vision_transformer(unchecked, field, value, message):
    config = translution.get_config("tiny")
    config.data.name, config.data.validation, config.model.patch_shape = "digits", "split", (2, 4)
    if field == "data.num_points":
        config.data = part(PointClouds, name="digits")
    change(config, {field: value})
    with pytest.raises(InputError, match=message):
        experiment.make_task(config, experiment.load_sources(config)["train"])


def test_points_are_made_of_one_channel():
    coloured = ImageSet(np.zeros((2, 32, 32, 3), np.uint8), np.zeros(2, int), 10)
    with pytest.raises(InputError, match="data.kind=PointClouds: .*channel"):
        PointClouds().lay_out(coloured)


def test_judged_by_the_test_part_and_trained_on_all_others(tmp_path):
    made_data.write_mnist(tmp_path)
    config = translution.get_config("tiny")
    config.data.dir = str(tmp_path)
    sources = experiment.load_sources(config, test=True)
    config.data.validation = "split"
    split = experiment.load_sources(config, test=True)
    assert len(sources["train"]) == len(split["train"]) + len(split["validation"])
    ids = np.arange(len(sources["test"]))
    np.testing.assert_array_equal(sources["validation"].pixels(ids), split["test"].pixels(ids))


@pytest.mark.parametrize(
    "field, value, other, there",
    [
        ("train.total_epochs", 3.0, "train.total_steps", 2),
        ("optimizer.schedule.warmup_epochs", 1.0, "optimizer.schedule.warmup_steps", 5),
        ("optimizer.clips_spans", True, "optimizer.clip_norm", 0.0),
        ("data.vocabulary_size", 100, "task.pretrained", "runs/bert"),
    ],
)
def test_a_given_field_without_effect_is_refused(field, value, other, there):
    config = sentences.get_config("tiny")
    config.optimizer.schedule.warmup_epochs = 0.0
    change(config, {field: value, other: there})
    message = f"^--config.{field}={value}: has no effect with {other}={there}: change that too, or leave this out$"
    with pytest.raises(InputError, match=message):
        experiment.check_used(config, ["seed", field])
    experiment.check_used(config, ["seed", other])  # which was given for this reason
    change(config, {other: {2: 0, 5: 0, 0.0: 1.0, "runs/bert": None}[there]})
    experiment.check_used(config, [field])


def test_a_config_may_have_both_and_a_field_that_is_off_has_no_effect_to_miss():
    config = change(digits.get_config("tiny"), {"train.total_epochs": 80.0, "optimizer.clips_spans": False})
    experiment.check_used(config, [])
    change(config, {"train.total_epochs": 0.0})
    experiment.check_used(config, ["train.total_epochs", "optimizer.clips_spans", "optimizer.schedule.warmup_epochs"])
