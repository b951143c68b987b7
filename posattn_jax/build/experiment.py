"""From a config's fields to the objects of a run; with the `*_config` modules, which it calls."""

import pathlib
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from posattn_jax.axes import Sizes
from posattn_jax.build.language import load_glue, load_text, make_glue, make_masked_lm, start_from_pretrained
from posattn_jax.build.model import build_model, table_shapes
from posattn_jax.build.parts import set_all
from posattn_jax.build.translation import load_parallel, make_translation
from posattn_jax.data import image_sets
from posattn_jax.data.batches import Source, order_of
from posattn_jax.data.images import GridImages, ImageSet, split
from posattn_jax.data.moving_mnist import Scene
from posattn_jax.data.offsets import Offsets
from posattn_jax.data.points import Points
from posattn_jax.models.classifier import Classifier
from posattn_jax.models.vit import VisionTransformer, patch_grid
from posattn_jax.nn.attention import PositionalSelfAttention
from posattn_jax.nn.encodings import SinusoidalEncoding
from posattn_jax.nn.siren import Siren
from posattn_jax.nn.span import GaussianSpan
from posattn_jax.nn.tokens import Tokens
from posattn_jax.ops import grid
from posattn_jax.ops.attention.auto import LEAST_POSITIONS
from posattn_jax.system.errors import InputError
from posattn_jax.tasks.classification import Classification
from posattn_jax.tasks.reconstruction import Reconstruction
from posattn_jax.tasks.task import Task
from posattn_jax.train.optimizer import adam
from posattn_jax.train.schedule import learning_rate, to_steps
from posattn_jax.train.settings import Settings
from posattn_jax.train.step import init_params

Labelled = GridImages | Points
TEXT_TASKS = ("masked_lm", "glue", "translation")  # whose runs keep a tokenizer


def load_images(config: ConfigDict, subset: Literal["train", "test"]) -> ImageSet | None:
    """The images of "train" or "test", as the source divides them; None where it has no such part."""
    data = config.data
    scene = Scene(data.canvas, data.shift, data.seed, data.frames)
    return image_sets.load(data.name, pathlib.Path(data.dir), subset, data.download, scene)


def load_sources(config: ConfigDict, test: bool = False, workdir: pathlib.Path | None = None) -> dict[str, Any]:
    """What a run trains on and is judged by: "train", "validation" and, if asked for and there, "test".

    Args:
      config: of the run.
      test: whether the run is to be evaluated; without a label, its test part is "unlabelled".
      workdir: its folder, whose tokenizer is that of its text.
    """
    seed: Any = config.seed
    if seed < 0:
        raise InputError(f"seed={seed}: expected 0 or more")
    if config.train.pretrained and config.task != "glue":
        raise InputError(f'train.pretrained={config.train.pretrained}: expected "" with task="{config.task}"')
    load, _ = task_parts(config)
    return load(config, test, **({"workdir": workdir} if config.task in TEXT_TASKS else {}))


def load_labelled(config: ConfigDict, test: bool) -> dict[str, Labelled]:
    """Images on the config's grid, or as points: "train" and what the config judges it by, "validation"."""
    images = load_images(config, "train")
    assert images is not None, "every set has a train part"
    match config.data.validation:
        case "split":
            train, validation = split(images, config.seed)
        case "test":
            train, validation = images, load_images(config, "test")
            if validation is None:
                raise InputError(f'data.validation="test": {config.data.name} has no test part')
        case _:
            raise InputError(f'data.validation="{config.data.validation}": expected "split" or "test"')
    if config.data.validation_limit:
        validation = validation.select(np.arange(min(config.data.validation_limit, len(validation))))
    parts = {"train": train, "validation": validation, "test": load_images(config, "test") if test else None}
    return {name: lay_out(config, part) for name, part in parts.items() if part is not None}


def lay_out(config: ConfigDict, images: ImageSet) -> Labelled:
    """Images laid out as the config says."""
    if config.data.layout == "points":
        if config.data.pool != 1:
            raise InputError(f'data.pool={config.data.pool}: expected 1 with data.layout="points"')
        return Points(images, config.data.num_points)
    return GridImages(images, config.data.layout, config.data.pool)


def load_offsets(config: ConfigDict, test: bool) -> dict[str, Offsets]:
    """Every offset of the config's grid and its row of the baseline's E, whose W and b are drawn from the seed.

    They are all trained on and all judged by: the question is what can be fitted, not what generalises. Nothing is left
    for a test.
    """
    encoding = SinusoidalEncoding(config.data.combine)
    try:
        shape = grid.check_grid(config.data.grid_shape, "data.grid_shape")
        width = build_model(config, (Siren,)).features
        if grid.num_positions(shape) == 1:
            raise ValueError(f"data.grid_shape={shape}: expected more than one position")
        tokens = Tokens(jnp.zeros((1, grid.num_positions(shape), width)), shape, num_heads=1)
        targets, _ = jax.jit(lambda rng: encoding.init_with_output(rng, tokens))(jax.random.key(config.seed))
    except ValueError as error:
        raise InputError(str(error)) from error
    coordinates = np.asarray(grid.relative_coordinates(shape)).reshape(-1, len(shape))
    offsets = Offsets(coordinates, np.asarray(targets).reshape(-1, width), shape)
    return {"train": offsets, "validation": offsets}


def make_classification(config: ConfigDict, source: Labelled, trained_with: ConfigDict | None) -> Classification:
    """Classification of a source's images."""
    trained_on = lay_out(trained_with or config, source.images).grid_shape
    if config.mesh.grid != 1:
        config = set_all(config.copy_and_resolve_references(), grid_axis="grid")
    shapes = table_shapes(token_grid(config, trained_on))
    model = build_model(config, (Classifier, VisionTransformer), num_classes=source.images.num_classes, **shapes)
    if config.mesh.grid != 1:
        for mixing in (block.attention for block in model.blocks):
            if not isinstance(mixing, PositionalSelfAttention):
                raise InputError(f"mesh.grid={config.mesh.grid}: expected 1 with attention={type(mixing).__name__}")
    return Classification(
        model,
        source.grid_shape,
        source.num_channels,
        reference_shape=None if trained_on == source.grid_shape else trained_on,
        num_dims=source.num_dims if isinstance(source, Points) else 0,
        span_penalty=config.train.span_penalty,
    )


def token_grid(config: ConfigDict, grid_shape: Sizes) -> Sizes:
    """The grid that attention meets."""
    model: Any = config.model
    if "patch_shape" not in model:
        return grid_shape
    try:
        return patch_grid(grid_shape, tuple(model.patch_shape))
    except ValueError as error:
        raise InputError(f"model.{error}") from error


def make_reconstruction(config: ConfigDict, source: Offsets, trained_with: ConfigDict | None) -> Reconstruction:
    """A SIREN's fit to a source's encoding; its grid is always the one of training."""
    return Reconstruction(build_model(config, (Siren,)), source.grid_shape)


def task_parts(config: ConfigDict) -> tuple[Callable[..., dict[str, Any]], Callable[..., Task]]:
    """What a config's task consists of: the function that loads its sources, and the one that makes it."""
    match config.task:
        case "classification":
            return load_labelled, make_classification
        case "reconstruction":
            return load_offsets, make_reconstruction
        case "masked_lm":
            return load_text, make_masked_lm
        case "glue":
            return load_glue, make_glue
        case "translation":
            return load_parallel, make_translation
    known = "classification, reconstruction, masked_lm, glue or translation"
    raise InputError(f'task="{config.task}": expected {known}')


def make_task(config: ConfigDict, source: Source, trained_with: ConfigDict | None = None) -> Task:
    """The task of a source's examples; `trained_with` is the config of the model's training where it was another.

    Raises:
      InputError: the model's fields do not fit together, or its encoding does not reach over this grid.
    """
    _, make = task_parts(config)
    if config.mesh.grid != 1 and config.task != "classification":
        raise InputError(f'mesh.grid={config.mesh.grid}: expected 1 with task="{config.task}"')
    task = make(config, source, trained_with)
    penalty = config.train.span_penalty
    spans = [getattr(block.attention, "span", None) for block in getattr(task, "blocks", ())]
    if penalty and not any(isinstance(span, GaussianSpan) for span in spans):
        raise InputError(f"train.span_penalty={penalty}: expected 0 without a GaussianSpan, which alone is learned")
    try:  # traced without computing anything
        jax.eval_shape(lambda rng: task.describe(init_params(task, rng)), jax.random.key(0))
    except ValueError as error:
        raise InputError(f"model: {error}") from error
    return task


def pretrained(config: ConfigDict, task: Task) -> Callable[[Any], Any] | None:
    """From fresh parameters to those that a run starts from, where these are an earlier run's.

    Raises:
      InputError: there is no such run, or it has other parameters.
    """
    if config.task != "glue":
        return None
    start = start_from_pretrained(config)
    start(jax.eval_shape(task.init, jax.random.key(0)))
    return start


def steps_per_epoch(config: ConfigDict, source: Source) -> int:
    """The updates of an epoch of a source."""
    train: Any = config.train
    for name in ("batch_size", "accumulation_steps"):
        if train[name] < 1:
            raise InputError(f"train.{name}={train[name]}: expected at least 1")
    return order_of(source, train.batch_size, train.accumulation_steps, config.seed).steps_per_epoch


def make_settings(config: ConfigDict, per_epoch: int, vmapped_grid: Sizes | None = None) -> Settings:
    """How long a run trains, in steps, of which an epoch has `per_epoch`; for `vmapped_grid` see `bounded_spans`."""
    train: Any = config.train
    on_cpu = jax.default_backend() == "cpu"
    return Settings(
        total_steps=to_steps("train.total", train.total_steps, train.total_epochs, per_epoch),
        batch_size=train.batch_size,
        accumulation_steps=train.accumulation_steps,
        eval_batch_size=train.eval_batch_size,
        log_steps=train.log_steps,
        checkpoint_steps=train.checkpoint_steps,
        eval_steps=train.eval_steps,
        keep_checkpoints=train.keep_checkpoints,
        bounded_spans=bounded_spans(config, vmapped_grid),
        dispatch_steps=train.dispatch_steps or (1 if on_cpu else 16),
        resident_mib=(0 if on_cpu else 2048) if train.resident_mib == -1 else train.resident_mib,
    )


def bounded_spans(config: ConfigDict, vmapped_grid: Sizes | None = None) -> bool:
    """Whether training compiles its layouts for static bounds of the spans.

    `vmapped_grid` is the grid that attention meets where seeds are vmapped: one program cannot choose between
    layouts for each of them at run time, and would compute them all.
    """
    bounded = config.train.bounded_spans
    if bounded not in ("auto", "yes", "no"):
        raise InputError(f'train.bounded_spans="{bounded}": expected "auto", "yes" or "no"')
    attention = config.model.get("block", ConfigDict()).get("attention", ConfigDict())
    if attention.get("span") is None:
        return False
    implementation = attention.implementation
    needed = bounded == "yes" or implementation in ("patch", "window") or config.mesh.grid != 1
    # XLA's loops of run-time length are slow on a GPU; those of "fused" are inside its kernel
    pays = bounded == "auto" and jax.default_backend() == "gpu" and implementation != "fused"
    chooses = implementation == "auto" and grid.num_positions(vmapped_grid or (1,)) >= LEAST_POSITIONS
    return needed or pays or (bounded == "auto" and chooses)


def make_optimizer(config: ConfigDict, settings: Settings, per_epoch: int) -> optax.GradientTransformation:
    """Adam with the config's schedule, weight decay and clipping."""
    optimizer = config.optimizer
    warmup_steps = to_steps("optimizer.warmup", optimizer.warmup_steps, optimizer.warmup_epochs, per_epoch)
    rate = learning_rate(optimizer.schedule, optimizer.learning_rate, settings.total_steps, warmup_steps)
    return adam(rate, optimizer.b1, optimizer.b2, optimizer.eps, optimizer.weight_decay, optimizer.clip_norm)
