"""The blocks of a model: attention or mixing, and feed-forward, with residuals around them."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal

import flax.linen as nn
import jax.numpy as jnp
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from posattn_jax.axes import Array, Features, GridFeatures, Shape
from posattn_jax.nn.attention import PositionalSelfAttention
from posattn_jax.nn.checks import check_rates, check_sizes
from posattn_jax.nn.composite import Composite
from posattn_jax.nn.dropout import Dropout
from posattn_jax.nn.examples import shared_out
from posattn_jax.nn.linear import linear
from posattn_jax.nn.memory import Memory
from posattn_jax.nn.mixing import TokenMixing
from posattn_jax.nn.places import Places
from posattn_jax.ops.initial import XAVIER


class FeedForward(nn.Module):
    """Linear(c, mlp_dim), dropout, activation, Linear(mlp_dim, c) (Alfons 2022, Figure 1).

    Attributes:
      mlp_dim: the hidden width.
      dropout_rate: of the hidden features, before the activation as in the paper's code.
      activation: between the two maps.
      kernel_init: of both maps, with biases of 0; None: U(+-1 / sqrt(fan_in)) for maps and biases, as the paper's code.
      dtype: of the computation; None follows the inputs.
      param_dtype: of the parameters.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import FeedForward
      >>> outputs, variables = FeedForward(mlp_dim=8).init_with_output(jax.random.key(0), jnp.ones((1, 5, 8)))
      >>> outputs.shape
      (1, 5, 8)
    """

    mlp_dim: int
    dropout_rate: float = 0.0
    activation: Callable = nn.relu
    kernel_init: Initializer | None = None
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, inputs: GridFeatures, *, deterministic: bool = True) -> GridFeatures:
        width = inputs.shape[-1]
        fields: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        if self.kernel_init is not None:
            fields |= {"kernel_init": self.kernel_init, "bias_init": nn.initializers.zeros}
        hidden = linear(self.mlp_dim, width, ("width", "hidden"), name="hidden", **fields)(inputs)
        hidden = self.activation(Dropout(self.dropout_rate)(hidden, deterministic=deterministic))
        return linear(width, self.mlp_dim, ("hidden", "width"), name="output", **fields)(hidden)


class EncoderBlock(Composite):
    """Attention and feed-forward with residuals around both.

      norm = "post":  x = LN(x + drop(attention(x)));  x = LN(x + drop(feed_forward(x)))   (Alfons 2022)
      norm = "pre":   x = x + drop(attention(LN(x)));  x = x + drop(feed_forward(LN(x)))

    Attributes:
      attention: the attention layer.
      mlp_dim: the hidden width of the feed-forward network.
      dropout_rate: of both branches.
      norm: "post" or "pre".
      activation: of the feed-forward network.
      mlp_dropout_rate: inside the feed-forward network; None: `dropout_rate`.
      kernel_init: of the feed-forward network, see `FeedForward`.
      layer_norm_epsilon: of both layer norms.
      dtype: of the computation; None follows the inputs.
      param_dtype: of the parameters.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import EncoderBlock, PositionalSelfAttention
      >>> block = EncoderBlock(PositionalSelfAttention(num_heads=2), mlp_dim=8, norm="pre")
      >>> outputs, variables = block.init_with_output(jax.random.key(0), jnp.ones((1, 3 * 4, 8)), (3, 4))
      >>> outputs.shape
      (1, 12, 8)
    """

    attention: PositionalSelfAttention | TokenMixing
    mlp_dim: int
    dropout_rate: float = 0.0
    norm: Literal["post", "pre"] = "post"
    activation: Callable = nn.relu
    mlp_dropout_rate: float | None = None
    kernel_init: Initializer | None = None
    layer_norm_epsilon: float = 1e-5
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32

    def __post_init__(self):
        check_sizes(self, "mlp_dim")
        check_rates(self, "dropout_rate", "mlp_dropout_rate")
        super().__post_init__()

    @nn.compact
    def __call__(
        self,
        inputs: GridFeatures,
        grid_shape: Shape | None = None,
        *,
        deterministic: bool = True,
        return_intermediates: bool = False,
        return_weights: bool = False,
        **fields: Any,
    ) -> GridFeatures | tuple[GridFeatures, dict[str, Any]]:
        """Arguments and results as `PositionalSelfAttention`."""
        if self.norm not in ("post", "pre"):
            raise ValueError(f'norm="{self.norm}": expected "post" or "pre"')
        dtypes = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        intermediates = {}

        def attend(x):
            wanted = {"return_intermediates": True, "return_weights": return_weights}
            x, found = self.attention(x, grid_shape, deterministic=deterministic, **wanted, **fields)
            intermediates.update(found)
            return x

        rate = self.dropout_rate if self.mlp_dropout_rate is None else self.mlp_dropout_rate
        mlp = FeedForward(self.mlp_dim, rate, self.activation, self.kernel_init, name="feed_forward", **dtypes)
        feed_forward = functools.partial(mlp, deterministic=deterministic)
        x = shared_out(inputs)
        for name, branch in (("attention", attend), ("feed_forward", feed_forward)):
            layer_norm = nn.LayerNorm(self.layer_norm_epsilon, name=f"{name}_norm", **dtypes)
            drop = functools.partial(Dropout(self.dropout_rate), deterministic=deterministic)
            x = layer_norm(x + drop(branch(x))) if self.norm == "post" else x + drop(branch(layer_norm(x)))
        outputs = shared_out(x)
        return (outputs, intermediates) if return_intermediates or return_weights else outputs


class SequenceBlock(Composite):
    """A block of an encoder, or with `cross` of a decoder, normalised first (Schmidt 2023; Vaswani 2017).

      x = x + drop(mixing(LN(x)));  x = x + drop(cross(LN(x), memory));  x = x + drop(feed_forward(LN(x)))

    Attributes:
      mixing: of the sequence with itself.
      mlp_dim: the hidden width of the feed-forward network.
      cross: of the sequence with another.
      dropout_rate: of the branches.
      mlp_dropout_rate: inside the feed-forward network.
      activation: of the feed-forward network.
      kernel_init: of the feed-forward network, whose biases are 0.
      layer_norm_epsilon: of the layer norms.
      dtype: of the computation; None follows the inputs.
      param_dtype: of the parameters.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import SequenceBlock, TokenMixing, between
      >>> block = SequenceBlock(TokenMixing(num_heads=2), mlp_dim=8)
      >>> words = jnp.ones((1, 5, 8))
      >>> (outputs, kept), variables = block.init_with_output(jax.random.key(0), words, between(5, 5, is_causal=True))
      >>> outputs.shape, kept["key"].shape
      ((1, 5, 8), (1, 5, 2, 4))
    """

    mixing: TokenMixing
    mlp_dim: int
    cross: TokenMixing | None = None
    dropout_rate: float = 0.0
    mlp_dropout_rate: float = 0.0
    activation: Callable = nn.relu
    kernel_init: Initializer = XAVIER
    layer_norm_epsilon: float = 1e-6
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32

    def __post_init__(self):
        check_sizes(self, "mlp_dim")
        check_rates(self, "dropout_rate", "mlp_dropout_rate")
        super().__post_init__()

    @nn.compact
    def __call__(
        self,
        inputs: Features,
        places: Places,
        *,
        before: Mapping[str, Array] | None = None,
        memory: Memory | None = None,
        memory_places: Places | None = None,
        deterministic: bool = True,
    ) -> tuple[Features, dict[str, Array]]:
        """One block.

        Args:
          inputs: [b t c].
          places: of the sequence with itself.
          before: what the block kept at earlier steps of decoding; None: the sequence is whole.
          memory, memory_places: of the other sequence, for `cross`. Its batch may be a divisor of b: each of its
            sequences is then met by b / batch of `inputs`, which follow each other.
          deterministic: whether dropout is off; otherwise an rng "dropout" is needed.

        Returns:
          The outputs [b t c], and what the mixing keeps of its keys.
        """
        dtypes: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        own = Memory()

        def mix(x):
            nonlocal own
            own = Memory(x) if before is None else Memory(x, before, places.step)
            return self.mixing.mix(x, own, places, deterministic=deterministic)[0]

        def cross(x):
            joined = x.reshape(memory.batch_size, -1, x.shape[-1])
            return self.cross.mix(joined, memory, memory_places, deterministic=deterministic)[0].reshape(x.shape)

        fields = dtypes | {"kernel_init": self.kernel_init, "name": "feed_forward"}
        mlp = FeedForward(self.mlp_dim, self.mlp_dropout_rate, self.activation, **fields)
        feed_forward = functools.partial(mlp, deterministic=deterministic)
        x = shared_out(inputs)
        branches = {"mixing": mix, "cross": cross, "feed_forward": feed_forward}
        for name, branch in branches.items():
            if name != "cross" or self.cross is not None:
                layer_norm = nn.LayerNorm(self.layer_norm_epsilon, name=f"{name}_norm", **dtypes)
                x = x + Dropout(self.dropout_rate)(branch(layer_norm(x)), deterministic=deterministic)
        return shared_out(x), own.kept
