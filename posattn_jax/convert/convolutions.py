"""The convolutions of Chang 2021 in a BERT, by the names of the authors' code, which is based on `transformers`."""

import functools
from typing import Any

import numpy as np

from posattn_jax.convert.blocks import fused
from posattn_jax.convert.files import Weights
from posattn_jax.convert.tensors import Entry, constant, linear, one, same
from posattn_jax.nn.encodings import KernelEncoding
from posattn_jax.nn.parts import PARTS, Part
from posattn_jax.nn.projections import ConvolutionalProjections
from posattn_jax.nn.span_convolution import SpanConvolution
from posattn_jax.nn.terms import Content, KeyPositional, Positional, RelativeBias, by_name
from posattn_jax.nn.values import DepthwiseConvolution, PlusDepthwise
from posattn_jax.ops.initial import NORMAL
from posattn_jax.system.errors import InputError

KERNEL = "attention_kernel"  # in config.json: the parts of scores, and the half-width of kernels
KERNEL_PARTS = ("qk", "convfixed", "convq", "convk", "convolution")
SEPARABLE = {"convolution", "depth", "mixed", "no", "act"}  # for half of the heads, depthwise and then pointwise
CONVBERT_HALF = 4
KERNELS = {RelativeBias: "convfixed", Positional: "convq", KeyPositional: "convk"}


def of_config(config: dict[str, Any], where: Any, width: int) -> dict[str, Any]:
    """The fields of an attention layer that config.json asks for. Raises InputError for what cannot be read."""
    if config.get("remove_qk", False):
        raise InputError(f"{where}: remove_qk=True: expected False")
    kernel, num_heads = config.get(KERNEL, "dot_product"), config.get("num_attention_heads", 12)
    if kernel == "convbert":
        rate = config.get("attention_probs_dropout_prob", 0.1)
        convolution = SpanConvolution((2 * CONVBERT_HALF + 1,), "key", rate, kernel_init=NORMAL)
        return {"num_heads": num_heads // 2, "head_dim": width // num_heads, "extra_heads": convolution}
    projections = _projections(config, where)
    fields: dict[str, Any] = {} if projections is None else {"projections": projections}
    if kernel == "dot_product":
        return fields
    asked, _, half = kernel.partition(" ")
    parts = set(asked.split("_"))
    if not parts <= set(KERNEL_PARTS) or not ("qk" in parts or parts >= {"convq", "convk"}) or not half.isdecimal():
        known = ", ".join(KERNEL_PARTS[1:])
        raise InputError(f'{where}: {KERNEL}="{kernel}": expected "qk" or convq and convk, with {known}, and a number')
    size = (2 * int(half) + 1,)
    terms: dict[str, Any] = {
        "qk": Content,
        "convfixed": lambda: RelativeBias(size),
        "convq": lambda: Positional(KernelEncoding(size)),
        "convk": lambda: KeyPositional(KernelEncoding(size)),
    }
    values = PlusDepthwise(DepthwiseConvolution(size)) if "convolution" in parts else None
    return fields | {"terms": tuple(make() for name, make in terms.items() if name in parts), "values": values}


def _projections(config: dict[str, Any], where: Any) -> ConvolutionalProjections | None:
    """The convolutional projections of queries and keys, of values, or of all; None if all are linear."""
    halves: dict[str, int] = {}
    for name, linear_names in (("qk", ("linear",)), ("value_forward", ("feedforward", "linear"))):
        given = config.get(name, linear_names[0])
        if given in linear_names:
            continue
        kind, half, *_ = *given.split(), ""
        if set(kind.split("_")) != SEPARABLE or not half.isdecimal():
            expected = f'{linear_names[0]!r} or "convolution_depth_mixed_no_act" and a number'
            raise InputError(f"{where}: {name}={given!r}: expected {expected}")
        halves[name] = int(half)
    if not halves:
        return None
    if len(set(halves.values())) > 1:
        raise InputError(f"{where}: {' and '.join(halves)} have kernels of two sizes: expected one")
    convolved: tuple[Part, ...] = tuple(
        part for part in PARTS if ("value_forward" if part == "value" else "qk") in halves
    )
    return ConvolutionalProjections((2 * halves.popitem()[1] + 1,), convolved, kernel_init=NORMAL)


def sizes(weights: Weights, layer: str) -> dict[str, str]:
    """The entries of config.json that have half-widths of kernels, with those of the tensors of a layer."""
    tables = {KERNEL: ("convfixed_param", "convq_param", "convk_param", "convolution.weight")}
    tables |= {"qk": ("query_conv.weight",), "value_forward": ("value_conv.weight",)}
    found = {}
    for name, tensors in tables.items():
        kind, *numbers = str(weights.config.get(name, "")).split() or [""]
        own = [weights.tensors[f"{layer}.{each}"] for each in tensors if f"{layer}.{each}" in weights.tensors]
        if numbers and own:  # the taps are on the last axis
            found[name] = " ".join([kind, str(own[0].shape[-1] // 2), *numbers[1:]])
    return found


def config_of(attention: Any) -> dict[str, Any]:
    """The entries of config.json for the layer that is nearest to this one."""
    if attention.extra_heads is not None:
        return {KERNEL: "convbert", "num_attention_heads": 2 * attention.num_heads}
    found: dict[str, Any] = {"num_attention_heads": attention.num_heads}
    terms = [*by_name(attention.terms).values()]
    parts = ["qk" if isinstance(terms[0], Content) else ""]
    parts += [KERNELS[type(term)] for term in terms if type(term) in KERNELS]
    made = [getattr(term, "encoding", term) for term in terms if type(term) in KERNELS]
    if isinstance(attention.values, PlusDepthwise):
        parts.append("convolution")
        made.append(attention.values.convolution)
    if made:
        found[KERNEL] = f"{'_'.join(filter(None, parts))} {_half(made[0])}"
    if isinstance(attention.projections, ConvolutionalProjections):
        kind = f"convolution_depth_mixed_no_act {_half(attention.projections)} 1"
        names = {"qk": "query", "value_forward": "value"}
        found |= {name: kind for name, part in names.items() if part in attention.projections.convolved}
    return found


def _half(part: Any) -> int:
    return getattr(part, "kernel_shape", (1,))[0] // 2


def is_linear(attention: Any) -> bool:
    """Whether queries, keys and values of all heads are linear maps."""
    return attention.extra_heads is None and not isinstance(attention.projections, ConvolutionalProjections)


def entries(attention: Any, ours: str, theirs: str, max_length: int) -> list[Entry]:
    """The entries of parameters that a plain BERT does not have. Their tables are indexed by key minus query, too."""
    found = []
    if attention.extra_heads is not None:
        found += _of_convbert(attention.num_heads, ours, theirs)
    elif isinstance(attention.projections, ConvolutionalProjections):
        found += _of_projections(attention.projections, attention.num_heads, f"{ours}/projections", theirs)
    terms = by_name(attention.terms)
    for name, term in terms.items():
        path = f"{ours}/{name}"
        if isinstance(term, RelativeBias):
            beta = f"{theirs}.convfixed_param"  # [1 h 1 k]
            found.append(one(f"{path}/beta", beta, lambda t: t[0, :, 0].T, lambda beta: beta.T[None, :, None]))
        elif isinstance(term, Positional | KeyPositional):
            table = f"{theirs}.{'convq' if isinstance(term, Positional) else 'convk'}_param"  # [d k]
            found.append(one(f"{path}/encoding/table", table, lambda t: t.T[:, None], lambda table: table[:, 0].T))
    halves = {_half(getattr(term, "encoding", term)) for term in terms.values() if type(term) in KERNELS}
    if halves:
        offsets = np.subtract.outer(np.arange(max_length), np.arange(max_length)).T
        rows = np.clip(offsets, -max(halves), max(halves)) + max(halves)
        found.append(constant(f"{theirs}.relative_positions_mat", rows[None, None]))
    if isinstance(attention.values, PlusDepthwise):
        found.append(_depthwise(f"{ours}/values/convolution/convolution", theirs, attention.num_heads))
    return found


def _of_projections(projections: ConvolutionalProjections, num_heads: int, ours: str, theirs: str) -> list[Entry]:
    """The entries of convolutional projections, which are for the first half of the heads."""
    found = []
    for part in projections.convolved:
        found += _convolution(f"{ours}/{part}_depthwise", f"{theirs}.{part}_conv")
        for name, heads in (("pointwise", num_heads // 2), ("linear", num_heads - num_heads // 2)):
            found += fused(f"{ours}/{part}_{name}", (f"{theirs}.{part}_{name}",), heads, num_parts=1)
    plain = tuple(f"{theirs}.{part}" for part in PARTS if part not in projections.convolved)
    return [*found, *(fused(f"{ours}/linear", plain, num_heads, num_parts=len(plain)) if plain else [])]


def _of_convbert(num_heads: int, ours: str, theirs: str) -> list[Entry]:
    """The entries of ConvBERT: `num_heads` heads attend, and as many convolve. The latter have the last values."""
    convolving, names = f"{ours}/extra_heads", ("query", "key", "value")

    def pack(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> list[np.ndarray]:
        here, there = np.split(value, 2)
        joined = np.concatenate([query, key, here])  # [3 h d, c], or [3 h d]
        return [joined.T.reshape(*value.shape[1:], 3, num_heads, -1), there.T]

    def unpack(joined: np.ndarray, there: np.ndarray) -> list[np.ndarray]:
        query, key, here = np.split(joined.reshape(*there.shape[:-1], -1).T, 3)
        return [query, key, np.concatenate([here, there.T])]

    found = [
        Entry(
            (f"{ours}/projections/{name}", f"{convolving}/value/{name}"),
            tuple(f"{theirs}.{each}.{tensor}" for each in names),
            pack,
            unpack,
        )
        for name, tensor in (("kernel", "weight"), ("bias", "bias"))
    ]
    found += _convolution(f"{convolving}/depthwise", f"{theirs}.convbert_key_depthwise")
    found += linear(f"{convolving}/pointwise", f"{theirs}.convbert_key_pointwise")
    return [*found, *linear(f"{convolving}/kernel", f"{theirs}.lightweight_kernel")]


def _convolution(ours: str, theirs: str) -> list[Entry]:
    """The entries of a convolution, whose weights are [c 1 k] there."""
    turned = functools.partial(np.transpose, axes=(2, 1, 0))
    own = f"{ours}/convolution"
    return [one(f"{own}/kernel", f"{theirs}.weight", turned, turned), same(f"{own}/bias", f"{theirs}.bias")]


def _depthwise(ours: str, theirs: str, num_heads: int) -> Entry:
    """The entry of a convolution [c 1 k] whose result is multiplied by a number per head there."""

    def pack(weight: np.ndarray, bias: np.ndarray, scale: np.ndarray) -> list[np.ndarray]:
        by_feature = np.repeat(scale.reshape(num_heads), len(bias) // num_heads)
        return [weight.transpose(2, 1, 0) * by_feature, bias * by_feature]

    def unpack(kernel: np.ndarray, bias: np.ndarray) -> list[np.ndarray]:
        return [kernel.transpose(2, 1, 0), bias, np.ones((1, num_heads, 1, 1), np.float32)]

    names = tuple(f"{theirs}.{name}" for name in ("convolution.weight", "convolution.bias", "convolution_scalar"))
    return Entry((f"{ours}/kernel", f"{ours}/bias"), names, pack, unpack)
