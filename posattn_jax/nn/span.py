"""The attention span: learned, or a fixed window."""

from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike

from posattn_jax.nn.scores import Extent
from posattn_jax.nn.tokens import Tokens
from posattn_jax.ops.initial import scaled_identity
from posattn_jax.ops.precision import float32_or_better
from posattn_jax.ops.span import WINDOW_THRESHOLD, Covariance, SpanMode, of_precision, window_sigma


class GaussianSpan(nn.Module):
    """A trained Gaussian over offsets (Alfons 2022, section 3.6), with a sigma for every positional dimension.

    With `covariance="full"` (the paper's future work) the Gaussian may be rotated: the Cholesky factor of its
    covariance is trained.

    Attributes:
      threshold: keys outside the box where the Gaussian falls below it are not attended; 0 or less: no mask.
      mode: "multiply" (the paper: scores of far keys go towards 0) or "log_add" (adds ln G: far keys fade out).
      covariance: "diagonal", with the parameter `sigma`; "full", with the parameter `cholesky`; or "precision",
        diagonal with the parameter `precision` = 1 / sigma^2. A span that is wide open, such as initial_sigma=1000,
        learns only with "precision".
      initial_sigma: the initial value, in units of the grid's S - 1. For "full" it is the diagonal of the factor, which
        is 0 elsewhere.
      per_head: whether every head has a sigma of its own (our extension).
      param_dtype: the dtype of the parameter, at least float32: a bfloat16 near 0.3 cannot change by a thousandth.

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
        """sigma [p], [h p], [1 p p] or [h p p] with its threshold and mode; ValueError for an unknown covariance."""
        heads, num_dims = (tokens.num_heads,) if self.per_head else (), len(tokens.grid_shape)
        dtype = float32_or_better(self.param_dtype)
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
    """Local attention: keys within a window around the query are attended, and no others (Ramachandran 2019).

    It is a span whose Gaussian is 1 everywhere inside, to within 1e-11. The cost of every layout therefore follows the
    window.

    Attributes:
      half_span: the window's reach in positions per dimension, on each side, at least 1.

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
        """As `GaussianSpan`; ValueError unless there is a half-span of at least 1 for every dimension."""
        return Extent(window_sigma(self.half_span, tokens.reference_shape), self.threshold, self.mode)
