"""Scores of queries and keys that are projected with a matrix per displacement (Fan 2025, later code)."""

import math
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from posattn_jax.axes import Features, Key, Query
from posattn_jax.nn.checks import check_sizes
from posattn_jax.nn.displacements import OverDisplacements, kaiming_table, over_reach
from posattn_jax.nn.parts import Part
from posattn_jax.nn.scores import Scores
from posattn_jax.nn.sharding import named
from posattn_jax.nn.tokens import Tokens
from posattn_jax.ops.initial import uniform
from posattn_jax.ops.pair_scores import pair_scores
from posattn_jax.ops.scores import product_sum


class RelativeContent(OverDisplacements):
    """(x_t W^q_{s-t}) . (x_s W^k_{s-t}), instead of `Content`: see `ops.pair_scores`.

    With a rank it is (x_t D^q U^q_{s-t}) . (x_s D^k U^k_{s-t}), to be used together with `Content`. With
    `scale=0.5 / sqrt(d)` scores are then the mean of both, as in the authors' code (LoR-Translution).

    Attributes:
      half_span: see `OverDisplacements`.
      relative_query, relative_key: whether each side has matrices. A side without them is q_t or k_s as usual, or with
        a rank x_t D^q or x_s D^k.
      rank: k, where U is [*R h k, h, k] and D is [c, h k]; None: matrices of full rank.
      kernel_init: the initialiser of the tables [*R c h d] and of the three matrices for class tokens.
      param_dtype: the dtype of all of them.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import PositionalSelfAttention, RelativeContent
      >>> layer = PositionalSelfAttention(num_heads=2, terms=(RelativeContent(half_span=(1,)),))
      >>> outputs, variables = layer.init_with_output(jax.random.key(0), jnp.ones((1, 5, 8)), (5,))
      >>> jax.tree.map(jnp.shape, variables["params"]["terms_0"])
      {'key_matrices': (3, 8, 2, 4), 'query_matrices': (3, 8, 2, 4)}
    """

    relative_query: bool = True
    relative_key: bool = True
    rank: int | None = None
    kernel_init: Initializer = kaiming_table
    param_dtype: DTypeLike = jnp.float32

    def __post_init__(self):
        check_sizes(self, "rank")
        super().__post_init__()

    @property
    def needs(self) -> tuple[Part, ...]:
        """The sides without matrices of their own."""
        return () if self.rank is not None else tuple(part for part, relative in self._sides() if not relative)

    @property
    def replaces(self) -> Mapping[str, Part]:
        """See `nn.grafts`."""
        sides = () if self.rank is not None else ("query", "key")
        return {f"{part}_{name}": part for part in sides for name in ("matrices", "class_matrices")}

    def _sides(self) -> tuple[tuple[Part, bool], ...]:
        return ("query", self.relative_query), ("key", self.relative_key)

    @nn.compact
    def __call__(self, query: Query | None, key: Key | None, tokens: Tokens) -> Scores:
        relative = [part for part, relative in self._sides() if relative]
        if not relative:
            raise ValueError("relative_query and relative_key are both False: this is Content()")
        width, heads = tokens.inputs.shape[-1], tokens.num_heads
        shape, inputs = (width, heads, tokens.head_dim), {"query": tokens.inputs, "key": tokens.inputs}
        fields: dict[str, Any] = {"query": query, "key": key}
        if self.rank is not None:
            shape = (heads * self.rank, heads, self.rank)
            inputs = {part: self._reduced(part, tokens, heads * self.rank) for part in fields}
            fields = {part: x.reshape(*x.shape[:2], heads, self.rank) for part, x in inputs.items()}
        fields |= dict.fromkeys(relative)  # not the projections that another term needs
        names = [f"{part}_matrices" for part in relative]
        tables = {name: self._table(name, self.kernel_init, tokens, shape) for name in names}
        for part in relative:
            matrices = self._class_matrices(f"{part}_class_matrices", self.kernel_init, tokens, shape)
            fields[f"{part}_cls"] = matrices
        fields |= {"grid_shape": tokens.grid_shape, "key_inputs": inputs["key"]}
        scores = over_reach(lambda tables: pair_scores(inputs["query"], **tables, **fields), tables, tokens)
        return Scores(pair_scores=scores, limit=self.limit(tokens))

    def _reduced(self, part: str, tokens: Tokens, features: int) -> Features:
        """x D."""
        width = tokens.inputs.shape[-1]
        init = named(uniform(1 / math.sqrt(width)), "width", None)
        down = self.param(f"{part}_down", init, (width, features), self.param_dtype).astype(tokens.inputs.dtype)
        return product_sum("bsc,cj->bsj", tokens.inputs, down).astype(tokens.inputs.dtype)
