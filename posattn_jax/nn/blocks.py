"""The blocks of a model: attention or mixing, and feed-forward, with residual connections."""

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
from posattn_jax.nn.layers import Dropout, linear
from posattn_jax.nn.mixing import TokenMixing
from posattn_jax.nn.places import Memory, Places
from posattn_jax.nn.sharding import shared_out
from posattn_jax.ops.initial import XAVIER


class FeedForward(nn.Module):
    """Linear(c, mlp_dim), dropout, activation, Linear(mlp_dim, c) (Alfons 2022, Figure 1).

    Attributes:
      mlp_dim: the hidden width.
      dropout_rate: the dropout rate of the hidden features, before the activation as in the paper's code.
      activation: the function between the two linear maps.
      kernel_init: the initialiser of both kernels, with biases of 0. None: U(+-1 / sqrt(fan_in)) for kernels and
        biases, as in the paper's code.
      dtype, param_dtype: the dtypes of the computation, where None follows the inputs, and of the parameters.

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
    """Attention and feed-forward with residual connections around both.

      norm = "post":  x = LN(x + drop(attention(x)));  x = LN(x + drop(feed_forward(x)))   (Alfons 2022)
      norm = "pre":   x = x + drop(attention(LN(x)));  x = x + drop(feed_forward(LN(x)))

    Attributes:
      attention: the attention layer.
      mlp_dim: the hidden width of the feed-forward network.
      dropout_rate: the dropout rate of both branches.
      norm: "post" or "pre".
      activation: the activation of the feed-forward network.
      mlp_dropout_rate: the dropout rate inside the feed-forward network; None: `dropout_rate`.
      kernel_init: the initialiser of the feed-forward network, see `FeedForward`.
      layer_norm_epsilon: the epsilon of both layer norms.
      dtype, param_dtype: the dtypes of the computation, where None follows the inputs, and of the parameters.

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
        """Arguments and results are those of `PositionalSelfAttention`."""
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
    """A pre-norm block of an encoder or, with `cross`, of a decoder (Schmidt 2023; Vaswani 2017).

      x = x + drop(mixing(LN(x)));  x = x + drop(cross(LN(x), memory));  x = x + drop(feed_forward(LN(x)))

    Attributes:
      mixing: mixes the sequence with itself.
      mlp_dim: the hidden width of the feed-forward network.
      cross: mixes another sequence into this one; None: there is no other.
      dropout_rate: the dropout rate of the branches.
      mlp_dropout_rate: the dropout rate inside the feed-forward network.
      activation: the activation of the feed-forward network.
      kernel_init: the initialiser of the feed-forward network's kernels; its biases are 0.
      layer_norm_epsilon: the epsilon of the layer norms.
      dtype, param_dtype: the dtypes of the computation, where None follows the inputs, and of the parameters.

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
        """Runs the block.

        Args:
          inputs: [b t c].
          places: the positions of the sequence, as queries and as keys.
          before: the keys and values that the block kept at earlier decoding steps; None: `inputs` is the whole
            sequence.
          memory, memory_places: the other sequence, and the positions of queries and keys, for `cross`. The memory's
            batch may be a divisor of b: each of its sequences then serves b / batch consecutive rows of `inputs`.
          deterministic: whether dropout is off; otherwise an rng "dropout" is needed.

        Returns:
          The outputs [b t c], and the keys and values that `mixing` keeps for the next decoding step.
        """
        dtypes: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        own = Memory()

        def mix(x):
            nonlocal own
            own = Memory(x) if before is None else Memory(x, before, places.step)
            return self.mixing.mix(x, own, places, deterministic=deterministic)[0]

        def cross(x):
            if self.cross is None or memory is None or memory_places is None:
                raise ValueError("memory, memory_places: expected both with cross")
            batch, rows = memory.batch_size, x.shape[0]
            each = 1 if batch == 0 else rows // batch
            joined = x.reshape(batch, each * x.shape[1], x.shape[-1])
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
