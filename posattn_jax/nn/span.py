"""The attention span: learned, in several forms, or a fixed window."""

import math

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike

from posattn_jax.axes import Array
from posattn_jax.nn.scores import Extent
from posattn_jax.nn.tokens import Tokens
from posattn_jax.ops import span
from posattn_jax.ops.initial import scaled_identity
from posattn_jax.ops.precision import float32_or_better
from posattn_jax.ops.span import BOX_THRESHOLD, Covariance, SpanMode


class GaussianSpan(nn.Module, kw_only=True):
    """A trained Gaussian over offsets (Alfons 2022, section 3.6), with a sigma for every positional dimension.

    With `covariance="full"` (the paper's future work) the Gaussian may be rotated: the Cholesky factor of its
    covariance is trained.

    Attributes:
      threshold: keys outside the box where the Gaussian falls below it are not attended; 0 or less: no mask.
      mode: "multiply" (the paper: scores of far keys go towards 0) or "log_add" (adds ln G: far keys fade out).
      covariance: "diagonal", with the parameter `sigma`; "log", with the parameter `log_sigma`, so that an update of
        Adam changes every sigma by the same share; "full", with the parameter `cholesky`; or "precision", diagonal with
        the parameter `precision` = 1 / sigma^2. A span that is wide open, such as initial_sigma=1000, learns only with
        "precision".
      initial_sigma: the initial value, in units of the grid's S - 1, more than 0. For "full" it is the diagonal of the
        factor, which is 0 elsewhere.
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
        span.check_sigma(self.initial_sigma)
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
            case "log":
                initial = nn.initializers.constant(math.log(self.initial_sigma))
                sigma = jnp.exp(self.param("log_sigma", initial, (*heads, num_dims), dtype))
            case "full":
                shape = (*heads, num_dims, num_dims)
                sigma = self.param("cholesky", scaled_identity(self.initial_sigma), shape, dtype)
                sigma = sigma.reshape(-1, num_dims, num_dims)
            case "precision":
                initial = nn.initializers.constant(self.initial_sigma**-2)
                sigma = span.of_precision(self.param("precision", initial, (*heads, num_dims), dtype))
            case _:
                raise ValueError(f'covariance="{self.covariance}": expected "diagonal", "log", "full" or "precision"')
        return Extent(sigma, self.threshold, self.mode)


class _Box:
    """What the spans have whose Gaussian changes no score: see `Extent`."""

    threshold = BOX_THRESHOLD

    @property
    def mode(self) -> SpanMode:
        return "box"


class LearnedWindow(_Box, nn.Module, kw_only=True):
    """A trained window of any form: weights are multiplied, before the softmax's sum, by `prod_i m(|x_i| / w_i)`.

    The width w is trained for every positional dimension. Its parameter is `log_width` = ln w, so that an update of
    Adam changes every width by the same share, whatever the grid and the width. ln m is added to beta. Keys outside the
    box `|x_i| <= w_i`, rounded up to whole positions, are not attended; where m is 0 at one width, the box holds only
    keys nearer than that, and its sigma is one position less than w. A subclass defines only `log_profile`.

    Attributes:
      initial_width: w at the start, in units of the grid's S - 1.
      per_head: whether every head has a width of its own.
      param_dtype: the dtype of the parameter, at least float32.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import LearnedWindow, PositionalSelfAttention
      >>> class TriangleSpan(LearnedWindow):
      ...     def log_profile(self, distance):
      ...         return jnp.log(jnp.maximum(1 - distance, 1e-6))
      >>> layer = PositionalSelfAttention(num_heads=2, span=TriangleSpan(initial_width=0.5))
      >>> variables = layer.init(jax.random.key(0), jnp.ones((1, 3 * 4, 8)), (3, 4))
      >>> jax.tree.map(jnp.shape, variables["params"]["span"])
      {'log_width': (2, 2)}
    """

    initial_width: float = 0.05
    per_head: bool = True
    param_dtype: DTypeLike = jnp.float32

    def __post_init__(self):
        span.check_window(self.initial_width)
        super().__post_init__()

    def log_profile(self, distance: Array) -> Array:
        """ln m at distances of 0 and more, in widths. It may be -inf from 1 on."""
        raise NotImplementedError

    @nn.compact
    def __call__(self, tokens: Tokens) -> Extent:
        """The box, whose sigma is [p] or [h p], and ln m [*R h]."""
        heads, num_dims = (tokens.num_heads,) if self.per_head else (), len(tokens.grid_shape)
        initial, dtype = nn.initializers.constant(math.log(self.initial_width)), float32_or_better(self.param_dtype)
        log_width = self.param("log_width", initial, (*heads, num_dims), dtype)
        grids = tokens.table_shape, tokens.reference_shape, tokens.query_grid_shape
        window = span.log_window(self.log_profile, log_width, *grids)
        window = jnp.broadcast_to(window, (*window.shape[:-1], tokens.num_heads))
        sigma = span.box_sigma(self.log_profile, log_width, tokens.reference_shape, tokens.query_grid_shape)
        return Extent(sigma, self.threshold, self.mode, window)


class RampSpan(LearnedWindow, kw_only=True):
    """A trained window that is flat, and falls to 0 along a ramp at its edge: m(r) = clamp((1 - r) / ramp, 0, 1).

    Sukhbaatar 2019, equation 2, but that the ramp is a share of the width, and not a number of positions.

    Attributes:
      ramp: the share of the width over which m falls, more than 0 and at most 1.
      initial_width, per_head, param_dtype: see `LearnedWindow`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import PositionalSelfAttention, RampSpan
      >>> layer = PositionalSelfAttention(num_heads=2, span=RampSpan(initial_width=0.5))
      >>> variables = layer.init(jax.random.key(0), jnp.ones((1, 3 * 4, 8)), (3, 4))
      >>> jax.tree.map(jnp.shape, variables["params"]["span"])
      {'log_width': (2, 2)}
    """

    ramp: float = 1 / 3

    def __post_init__(self):
        span.check_window(self.initial_width, ramp=self.ramp)
        super().__post_init__()

    def log_profile(self, distance: Array) -> Array:
        return span.log_ramp(distance, self.ramp)


class FlatSpan(LearnedWindow, kw_only=True):
    """A trained window with a flat top and a smooth edge: m(r) = edge^(r^power), which is `edge` at one width (ours).

    With a power of 2 it is a Gaussian.

    Attributes:
      edge: m at one width, where the box ends; more than 0 and less than 1.
      power: how flat the top and how steep the edge is, at least 1.
      initial_width, per_head, param_dtype: see `LearnedWindow`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import FlatSpan, PositionalSelfAttention
      >>> layer = PositionalSelfAttention(num_heads=2, span=FlatSpan(initial_width=0.5, per_head=False))
      >>> variables = layer.init(jax.random.key(0), jnp.ones((1, 3 * 4, 8)), (3, 4))
      >>> jax.tree.map(jnp.shape, variables["params"]["span"])
      {'log_width': (2,)}
    """

    edge: float = 0.1
    power: float = 8.0

    def __post_init__(self):
        span.check_window(self.initial_width, edge=self.edge, power=self.power)
        super().__post_init__()

    def log_profile(self, distance: Array) -> Array:
        return span.log_flat(distance, self.edge, self.power)


class WindowSpan(_Box, nn.Module):
    """Local attention: keys within a window around the query are attended, and no others (Ramachandran 2019).

    The cost of implementations that skip pairs follows the window; "reference" and "dense" compute all pairs.

    Attributes:
      half_span: the window's reach in positions per dimension, on each side, at least 1; in one dimension also an int.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import Content, PositionalSelfAttention, WindowSpan
      >>> layer = PositionalSelfAttention(num_heads=2, terms=(Content(),), span=WindowSpan((1, 2)))
      >>> outputs, variables = layer.init_with_output(jax.random.key(0), jnp.ones((1, 3 * 4, 8)), (3, 4))
      >>> outputs.shape
      (1, 12, 8)
    """

    half_span: tuple[int, ...] | int

    def __call__(self, tokens: Tokens) -> Extent:
        """As `GaussianSpan`; ValueError unless there is a half-span of at least 1 for every dimension."""
        return Extent(span.window_sigma(self.half_span, tokens.reference_shape), self.threshold, self.mode)


LEARNED = (GaussianSpan, LearnedWindow)
