"""The convolutions of Chang 2021 in a BERT, as the authors' code, which is made of `transformers`, names them."""

from typing import Any

import numpy as np

from posattn_jax.convert.tensors import Entry, one
from posattn_jax.nn.attention import PositionalSelfAttention
from posattn_jax.nn.encodings import KernelEncoding
from posattn_jax.nn.terms import Content, KeyPositional, Positional, RelativeBias
from posattn_jax.nn.values import DepthwiseConvolution, PlusDepthwise
from posattn_jax.system.errors import InputError

KERNEL = "attention_kernel"  # in config.json: what scores are made of, and how far kernels reach on each side
PARTS = ("qk", "convfixed", "convq", "convk", "convolution")
# Where it differs from these, there are convolutions of queries, keys or values, which are not read.
LINEAR = (("qk", ("linear",)), ("value_forward", ("feedforward", "linear")), ("remove_qk", (False,)))
BUFFER = r".*\.relative_positions_mat"


def of_config(config: dict[str, Any], where: Any) -> dict[str, Any]:
    """The fields of an attention layer that config.json asks for beside content; InputError for what is not read."""
    for name, known in LINEAR:
        if config.get(name, known[0]) not in known:
            raise InputError(f"{where}: {name}={config[name]!r}: expected {known[0]!r}")
    kernel = config.get(KERNEL, "dot_product")
    if kernel == "dot_product":
        return {}
    asked, _, half = kernel.partition(" ")
    parts = asked.split("_")
    if not set(parts) <= set(PARTS) or "qk" not in parts or not half.isdecimal():
        raise InputError(f'{where}: {KERNEL}="{kernel}": expected "qk", with {", ".join(PARTS[1:])}, and a number')
    size = {"kernel_shape": (2 * int(half) + 1,)}
    terms: dict[str, Any] = {
        "qk": Content,
        "convfixed": lambda: RelativeBias(**size),
        "convq": lambda: Positional(KernelEncoding(**size)),
        "convk": lambda: KeyPositional(KernelEncoding(**size)),
    }
    values = PlusDepthwise(DepthwiseConvolution(**size)) if "convolution" in parts else None
    return {"terms": tuple(make() for name, make in terms.items() if name in parts), "values": values}


def entries(attention: PositionalSelfAttention, ours: str, theirs: str) -> list[Entry]:
    """Of the parameters of a layer's terms and values; tables are of key minus query there, too."""
    found = []
    for number, term in enumerate(attention.terms):
        path = f"{ours}/terms_{number}"
        if isinstance(term, RelativeBias):
            beta = f"{theirs}.convfixed_param"  # [1 h 1 k]
            found.append(one(f"{path}/beta", beta, lambda t: t[0, :, 0].T, lambda beta: beta.T[None, :, None]))
        elif isinstance(term, Positional | KeyPositional):
            table = f"{theirs}.{'convq' if isinstance(term, Positional) else 'convk'}_param"  # [d k]
            found.append(one(f"{path}/encoding/table", table, lambda t: t.T[:, None], lambda table: table[:, 0].T))
    if isinstance(attention.values, PlusDepthwise):
        found.append(_depthwise(f"{ours}/values/convolution/convolution", theirs, attention.num_heads))
    return found


def _depthwise(ours: str, theirs: str, num_heads: int) -> Entry:
    """[c 1 k], and a number a head that what is convolved is multiplied by."""

    def pack(weight: np.ndarray, bias: np.ndarray, scale: np.ndarray) -> list[np.ndarray]:
        by_feature = np.repeat(scale.reshape(num_heads), len(bias) // num_heads)
        return [weight.transpose(2, 1, 0) * by_feature, bias * by_feature]

    def unpack(kernel: np.ndarray, bias: np.ndarray) -> list[np.ndarray]:
        return [kernel.transpose(2, 1, 0), bias, np.ones((1, num_heads, 1, 1), np.float32)]

    names = tuple(f"{theirs}.{name}" for name in ("convolution.weight", "convolution.bias", "convolution_scalar"))
    return Entry((f"{ours}/kernel", f"{ours}/bias"), names, pack, unpack)
