"""The score terms of attention, for `terms` of `PositionalSelfAttention`.

A term returns `Scores`, which are arguments of `relative_attention`. Its `needs` are the projections that it uses.

  Content          q_t . k_s
  RotaryContent    (R_t q_t) . (R_s k_s)
  RelativeContent  (x_t W^q_{s-t}) . (x_s W^k_{s-t})        see `nn.relative_content`
  Positional       q_t . E_{s-t}
  ContentBias      u . k_s
  PositionalBias   v . E_{s-t}
  RelativeBias     beta_{s-t}
  KeyPositional    k_s . F_{t-s}

Content, Positional, ContentBias and PositionalBias are formula 1 of Alfons 2022 (after Transformer-XL). RelativeBias
and Positional with a `KernelEncoding` are the fixed and the dynamic convolution of Chang 2021; both together with
Content are composite attention. RelativeContent and KeyPositional compute a score for every pair.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from posattn_jax.axes import Key, Query
from posattn_jax.nn.checks import check_parts
from posattn_jax.nn.composite import Composite
from posattn_jax.nn.parts import Encoding, Part, SinusoidalFactors, Term, Terms
from posattn_jax.nn.scores import Scores
from posattn_jax.nn.tokens import Tokens
from posattn_jax.ops.encodings import rotate
from posattn_jax.ops.initial import XAVIER
from posattn_jax.ops.kernels import Outside, check_kernel, key_scores, over_offsets


def by_name(terms: Terms) -> dict[str, Term]:
    """The terms of a layer by the names of their parameters: terms_0, ...; of a mapping, "terms_" and their names."""
    named = terms if isinstance(terms, Mapping) else dict(enumerate(terms))
    return {f"terms_{name}": term for name, term in named.items()}


def renamed(tree: Any, like: Any) -> Any:
    """A tree of parameters whose terms have names, where those of another tree have numbers, or the other way round.

    The result has the names of the other tree. Numbers are in the order of the names, as an earlier version numbered
    the terms of a config. All else is left as it is: terms with other names are other terms.
    """
    if not isinstance(tree, Mapping) or not isinstance(like, Mapping):
        return tree
    (own, is_numbered), (others, are_numbered) = _terms(tree), _terms(like)
    names = dict(zip(own, others, strict=True)) if len(own) == len(others) and is_numbered != are_numbered else {}
    return {names.get(name, name): renamed(each, like.get(names.get(name, name))) for name, each in tree.items()}


def _terms(params: Mapping[str, Any]) -> tuple[list[str], bool]:
    """The names of a layer's terms that have parameters, in order, and whether these are numbers."""
    names = [name.removeprefix("terms_") for name in params if name.startswith("terms_")]
    is_numbered = all(map(str.isdigit, names))
    return [f"terms_{name}" for name in (sorted(names, key=int) if is_numbered else sorted(names))], is_numbered


class Content(nn.Module):
    """q_t . k_s.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import Content, PositionalSelfAttention
      >>> layer = PositionalSelfAttention(num_heads=2, terms=(Content(),))
      >>> outputs, variables = layer.init_with_output(jax.random.key(0), jnp.ones((1, 3 * 4, 8)), (3, 4))
      >>> outputs.shape
      (1, 12, 8)
    """

    needs: ClassVar[tuple[Part, ...]] = ("query", "key")

    def __call__(self, query: Query | None, key: Key | None, tokens: Tokens) -> Scores:
        return Scores(key=key)


class RotaryContent(nn.Module, kw_only=True):
    """(R_t q_t) . (R_s k_s), where R rotates them by their positions (RoPE, Su 2021): see `ops.encodings.rotate`.

    It replaces `Content`. `Positional` and `ContentBias` cannot be added, because they would use rotated queries or
    keys; biases of offsets can. On a grid each dimension rotates its share of the features. Class tokens have no
    position and are not rotated.

    Attributes:
      base: the base of the frequencies.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import PositionalSelfAttention, RotaryContent
      >>> layer = PositionalSelfAttention(num_heads=2, terms=(RotaryContent(base=100.0),))
      >>> outputs, variables = layer.init_with_output(jax.random.key(0), jnp.ones((1, 3 * 4, 8)), (3, 4))
      >>> outputs.shape
      (1, 12, 8)
    """

    needs: ClassVar[tuple[Part, ...]] = ("query", "key")

    base: float = 10000.0

    def __call__(self, query: Query, key: Key, tokens: Tokens) -> Scores:
        if tokens.positions is not None:
            raise ValueError("positions: expected None with RotaryContent, which supports only grids, not points")
        tokens.check_one_grid(self)
        place = tokens.grid_shape, self.base, tokens.step, tokens.num_class_tokens
        return Scores(query=rotate(query, *place), key=rotate(key, *place))


class Positional(Composite):
    """q_t . E_{s-t}, where the encoding gives E. If the encoding gives factors of E, the term passes them on.

    Attributes:
      encoding: a module that returns E [*R, h, d], such as `SirenEncoding()`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import Content, LearnedEncoding, Positional, PositionalSelfAttention
      >>> layer = PositionalSelfAttention(num_heads=2, terms=(Content(), Positional(LearnedEncoding())))
      >>> inputs = jnp.ones((1, 3 * 4, 8))
      >>> variables = layer.init(jax.random.key(0), inputs, (3, 4))
      >>> outputs, intermediates = layer.apply(variables, inputs, (3, 4), return_intermediates=True)
      >>> intermediates["relative_encoding"].shape
      (5, 7, 2, 4)
    """

    needs: ClassVar[tuple[Part, ...]] = ("query",)

    encoding: Encoding

    def __post_init__(self):
        check_parts(self, "encoding")
        super().__post_init__()

    def __call__(self, query: Query | None, key: Key | None, tokens: Tokens) -> Scores:
        relative_encoding = self.encoding(tokens)
        factors = self.encoding.factors(tokens) if isinstance(self.encoding, SinusoidalFactors) else None
        return Scores(relative_encoding=relative_encoding, factors=factors)


class ContentBias(nn.Module, kw_only=True):
    """u . k_s with a trained u [h d]. Needs `Content`.

    Attributes:
      bias_init: the initialiser of u; default: the paper's Xavier-uniform over (h, d).
      param_dtype: the dtype of u.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import Content, ContentBias, PositionalSelfAttention
      >>> layer = PositionalSelfAttention(num_heads=2, terms=(Content(), ContentBias()))
      >>> outputs, variables = layer.init_with_output(jax.random.key(0), jnp.ones((1, 3 * 4, 8)), (3, 4))
      >>> jax.tree.map(jnp.shape, variables["params"]["terms_1"])
      {'u': (2, 4)}
    """

    needs: ClassVar[tuple[Part, ...]] = ("key",)

    bias_init: Initializer = XAVIER
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, query: Query | None, key: Key | None, tokens: Tokens) -> Scores:
        return Scores(
            content_bias=self.param("u", self.bias_init, (tokens.num_heads, tokens.head_dim), self.param_dtype)
        )


class PositionalBias(nn.Module, kw_only=True):
    """v . E_{s-t} with a trained v [h d] and the E of `Positional`, which it needs.

    Attributes:
      bias_init: the initialiser of v; default: the paper's Xavier-uniform over (h, d).
      param_dtype: the dtype of v.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import Content, LearnedEncoding, Positional, PositionalBias, PositionalSelfAttention
      >>> terms = (Content(), Positional(LearnedEncoding()), PositionalBias())
      >>> layer = PositionalSelfAttention(num_heads=2, terms=terms)
      >>> outputs, variables = layer.init_with_output(jax.random.key(0), jnp.ones((1, 3 * 4, 8)), (3, 4))
      >>> jax.tree.map(jnp.shape, variables["params"]["terms_2"])
      {'v': (2, 4)}
    """

    needs: ClassVar[tuple[Part, ...]] = ()

    bias_init: Initializer = XAVIER
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, query: Query | None, key: Key | None, tokens: Tokens) -> Scores:
        return Scores(
            position_bias=self.param("v", self.bias_init, (tokens.num_heads, tokens.head_dim), self.param_dtype)
        )


class RelativeBias(nn.Module):
    """beta_{s-t}, one trained number per offset and head, not scaled: a fixed convolution (Chang 2021, equation 4).

    In T5's bias far offsets share one number: see `BucketedBias`.

    Attributes:
      kernel_shape: K, an odd number per dimension: the offsets with a number of their own.
      outside: what offsets beyond the kernel get: the number of its edge, "clip", or 0, "drop".
      bias_init: the initialiser of beta [*K h].
      param_dtype: the dtype of beta.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import Content, PositionalSelfAttention, RelativeBias
      >>> layer = PositionalSelfAttention(num_heads=2, terms=(Content(), RelativeBias((3, 3))))
      >>> inputs = jnp.ones((1, 3 * 4, 8))
      >>> variables = layer.init(jax.random.key(0), inputs, (3, 4))
      >>> outputs, intermediates = layer.apply(variables, inputs, (3, 4), return_intermediates=True)
      >>> intermediates["relative_bias"].shape, jax.tree.map(jnp.shape, variables["params"]["terms_1"])
      ((5, 7, 2), {'beta': (3, 3, 2)})
    """

    needs: ClassVar[tuple[Part, ...]] = ()

    kernel_shape: tuple[int, ...]
    outside: Outside = "clip"
    bias_init: Initializer = nn.initializers.zeros
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, query: Query | None, key: Key | None, tokens: Tokens) -> Scores:
        tokens.check_one_grid(self)
        kernel_shape = check_kernel(self.kernel_shape, tokens.grid_shape)
        beta = self.param("beta", self.bias_init, (*kernel_shape, tokens.num_heads), self.param_dtype)
        return Scores(relative_bias=over_offsets(beta, tokens.table_shape, self.outside))


class KeyPositional(Composite):
    """k_s . F_{t-s}, where the encoding gives F: keys score the offset to the query (Chang 2021, key-based).

    Attributes:
      encoding: a module that returns F [*R, h, d], such as `KernelEncoding((17,))`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import Content, KernelEncoding, KeyPositional, PositionalSelfAttention
      >>> layer = PositionalSelfAttention(num_heads=2, terms=(Content(), KeyPositional(KernelEncoding((3,)))))
      >>> outputs, variables = layer.init_with_output(jax.random.key(0), jnp.ones((1, 5, 8)), (5,))
      >>> jax.tree.map(jnp.shape, variables["params"]["terms_1"])
      {'encoding': {'table': (3, 1, 4)}}
    """

    needs: ClassVar[tuple[Part, ...]] = ("key",)

    encoding: Encoding

    def __call__(self, query: Query | None, key: Key, tokens: Tokens) -> Scores:
        tokens.check_whole(self)
        cls = tokens.num_class_tokens
        encoding = self.encoding(dataclasses.replace(tokens, table_shape=tokens.grid_shape))
        scores = key_scores(key[:, cls:], encoding.astype(key.dtype), tokens.grid_shape)
        return Scores(pair_scores=jnp.pad(scores, [(0, 0), (0, 0), (cls, 0), (cls, 0)]))
