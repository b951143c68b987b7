"""From a config's fields to the objects of a run. With `main` the only place that reads a config."""

import pathlib
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from posattn_jax.data import cifar10, digits, tfds_images
from posattn_jax.data.images import GridImages, ImageSet, split
from posattn_jax.errors import InputError
from posattn_jax.models.classifier import Classifier
from posattn_jax.nn.attention import PositionalSelfAttention
from posattn_jax.nn.blocks import EncoderBlock
from posattn_jax.nn.encodings import LearnedEncoding, SinusoidalEncoding
from posattn_jax.nn.siren import SirenEncoding
from posattn_jax.nn.span import GaussianSpan
from posattn_jax.nn.terms import Content, ContentBias, Positional, PositionalBias
from posattn_jax.tasks.classification import Classification
from posattn_jax.train.loop import Settings, steps_per_epoch
from posattn_jax.train.optimizer import adam
from posattn_jax.train.schedule import learning_rate, to_steps

TERMS = ("content", "positional", "content_bias", "positional_bias")


def load_images(config: ConfigDict, subset: str) -> ImageSet | None:
    """The images of "train" or "test", as the source divides them; None where it has no such part."""
    name, folder = config.data.name, pathlib.Path(config.data.dir)
    if name == "digits":
        return digits.load() if subset == "train" else None
    if name == "cifar10":
        if tfds_images.is_prepared(name, folder):
            return tfds_images.load(name, folder, subset)
        return cifar10.load(folder, subset, config.data.download)
    if name.startswith("tfds/"):
        return tfds_images.load(name.removeprefix("tfds/"), folder, subset)
    raise InputError(f'data.name="{name}": expected "digits", "cifar10" or "tfds/NAME"')


def load_sources(config: ConfigDict) -> dict[str, GridImages]:
    """What a run trains on and is judged by, on its grid: "train" and "validation", split by the seed."""
    seed: Any = config.seed
    if seed < 0:
        raise InputError(f"seed={seed}: expected 0 or more")
    images = load_images(config, "train")
    assert images is not None, "every set has a train part"
    train, validation = split(images, config.seed)
    if config.data.validation_limit:
        validation = validation.select(np.arange(min(config.data.validation_limit, len(validation))))
    return {"train": on_grid(config, train), "validation": on_grid(config, validation)}


def on_grid(config: ConfigDict, images: ImageSet) -> GridImages:
    """Images laid out as the config says."""
    return GridImages(images, config.data.layout, config.data.pool)


def make_encoding(config: ConfigDict) -> nn.Module | None:
    """The relative encoding of one layer."""
    param_dtype = jnp.dtype(config.model.param_dtype)
    encoding = config.model.encoding
    match encoding.kind:
        case "siren":
            return SirenEncoding(
                num_layers=encoding.num_layers,
                omega=encoding.omega,
                omega_initial=encoding.omega_initial,
                bias_init=encoding.bias_init,
                learn_omega=encoding.learn_omega,
                param_dtype=param_dtype,
            )
        case "sinusoidal":
            return SinusoidalEncoding(encoding.combine, param_dtype)
        case "learned":
            return LearnedEncoding(param_dtype=param_dtype)
        case "none":
            return None
    raise InputError(f'model.encoding.kind="{encoding.kind}": expected "siren", "sinusoidal", "learned" or "none"')


def make_terms(config: ConfigDict) -> tuple[nn.Module, ...]:
    """The score terms of one layer; without an encoding, those that need none."""
    param_dtype = jnp.dtype(config.model.param_dtype)
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
    dtypes: dict[str, Any] = {"dtype": jnp.dtype(model.dtype), "param_dtype": jnp.dtype(model.param_dtype)}
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
    for name in ("num_blocks", "width", "num_heads", "mlp_dim"):
        if model[name] < 1:
            raise InputError(f"model.{name}={model[name]}: expected at least 1")
    if model.width % model.num_heads:
        raise InputError(f"model.num_heads={model.num_heads} does not divide model.width={model.width}")
    for name in ("dtype", "param_dtype"):
        if model[name] not in ("float32", "bfloat16"):
            raise InputError(f'model.{name}="{model[name]}": expected "float32" or "bfloat16"')
    return Classifier(
        num_classes=num_classes,
        width=model.width,
        blocks=tuple(make_block(config) for _ in range(model.num_blocks)),
        dropout_rate=model.dropout_rate,
        readout=model.readout,
        remat=model.remat,
        scan_layers=model.scan_layers,
        dtype=jnp.dtype(model.dtype),
        param_dtype=jnp.dtype(model.param_dtype),
    )


def make_task(config: ConfigDict, source: GridImages, trained_on: tuple[int, ...] | None = None) -> Classification:
    """Classification of a source's images; `trained_on` is the grid of the model's training where it was another.

    Raises:
      InputError: the model's fields do not fit together, or its encoding does not reach over this grid.
    """
    if config.model.span.penalty and not config.model.span.enabled:
        raise InputError(f"model.span.penalty={config.model.span.penalty}: model.span.enabled is False")
    task = Classification(
        make_model(config, source.images.num_classes),
        source.grid_shape,
        source.num_channels,
        reference_shape=None if trained_on == source.grid_shape else trained_on,
        span_penalty=config.model.span.penalty,
    )
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
