"""Energies of pairs, from which a mixer computes its weights: by content, by position, or both (Schmidt 2023).

A part is called with the queries' inputs y [b t c], the keys' `Memory`, `Places` and (h, d). It returns energies
[b h t s], with batch 1 if all examples share them, and a mask [b t s] of the pairs that they hold for; None: all pairs.
An energy for a softmax that `ops.scores.hides`, such as -inf, hides its pair as a mask would.
"""

import functools
import itertools
import operator
from typing import Any, ClassVar, Literal, get_args

import flax.linen as nn
import jax.numpy as jnp
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from posattn_jax.axes import Array, Bool, Features, Float, Int
from posattn_jax.nn.composite import Composite
from posattn_jax.nn.layers import to_heads
from posattn_jax.nn.places import Memory, Places
from posattn_jax.nn.positions import SinusoidalPositions
from posattn_jax.nn.sharding import named
from posattn_jax.ops import grid, mixing
from posattn_jax.ops.initial import XAVIER
from posattn_jax.ops.scores import product_sum

Energies = tuple[Float[Array, "_ h t s"], Bool[Array, "_ t s"] | None]
Side = Literal["content", "position"]
KeySide = Literal["content", "position", "relative"]
Heads = tuple[int, int]


def per_head(heads: Heads, init: Initializer) -> Initializer:
    """Initialises [n h d] as the matrix [n, h d]."""

    def initialise(key, shape, dtype=jnp.float32, out_sharding=None):
        return init(key, (shape[0], heads[0] * heads[1]), dtype).reshape(shape)

    return initialise


class DotProducts(Composite):
    """(W^q a_t) . (W^k b_s + d_{s-t}) / sqrt(d), where a and b are content or positions, and d relative positions.

      query       keys                     name
      "content"   ("content",)             self-attention (equation 1)
      "content"   ("content", "relative")  Shaw 2018, keys' side only
      "content"   ("relative",)            relative attention: dynamic convolution with global context
      "position"  ("position",)            aPosNet (equation 8)
      "position"  ("relative",)            rPosNet (equation 9)

    Every head has its own vectors d. An offset beyond `context` has the vector of the nearest offset within.

    Attributes:
      query: what a_t is: the query's input ("content") or its position ("position").
      keys: the summands on the keys' side.
      context: K, the largest offset in any dimension with a vector of its own.
      positions: a module (places [b n p], c) -> [b n c], for `Places` without features; None: sinusoids.
      kernel_init: the initialiser of W^q, W^k as matrices [c, h d], and of d as a matrix [(2 K + 1)^p, h d].
      bias_init: the initialiser of the biases of W^q and W^k.
      dtype, param_dtype: the dtypes of the computation, where None follows the inputs, and of the parameters.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import DotProducts, TokenMixing
      >>> rposnet = TokenMixing(num_heads=2, energies=DotProducts("position", ("relative",), context=2))
      >>> words = jax.random.normal(jax.random.key(1), (3, 5, 8))
      >>> variables = rposnet.init(jax.random.key(0), words, (5,))
      >>> outputs, intermediates = rposnet.apply(variables, words, (5,), return_weights=True)
      >>> outputs.shape, intermediates["weights"].shape  # one matrix of weights a head, whatever the words
      ((3, 5, 8), (1, 2, 5, 5))
    """

    normalize: ClassVar[bool] = True

    query: Side = "content"
    keys: tuple[KeySide, ...] = ("content",)
    context: int = 16
    positions: nn.Module | None = None
    kernel_init: Initializer = XAVIER
    bias_init: Initializer = nn.initializers.zeros
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32

    @property
    def knows_content(self) -> bool:
        """Whether the energies depend on tokens."""
        return "content" in (self.query, *self.keys)

    @nn.compact
    def __call__(self, inputs: Features, memory: Memory, places: Places, heads: Heads) -> Energies:
        if self.query not in get_args(Side):
            raise ValueError(f'query="{self.query}": expected "content" or "position"')
        if not self.keys or set(self.keys) - set(get_args(KeySide)):
            raise ValueError(f"keys={self.keys}: expected some of {', '.join(get_args(KeySide))}")
        if self.context < 0:
            raise ValueError(f"context={self.context}: expected 0 or more")
        num_dims, width = places.query.shape[-1], inputs.shape[-1]
        positions = self.positions or SinusoidalPositions()

        def project(name: str):
            dtypes = {"dtype": self.dtype, "param_dtype": self.param_dtype}
            return to_heads(heads, self.kernel_init, self.bias_init, name=name, **dtypes)

        def features(given: Array | None, at: Int[Array, "_ n p"]) -> Features:
            return (positions(at, width) if given is None else given).astype(inputs.dtype)

        of_query = inputs if self.query == "content" else features(places.query_features, places.query)
        query = project("query")(of_query)
        energies: Any = 0.0
        if "content" in self.keys:
            key = memory.keep("key", project("key"))
            energies += product_sum("bthd,bshd->bhts", query, key)
        if "position" in self.keys:
            key = project("key_position" if "content" in self.keys else "key")(
                features(places.key_features, places.key)
            )
            energies += product_sum("bthd,bshd->bhts", query, key)
        if "relative" in self.keys:
            half = (self.context,) * num_dims
            shape = ((2 * self.context + 1) ** num_dims, *heads)
            init = named(per_head(heads, self.kernel_init), "heads", None)
            table = self.param("relative", init, shape, self.param_dtype)
            by_entry = product_sum("bthd,rhd->bhtr", query, table.astype(query.dtype))
            energies += mixing.of_offsets(by_entry, mixing.kernel_entries(places.offsets, half)[0])
        return energies / jnp.sqrt(heads[1]).astype(energies.dtype), None


class OffsetTable(nn.Module):
    """A trained energy per offset of a kernel, for all queries or for each position: A_ts = W_{s-t} or W_{t,s-t}.

    The first is LightConv (equation 14): a softmax over the kernel's entries, without padding, the future and, with
    outside="drop", offsets beyond the kernel. With "clip" such offsets have the energy of the nearest offset within:
    LightConv with global context. The second is rPosNet after `precompute`.

    Attributes:
      context: K, the largest offset in any dimension of the kernel.
      outside: see above.
      query_shape: the grid whose positions have energies of their own; None: one kernel for all.
      kernel_init: the initialiser of the table [h n (2 K + 1)^p], where n is the number of these positions, or 1.
      param_dtype: the dtype of the table.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import Glu, OffsetTable, TokenMixing
      >>> lightconv = TokenMixing(num_heads=2, energies=OffsetTable(context=1), values=Glu())
      >>> words = jnp.ones((1, 5, 8))
      >>> variables = lightconv.init(jax.random.key(0), words, (5,))
      >>> outputs, intermediates = lightconv.apply(variables, words, (5,), return_weights=True)
      >>> print((intermediates["weights"][0, 0] > 0).astype(jnp.int32))
      [[1 1 0 0 0]
       [1 1 1 0 0]
       [0 1 1 1 0]
       [0 0 1 1 1]
       [0 0 0 1 1]]
    """

    normalize: ClassVar[bool] = True
    knows_content: ClassVar[bool] = False

    context: int = 16
    outside: Literal["clip", "drop"] = "drop"
    query_shape: tuple[int, ...] | None = None
    kernel_init: Initializer = XAVIER
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, inputs: Features, memory: Memory, places: Places, heads: Heads) -> Energies:
        if self.outside not in ("clip", "drop"):
            raise ValueError(f'outside="{self.outside}": expected "clip" or "drop"')
        num_dims = places.query.shape[-1]
        rows = 1 if self.query_shape is None else grid.num_positions(self.query_shape)
        shape = heads[0], rows, (2 * self.context + 1) ** num_dims
        table = self.param("table", self.kernel_init, shape, self.param_dtype)
        if self.query_shape is not None:
            table = jnp.swapaxes(table[:, _rows_of(places.query, places.query_shape, self.query_shape)], 0, 1)
        else:
            table = table[None]
        entries, inside = mixing.kernel_entries(places.offsets, (self.context,) * num_dims)
        return mixing.of_offsets(table, entries), inside if self.outside == "drop" else None


class PairTable(nn.Module):
    """A trained weight per pair of positions: A_ts = W_ts. LinearNet (equation 13), or aPosNet after `precompute`.

    Attributes:
      query_shape, key_shape: the grids that the table covers; larger ones are refused.
      normalize: whether A are energies for a softmax (aPosNet) or the weights themselves (LinearNet).
      kernel_init: the initialiser of the table [h N M].
      param_dtype: the dtype of the table.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import PairTable, TokenMixing
      >>> linearnet = TokenMixing(num_heads=2, energies=PairTable((8,), (8,)))
      >>> outputs, variables = linearnet.init_with_output(jax.random.key(0), jnp.ones((1, 5, 8)), (5,))
      >>> variables["params"]["energies"]["table"].shape
      (2, 8, 8)
    """

    knows_content: ClassVar[bool] = False

    query_shape: tuple[int, ...]
    key_shape: tuple[int, ...]
    normalize: bool = False
    kernel_init: Initializer = XAVIER
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, inputs: Features, memory: Memory, places: Places, heads: Heads) -> Energies:
        shape = heads[0], grid.num_positions(self.query_shape), grid.num_positions(self.key_shape)
        table = self.param("table", self.kernel_init, shape, self.param_dtype)
        rows = _rows_of(places.query, places.query_shape, self.query_shape)
        columns = _rows_of(places.key, places.key_shape, self.key_shape)
        return jnp.swapaxes(jnp.take_along_axis(table[:, rows], columns[None, :, None], axis=-1), 0, 1), None


def _rows_of(places: Int[Array, "_ n p"], given: tuple[int, ...], shape: tuple[int, ...]) -> Int[Array, "_ n"]:
    """The table rows of these places; ValueError if their grid is larger than the table's."""
    if any(size > limit for size, limit in zip(given, shape, strict=True)):
        raise ValueError(f"grid of {given}: expected at most {shape}, the size of this mixer's table")
    return mixing.row_major(places, shape)


class GaussianWeights(nn.Module):
    """Fixed weights, a Gaussian around a neighbour: GaussianNet (You 2020; equation 12). They are not normalised.

    Attributes:
      centres: the offsets of the Gaussians' centres, which the heads take in turn; in several dimensions, all
        combinations.
      sigma: the standard deviation of the Gaussian, in positions.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import GaussianWeights, TokenMixing
      >>> layer = TokenMixing(num_heads=1, energies=GaussianWeights(centres=(1,)))
      >>> words = jnp.ones((1, 4, 8))
      >>> variables = layer.init(jax.random.key(0), words, (4,))
      >>> outputs, intermediates = layer.apply(variables, words, (4,), return_weights=True)
      >>> print((100 * intermediates["weights"][0, 0]).round().astype(jnp.int32))
      [[24 40 24  5]
       [ 5 24 40 24]
       [ 0  5 24 40]
       [ 0  0  5 24]]
    """

    normalize: ClassVar[bool] = False
    knows_content: ClassVar[bool] = False

    centres: tuple[int, ...] = (-1, 0, 1)
    sigma: float = 1.0

    def __call__(self, inputs: Features, memory: Memory, places: Places, heads: Heads) -> Energies:
        if self.sigma <= 0:
            raise ValueError(f"sigma={self.sigma}: expected more than 0")
        combinations = itertools.cycle(itertools.product(self.centres, repeat=places.query.shape[-1]))
        centres = jnp.asarray(list(itertools.islice(combinations, heads[0])), jnp.result_type(float))
        return mixing.gaussian_weights(places.offsets, centres, self.sigma), None


class FourierWeights(nn.Module):
    """Fixed weights, the real part of a Fourier transform over the keys: FourierNet (equation 11).

    They depend on the number of keys, so they cannot be used in a decoder, which does not know this number in advance.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import FourierWeights, TokenMixing
      >>> layer = TokenMixing(num_heads=1, energies=FourierWeights())
      >>> words = jnp.ones((1, 4, 8))
      >>> variables = layer.init(jax.random.key(0), words, (4,))
      >>> outputs, intermediates = layer.apply(variables, words, (4,), return_weights=True)
      >>> print(intermediates["weights"][0, 0].round(1) + 0)
      [[ 0.5  0.5  0.5  0.5]
       [ 0.5  0.  -0.5  0. ]
       [ 0.5 -0.5  0.5 -0.5]
       [ 0.5  0.  -0.5  0. ]]
    """

    needs_whole_sequence: ClassVar[bool] = True
    normalize: ClassVar[bool] = False
    knows_content: ClassVar[bool] = False

    def __call__(self, inputs: Features, memory: Memory, places: Places, heads: Heads) -> Energies:
        if places.is_causal or places.step is not None:
            raise ValueError(
                "FourierWeights: expected is_causal=False and no decoding step, as it mixes the whole sequence"
            )
        masks = places.masks()
        if masks and places.key.shape[-1] > 1:
            raise ValueError(
                "key_mask: expected None on a grid of several dimensions, FourierWeights supports it in 1-D only"
            )
        if masks:
            sizes = functools.reduce(operator.and_, masks)[:, 0].sum(-1, keepdims=True)  # [b t|1 1]
        else:
            sizes = places.key.max(1, keepdims=True) + 1
        sizes = jnp.maximum(sizes, 1).astype(jnp.result_type(float))
        return mixing.fourier_weights(places.query, places.key, sizes), None
