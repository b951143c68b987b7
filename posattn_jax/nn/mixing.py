"""The layer that mixes tokens of sequences and small grids: by content or by position, with or without a gate."""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from posattn_jax.axes import Array, Causal, Features, GridFeatures, GridMask, PointPositions, SegmentIds, Shape
from posattn_jax.nn import places as at
from posattn_jax.nn.checks import check_rates, check_sizes
from posattn_jax.nn.composite import Composite
from posattn_jax.nn.energies import DotProducts
from posattn_jax.nn.layers import Dropout, from_heads, to_heads
from posattn_jax.nn.places import Memory, Places
from posattn_jax.nn.tokens import flattened
from posattn_jax.ops import scores
from posattn_jax.ops.initial import XAVIER
from posattn_jax.ops.precision import as_array


class TokenMixing(Composite):
    """Multi-head mixing of tokens, with replaceable parts for weights, values and gate (Schmidt 2023).

      c_t = sum_s alpha_ts values(W^v x_s);  o(gate(y_t, c_t));  alpha = softmax_s(energies), or energies as they are

    `PositionalSelfAttention` is for self-attention on large grids. This layer computes every pair of two sequences:
    self-attention or cross-attention, for whole sequences or one decoding step at a time. Weights that depend on
    positions only are computed once per batch. In a block it can replace attention: it is then self-attention on the
    grid.

    Attributes:
      num_heads: h.
      head_dim: d; None: the width of the inputs divided by h.
      energies: the part that computes the energies, see `nn.energies`; None: `DotProducts()`, self-attention.
      values: a function or module of the values [b s h d], such as `NormalizedGelu()` or `Glu()`; None: plain values.
      gate: a function or module (y [b t c], outputs [b t h d]) -> outputs, such as `GeluGate()`; None: no gate.
      dropout_rate: the dropout rate of the weights. Weights that all examples share are dropped alike in all.
      sum_dropout_rate: the dropout rate of c_t, the sums over the keys, before the gate. FourierNet's code uses this
        one.
      kernel_init: the initialiser of W^v and of the output projection, as matrices.
      bias_init: the initialiser of their biases.
      dtype: the dtype of the computation; None follows the inputs. Energies are float32 or better.
      param_dtype: the dtype of the projections' parameters; each other part has its own.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import DotProducts, GeluGate, NormalizedGelu, TokenMixing
      >>> energies = DotProducts("position", ("relative",))
      >>> rposnet = TokenMixing(num_heads=2, energies=energies, values=NormalizedGelu(), gate=GeluGate())
      >>> outputs, variables = rposnet.init_with_output(jax.random.key(0), jnp.ones((3, 5, 8)), (5,))
      >>> outputs.shape, sorted(variables["params"])
      ((3, 5, 8), ['energies', 'gate', 'output', 'value', 'values'])
    """

    num_heads: int
    _: dataclasses.KW_ONLY
    head_dim: int | None = None
    energies: nn.Module | None = None
    values: Callable | None = None
    gate: Callable | None = None
    dropout_rate: float = 0.0
    sum_dropout_rate: float = 0.0
    kernel_init: Initializer = XAVIER
    bias_init: Initializer = nn.initializers.zeros
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32

    def __post_init__(self):
        check_sizes(self, "num_heads", "head_dim")
        check_rates(self, "dropout_rate", "sum_dropout_rate")
        super().__post_init__()

    def __call__(
        self,
        inputs: GridFeatures,
        grid_shape: Shape | None = None,
        *,
        key_mask: GridMask | None = None,
        segment_ids: SegmentIds | None = None,
        is_causal: Causal = False,
        reference_shape: Shape | None = None,
        span_bound: Shape | None = None,
        num_class_tokens: int = 0,
        positions: PointPositions | None = None,
        deterministic: bool = True,
        return_intermediates: bool = False,
        return_weights: bool = False,
    ) -> GridFeatures | tuple[GridFeatures, dict[str, Any]]:
        """Mixes the tokens of a grid. The arguments are those of `PositionalSelfAttention`.

        There is no span, so `span_bound` has no effect. With `segment_ids` several sequences share a row, and positions
        start at 0 in each of them.

        Returns:
          The outputs, in the shape of the inputs. If asked for, also a dict of the intermediates: "weights" [b|1 h t s]
          with `return_weights`, otherwise empty.

        Raises:
          ValueError: class tokens or points, which have no positions on the grid; a grid other than that of training;
            segments on a grid of several dimensions; or inputs that do not match the grid.
        """
        del span_bound
        if num_class_tokens or positions is not None:
            raise ValueError("num_class_tokens, positions: expected none with TokenMixing, which supports only grids")
        inputs, segment_ids = as_array(inputs), as_array(segment_ids)
        shape = inputs.shape
        inputs, grid_shape, key_mask = flattened(inputs, grid_shape, key_mask)
        if reference_shape is not None and tuple(reference_shape) != tuple(grid_shape):
            raise ValueError(f"reference_shape={tuple(reference_shape)}: expected None or grid_shape with TokenMixing")
        places = at.of_grid(grid_shape, segment_ids, key_mask=key_mask, is_causal=is_causal)
        if (number := places.query.shape[1]) != inputs.shape[1]:
            raise ValueError(f"inputs has {inputs.shape[1]} tokens: expected {number} for {grid_shape=}")
        outputs, weights = self.mix(inputs, Memory(inputs), places, deterministic=deterministic)
        outputs = outputs.reshape(shape)
        if return_weights:
            return outputs, {"weights": weights}
        return (outputs, {}) if return_intermediates else outputs

    @nn.compact
    def mix(
        self, inputs: Features, memory: Memory, places: Places, *, deterministic: bool = True
    ) -> tuple[Features, Array]:
        """The queries of one sequence attend to the keys of another, or of the same.

        Args:
          inputs: y [b t c], the inputs of the queries.
          memory: the keys. Afterwards `memory.kept` has the arrays to keep.
          places: the positions of queries and keys.
          deterministic: whether dropout is off; otherwise an rng "dropout" is needed.

        Returns:
          The outputs [b t c] and the weights [b h t s], with batch 1 if they are the same for every example.

        Raises:
          ValueError: a number of heads that does not divide the width, or places that the energies do not cover.
        """
        width = inputs.shape[-1]
        if self.head_dim is None and width % self.num_heads:
            raise ValueError(f"num_heads={self.num_heads} does not divide the width {width}")
        heads = self.num_heads, self.head_dim or width // self.num_heads
        dtypes: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        fields = {"bias_init": self.bias_init, **dtypes}

        make = self.energies
        if make is None:
            make = DotProducts(name="energies", **dtypes)
        energies, inside = make(inputs, memory, places, heads)
        masks = places.masks() + ([] if inside is None else [inside[:, None]])
        if make.normalize:
            weights = scores.masked_softmax(scores.finite(energies), masks)
        else:
            weights = energies
            for mask in masks:
                weights = jnp.where(mask, weights, 0)
        dropped = Dropout(self.dropout_rate)(weights, deterministic=deterministic)

        def make_value(x: Features):
            factor = getattr(self.values, "width_factor", 1)
            wide = heads[0], factor * heads[1]
            value = to_heads(wide, self.kernel_init, name="value", **fields)(x)
            return value if self.values is None else self.values(value)

        value = memory.keep("value", make_value)
        mixed = jnp.einsum("bhts,bshd->bthd", dropped.astype(value.dtype), value)
        outputs = Dropout(self.sum_dropout_rate)(mixed, deterministic=deterministic)
        if self.gate is not None:
            outputs = self.gate(inputs, outputs)
        return from_heads(width, self.kernel_init, name="output", **fields)(outputs), weights
