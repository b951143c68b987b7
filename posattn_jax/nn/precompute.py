"""Tables that replace position-only parts at inference (Schmidt 2023, section 4; for attention our extension)."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from posattn_jax.axes import Array, Features, Float
from posattn_jax.nn.attention import PositionalSelfAttention
from posattn_jax.nn.encodings import LearnedEncoding, SinusoidalEncoding
from posattn_jax.nn.energies import DotProducts, OffsetTable, PairTable
from posattn_jax.nn.mixing import TokenMixing
from posattn_jax.nn.siren import SirenEncoding
from posattn_jax.nn.terms import Positional, by_name
from posattn_jax.ops.precision import einsum, plus


def own_params(params: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The parameters of a part; ValueError if they are another part's, with which it is one and the same module."""
    if name not in params:
        raise ValueError(f"{name} has no parameters of its own: expected a module that no other part is, by .clone()")
    return params[name]


def precompute(
    mixing: TokenMixing, params: Mapping[str, Any], query_features: Features, key_features: Features | None = None
) -> tuple[TokenMixing, dict[str, Any]]:
    """The same mixer with its position-only energies as a table: [h t 2K+1] for rPosNet, [h t s] for aPosNet.

    A pure function: `params` stays as it is. Other mixers are returned unchanged.

    Args:
      mixing: a mixer in one dimension.
      params: the parameters of the mixer.
      query_features: [1 t c], the features of every position that a query may have.
      key_features: [1 s c], those of the keys' positions; None: the queries'.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import DotProducts, SinusoidalPositions, TokenMixing, between, precompute
      >>> rposnet = TokenMixing(num_heads=2, energies=DotProducts("position", ("relative",), context=3))
      >>> words = jax.random.normal(jax.random.key(1), (1, 5, 8))
      >>> outputs, variables = rposnet.init_with_output(jax.random.key(0), words, (5,))
      >>> places = SinusoidalPositions().apply({}, between(5, 5).query, 8)
      >>> fast, params = precompute(rposnet, variables["params"], places)
      >>> params["energies"]["table"].shape
      (2, 5, 7)
      >>> bool(jnp.allclose(fast.apply({"params": params}, words, (5,)), outputs, atol=1e-5))
      True
    """
    energies: Any = mixing.energies
    if not isinstance(energies, DotProducts) or energies.knows_content:
        return mixing, dict(params)
    own = own_params(params, "energies")
    table: Any = 0.0
    query = _project(query_features, own["query"])
    scale = 1 / jnp.sqrt(query.shape[-1])
    if energies.keys == ("relative",):
        table = jnp.einsum("thd,rhd->htr", query, own["relative"]) * scale
        tables: Any = OffsetTable(energies.context, "clip", query_features.shape[1:2], param_dtype=energies.param_dtype)
    elif energies.keys == ("position",):
        key = _project(query_features if key_features is None else key_features, own["key"])
        table = jnp.einsum("thd,shd->hts", query, key) * scale
        shapes = (len(query),), (len(key),)
        tables = PairTable(*shapes, normalize=True, param_dtype=energies.param_dtype)
    else:
        raise ValueError(f"keys={energies.keys}: expected positions of one kind, to be precomputed")
    return mixing.clone(energies=tables), {**params, "energies": {"table": table.astype(energies.param_dtype)}}


def _project(features: Features, linear: Mapping[str, Array]) -> Array:
    return plus(einsum("tc,chd->thd", features[0], linear["kernel"]), linear["bias"])


def precompute_encoding(
    attention: PositionalSelfAttention, params: Mapping[str, Any], encoding: Float[Array, "..."] | None
) -> tuple[PositionalSelfAttention, dict[str, Any]]:
    """The same attention on one grid, with a table of the E that its SIREN or its sinusoids compute there.

    A pure function: `params` stays as it is. Attention without such an E is returned unchanged.

    Args:
      attention: the layer.
      params: the parameters of the layer.
      encoding: E [*R, h, d] of the whole grid, as the layer computes it without a span or with a `span_bound` that
        covers the grid. For scanned layers, their E stacked. None: the layer computes no E.
    """
    named, params = by_name(attention.terms), dict(params)
    positional = {name: term.encoding for name, term in named.items() if isinstance(term, Positional)}
    computed = any(isinstance(each, SirenEncoding | SinusoidalEncoding) for each in positional.values())
    if encoding is not None and computed:
        for name in positional:
            named[name] = Positional(LearnedEncoding(param_dtype=encoding.dtype))
            params[name] = {"encoding": {"table": encoding}}
            encoding = jnp.zeros_like(encoding)  # of several tables, the first has the sum
    terms = tuple(named.values())
    if isinstance(attention.terms, Mapping):
        terms = dict(zip(attention.terms, terms, strict=True))
    return attention.clone(terms=terms), params
