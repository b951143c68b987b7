"""From a config's `model` to the parts of its layers."""

import functools
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax.nn.initializers import Initializer
from ml_collections import ConfigDict

from posattn_jax.models.bert import NORMAL
from posattn_jax.nn.attention import PositionalSelfAttention
from posattn_jax.nn.displacements import fan_in_table, kaiming_table
from posattn_jax.nn.encodings import AxialEncoding, KernelEncoding, LearnedEncoding, SinusoidalEncoding
from posattn_jax.nn.fixed_terms import LinearBias, RotaryContent
from posattn_jax.nn.projections import PARTS, ConvolutionalProjections, LinearProjections, fan_in, fused_xavier
from posattn_jax.nn.score_network import ScoreNetwork
from posattn_jax.nn.siren import Siren, SirenEncoding
from posattn_jax.nn.span import GaussianSpan, WindowSpan
from posattn_jax.nn.span_convolution import SpanConvolution
from posattn_jax.nn.terms import (
    Content,
    ContentBias,
    KeyPositional,
    Positional,
    PositionalBias,
    RelativeBias,
    RelativeContent,
)
from posattn_jax.nn.translution import GeneralTranslution, LowRankTranslution, PairValues, Translution
from posattn_jax.nn.values import DepthwiseConvolution, PlusDepthwise, PlusRelative
from posattn_jax.system.errors import InputError

TERMS = (
    "content",
    "positional",
    "content_bias",
    "positional_bias",
    "relative_content",
    "relative_query",
    "relative_key",
    "fixed_convolution",
    "dynamic_convolution",
    "key_convolution",
    "rotary_content",
    "linear_bias",
    "score_network",
)


def check_sizes(config: ConfigDict, *names: str) -> None:
    """InputError where one of these sizes of the model is less than 1."""
    model: Any = config.model
    for name in names:
        if model[name] < 1:
            raise InputError(f"model.{name}={model[name]}: expected at least 1")


def choose(config: ConfigDict, name: str, **choices: Any) -> Any:
    """What the model's field `name` chooses; InputError where it is none of the choices."""
    chosen: Any = config.model
    for part in name.split("."):
        chosen = chosen[part]
    if chosen not in choices:
        *others, last = (f'"{choice}"' for choice in choices)
        raise InputError(f'model.{name}="{chosen}": expected {", ".join(others)} or {last}')
    return choices[chosen]


def dtype(config: ConfigDict, name: str) -> Any:
    """A dtype of the model; InputError unless it is known."""
    return choose(config, name, float32=jnp.dtype("float32"), bfloat16=jnp.dtype("bfloat16"))


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
    encoding, param_dtype = config.model.encoding, dtype(config, "param_dtype")
    make = choose(
        config,
        "encoding.kind",
        siren=lambda: SirenEncoding(**siren_fields(config)),
        sinusoidal=lambda: SinusoidalEncoding(encoding.combine, encoding.use_bias, param_dtype),
        learned=lambda: LearnedEncoding(param_dtype=param_dtype),
        axial=lambda: AxialEncoding(param_dtype=param_dtype, combine=encoding.combine),
        none=lambda: None,
    )
    return make()


def make_terms(config: ConfigDict) -> tuple[nn.Module, ...]:
    """The score terms of one layer; without an encoding, those that need none."""
    param_dtype = dtype(config, "param_dtype")
    unknown = set(config.model.terms) - set(TERMS)
    if unknown:
        raise InputError(f"model.terms={tuple(config.model.terms)}: expected some of {TERMS}")
    encoding = make_encoding(config)
    relative = functools.partial(RelativeContent, **table_fields(config))
    kernel: Any = config.model.kernel
    terms = {
        "content": Content(),
        "content_bias": ContentBias(param_dtype=param_dtype),
        "relative_content": relative(),
        "relative_query": relative(relative_key=False),
        "relative_key": relative(relative_query=False),
        "fixed_convolution": RelativeBias(tuple(kernel.shape), kernel.outside, param_dtype=param_dtype),
        "dynamic_convolution": Positional(kernel_encoding(config)),
        "key_convolution": KeyPositional(kernel_encoding(config)),
        "rotary_content": RotaryContent(config.model.rotary_base),
        "linear_bias": LinearBias(),
        "score_network": ScoreNetwork(param_dtype=param_dtype),
    }
    if encoding is not None:
        terms |= {"positional": Positional(encoding), "positional_bias": PositionalBias(param_dtype=param_dtype)}
    return tuple(terms[name] for name in config.model.terms if name in terms)


def kernel_encoding(config: ConfigDict) -> KernelEncoding:
    """Vectors for the offsets of the config's kernel."""
    kernel: Any = config.model.kernel
    return KernelEncoding(
        tuple(kernel.shape), kernel.outside, kernel.share_heads, param_dtype=dtype(config, "param_dtype")
    )


def make_span(config: ConfigDict) -> GaussianSpan | WindowSpan | None:
    """The span of one layer."""
    span = config.model.span
    if not span.enabled:
        return None
    if choose(config, "span.kind", gaussian=False, window=True):
        return WindowSpan(tuple(span.half_span))
    if span.initial_sigma == 0:
        raise InputError("model.span.initial_sigma=0: expected another value, from which a span can be learned")
    return GaussianSpan(
        threshold=span.threshold,
        mode=span.mode,
        covariance=span.covariance,
        initial_sigma=span.initial_sigma,
        per_head=span.per_head,
        param_dtype=dtype(config, "param_dtype"),
    )


def span_penalty(config: ConfigDict) -> float:
    """The price of spans; InputError where there are none."""
    span: Any = config.model.span
    if span.penalty and not span.enabled:
        raise InputError(f"model.span.penalty={span.penalty}: model.span.enabled is False")
    if span.penalty and span.kind == "window":
        raise InputError(f'model.span.penalty={span.penalty}: expected 0 with model.span.kind="window", which is given')
    return span.penalty


def table_fields(config: ConfigDict) -> dict[str, Any]:
    """The fields of what has a table over displacements."""
    return {
        "half_span": tuple(config.model.value.half_span) or None,
        "kernel_init": choose(config, "value.kernel_init", kaiming=kaiming_table, fan_in=fan_in_table),
        "param_dtype": dtype(config, "param_dtype"),
    }


def make_projections(config: ConfigDict) -> LinearProjections | ConvolutionalProjections:
    """The projections of one layer."""
    model: Any = config.model
    fields: dict[str, Any] = {
        "use_bias": model.projection_bias,
        "kernel_init": choose(config, "projection_init", xavier=fused_xavier, fan_in=fan_in, normal=NORMAL),
        "dtype": dtype(config, "dtype"),
        "param_dtype": dtype(config, "param_dtype"),
    }
    convolved = tuple(model.convolved)
    if not convolved:
        return LinearProjections(**fields)
    if set(convolved) - set(PARTS):
        raise InputError(f"model.convolved={convolved}: expected some of {PARTS}")
    return ConvolutionalProjections(tuple(model.kernel.shape), convolved, **fields)


def make_values(config: ConfigDict) -> PairValues | PlusDepthwise | PlusRelative | None:
    """The values of one layer."""
    value: Any = config.model.value
    fields = table_fields(config)
    of_bases = fields | {"kernel_init": None}  # which are no table
    make = choose(
        config,
        "value.kind",
        plain=lambda: None,
        plus_depthwise=lambda: PlusDepthwise(
            DepthwiseConvolution(
                tuple(config.model.kernel.shape), dtype=dtype(config, "dtype"), param_dtype=dtype(config, "param_dtype")
            )
        ),
        plus_relative=lambda: PlusRelative(kernel_encoding(config)),
        translution=lambda: Translution(share_heads=value.share_heads, **fields),
        low_rank=lambda: LowRankTranslution(
            rank=value.rank, down_dim=value.down_dim or None, mix_heads=value.mix_heads, **fields
        ),
        general=lambda: GeneralTranslution(
            num_bases=value.num_bases, basis=Siren(value.num_bases, **siren_fields(config)), **of_bases
        ),
    )
    return make()


def make_beside(config: ConfigDict) -> SpanConvolution | None:
    """The heads of one layer that do not attend."""
    kernel: Any = config.model.kernel
    dtypes: dict[str, Any] = {name: dtype(config, name) for name in ("dtype", "param_dtype")}
    if linear_init(config) is not None:
        dtypes["kernel_init"] = linear_init(config)
    dropout_rate = config.model.attention_dropout_rate if kernel.at == "key" else 0.0
    make = choose(
        config,
        "beside",
        none=lambda: None,
        span_convolution=lambda: SpanConvolution(tuple(kernel.shape), kernel.at, dropout_rate, **dtypes),
    )
    return make()


def linear_init(config: ConfigDict) -> Initializer | None:
    """Of linear maps, queries, keys and values excepted; None: of each its own."""
    return choose(config, "linear_init", own=None, normal=NORMAL)


def make_attention(config: ConfigDict) -> PositionalSelfAttention:
    """The attention of one layer, whose parts are its own: parts shared between layers would share parameters."""
    model: Any = config.model
    init = linear_init(config)
    dtypes: dict[str, Any] = {name: dtype(config, name) for name in ("dtype", "param_dtype")}
    return PositionalSelfAttention(
        num_heads=model.num_heads,
        head_dim=model.head_dim or None,
        terms=make_terms(config),
        span=make_span(config),
        values=make_values(config),
        extra_heads=make_beside(config),
        projections=make_projections(config),
        use_output=model.use_output,
        dropout_rate=model.attention_dropout_rate,
        implementation=model.implementation,
        grid_axis=None if config.mesh.grid == 1 else "grid",
        **(dtypes if init is None else dtypes | {"kernel_init": init}),
    )
