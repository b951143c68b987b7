"""Attention from one grid to another."""

from typing import Any

from posattn_jax.axes import GridFeatures, GridKeyFeatures, GridMask, PairBias, PairMask, Shape
from posattn_jax.nn.attention import PositionalSelfAttention
from posattn_jax.nn.tokens import Tokens, flattened
from posattn_jax.ops.precision import as_array


class PositionalCrossAttention(PositionalSelfAttention):
    """As `PositionalSelfAttention`, but keys and values come from another grid, which covers the same extent.

      y = o(gate(attend(query(x), key(m), value(m)))),  offsets s - a_t,  a_t = (t + 1/2) S_m / S_x - 1/2

    A position is the centre of its share of the extent, and a_t is the coordinate of query t on the keys' grid: a query
    of an 8 x 8 grid lies in the middle of four keys of a 16 x 16 grid. Offsets are counted in positions of m and are
    real numbers. The Gaussian of the span, SIRENs, sinusoids and decays are evaluated at them. Parts that have integer
    offsets only (tables, kernels, rotary encodings) are refused unless the grids are equal. Parts that need one
    sequence (Translution, depthwise convolutions) are always refused.

    The query has its own kernel, "query_kernel", and m may have another width than x. Between unequal grids every pair
    is computed, with implementation "reference" or "auto".

    Attributes are those of `PositionalSelfAttention`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import Content, GaussianSpan, Positional, PositionalCrossAttention, SirenEncoding
      >>> terms = (Content(), Positional(SirenEncoding()))
      >>> layer = PositionalCrossAttention(num_heads=2, terms=terms, span=GaussianSpan())
      >>> decoded, encoded = jnp.ones((1, 2, 2, 8)), jnp.ones((1, 4, 4, 6))
      >>> outputs, variables = layer.init_with_output(jax.random.key(0), decoded, encoded)
      >>> outputs.shape, jax.tree.map(jnp.shape, variables["params"]["span"])
      ((1, 2, 2, 8), {'sigma': (2,)})
    """

    def __call__(
        self,
        inputs: GridFeatures,
        memory: GridKeyFeatures,
        grid_shape: Shape | None = None,
        memory_shape: Shape | None = None,
        *,
        key_mask: GridMask | None = None,
        mask: PairMask | None = None,
        bias: PairBias | None = None,
        reference_shape: Shape | None = None,
        deterministic: bool = True,
        return_intermediates: bool = False,
        return_weights: bool = False,
    ) -> GridFeatures | tuple[GridFeatures, dict[str, Any]]:
        """Attends from the grid of `inputs` to that of `memory`.

        Args:
          inputs: x [b t c], the positions of its grid in row-major order, or [b *S_x c].
          memory: m [b s m] or [b *S_m m].
          grid_shape, memory_shape: S_x and S_m, with equally many dimensions; None: taken from the arrays, where
            [b t c] is one sequence.
          key_mask: for the memory, [b s] or [b *S_m], True = keep.
          mask, bias: for every pair, [b|1 h|1 t s], True = keep; the bias is added to the scores, not scaled.
          reference_shape: the grid that distances are measured in, if it is not that of the memory.
          deterministic: whether dropout is off; otherwise an rng "dropout" is needed.
          return_intermediates, return_weights: as in `PositionalSelfAttention`.

        Returns:
          The outputs, in the shape of the inputs. If asked for, also the intermediates; "relative_encoding" and
          "relative_bias" have the offsets of `ops.grid.relative_offsets`.

        Raises:
          ValueError: grids that do not match the arrays or each other, or parts that cannot attend from one to another.
        """
        inputs = as_array(inputs)
        shape = inputs.shape
        inputs, grid_shape, _ = flattened(inputs, grid_shape, None)
        memory, memory_shape, key_mask = flattened(memory, memory_shape, key_mask)
        tokens = Tokens(
            inputs=self._cast(inputs),
            memory=self._cast(memory),
            grid_shape=memory_shape,
            query_grid_shape=grid_shape,
            num_heads=self.num_heads,
            head_dim=self.head_dim or 0,
            reference_shape=reference_shape or (),
            key_mask=key_mask,
            num_kv_heads=self.num_kv_heads or 0,
        )
        outputs, intermediates = self._attend(
            tokens, deterministic, return_weights=return_weights, mask=mask, bias=bias
        )
        outputs = outputs.reshape(shape)
        return (outputs, intermediates) if return_intermediates or return_weights else outputs
