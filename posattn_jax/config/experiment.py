"""Builds the objects of a run from its config."""

import dataclasses
import pathlib
import warnings
from collections.abc import Collection
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from posattn_jax.axes import Sizes
from posattn_jax.config.names import class_of, name_of, short
from posattn_jax.config.parts import build, leaves, set_all
from posattn_jax.config.saved import check_version
from posattn_jax.data.pipeline.batches import Source, order_of
from posattn_jax.data.pipeline.data_set import DataSet, Reading
from posattn_jax.data.pipeline.packing import Packed
from posattn_jax.data.tokenizers.tokenizer import HASH_FILE
from posattn_jax.models.vit import patch_grid
from posattn_jax.nn.attention import PositionalSelfAttention
from posattn_jax.nn.span import LEARNED
from posattn_jax.ops.attention.select import chooses_at_run_time, is_cuda
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import read_json, value_at
from posattn_jax.tasks.classification import Classification
from posattn_jax.tasks.task import Task
from posattn_jax.train.optimizer import Adam
from posattn_jax.train.settings import Settings
from posattn_jax.train.sharding import MeshAxes
from posattn_jax.train.step import init_params, kept_bytes

# Fields without an effect: where another field is set, and where another is not.
UNUSED_WITH = {
    "train.total_epochs": "train.total_steps",
    "optimizer.schedule.warmup_epochs": "optimizer.schedule.warmup_steps",
    "data.vocabulary_size": "task.pretrained",  # its tokenizer is read
}
UNUSED_WITHOUT = {"optimizer.clips_spans": "optimizer.clip_norm"}


def check_used(config: ConfigDict, given: Collection[str]) -> None:
    """Raises InputError if a field that the user has given has no effect, because of what another field is.

    A config by itself may have both, such as one that is made shorter for tests.
    """
    values = config.to_dict()
    for fields, unused_where in ((UNUSED_WITH, True), (UNUSED_WITHOUT, False)):
        for field, other in fields.items():
            value, there = _value_of(values, field), _value_of(values, other)
            if field in given and value and bool(there) == unused_where:
                has_none = f"has no effect with {other}={there}"
                raise InputError(f"--config.{field}={value}: {has_none}: change that too, or leave this out")


def _value_of(config: dict[str, Any], path: str) -> Any:
    """The value of a field by its path; None if there is no such field."""
    try:
        return value_at(config, path)
    except (KeyError, TypeError):
        return None


def data_set(config: ConfigDict) -> DataSet:
    """The data set of a run. Raises InputError if it is none."""
    found = build(config.data, "data")
    if not isinstance(found, DataSet):
        raise InputError(f'data.kind="{config.data.kind}": expected a data set')
    return found


def task_class(config: ConfigDict) -> type[Task]:
    """The class of a run's task. Raises InputError if it is none."""
    found = class_of(config.task.kind, "task.kind")
    if not issubclass(found, Task):
        raise InputError(f'task.kind="{config.task.kind}": expected a task')
    return found


def keep_programs(cache: str | pathlib.Path) -> None:
    """Caches every compiled program in this folder, unless jax has another one (`JAX_COMPILATION_CACHE_DIR`).

    A resumed run, or a similar one, then does not compile again. The key of a program is what it computes, the devices,
    the version of jax and its flags. A damaged program is compiled again. If the folder cannot be written to, nothing
    is cached, and the run goes on. Programs are machine code, and not data: the folder must not come from a run folder.
    """
    folder = pathlib.Path(cache, "compiled")
    if jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")


def load_sources(config: ConfigDict, test: bool = False, workdir: pathlib.Path | None = None) -> dict[str, Any]:
    """The training and validation examples of a run, see `DataSet.load`; with `test`, also what an evaluation needs."""
    seed: Any = config.seed
    if not 0 <= seed < 2**32:  # of a larger one, jax.random.key takes the last 32 bits
        raise InputError(f"seed={seed}: expected 0 to {2**32 - 1}")
    check_kind(config, task_class(config).models)
    for name in ("train", "optimizer", "mesh"):  # fails early, before minutes of reading
        build(config[name], name)
    places = [shape[0] for shape in leaves(config.model, "key_shape") if shape]
    if workdir is None or not (workdir / HASH_FILE).exists():  # else the run that it started from may be gone
        pretrained_run(config)
    start = _start_of(config)
    reading = Reading(seed, pathlib.Path(config.cache_dir), workdir, test, start, min(places, default=None))
    try:
        data = data_set(config)
        if getattr(data, "dir", ".") == "":  # which would be the current folder, with all that is below
            raise InputError('data.dir="": expected a file or a folder')
        return data.load(reading)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"data: {error}") from error


def make_task(config: ConfigDict, source: Source, trained_with: ConfigDict | None = None) -> Any:
    """The task for the examples of a source. `trained_with`: the config that the model was trained with, if different.

    Raises:
      InputError: the model's fields do not fit together, or its encoding does not cover this grid, or the model cannot
        separate the examples that share a row.
    """
    own = source.knows.get("input_shape")
    trained_on = own if trained_with is None else data_set(trained_with).input_shape(source)
    task = task_of(config, source.knows, trained_on)
    try:  # traced without computing anything
        jax.eval_shape(lambda rng: task.describe(init_params(task, rng)), jax.random.key(0))
    except ValueError as error:
        raise InputError(f"model: {error}") from error
    if isinstance(source, Packed):
        batch = source.batch(np.arange(1))
        try:
            jax.eval_shape(lambda rng, batch: task.loss(init_params(task, rng), batch, rng), jax.random.key(0), batch)
        except ValueError as error:
            raise InputError(f"data.packed=True: {error}") from error
    return task


def task_of(config: ConfigDict, knows: dict[str, Any], trained_on: Sizes | None = None) -> Any:
    """The task for examples of which `knows` is known. `trained_on`: the grid of the data that the model trained on."""
    cls, cuts = task_class(config), config.mesh.grid != 1
    if cuts:
        config = set_all(config.copy_and_resolve_references(), grid_axis="grid")
    shapes = {} if trained_on is None else table_shapes(config, trained_on)
    model = cls.around(build_model(config, cls.models, **knows, **shapes), knows)
    reference = None if trained_on == knows.get("input_shape") else trained_on
    more = {"reference_shape": reference, "batch_tokens": config.train.batch_size}
    task = build(config.task, "task", model=model, **knows | more)
    attentions = [block.attention for block in getattr(task, "blocks", ())]
    other = [each for each in attentions if not isinstance(each, PositionalSelfAttention)]
    if cuts and (other or not isinstance(task, Classification)):
        what = f"attention={type(other[0]).__name__}" if other else f"task {cls.__name__}"
        raise InputError(f"mesh.grid={config.mesh.grid}: expected 1 with {what}")
    penalty = getattr(task, "span_penalty", 0)
    if penalty and not any(isinstance(getattr(each, "span", None), LEARNED) for each in attentions):
        raise InputError(f"task.span_penalty={penalty}: expected 0 without a learned span, such as a GaussianSpan")
    return task


def build_model(config: ConfigDict, kinds: tuple[type, ...], **known: Any) -> Any:
    """Builds the model, which must be of one of these kinds. For `known` see `build`."""
    check_kind(config, kinds)
    return build(config.model, "model", **known)


def check_kind(config: ConfigDict, kinds: tuple[type, ...]) -> None:
    """Raises InputError if the model is of none of these kinds."""
    if config.model.kind not in [name_of(kind) for kind in kinds]:
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise InputError(f'model.kind="{config.model.kind}": expected {expected} with task {short(config.task.kind)}')


def table_shapes(config: ConfigDict, grid_shape: Sizes) -> dict[str, Sizes]:
    """The grid of the tokens, as the fields of parts that have a table over positions, or over pairs of positions."""
    model: Any = config.model
    if "patch_shape" in model:
        try:
            grid_shape = patch_grid(grid_shape, tuple(model.patch_shape))
        except ValueError as error:
            raise InputError(f"model.{error}") from error
    elif model.get("max_length"):
        grid_shape = (model.max_length,)
    return dict.fromkeys(("grid_shape", "query_shape", "key_shape"), grid_shape)


class Saved(NamedTuple):
    """The run that another starts from.

    Attributes:
      name: how the config refers to it, for messages.
      workdir: its folder.
      config: its config.
    """

    name: str
    workdir: pathlib.Path
    config: dict[str, Any]


def pretrained_run(config: ConfigDict) -> Saved | None:
    """The run that a config starts from, or None. Raises InputError if there is no such run."""
    workdir = _start_of(config)
    if workdir is None:
        return None
    name = f"task.pretrained={config.task.pretrained}"
    if workdir.is_file():
        raise InputError(f"{name}: expected a run folder; --mode=import makes one from a weights file")
    saved = read_json(workdir / "config.json")
    if saved is None:
        raise InputError(f"{name}: no run there ({workdir / 'config.json'})")
    check_version(saved, workdir)
    return Saved(name, workdir, saved)


def _start_of(config: ConfigDict) -> pathlib.Path | None:
    """The folder of the run that a config starts from, if it names one."""
    given = config.task.get("pretrained")
    return pathlib.Path(given.replace("{seed}", str(config.seed))) if given else None


class Experiment(NamedTuple):
    """The task, optimiser, devices and settings of a run."""

    task: Any
    optimizer: optax.GradientTransformation
    mesh: Mesh
    settings: Settings


def prepare(
    config: ConfigDict, source: Source, trained_with: ConfigDict | None = None, num_seeds: int = 1
) -> Experiment:
    """The experiment for the examples of a source. For the other arguments see `make_task` and `make_settings`."""
    train: Settings = build(config.train, "train")
    per_epoch = order_of(source, train.batch_size, train.accumulation_steps, config.seed).steps_per_epoch
    task = make_task(config, source, trained_with)
    merges = _merging_fits(train, task, source, num_seeds)
    settings = make_settings(config, per_epoch, task, num_seeds, merges)
    optimizer: Adam = build(config.optimizer, "optimizer")
    axes: MeshAxes = build(config.mesh, "mesh")
    return Experiment(task, optimizer.make(settings.total_steps, per_epoch), axes.make(), settings)


def make_settings(
    config: ConfigDict, per_epoch: int, task: Any, num_seeds: int = 1, merging_fits: bool = False
) -> Settings:
    """The settings of a run whose epochs have `per_epoch` steps, with its defaults decided.

    Some implementations need static bounds of the spans. With others, bounds are faster in two cases. On a GPU, loops
    of run-time length are slow, except in the kernels of "fused", which "auto" chooses too. And if seeds are vmapped,
    the program cannot choose an implementation for each seed at run time, so it would compute all of them.
    """
    train: Settings = build(config.train, "train")
    attentions = [block.attention for block in getattr(task, "blocks", ())]
    spans = [each for each in attentions if getattr(each, "span", None) is not None]
    if not spans:
        return dataclasses.replace(train, bounded_spans="no").decided(per_epoch, merging_fits=merging_fits)
    implementations = {each.implementation for each in spans}
    needs = bool(implementations & {"patch", "window"}) or config.mesh.grid != 1
    has_dropout = any(getattr(each, "dropout_rate", 0) for each in spans)  # of weights, which no kernel has
    kernels = {"fused", "auto"} if is_cuda() and not has_dropout else {"fused"}
    pays = jax.default_backend() == "gpu" and not implementations <= kernels
    chooses = num_seeds > 1 and "auto" in implementations and chooses_at_run_time(task.grid_shape)
    return train.decided(per_epoch, needs, pays or chooses, merging_fits)


def _merging_fits(train: Settings, task: Any, source: Source, num_seeds: int) -> bool:
    """Whether `train.merged_batches="auto"` is "yes". Raises InputError for "yes" with a task that does not merge."""
    if train.merged_batches == "yes" and not task.merges:
        allowed = '"no", because its loss is no mean over examples, or it has dropout of weights'
        raise InputError(f"train.merged_batches=yes: expected {allowed}")
    if train.merged_batches != "auto" or train.accumulation_steps == 1 or not task.merges:
        return False
    memory = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 0)
    if jax.default_backend() == "cpu" or not memory:
        return False
    batch = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((train.batch_size, *x.shape[1:]), x.dtype), source.batch(np.arange(1))
    )
    return 4 * num_seeds * train.accumulation_steps * kept_bytes(task, batch) <= memory
