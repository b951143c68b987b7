"""The attention span: learned, in several forms, or a fixed window."""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from posattn_jax.axes import Array, Shape
from posattn_jax.nn.scores import Extent
from posattn_jax.nn.tokens import Tokens
from posattn_jax.ops import span
from posattn_jax.ops.initial import scaled_identity
from posattn_jax.ops.precision import float32_or_better
from posattn_jax.ops.span import BOX_THRESHOLD, Covariance, SpanMode


class GaussianSpan(nnx.Module):
    """A trained Gaussian over offsets (Alfons 2022, section 3.6), with a sigma for every positional dimension.

    Args:
      num_dims: p, the dimensions of the grid.
      num_heads: h; needed with `per_head`.
      threshold: keys outside the box where the Gaussian falls below it are not attended; 0 or less: no mask.
      mode: "multiply" (the paper) or "log_add" (adds ln G).
      covariance: "diagonal", with the parameter `sigma`; "log", with the parameter `log_sigma`, so that an update of
        Adam changes every sigma by the same share; "full", with the parameter `cholesky`; or "precision", diagonal with
        the parameter `precision` = 1 / sigma^2. A span that is wide open, such as initial_sigma=1000, learns only with
        "precision".
      initial_sigma: the initial value, in units of the grid's S - 1, more than 0. For "full" it is the diagonal of the
        factor.
      per_head: whether every head has a sigma of its own.
      param_dtype: the dtype of the parameter, at least float32.
      rngs: not needed, as nothing is drawn.

    Raises:
      ValueError: an `initial_sigma` that is not more than 0, an unknown covariance, or `per_head` without the number of
        heads.

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
        span.check_sigma(initial_sigma)
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
            case "log":
                self.log_sigma = nnx.Param(jnp.full((*heads, num_dims), math.log(initial_sigma), dtype))
            case "full":
                shape = (*heads, num_dims, num_dims)
                self.cholesky = nnx.Param(scaled_identity(initial_sigma)(key, shape, dtype))
            case "precision":
                self.precision = nnx.Param(jnp.full((*heads, num_dims), initial_sigma**-2, dtype))
            case _:
                raise ValueError(f'covariance="{covariance}": expected "diagonal", "log", "full" or "precision"')

    def __call__(self, tokens: Tokens) -> Extent:
        """sigma [p], [h p], [1 p p] or [h p p] with its threshold and mode."""
        tokens.check_fits(self, num_dims=self.num_dims, num_heads=self.num_heads or 0)
        match self.covariance:
            case "diagonal":
                sigma = self.sigma[...]
            case "log":
                sigma = jnp.exp(self.log_sigma[...])
            case "full":
                sigma = self.cholesky[...].reshape(-1, self.num_dims, self.num_dims)
            case _:
                sigma = span.of_precision(self.precision[...])
        return Extent(sigma, self.threshold, self.mode)


class LearnedWindow(nnx.Module):
    """A trained window of any form: weights are multiplied, before the softmax's sum, by `prod_i m(|x_i| / w_i)`.

    See `posattn_jax.LearnedWindow`. A subclass defines `log_profile`.

    Args:
      num_dims: p, the dimensions of the grid.
      num_heads: h; needed with `per_head`.
      initial_width: w at the start, in units of the grid's S - 1.
      per_head: whether every head has a width of its own.
      param_dtype: the dtype of the parameter `log_width`, at least float32.
      rngs: not needed, as nothing is drawn.

    Raises:
      ValueError: a width that is not more than 0, or `per_head` without the number of heads.

    Example:
      >>> import jax.numpy as jnp
      >>> from posattn_jax.nnx import LearnedWindow
      >>> class TriangleSpan(LearnedWindow):
      ...     def log_profile(self, distance):
      ...         return jnp.log(jnp.maximum(1 - distance, 1e-6))
      >>> TriangleSpan(2, num_heads=4).log_width.shape
      (4, 2)
    """

    threshold: ClassVar[float] = BOX_THRESHOLD
    mode: ClassVar[SpanMode] = "box"

    def __init__(
        self,
        num_dims: int,
        num_heads: int | None = None,
        *,
        initial_width: float = 0.05,
        per_head: bool = True,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ):
        span.check_window(initial_width)
        if per_head and num_heads is None:
            raise ValueError("per_head=True: expected num_heads with it")
        self.num_dims, self.num_heads = num_dims, num_heads if per_head else None
        shape = (*((num_heads,) if per_head else ()), num_dims)
        self.log_width = nnx.Param(jnp.full(shape, math.log(initial_width), float32_or_better(param_dtype)))

    def log_profile(self, distance: Array) -> Array:
        """ln m at distances of 0 and more, in widths. It may be -inf from 1 on."""
        raise NotImplementedError

    def __call__(self, tokens: Tokens) -> Extent:
        """The box, whose sigma is w [p] or [h p], and ln m [*R h]."""
        tokens.check_fits(self, num_dims=self.num_dims, num_heads=self.num_heads or 0)
        log_width, grids = self.log_width[...], (tokens.table_shape, tokens.reference_shape, tokens.query_grid_shape)
        window = span.log_window(self.log_profile, log_width, *grids)
        window = jnp.broadcast_to(window, (*window.shape[:-1], tokens.num_heads))
        return Extent(jnp.exp(log_width), self.threshold, self.mode, window)


class RampSpan(LearnedWindow):
    """A trained window that is flat, and falls to 0 along a ramp at its edge: m(r) = clamp((1 - r) / ramp, 0, 1).

    Args:
      ramp: the share of the width over which m falls, more than 0 and at most 1.
      num_dims, num_heads, initial_width, per_head, param_dtype, rngs: see `LearnedWindow`.

    Example:
      >>> from posattn_jax.nnx import RampSpan
      >>> RampSpan(2, num_heads=4).log_width.shape
      (4, 2)
    """

    def __init__(self, num_dims: int, num_heads: int | None = None, *, ramp: float = 1 / 3, **fields):
        super().__init__(num_dims, num_heads, **fields)
        span.check_window(1.0, ramp=ramp)
        self.ramp = ramp

    def log_profile(self, distance: Array) -> Array:
        return span.log_ramp(distance, self.ramp)


class FlatSpan(LearnedWindow):
    """A trained window with a flat top and a smooth edge: m(r) = edge^(r^power), which is `edge` at one width (ours).

    Args:
      edge: m at one width, where the box ends; more than 0 and less than 1.
      power: how flat the top and how steep the edge is, at least 1; of 2 it is a Gaussian.
      num_dims, num_heads, initial_width, per_head, param_dtype, rngs: see `LearnedWindow`.

    Example:
      >>> from posattn_jax.nnx import FlatSpan
      >>> FlatSpan(2, per_head=False).log_width.shape
      (2,)
    """

    def __init__(self, num_dims: int, num_heads: int | None = None, *, edge: float = 0.1, power: float = 8.0, **fields):
        super().__init__(num_dims, num_heads, **fields)
        span.check_window(1.0, edge=edge, power=power)
        self.edge, self.power = edge, power

    def log_profile(self, distance: Array) -> Array:
        return span.log_flat(distance, self.edge, self.power)


class WindowSpan(nnx.Module):
    """Local attention: keys within a window around the query are attended, and no others (Ramachandran 2019).

    Args:
      half_span: the window's reach in positions per dimension, on each side, at least 1; in one dimension also an int.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from posattn_jax.nnx import PositionalSelfAttention, WindowSpan
      >>> layer = PositionalSelfAttention(8, num_heads=2, span=WindowSpan((1, 2)), rngs=nnx.Rngs(0))
      >>> layer(jnp.ones((1, 3, 4, 8))).shape
      (1, 3, 4, 8)
    """

    threshold: ClassVar[float] = BOX_THRESHOLD
    mode: ClassVar[SpanMode] = "box"

    def __init__(self, half_span: Shape | int):
        self.half_span = half_span if isinstance(half_span, int) else tuple(half_span)

    def __call__(self, tokens: Tokens) -> Extent:
        """As `GaussianSpan`; ValueError unless there is a half-span of at least 1 for every dimension."""
        return Extent(span.window_sigma(self.half_span, tokens.reference_shape), self.threshold, self.mode)
