"""Attention from one grid to another."""

from typing import Any

from posattn_jax.axes import GridFeatures, GridKeyFeatures, GridMask, PairBias, PairMask, Shape
from posattn_jax.nn.attention import PositionalSelfAttention
from posattn_jax.nn.tokens import Tokens, flattened


class PositionalCrossAttention(PositionalSelfAttention):
    """As `PositionalSelfAttention`, with the keys and values of another grid, which covers the same extent.

      y = o(gate(attend(query(x), key(m), value(m)))),  offsets s - a_t,  a_t = (t + 1/2) S_m / S_x - 1/2

    A place is the centre of its share of the extent, and a_t is where query t stands among the keys: a query of 8 x 8
    stands in the middle of four keys of 16 x 16. Offsets are counted in positions of m, and are real numbers: the span
    is G of them, and SIRENs, sinusoids and decays are evaluated there. What has whole offsets alone (tables, kernels,
    rotary encodings) is refused unless the grids are equal. What is of one sequence (Translution, depthwise
    convolutions) is refused always.

    The query has a kernel of its own, "query_kernel", and m may be of another width than x. Between unequal grids
    every pair is laid out, with implementation "reference" or "auto".

    Attributes as `PositionalSelfAttention`.

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
          grid_shape, memory_shape: S_x and S_m, of as many dimensions; None: those of the arrays, of [b t c] a line.
          key_mask: of the memory, [b s] or [b *S_m], True = keep.
          mask, bias: of every pair, [b|1 h|1 t s], True = keep; the bias is added to the scores, not scaled.
          reference_shape: the grid that distances are measured in, where it is not that of the memory.
          deterministic: whether dropout is off; otherwise an rng "dropout" is needed.
          return_intermediates, return_weights: as `PositionalSelfAttention`.

        Returns:
          The outputs, in the shape of the inputs; where asked for, also the intermediates, of which
          "relative_encoding" and "relative_bias" have the offsets of `ops.grid.relative_offsets`.

        Raises:
          ValueError: grids that do not match the arrays or each other, or parts that cannot attend from one to another.
        """
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
            mask=mask,
            bias=bias,
            dilation=self.dilation,
            num_kv_heads=self.num_kv_heads or 0,
        )
        outputs, intermediates = self._attend(tokens, None, deterministic, return_weights)
        outputs = outputs.reshape(shape)
        return (outputs, intermediates) if return_intermediates or return_weights else outputs
