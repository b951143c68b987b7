"""The attention span: learned, or a window that is given."""

from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike

from posattn_jax.nn.scores import Extent
from posattn_jax.nn.tokens import Tokens
from posattn_jax.ops.initial import scaled_identity
from posattn_jax.ops.span import WINDOW_THRESHOLD, Covariance, SpanMode, of_precision, window_sigma


class GaussianSpan(nn.Module):
    """A trained Gaussian over offsets (Alfons 2022, section 3.6): its sigma for every positional dimension.

    With `covariance="full"` (the paper's future work) it may be rotated: its covariance has a trained Cholesky factor.

    Attributes:
      threshold: keys outside the box where the Gaussian falls below it are not attended; 0 or less: no mask.
      mode: "multiply" (the paper) or "log_add" (adds ln G, so that far keys fade out instead of towards score 0).
      covariance: "diagonal", the parameter `sigma`; "full", the parameter `cholesky`; or "precision", diagonal, whose
        parameter is 1 / sigma^2: a span that is wide open, such as initial_sigma=1000, learns by it alone.
      initial_sigma: the starting value, in units of the grid's S - 1; of a factor on the diagonal, the rest 0.
      per_head: whether every head has a sigma of its own (ours).
      param_dtype: of the parameter, float32 at least: steps of a thousandth do not move a bfloat16 near .3.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import GaussianSpan, PositionalSelfAttention
      >>> layer = PositionalSelfAttention(num_heads=2, span=GaussianSpan(initial_sigma=0.25))
      >>> inputs = jnp.ones((1, 3 * 4, 8))
      >>> variables = layer.init(jax.random.key(0), inputs, (3, 4))
      >>> outputs, intermediates = layer.apply(variables, inputs, (3, 4), return_intermediates=True)
      >>> print(intermediates["sigma"])
      [0.25 0.25]
    """

    threshold: float = 0.1
    mode: SpanMode = "multiply"
    covariance: Covariance = "diagonal"
    initial_sigma: float = 0.3
    per_head: bool = False
    param_dtype: DTypeLike = jnp.float32

    def __post_init__(self):
        if self.initial_sigma == 0:
            raise ValueError("initial_sigma=0: expected another value, from which a span can be learned")
        super().__post_init__()

    @nn.compact
    def __call__(self, tokens: Tokens) -> Extent:
        """sigma [p], [h p], [1 p p] or [h p p] with its threshold and mode; ValueError for another covariance."""
        heads, num_dims = (tokens.num_heads,) if self.per_head else (), len(tokens.grid_shape)
        dtype = jnp.promote_types(jnp.float32, self.param_dtype)
        match self.covariance:
            case "diagonal":
                initial = nn.initializers.constant(self.initial_sigma)
                sigma = self.param("sigma", initial, (*heads, num_dims), dtype)
            case "full":
                shape = (*heads, num_dims, num_dims)
                sigma = self.param("cholesky", scaled_identity(self.initial_sigma), shape, dtype)
                sigma = sigma.reshape(-1, num_dims, num_dims)
            case "precision":
                initial = nn.initializers.constant(self.initial_sigma**-2)
                sigma = of_precision(self.param("precision", initial, (*heads, num_dims), dtype))
            case _:
                raise ValueError(f'covariance="{self.covariance}": expected "diagonal", "full" or "precision"')
        return Extent(sigma, self.threshold, self.mode)


class WindowSpan(nn.Module):
    """Keys within a window around the query, and no others: local attention of a given size (Ramachandran 2019).

    It is a span whose Gaussian is 1 everywhere inside, to within 1e-11: so every layout costs what its window does.

    Attributes:
      half_span: in positions a dimension, on each side, at least 1.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import Content, PositionalSelfAttention, WindowSpan
      >>> layer = PositionalSelfAttention(num_heads=2, terms=(Content(),), span=WindowSpan((1, 2)))
      >>> outputs, variables = layer.init_with_output(jax.random.key(0), jnp.ones((1, 3 * 4, 8)), (3, 4))
      >>> outputs.shape
      (1, 12, 8)
    """

    threshold: ClassVar[float] = WINDOW_THRESHOLD
    mode: ClassVar[SpanMode] = "multiply"

    half_span: tuple[int, ...]

    def __call__(self, tokens: Tokens) -> Extent:
        """As `GaussianSpan`; ValueError unless there is a half-span for every dimension."""
        return Extent(window_sigma(self.half_span, tokens.reference_shape), self.threshold, self.mode)
