"""The attention span: learned, or a fixed window."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from posattn_jax.axes import Shape
from posattn_jax.nn.scores import Extent
from posattn_jax.nn.tokens import Tokens
from posattn_jax.nnx.sizes import check_fits
from posattn_jax.ops.initial import scaled_identity
from posattn_jax.ops.precision import float32_or_better
from posattn_jax.ops.span import WINDOW_THRESHOLD, Covariance, SpanMode, of_precision, window_sigma


class GaussianSpan(nnx.Module):
    """A trained Gaussian over offsets (Alfons 2022, section 3.6), with a sigma for every positional dimension.

    Args:
      num_dims: p, the dimensions of the grid.
      num_heads: h; needed with `per_head`.
      threshold: keys outside the box where the Gaussian falls below it are not attended; 0 or less: no mask.
      mode: "multiply" (the paper) or "log_add" (adds ln G).
      covariance: "diagonal", with the parameter `sigma`; "full", with the parameter `cholesky`; or "precision",
        diagonal with the parameter `precision` = 1 / sigma^2. A span that is wide open, such as initial_sigma=1000,
        learns only with "precision".
      initial_sigma: the initial value, in units of the grid's S - 1. For "full" it is the diagonal of the factor.
      per_head: whether every head has a sigma of its own.
      param_dtype: the dtype of the parameter, at least float32.
      rngs: not needed, as nothing is drawn.

    Raises:
      ValueError: an `initial_sigma` of 0, an unknown covariance, or `per_head` without the number of heads.

    Example:
      >>> from flax import nnx
      >>> from posattn_jax.nnx import GaussianSpan
      >>> span = GaussianSpan(2, num_heads=4, per_head=True, initial_sigma=0.25)
      >>> span.sigma.shape
      (4, 2)
    """

    def __init__(
        self,
        num_dims: int,
        num_heads: int | None = None,
        *,
        threshold: float = 0.1,
        mode: SpanMode = "multiply",
        covariance: Covariance = "diagonal",
        initial_sigma: float = 0.3,
        per_head: bool = False,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ):
        if initial_sigma == 0:
            raise ValueError("initial_sigma=0: expected another value, from which a span can be learned")
        if per_head and num_heads is None:
            raise ValueError("per_head=True: expected num_heads with it")
        self.num_dims, self.threshold, self.mode = num_dims, threshold, mode
        self.covariance = covariance
        self.num_heads = num_heads if per_head else None
        heads, dtype = (num_heads,) if per_head else (), float32_or_better(param_dtype)
        key = jax.random.key(0)  # nothing is drawn with it
        match covariance:
            case "diagonal":
                self.sigma = nnx.Param(jnp.full((*heads, num_dims), initial_sigma, dtype))
            case "full":
                shape = (*heads, num_dims, num_dims)
                self.cholesky = nnx.Param(scaled_identity(initial_sigma)(key, shape, dtype))
            case "precision":
                self.precision = nnx.Param(jnp.full((*heads, num_dims), initial_sigma**-2, dtype))
            case _:
                raise ValueError(f'covariance="{covariance}": expected "diagonal", "full" or "precision"')

    def __call__(self, tokens: Tokens) -> Extent:
        """sigma [p], [h p], [1 p p] or [h p p] with its threshold and mode."""
        check_fits(self, tokens, num_dims=self.num_dims, num_heads=self.num_heads or 0)
        match self.covariance:
            case "diagonal":
                sigma = self.sigma[...]
            case "full":
                sigma = self.cholesky[...].reshape(-1, self.num_dims, self.num_dims)
            case _:
                sigma = of_precision(self.precision[...])
        return Extent(sigma, self.threshold, self.mode)


class WindowSpan(nnx.Module):
    """Local attention: keys within a window around the query are attended, and no others (Ramachandran 2019).

    Args:
      half_span: the window's reach in positions per dimension, on each side, at least 1.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from posattn_jax.nnx import PositionalSelfAttention, WindowSpan
      >>> layer = PositionalSelfAttention(8, num_heads=2, span=WindowSpan((1, 2)), rngs=nnx.Rngs(0))
      >>> layer(jnp.ones((1, 3, 4, 8))).shape
      (1, 3, 4, 8)
    """

    threshold: ClassVar[float] = WINDOW_THRESHOLD
    mode: ClassVar[SpanMode] = "multiply"

    def __init__(self, half_span: Shape):
        self.half_span = tuple(half_span)

    def __call__(self, tokens: Tokens) -> Extent:
        """As `GaussianSpan`; ValueError unless there is a half-span of at least 1 for every dimension."""
        return Extent(window_sigma(self.half_span, tokens.reference_shape), self.threshold, self.mode)
