"""From a config's fields to the objects of a run. With `main` the only place that reads a config."""

import pathlib
from collections.abc import Callable
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from posattn_jax.data import image_sets
from posattn_jax.data.batches import Source
from posattn_jax.data.images import GridImages, ImageSet, split
from posattn_jax.data.moving_mnist import Scene
from posattn_jax.data.offsets import Offsets
from posattn_jax.errors import InputError
from posattn_jax.models.classifier import Classifier
from posattn_jax.nn.attention import PositionalSelfAttention
from posattn_jax.nn.blocks import EncoderBlock
from posattn_jax.nn.encodings import LearnedEncoding, SinusoidalEncoding
from posattn_jax.nn.siren import Siren, SirenEncoding
from posattn_jax.nn.span import GaussianSpan
from posattn_jax.nn.terms import Content, ContentBias, Positional, PositionalBias
from posattn_jax.ops import grid
from posattn_jax.tasks.classification import Classification
from posattn_jax.tasks.reconstruction import Reconstruction
from posattn_jax.train.loop import Settings, steps_per_epoch
from posattn_jax.train.optimizer import adam
from posattn_jax.train.schedule import learning_rate, to_steps
from posattn_jax.train.step import Task

TERMS = ("content", "positional", "content_bias", "positional_bias")


def load_images(config: ConfigDict, subset: Literal["train", "test"]) -> ImageSet | None:
    """The images of "train" or "test", as the source divides them; None where it has no such part."""
    data = config.data
    scene = Scene(data.canvas, data.shift, data.seed, data.frames)
    return image_sets.load(data.name, pathlib.Path(data.dir), subset, data.download, scene)


def load_sources(config: ConfigDict, test: bool = False) -> dict[str, Any]:
    """What a run trains on and is judged by: "train", "validation" and, if asked for and there, "test"."""
    seed: Any = config.seed
    if seed < 0:
        raise InputError(f"seed={seed}: expected 0 or more")
    load, _ = task_parts(config)
    return load(config, test)


def load_grid_images(config: ConfigDict, test: bool) -> dict[str, GridImages]:
    """Images on the config's grid, split by the seed into "train" and "validation"."""
    images = load_images(config, "train")
    assert images is not None, "every set has a train part"
    train, validation = split(images, config.seed)
    if config.data.validation_limit:
        validation = validation.select(np.arange(min(config.data.validation_limit, len(validation))))
    parts = {"train": train, "validation": validation, "test": load_images(config, "test") if test else None}
    return {name: on_grid(config, part) for name, part in parts.items() if part is not None}


def on_grid(config: ConfigDict, images: ImageSet) -> GridImages:
    """Images laid out as the config says."""
    return GridImages(images, config.data.layout, config.data.pool)


def load_offsets(config: ConfigDict, test: bool) -> dict[str, Offsets]:
    """Every offset of the config's grid and its row of the baseline's E, whose W and b are drawn from the seed.

    They are all trained on and all judged by: the question is what can be fitted, not what generalises. Nothing is left
    for a test.
    """
    check_sizes(config, "width")
    encoding = SinusoidalEncoding(config.model.encoding.combine)
    try:
        shape, width = grid.check_grid(config.data.grid_shape, "data.grid_shape"), config.model.width
        if grid.num_positions(shape) == 1:
            raise ValueError(f"data.grid_shape={shape}: expected more than one position")
        targets, _ = jax.jit(lambda rng: encoding.init_with_output(rng, 1, width, shape))(jax.random.key(config.seed))
    except ValueError as error:
        raise InputError(str(error)) from error
    coordinates = np.asarray(grid.relative_coordinates(shape)).reshape(-1, len(shape))
    offsets = Offsets(coordinates, np.asarray(targets).reshape(-1, width), shape)
    return {"train": offsets, "validation": offsets}


def check_sizes(config: ConfigDict, *names: str) -> None:
    """InputError where one of these sizes of the model is less than 1."""
    model: Any = config.model
    for name in names:
        if model[name] < 1:
            raise InputError(f"model.{name}={model[name]}: expected at least 1")


def dtype(config: ConfigDict, name: str) -> Any:
    """A dtype of the model; InputError unless it is known."""
    model: Any = config.model
    if model[name] not in ("float32", "bfloat16"):
        raise InputError(f'model.{name}="{model[name]}": expected "float32" or "bfloat16"')
    return jnp.dtype(model[name])


def siren_fields(config: ConfigDict) -> dict[str, Any]:
    """The fields of a SIREN, its width excepted."""
    encoding = config.model.encoding
    return {
        "hidden_features": encoding.hidden_features or None,
        "num_layers": encoding.num_layers,
        "omega": encoding.omega,
        "omega_initial": encoding.omega_initial,
        "bias_init": encoding.bias_init,
        "learn_omega": encoding.learn_omega,
        "param_dtype": dtype(config, "param_dtype"),
    }


def make_encoding(config: ConfigDict) -> nn.Module | None:
    """The relative encoding of one layer."""
    param_dtype, encoding = dtype(config, "param_dtype"), config.model.encoding
    match encoding.kind:
        case "siren":
            return SirenEncoding(**siren_fields(config))
        case "sinusoidal":
            return SinusoidalEncoding(encoding.combine, param_dtype)
        case "learned":
            return LearnedEncoding(param_dtype=param_dtype)
        case "none":
            return None
    raise InputError(f'model.encoding.kind="{encoding.kind}": expected "siren", "sinusoidal", "learned" or "none"')


def make_terms(config: ConfigDict) -> tuple[nn.Module, ...]:
    """The score terms of one layer; without an encoding, those that need none."""
    param_dtype = dtype(config, "param_dtype")
    unknown = set(config.model.terms) - set(TERMS)
    if unknown:
        raise InputError(f"model.terms={tuple(config.model.terms)}: expected some of {TERMS}")
    encoding = make_encoding(config)
    terms = {"content": Content(), "content_bias": ContentBias(param_dtype=param_dtype)}
    if encoding is not None:
        terms |= {"positional": Positional(encoding), "positional_bias": PositionalBias(param_dtype=param_dtype)}
    return tuple(terms[name] for name in config.model.terms if name in terms)


def make_block(config: ConfigDict) -> EncoderBlock:
    """One encoder block, whose parts are its own: parts shared between blocks would share parameters."""
    model: Any = config.model
    dtypes: dict[str, Any] = {name: dtype(config, name) for name in ("dtype", "param_dtype")}
    span = None
    if model.span.enabled:
        span = GaussianSpan(
            threshold=model.span.threshold,
            mode=model.span.mode,
            covariance=model.span.covariance,
            initial_sigma=model.span.initial_sigma,
            per_head=model.span.per_head,
            param_dtype=dtypes["param_dtype"],
        )
    attention = PositionalSelfAttention(
        num_heads=model.num_heads,
        terms=make_terms(config),
        span=span,
        dropout_rate=model.attention_dropout_rate,
        implementation=model.implementation,
        **dtypes,
    )
    return EncoderBlock(attention, model.mlp_dim, model.dropout_rate, model.norm, **dtypes)


def make_model(config: ConfigDict, num_classes: int) -> Classifier:
    """The classifier.

    Raises:
      InputError: sizes that do not fit together.
    """
    model: Any = config.model
    for name in ("dropout_rate", "attention_dropout_rate"):
        if not 0 <= model[name] < 1:
            raise InputError(f"model.{name}={model[name]}: expected at least 0 and less than 1")
    if model.span.enabled and model.span.initial_sigma == 0:
        raise InputError("model.span.initial_sigma=0: expected another value, from which a span can be learned")
    check_sizes(config, "num_blocks", "width", "num_heads", "mlp_dim")
    if model.width % model.num_heads:
        raise InputError(f"model.num_heads={model.num_heads} does not divide model.width={model.width}")
    return Classifier(
        num_classes=num_classes,
        width=model.width,
        blocks=tuple(make_block(config) for _ in range(model.num_blocks)),
        dropout_rate=model.dropout_rate,
        readout=model.readout,
        remat=model.remat,
        scan_layers=model.scan_layers,
        dtype=dtype(config, "dtype"),
        param_dtype=dtype(config, "param_dtype"),
    )


def make_classification(config: ConfigDict, source: GridImages, trained_with: ConfigDict | None) -> Classification:
    """Classification of a source's images."""
    if config.model.span.penalty and not config.model.span.enabled:
        raise InputError(f"model.span.penalty={config.model.span.penalty}: model.span.enabled is False")
    trained_on = on_grid(trained_with or config, source.images).grid_shape
    return Classification(
        make_model(config, source.images.num_classes),
        source.grid_shape,
        source.num_channels,
        reference_shape=None if trained_on == source.grid_shape else trained_on,
        span_penalty=config.model.span.penalty,
    )


def make_reconstruction(config: ConfigDict, source: Offsets, trained_with: ConfigDict | None) -> Reconstruction:
    """A SIREN's fit to a source's encoding; its grid is always the one of training."""
    return Reconstruction(Siren(config.model.width, **siren_fields(config)), source.grid_shape)


def task_parts(config: ConfigDict) -> tuple[Callable[..., dict[str, Any]], Callable[..., Task]]:
    """What a config's task consists of: the function that loads its sources, and the one that makes it."""
    match config.task:
        case "classification":
            return load_grid_images, make_classification
        case "reconstruction":
            return load_offsets, make_reconstruction
    raise InputError(f'task="{config.task}": expected "classification" or "reconstruction"')


def make_task(config: ConfigDict, source: Source, trained_with: ConfigDict | None = None) -> Task:
    """The task of a source's examples; `trained_with` is the config of the model's training where it was another.

    Raises:
      InputError: the model's fields do not fit together, or its encoding does not reach over this grid.
    """
    _, make = task_parts(config)
    task = make(config, source, trained_with)
    try:  # traced without computing anything
        jax.eval_shape(lambda rng: task.describe(task.init(rng)), jax.random.key(0))
    except ValueError as error:
        raise InputError(f"model: {error}") from error
    return task


def make_settings(config: ConfigDict, num_examples: int) -> Settings:
    """How long a run trains, in steps."""
    train: Any = config.train
    for name in ("batch_size", "accumulation_steps"):
        if train[name] < 1:
            raise InputError(f"train.{name}={train[name]}: expected at least 1")
    per_epoch = steps_per_epoch(num_examples, train.batch_size * train.accumulation_steps)
    return Settings(
        seed=config.seed,
        total_steps=to_steps("train.total", train.total_steps, train.total_epochs, per_epoch),
        batch_size=train.batch_size,
        accumulation_steps=train.accumulation_steps,
        eval_batch_size=train.eval_batch_size,
        log_steps=train.log_steps,
        checkpoint_steps=train.checkpoint_steps,
        bounded_spans=bounded_spans(config),
    )


def bounded_spans(config: ConfigDict) -> bool:
    """Whether training compiles its layouts for static bounds of the spans."""
    bounded = config.model.span.bounded
    if bounded not in ("auto", "yes", "no"):
        raise InputError(f'model.span.bounded="{bounded}": expected "auto", "yes" or "no"')
    needed = bounded == "yes" or config.model.implementation in ("patch", "window")
    return config.model.span.enabled and (needed or (bounded == "auto" and jax.default_backend() == "gpu"))


def make_optimizer(config: ConfigDict, settings: Settings, num_examples: int) -> optax.GradientTransformation:
    """Adam with the config's schedule, weight decay and clipping."""
    optimizer = config.optimizer
    per_epoch = steps_per_epoch(num_examples, settings.examples_per_step)
    warmup_steps = to_steps("optimizer.warmup", optimizer.warmup_steps, optimizer.warmup_epochs, per_epoch)
    rate = learning_rate(optimizer.schedule, optimizer.learning_rate, settings.total_steps, warmup_steps)
    return adam(rate, optimizer.b1, optimizer.b2, optimizer.eps, optimizer.weight_decay, optimizer.clip_norm)
